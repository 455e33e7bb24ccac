package prm

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/mlxvfio/mlxvfio/internal/absent"
	"github.com/stretchr/testify/require"
)

// exchange is one half of a command that a real ConnectX-4 and Linux exchanged.
type exchange struct {
	seq       int
	opcode    Opcode
	input     bool
	entry     []byte
	mailboxes [][]byte
}

// message joins the inline part and the mailboxes that were captured.
func (x exchange) message() []byte {
	e := AsCmdQueueEntry(x.entry)
	inline, length := e.CommandInputInlineData(), e.InputLength()
	if !x.input {
		inline, length = e.CommandOutputInlineData(), e.OutputLength()
	}
	msg := append([]byte(nil), inline...)
	for _, m := range x.mailboxes {
		msg = append(msg, AsCmdIfBox(m).MailboxData()...)
	}
	return msg[:min(int(length), len(msg))]
}

// golden reads the captures that lie beside the repository.
func golden(t *testing.T) []exchange {
	t.Helper()
	paths, err := filepath.Glob("../../../shared/golden/*.jsonl")
	require.NoError(t, err)
	if len(paths) == 0 {
		absent.Skip(t, "captured commands of a real ConnectX-4", "none in ../shared/golden")
	}
	unhex := func(s string) []byte {
		b, err := hex.DecodeString(s)
		require.NoError(t, err)
		return b
	}
	var out []exchange
	for _, path := range paths {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		sc := bufio.NewScanner(bytes.NewReader(text))
		sc.Buffer(nil, 1<<20)
		for sc.Scan() {
			var j struct {
				Seq       int      `json:"seq"`
				Opcode    string   `json:"opcode"`
				Phase     string   `json:"phase"`
				Entry     string   `json:"entry"`
				Mailboxes []string `json:"mailboxes"`
			}
			require.NoError(t, json.Unmarshal(sc.Bytes(), &j))
			op, err := strconv.ParseUint(j.Opcode, 0, 16)
			require.NoError(t, err)
			x := exchange{seq: j.Seq, opcode: Opcode(op), input: j.Phase == "input", entry: unhex(j.Entry)}
			for _, m := range j.Mailboxes {
				x.mailboxes = append(x.mailboxes, unhex(m))
			}
			out = append(out, x)
		}
		require.NoError(t, sc.Err())
	}
	require.NotEmpty(t, out)
	return out
}

// reencode decodes buf and encodes the result into zeroes; it returns the
// values that no field explains.
func reencode(t *testing.T, buf []byte, s *Struct, opts ...Option) (unknown Decoded) {
	t.Helper()
	d := Decode(buf, s, opts...)
	again := make([]byte, len(buf))
	require.NoError(t, d.Encode(again))
	require.Equal(t, buf, again, s.Name)
	for _, v := range d {
		if v.Reserved {
			unknown = append(unknown, v)
		}
	}
	return unknown
}

// TestGoldenInputs: entries, mailboxes and command structures decode into
// named fields and encode to the captured bytes, and the command table holds.
func TestGoldenInputs(t *testing.T) {
	inputs := 0
	for _, x := range golden(t) {
		require.Empty(t, reencode(t, x.entry, CmdQueueEntryStruct), "seq %d", x.seq)
		e := AsCmdQueueEntry(x.entry)
		require.EqualValues(t, 7, e.Type(), "PCIe transport")
		for i, m := range x.mailboxes {
			require.Empty(t, reencode(t, m, CmdIfBoxStruct), "seq %d mailbox %d", x.seq, i)
			box := AsCmdIfBox(m)
			require.EqualValues(t, i, box.BlockNumber(), "seq %d", x.seq)
			require.Equal(t, e.Token(), box.Token(), "seq %d", x.seq)
		}
		c := CommandByOpcode(x.opcode)
		require.NotNil(t, c)
		require.NotNil(t, c.In)
		require.GreaterOrEqual(t, int(e.InputLength()), c.MinIn, c.Name)
		require.GreaterOrEqual(t, int(e.OutputLength()), c.MinOut, c.Name)
		if !x.input {
			continue
		}
		inputs++
		msg := x.message()
		require.Equal(t, x.opcode, AsCmdIn(msg).Opcode())
		require.True(t, e.Ownership(), "seq %d is handed to the device", x.seq)
		copyByViews(t, c.In, msg)
		if x.opcode != OpSetHCACap {
			require.Empty(t, reencode(t, msg, c.In), "seq %d %s", x.seq, c.Name)
			continue
		}
		// Linux sends back the capabilities it read; each set bit has a name.
		kind := CapType(AsCmdIn(msg).OpMod() >> 1)
		require.Empty(t, reencode(t, msg, c.In, Select("capability", CapStruct(kind).Name)))
	}
	require.Equal(t, 42, inputs)
}

// TestGoldenSignatures: the XOR of an entry is 0xff as posted, and 0xfe when
// the device, which signs with ownership 1, hands it back with checksums on.
func TestGoldenSignatures(t *testing.T) {
	checksums := true // until the INIT_HCA after Linux switched them off
	for _, x := range golden(t) {
		var sum byte
		for _, b := range x.entry {
			sum ^= b
		}
		switch {
		case x.input:
			require.EqualValues(t, 0xff, sum, "seq %d", x.seq)
		case checksums:
			require.EqualValues(t, 0xfe, sum, "seq %d", x.seq)
			checksums = x.opcode != OpInitHCA
		}
	}
	require.False(t, checksums, "no INIT_HCA seen")
}

// capability is the captured output of the QUERY_HCA_CAP with this sequence
// number.
func capability(t *testing.T, xs []exchange, seq int) []byte {
	t.Helper()
	for _, x := range xs {
		if x.seq == seq {
			require.Equal(t, OpQueryHCACap, x.opcode)
			require.False(t, x.input)
			return x.message()[0x10:] // after status and syndrome
		}
	}
	require.Fail(t, "no such capture", "seq %d", seq)
	return nil
}

// TestGoldenCapabilities: what is known about the device from elsewhere.
func TestGoldenCapabilities(t *testing.T) {
	xs := golden(t)
	outputs, opMod := 0, map[int]uint16{}
	for _, x := range xs {
		if x.opcode != OpQueryHCACap {
			continue
		}
		if x.input {
			opMod[x.seq+1] = AsCmdIn(x.message()).OpMod()
			continue
		}
		outputs++
		msg := x.message()
		require.Equal(t, StatusOK, AsCmdOut(msg).Status())
		s := CapStruct(CapType(opMod[x.seq] >> 1))
		require.NotNil(t, s, "op_mod %#x", opMod[x.seq])
		reencode(t, msg, QueryHCACapOutStruct, Select("capability", s.Name))
		require.NotEmpty(t, Decode(msg[0x10:], s).NonZero(), s.Name)
	}
	require.Equal(t, 12, outputs)

	most, before, after := AsCmdHCACap(capability(t, xs, 13)), AsCmdHCACap(capability(t, xs, 15)), AsCmdHCACap(capability(t, xs, 25))
	require.EqualValues(t, 14, before.LogMaxQP(), "current at power-on")
	require.EqualValues(t, 17, after.LogMaxQP(), "current after Linux' SET_HCA_CAP")
	require.Equal(t, PortTypeEthernet, most.PortType())
	require.Equal(t, ChecksumEnabled, most.CmdifChecksum())
	require.Equal(t, ChecksumDisabled, before.CmdifChecksum())
	require.EqualValues(t, 23, most.LogMaxQP())
	require.EqualValues(t, 9, most.LogBfRegSize())
	require.True(t, most.Atomic())
	require.True(t, most.Roce())
	require.True(t, most.EthNetOffloads())
	require.EqualValues(t, 12, most.LogPgSz(), "4 KiB pages")
	for _, seq := range []int{33, 35} {
		atomic := AsAtomicCaps(capability(t, xs, seq))
		require.EqualValues(t, 0xf, atomic.AtomicOperations())
		require.EqualValues(t, 0x3c, atomic.AtomicSizeQP(), "4, 8, 16 and 32 bytes")
		require.False(t, atomic.SupportedAtomicReq8BEndiannessMode1())
	}
	require.EqualValues(t, 7, AsRoceCap(capability(t, xs, 37)).L3Type())
}

// TestGoldenFacts: numbers of the captured bring-up, read through views.
func TestGoldenFacts(t *testing.T) {
	firstEQ, firstUAR := true, true
	for _, x := range golden(t) {
		msg := x.message()
		switch {
		case x.seq == 7:
			require.EqualValues(t, 6, AsQueryPagesOut(msg).NumPages(), "boot pages")
		case x.seq == 19:
			require.EqualValues(t, 12868, AsQueryPagesOut(msg).NumPages(), "init pages")
		case x.seq == 20:
			in := AsManagePagesIn(msg)
			require.EqualValues(t, ManagePagesGive, in.OpMod())
			require.EqualValues(t, 12868, in.InputNumEntries())
			require.EqualValues(t, ManagePagesInPasOffset+8*12868, AsCmdQueueEntry(x.entry).InputLength())
			pas, err := ManagePagesInStruct.Get(msg, "pas[1]")
			require.NoError(t, err)
			require.NotZero(t, pas)
			require.Zero(t, pas%4096)
		case x.seq == 3:
			require.EqualValues(t, 2, AsQueryISSIOut(msg).SupportedISSIDw0(), "ISSI 1 alone")
		case x.seq == 4:
			require.EqualValues(t, 1, AsSetISSIIn(msg).CurrentISSI())
		case x.seq == 10:
			require.Equal(t, RegHostEndianness, AsAccessRegisterIn(msg).RegisterID())
		case x.opcode == OpCreateEQ && x.input && firstEQ:
			firstEQ = false
			eqc := AsCreateEQIn(msg).EQContextEntry()
			require.EqualValues(t, 8, eqc.LogEQSize())
			require.EqualValues(t, 2, eqc.LogPageSize())
			require.EqualValues(t, 1, eqc.Intr())
			require.EqualValues(t, 1<<EventCmd, AsCreateEQIn(msg).EventBitmask(0))
		case x.opcode == OpAllocUAR && !x.input && firstUAR:
			firstUAR = false
			require.EqualValues(t, 0x10, AsAllocUAROut(msg).UAR())
		case x.opcode == OpQueryAdapter && !x.input:
			psid := AsQueryAdapterOut(msg).QueryAdapterStruct().VsdContdPsid()
			require.Regexp(t, `^MT_2430110027\x00*$`, string(psid))
		}
	}
	require.False(t, firstEQ || firstUAR)
}
