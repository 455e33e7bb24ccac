package sim

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/internal/absent"
	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// exchange is one command of a real ConnectX-4, as far as it was captured.
type exchange struct {
	seq     int
	op      prm.Opcode
	in, out []byte // inline part and captured mailboxes
	inLen   int
	outLen  int
	xor     byte // of the completed entry
}

func readGolden(t *testing.T) []exchange {
	t.Helper()
	files, err := filepath.Glob("../../shared/golden/*.jsonl")
	require.NoError(t, err)
	if len(files) == 0 {
		absent.Skip(t, "captured commands of a real ConnectX-4", "none in ../shared/golden")
	}
	fh, err := os.Open(files[0])
	require.NoError(t, err)
	defer fh.Close()
	var l []exchange
	sc := bufio.NewScanner(fh)
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		var x struct {
			Seq       int      `json:"seq"`
			Opcode    string   `json:"opcode"`
			Phase     string   `json:"phase"`
			Entry     string   `json:"entry"`
			Mailboxes []string `json:"mailboxes"`
		}
		require.NoError(t, json.Unmarshal(sc.Bytes(), &x))
		raw, err := hex.DecodeString(x.Entry)
		require.NoError(t, err)
		e := prm.AsCmdQueueEntry(raw)
		inline := e.CommandInputInlineData()
		if x.Phase == "output" {
			inline = e.CommandOutputInlineData()
		}
		msg := append([]byte(nil), inline...)
		for _, m := range x.Mailboxes {
			b, err := hex.DecodeString(m)
			require.NoError(t, err)
			msg = append(msg, prm.AsCmdIfBox(b).MailboxData()...)
		}
		if x.Phase == "input" {
			l = append(l, exchange{seq: x.Seq, op: prm.Opcode(binary.BigEndian.Uint16(msg)), in: msg,
				inLen: int(e.InputLength()), outLen: int(e.OutputLength())})
			continue
		}
		last := &l[len(l)-1]
		last.out = msg[:min(len(msg), last.outLen)]
		last.xor = xor(raw)
	}
	require.NoError(t, sc.Err())
	require.NotEmpty(t, l)
	return l
}

// TestGoldenReplay sends the model's ConnectX-4 what Linux sent a real one and
// compares every captured byte of every answer, and how the entry was signed.
// Only host addresses are replaced: the capture's memory is not here.
func TestGoldenReplay(t *testing.T) {
	all := readGolden(t)
	r := newRaw(t, Options{Profile: "cx4"})
	r.publish()
	compared := 0
	for _, x := range all {
		in := make([]byte, x.inLen)
		copy(in, x.in)
		switch x.op {
		case prm.OpManagePages:
			n := int(prm.AsManagePagesIn(in).InputNumEntries())
			first := r.alloc(n*4096, 4096)
			for i := range n {
				binary.BigEndian.PutUint64(in[16+i*8:], first+uint64(i)*4096)
			}
		case prm.OpCreateEQ:
			shift := 12 + int(prm.AsCreateEQIn(in).EQContextEntry().LogPageSize())
			binary.BigEndian.PutUint64(in[prm.CreateEQInSize:], r.alloc(1<<shift, 1<<shift))
		}
		d, out := r.send(in, x.outLen)
		require.Equal(t, prm.DeliveryOK, d, "seq %d %s", x.seq, x.op)
		require.Equal(t, x.out, out[:len(x.out)], "seq %d %s", x.seq, x.op)
		e := r.bytes(r.queue, 64)
		require.Equal(t, x.xor, xor(e), "seq %d %s: how the completion is signed", x.seq, x.op)
		compared += len(x.out)
	}
	require.Len(t, all, 42)
	require.Greater(t, compared, 12*0xe00, "the capability outputs are among it")
	require.Equal(t, "init", r.chip.State(0).Phase)
	require.Equal(t, 15, r.chip.State(0).EQs)
}

// TestGoldenCapabilities: maxima, power-on values and the values in force after
// Linux's SET_HCA_CAP are the real device's, in every captured byte.
func TestGoldenCapabilities(t *testing.T) {
	find := func(op prm.Opcode, opMod uint16, nth int) []byte {
		for _, x := range readGolden(t) {
			if x.op == op && binary.BigEndian.Uint16(x.in[6:]) == opMod {
				if nth--; nth == 0 {
					if op == prm.OpSetHCACap {
						return x.in
					}
					return x.out
				}
			}
		}
		require.FailNow(t, "not captured")
		return nil
	}
	r := newRaw(t, Options{Profile: "cx4"}).to(phaseISSI)
	query := func(opMod uint16) []byte { return r.ok(cmd(prm.OpQueryHCACap, opMod, 16), 0x1010) }
	most := find(prm.OpQueryHCACap, 0, 1)
	require.Equal(t, most, query(0)[:len(most)])
	cur := find(prm.OpQueryHCACap, 1, 1)
	require.NotEqual(t, most, cur)
	require.Equal(t, cur, query(1)[:len(cur)])

	in := make([]byte, 0x1010)
	copy(in, find(prm.OpSetHCACap, 0, 1))
	r.ok(in, 16)
	after := find(prm.OpQueryHCACap, 1, 2)
	require.NotEqual(t, cur, after)
	require.Equal(t, after, query(1)[:len(after)])
	require.Equal(t, most, query(0)[:len(most)], "maxima stay")
}
