package cmdif

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/internal/absent"
	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// captured is one half of a command of a real ConnectX-4 under Linux.
type captured struct {
	Seq       int
	Opcode    string
	Phase     string
	Entry     []byte
	Mailboxes [][]byte
}

func golden(t *testing.T) []captured {
	t.Helper()
	const path = "../../shared/golden/cx4-fw14.12.1220-bringup.jsonl"
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		absent.Skip(t, "captured commands of a real ConnectX-4", "none in ../shared/golden")
	}
	require.NoError(t, err)
	defer f.Close()
	var all []captured
	sc := bufio.NewScanner(f)
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		var l struct {
			Seq       int
			Opcode    string
			Phase     string
			Entry     string
			Mailboxes []string
		}
		require.NoError(t, json.Unmarshal(sc.Bytes(), &l))
		c := captured{Seq: l.Seq, Opcode: l.Opcode, Phase: l.Phase}
		c.Entry, err = hex.DecodeString(l.Entry)
		require.NoError(t, err)
		require.Len(t, c.Entry, 64)
		for _, m := range l.Mailboxes {
			b, err := hex.DecodeString(m)
			require.NoError(t, err)
			require.Len(t, b, 576)
			c.Mailboxes = append(c.Mailboxes, b)
		}
		all = append(all, c)
	}
	require.NoError(t, sc.Err())
	require.Len(t, all, 84)
	return all
}

// message is the input or output of a capture, as far as it was captured.
func (c captured) message() []byte {
	off, n := 0x10, int(binary.BigEndian.Uint32(c.Entry[4:]))
	if c.Phase == "output" {
		off, n = 0x20, int(binary.BigEndian.Uint32(c.Entry[0x38:]))
	}
	m := slices.Clone(c.Entry[off : off+16])
	for _, b := range c.Mailboxes {
		m = append(m, b[:512]...)
	}
	return m[:min(n, len(m))]
}

func (c captured) inLen() int  { return int(binary.BigEndian.Uint32(c.Entry[4:])) }
func (c captured) outLen() int { return int(binary.BigEndian.Uint32(c.Entry[0x38:])) }

// blankEntry takes out of an entry what differs by right: where the mailboxes
// lie (but not whether there are any), token and signature; blankMailbox does it
// for a mailbox.
func blankEntry(e []byte) []byte {
	e = slices.Clone(e)
	for _, off := range []int{8, 0x30} {
		p := e[off : off+8]
		if binary.BigEndian.Uint64(p) != 0 {
			binary.BigEndian.PutUint64(p, 0xabcd)
		}
	}
	clear(e[0x3c:0x3e])
	return e
}

func blankMailbox(m []byte) []byte {
	m = slices.Clone(m)
	if binary.BigEndian.Uint64(m[0x230:]) != 0 {
		binary.BigEndian.PutUint64(m[0x230:], 0xabcd)
	}
	clear(m[0x23d:0x240])
	return m
}

// What the engine builds for the captured inputs equals the captured bytes.
func TestGoldenInputs(t *testing.T) {
	all := golden(t)
	var sent TraceEvent
	b := open(t, Options{Trace: func(e TraceEvent) {
		if e.Output {
			return
		}
		sent = TraceEvent{Opcode: e.Opcode, Entry: slices.Clone(e.Entry)}
		for _, m := range e.Mailboxes {
			sent.Mailboxes = append(sent.Mailboxes, slices.Clone(m))
		}
	}})
	defer b.close()
	n, signing := 0, true
	for _, c := range all {
		if c.Phase == "output" {
			if signing { // until INIT_HCA the device signs: as if it still owned the entry
				require.Equal(t, byte(0xfe), xor8(c.Entry), "seq %d", c.Seq)
			}
			signing = signing && c.Opcode != "0x102"
			continue
		}
		require.Equal(t, byte(0xff), xor8(c.Entry), "seq %d", c.Seq)
		in := make([]byte, c.inLen())
		copy(in, c.message())
		require.NoError(t, b.conn.Exec(context.Background(), in, make([]byte, c.outLen())))
		require.Equal(t, hex.EncodeToString(blankEntry(c.Entry)), hex.EncodeToString(blankEntry(sent.Entry)), "seq %d", c.Seq)
		require.Len(t, sent.Mailboxes, boxes(len(in)), "seq %d", c.Seq)
		for i, m := range c.Mailboxes {
			require.True(t, bytes.Equal(blankMailbox(m), blankMailbox(sent.Mailboxes[i])), "seq %d mailbox %d", c.Seq, i)
		}
		n++
	}
	require.Equal(t, 42, n)
}

// The typed commands send what Linux sent, and read what the ConnectX-4
// answered, in the order of its bring-up.
func TestGoldenBringUp(t *testing.T) {
	all := golden(t)
	bySeq := map[int]captured{}
	for _, c := range all {
		bySeq[c.Seq] = c
	}
	b := open(t, Options{})
	defer b.close()
	seq := 0
	b.onCommand(func(c *call) {
		want, answer := bySeq[seq], bySeq[seq+1]
		if len(c.in) != want.inLen() || c.outLen != want.outLen() {
			t.Errorf("seq %d: %d bytes in, %d out; Linux %d and %d", seq, len(c.in), c.outLen, want.inLen(), want.outLen())
		}
		if !bytes.Equal(c.in[:16], want.Entry[0x10:0x20]) {
			t.Errorf("seq %d: sent % x, Linux % x", seq, c.in[:16], want.Entry[0x10:0x20])
		}
		c.reply(answer.message())
	})
	at := func(n int) context.Context { seq = n; return context.Background() }
	var self Function
	require.NoError(t, b.conn.EnableHCA(at(0), self))
	issi, err := b.conn.QueryISSI(at(2))
	require.NoError(t, err)
	require.Equal(t, ISSI{Current: 0, Supported: 2}, issi)
	require.True(t, issi.Has(1))
	require.False(t, issi.Has(0))
	require.NoError(t, b.conn.SetISSI(at(4), 1))
	p, err := b.conn.QueryPages(at(6), prm.QueryPagesBoot)
	require.NoError(t, err)
	require.Equal(t, PageRequest{Pages: 6}, p)
	given, err := b.conn.GivePages(at(8), p.Function, make([]uint64, 6))
	require.NoError(t, err)
	require.Equal(t, 6, given)
	require.NoError(t, b.conn.SetHostEndianness(at(10)))
	for n, mode := range map[int]CapMode{12: CapMaximum, 14: CapCurrent} {
		capability, err := b.conn.QueryHCACap(at(n), prm.CapGeneral, mode)
		require.NoError(t, err)
		require.Len(t, capability, CapSize)
		captured := bySeq[n+1].message()[16:]
		require.True(t, bytes.Equal(captured, capability[:len(captured)]), "every captured byte")
	}
	require.NoError(t, b.conn.SetHCACap(at(16), prm.CapGeneral, bySeq[16].message()[16:]))
	p, err = b.conn.QueryPages(at(18), prm.QueryPagesInit)
	require.NoError(t, err)
	require.Equal(t, PageRequest{Pages: 12868}, p)
	given, err = b.conn.GivePages(at(20), p.Function, make([]uint64, p.Pages))
	require.NoError(t, err)
	require.Equal(t, p.Pages, given)
	require.NoError(t, b.conn.InitHCA(at(22), nil))
	_, err = b.conn.QueryHCACap(at(32), prm.CapAtomic, CapCurrent)
	require.NoError(t, err)
	a, err := b.conn.QueryAdapter(at(44))
	require.NoError(t, err)
	require.Regexp(t, `^[A-Z0-9_]{8,16}$`, a.PSID)
	require.Len(t, a.VSD, 208)
}
