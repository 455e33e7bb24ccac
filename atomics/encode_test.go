package atomics

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

func TestForms(t *testing.T) {
	for _, c := range []struct {
		op     Op
		opcode prm.WQEOpcode
		opmod  uint8
		args   int
	}{
		// Plain only for plain 8-byte forms (ruling A4).
		{Op{Kind: CompareSwap, Size: 8}, 0x11, 0, 16},
		{Op{Kind: FetchAdd, Size: 8}, 0x12, 0, 16},
		{Op{Kind: FetchAdd, Size: 8, Boundary: 1 << 31}, 0x15, 9, 16},
		{Op{Kind: Swap, Size: 8}, 0x14, 9, 32},
		{Op{Kind: And, Size: 8}, 0x14, 9, 32},
		{Op{Kind: Or, Size: 8}, 0x14, 9, 32},
		{Op{Kind: Xor, Size: 8}, 0x15, 9, 16},
		{Op{Kind: MaskedCompareSwap, Size: 8}, 0x14, 9, 32},
		{Op{Kind: MaskedFetchAdd, Size: 8}, 0x15, 9, 16},
		{Op{Kind: CompareSwap, Size: 4}, 0x14, 8, 16},
		{Op{Kind: FetchAdd, Size: 4}, 0x15, 8, 16},
		{Op{Kind: CompareSwap, Size: 1}, 0x14, 8, 16},
		{Op{Kind: FetchAdd, Size: 2}, 0x15, 8, 16},
		{sample(CompareSwap, 16, 0, nil), 0x14, 0xa, 64},
		{sample(FetchAdd, 16, 0, nil), 0x15, 0xa, 32},
		{sample(CompareSwap, 32, 0, nil), 0x14, 0xb, 128},
		{sample(CompareSwap, 128, 0, nil), 0x14, 0xd, 512},
		{sample(FetchAdd, 256, 0, nil), 0x15, 0xe, 512},
	} {
		var r Request
		require.NoError(t, c.op.Encode(&r, LittleEndian), "%v %d", c.op.Kind, c.op.Size)
		require.Equal(t, c.opcode, r.Opcode, "%v %d", c.op.Kind, c.op.Size)
		require.Equal(t, c.opmod, r.Opmod, "%v %d", c.op.Kind, c.op.Size)
		require.Equal(t, c.args, r.ArgsSize(), "%v %d", c.op.Kind, c.op.Size)
		require.Equal(t, max(4, c.op.Size), r.Size)
		require.True(t, r.Natural)
	}
}

// The operands stand in the WQE as UCX and the hardware probe have them, in
// big-endian words, and padded with zeros.
func TestPutArgs(t *testing.T) {
	garbage := func() []byte {
		b := make([]byte, 512)
		for i := range b {
			b[i] = 0xee
		}
		return b
	}
	var r Request
	args := func(op Op) []byte {
		require.NoError(t, op.Encode(&r, LittleEndian))
		b := garbage()
		return b[:r.PutArgs(b)]
	}
	// Masked C&S of 4 bytes: swap, compare, swap_mask, compare_mask.
	require.Equal(t, []byte{
		0x11, 0x12, 0x13, 0x14, 0x21, 0x22, 0x23, 0x24,
		0x31, 0x32, 0x33, 0x34, 0x41, 0x42, 0x43, 0x44,
	}, args(Op{Kind: MaskedCompareSwap, Size: 4, Value: 0x11121314, Compare: 0x21222324, SwapMask: 0x31323334, CompareMask: 0x41424344}))
	// Masked F&A of 4 bytes: add, field_boundary, eight bytes of zero.
	require.Equal(t, []byte{0x11, 0x12, 0x13, 0x14, 0x80, 0, 0, 0x80, 0, 0, 0, 0, 0, 0, 0, 0},
		args(Op{Kind: MaskedFetchAdd, Size: 4, Value: 0x11121314, Boundary: 0x80000080}))
	// Masked C&S of 8 bytes.
	b := args(Op{Kind: MaskedCompareSwap, Size: 8, Value: 1, Compare: 2, SwapMask: 3, CompareMask: 4})
	require.Len(t, b, 32)
	for i := range 4 {
		require.EqualValues(t, i+1, binary.BigEndian.Uint64(b[8*i:]))
	}
	// Plain C&S: swap, compare. Plain F&A: add, zero.
	require.Equal(t, []byte{0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 7}, args(Op{Kind: CompareSwap, Size: 8, Value: 9, Compare: 7}))
	require.Equal(t, []byte{0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0}, args(Op{Kind: FetchAdd, Size: 8, Value: 9}))
	// Masked C&S of 16 bytes: each operand is two words in the order of addresses.
	b = args(Op{Kind: MaskedCompareSwap, Size: 16, Wide: &Wide{
		Value: []uint64{0, 1}, Compare: []uint64{2, 3}, SwapMask: []uint64{4, 5}, CompareMask: []uint64{6, 7},
	}})
	require.Len(t, b, 64)
	for i := range 8 {
		require.EqualValues(t, i, binary.BigEndian.Uint64(b[8*i:]))
	}
	b = args(Op{Kind: MaskedFetchAdd, Size: 32, Wide: &Wide{Value: []uint64{0, 1, 2, 3}, Boundary: []uint64{4, 5, 6, 7}}})
	require.Len(t, b, 64)
	for i := range 8 {
		require.EqualValues(t, i, binary.BigEndian.Uint64(b[8*i:]))
	}
}

func TestRefusals(t *testing.T) {
	words := func(n int) []uint64 { return make([]uint64, n) }
	for _, c := range []struct {
		name  string
		op    Op
		order Order
		err   error
		says  string
	}{
		{"1 byte too large", Op{Kind: CompareSwap, Size: 1, Compare: 0x100}, 0, ErrOverflow, "compare 0x100"},
		{"swap too large", Op{Kind: CompareSwap, Size: 2, Value: 0x10000}, 0, ErrOverflow, "swap 0x10000"},
		{"add too large", Op{Kind: FetchAdd, Size: 1, Value: 256}, 0, ErrOverflow, "add 0x100"},
		{"and too large", Op{Kind: And, Size: 4, Value: 1 << 32}, 0, ErrOverflow, "value 0x100000000"},
		{"compare mask too large", Op{Kind: MaskedCompareSwap, Size: 2, CompareMask: 1 << 16}, 0, ErrOverflow, "compare_mask"},
		{"swap mask too large", Op{Kind: MaskedCompareSwap, Size: 2, SwapMask: 1 << 16}, 0, ErrOverflow, "swap_mask"},
		{"boundary too large", Op{Kind: MaskedFetchAdd, Size: 2, Boundary: 1 << 16}, 0, ErrOverflow, "field_boundary"},
		{"2 bytes at offset 3", Op{Kind: Swap, Size: 2, Addr: 0x1003}, 0, ErrCrosses, "0x1003"},
		{"4 bytes at offset 2", Op{Kind: Swap, Size: 4, Addr: 0x1002}, 0, ErrUnaligned, "align"},
		{"8 bytes at offset 4", Op{Kind: FetchAdd, Size: 8, Addr: 0x1004}, 0, ErrUnaligned, "align"},
		{"64 bytes at offset 32", Op{Kind: FetchAdd, Size: 64, Addr: 0x1020, Wide: &Wide{Value: words(8)}}, 0, ErrUnaligned, "align"},
		{"3 bytes", Op{Kind: Swap, Size: 3}, 0, ErrSize, "powers of two"},
		{"0 bytes", Op{Kind: Swap}, 0, ErrSize, "powers of two"},
		{"512 bytes", Op{Kind: FetchAdd, Size: 512}, 0, ErrSize, "powers of two"},
		{"C&S of 256 bytes", Op{Kind: CompareSwap, Size: 256}, 0, ErrSize, "largest is 128"},
		{"no such kind", Op{Kind: 99, Size: 4}, 0, ErrKind, "operation 99"},
		{"compare for a swap", Op{Kind: Swap, Size: 4, Compare: 1}, 0, ErrOperand, "compare"},
		{"mask for an add", Op{Kind: FetchAdd, Size: 4, SwapMask: 1}, 0, ErrOperand, "swap_mask"},
		{"boundary for a swap", Op{Kind: Or, Size: 4, Boundary: 1}, 0, ErrOperand, "field_boundary"},
		{"wide for 8 bytes", Op{Kind: Or, Size: 8, Wide: &Wide{}}, 0, ErrOperand, "numbers"},
		{"number for 16 bytes", Op{Kind: Or, Size: 16, Value: 1, Wide: &Wide{Value: words(2)}}, 0, ErrOperand, "lists"},
		{"no words", Op{Kind: Or, Size: 16}, 0, ErrOperand, "Wide"},
		{"too few words", Op{Kind: Or, Size: 32, Wide: &Wide{Value: words(3)}}, 0, ErrOperand, "needs 4"},
		{"boundary too short", Op{Kind: FetchAdd, Size: 32, Wide: &Wide{Value: words(4), Boundary: words(1)}}, 0, ErrOperand, "field_boundary"},
		{"unused words", Op{Kind: Or, Size: 16, Wide: &Wide{Value: words(2), Compare: words(2)}}, 0, ErrOperand, "compare"},
		{"unknown order", Op{Kind: Swap, Size: 1}, Unknown, ErrOrder, "probe"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := Request{Addr: 77}
			err := c.op.Encode(&r, c.order)
			require.ErrorIs(t, err, c.err)
			require.ErrorContains(t, err, c.says)
			var oe *OpError
			require.ErrorAs(t, err, &oe)
			require.NotEmpty(t, oe.Remedy)
			require.Equal(t, Request{Addr: 77}, r, "a refusal leaves the request alone")
			_, err = Apply(make([]byte, 8192), 0, &c.op, c.order)
			require.Error(t, err, "the oracle refuses it too")
		})
	}
}

// A 2-byte variable at offset 1 can be said, and is flagged (ruling A8).
func TestNotNaturallyAligned(t *testing.T) {
	var r Request
	op := Op{Kind: FetchAdd, Size: 2, Addr: 0x2001, Value: 5}
	require.NoError(t, op.Encode(&r, LittleEndian))
	require.False(t, r.Natural)
	require.False(t, op.NaturallyAligned())
	op.Addr = 0x2002
	require.NoError(t, op.Encode(&r, LittleEndian))
	require.True(t, r.Natural)
}

// Thousands of random operations of every kind, size and place: the word that is
// changed by the masks is changed as the operation means it, no other byte
// changes, and the extracted value is the old one, whatever the reply's order.
func TestRandomOperationsAgainstOracle(t *testing.T) {
	const base = 0x10000
	rng := rand.New(rand.NewPCG(1, 2))
	mem, reply := make([]byte, 1024), make([]byte, 256)
	var r Request
	stored, missed := 0, 0
	for i := range 60000 {
		k := Kind(rng.IntN(int(numKinds)))
		size := 1 << rng.IntN(9)
		if size > k.MaxSize() {
			continue
		}
		at := uint64(base + rng.IntN(512))
		switch {
		case size == 2 && at&3 == 3:
			at--
		case size > 2:
			at &^= uint64(size - 1)
		}
		order, replyOrder := Order(rng.IntN(2)), Order(rng.IntN(2))
		fill(rng, mem)
		op := Random(k, size, at, mem[at-base:][:size], order, rng)
		want := append([]byte(nil), mem...)
		res, err := Apply(want, base, &op, order)
		require.NoError(t, err)
		require.NoError(t, op.Encode(&r, order))
		off := r.Addr - base
		require.NoError(t, r.Execute(mem[off:off+uint64(r.Size)], order, reply, replyOrder))
		require.Equal(t, want, mem, "case %d: %v of %d bytes at %#x, %v", i, k, size, at, order)
		require.Equal(t, res.Stored, r.Matched(reply, replyOrder), "case %d: %v of %d bytes", i, k, size)
		if size <= 8 {
			require.Equal(t, res.Old, r.Extract(reply, replyOrder), "case %d: %v of %d bytes", i, k, size)
		} else {
			got := make([]uint64, size/8)
			r.ExtractWide(got, reply, replyOrder)
			require.Equal(t, res.OldWide, got, "case %d: %v of %d bytes", i, k, size)
		}
		if res.Stored {
			stored++
		} else {
			missed++
		}
	}
	require.Greater(t, stored, 1000)
	require.Greater(t, missed, 1000)
}

func fill(rng *rand.Rand, b []byte) {
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
}

// The oracle itself, on cases worked out by hand.
func TestApplyByHand(t *testing.T) {
	mem := []byte{0x10, 0x20, 0xff, 0x7f, 0x50, 0x60, 0x70, 0x80}
	run := func(op Op, order Order) (Result, []byte) {
		m := append([]byte(nil), mem...)
		op.Addr += 0x100
		res, err := Apply(m, 0x100, &op, order)
		require.NoError(t, err)
		return res, m
	}
	// 0x7fff + 2 in the two bytes at offset 2, little-endian: the carry ends there.
	res, m := run(Op{Kind: FetchAdd, Size: 2, Addr: 2, Value: 0x8001}, LittleEndian)
	require.EqualValues(t, 0x7fff, res.Old)
	require.Equal(t, []byte{0x10, 0x20, 0x00, 0x00, 0x50, 0x60, 0x70, 0x80}, m)
	// The same bytes as a big-endian number are 0xff7f.
	res, m = run(Op{Kind: FetchAdd, Size: 2, Addr: 2, Value: 0x0081}, BigEndian)
	require.EqualValues(t, 0xff7f, res.Old)
	require.Equal(t, []byte{0x10, 0x20, 0x00, 0x00, 0x50, 0x60, 0x70, 0x80}, m)
	// Two fields of a byte in one add.
	_, m = run(Op{Kind: MaskedFetchAdd, Size: 2, Addr: 2, Value: 0x8101, Boundary: 0x80}, LittleEndian)
	require.Equal(t, []byte{0x10, 0x20, 0x00, 0x00, 0x50, 0x60, 0x70, 0x80}, m)
	// A comparison of the low nibble only.
	res, m = run(Op{Kind: MaskedCompareSwap, Size: 1, Addr: 4, Compare: 0x00, CompareMask: 0x0f, Value: 0xff, SwapMask: 0x81}, LittleEndian)
	require.True(t, res.Stored)
	require.Equal(t, byte(0xd1), m[4])
	// One compare over 16 bytes, all or nothing (ruling A5).
	wide := append(append([]byte(nil), mem...), mem...)
	lo := LittleEndian.Load(mem)
	op := Op{Kind: CompareSwap, Size: 16, Wide: &Wide{Compare: []uint64{lo, lo + 1}, Value: []uint64{1, 2}}}
	res, err := Apply(wide, 0, &op, LittleEndian)
	require.NoError(t, err)
	require.False(t, res.Stored)
	require.Equal(t, append(append([]byte(nil), mem...), mem...), wide)
	// No carry from one word of 8 bytes to the next (ruling A6).
	ones := []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 5, 0, 0, 0, 0, 0, 0, 0}
	_, err = Apply(ones, 0, &Op{Kind: FetchAdd, Size: 16, Wide: &Wide{Value: []uint64{1, 0}}}, LittleEndian)
	require.NoError(t, err)
	require.Equal(t, []byte{0, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0}, ones)
	// Outside the memory given.
	_, err = Apply(mem, 0x100, &Op{Kind: Swap, Size: 8, Addr: 0x108}, LittleEndian)
	require.ErrorContains(t, err, "outside")
	_, err = Apply(mem, 0x100, &Op{Kind: Swap, Size: 8, Addr: 0xf8}, LittleEndian)
	require.ErrorContains(t, err, "outside")
}

// addFields against an adder of one bit after the other.
func TestAddFields(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for range 20000 {
		v, a, b := rng.Uint64(), rng.Uint64(), rng.Uint64()&rng.Uint64()
		op := Op{Kind: MaskedFetchAdd, Size: 8}
		want, _ := op.apply(v, wordOperands{value: a, boundary: b})
		require.Equal(t, want, addFields(v, a, b), "%#x + %#x, boundary %#x", v, a, b)
	}
}

func TestExecuteRefuses(t *testing.T) {
	var r Request
	op := Op{Kind: Swap, Size: 8}
	require.NoError(t, op.Encode(&r, LittleEndian))
	require.Error(t, r.Execute(make([]byte, 4), LittleEndian, make([]byte, 8), BigEndian))
	require.Error(t, r.Execute(make([]byte, 8), LittleEndian, make([]byte, 4), BigEndian))
	require.ErrorIs(t, r.Execute(make([]byte, 8), Unknown, make([]byte, 8), BigEndian), ErrOrder)
	require.ErrorIs(t, r.Execute(make([]byte, 8), BigEndian, make([]byte, 8), Unknown), ErrOrder)
}

// Encode, PutArgs, Extract and Execute allocate nothing.
func TestHotPathAllocatesNothing(t *testing.T) {
	var r Request
	args, reply, word := make([]byte, 512), make([]byte, 256), make([]byte, 256)
	old := make([]uint64, 32)
	small := Op{Kind: CompareSwap, Size: 1, Addr: 0x1003, Compare: 1, Value: 2}
	wide := sample(FetchAdd, 256, 0x1000, nil)
	var sum uint64
	require.Zero(t, testing.AllocsPerRun(100, func() {
		for _, op := range []*Op{&small, &wide} {
			if op.Encode(&r, LittleEndian) != nil {
				panic("refused")
			}
			r.PutArgs(args)
			_ = r.Execute(word[:r.Size], LittleEndian, reply, BigEndian)
			sum += r.Extract(reply, BigEndian)
			r.ExtractWide(old, reply, BigEndian)
			if r.Matched(reply, BigEndian) {
				sum++
			}
		}
	}))
}

func TestNames(t *testing.T) {
	for _, k := range Kinds() {
		got, err := ParseKind(k.String())
		require.NoError(t, err)
		require.Equal(t, k, got)
	}
	for short, want := range map[string]Kind{"cas": CompareSwap, "fa": FetchAdd, "mcas": MaskedCompareSwap, "mfa": MaskedFetchAdd} {
		got, err := ParseKind(short)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	_, err := ParseKind("increment")
	require.ErrorIs(t, err, ErrKind)
	var o struct {
		O Order
		K Kind
	}
	require.NoError(t, json.Unmarshal([]byte(`{"O":"big-endian","K":"xor"}`), &o))
	require.Equal(t, BigEndian, o.O)
	require.Equal(t, Xor, o.K)
	require.Error(t, json.Unmarshal([]byte(`{"O":"middle-endian"}`), &o))
	b, err := json.Marshal(o)
	require.NoError(t, err)
	require.JSONEq(t, `{"O":"big-endian","K":"xor"}`, string(b))
}

func TestReplyOrder(t *testing.T) {
	for _, s := range []int{4, 8, 16, 32, 64, 128, 256} {
		require.Equal(t, BigEndian, ReplyOrder(s, 0), s)
		want := BigEndian
		if s == 8 {
			want = HostOrder()
		}
		require.Equal(t, want, ReplyOrder(s, 1), s)
	}
}

func BenchmarkEncode(b *testing.B) {
	for _, op := range []Op{
		{Kind: CompareSwap, Size: 1, Addr: 3, Compare: 1, Value: 2},
		{Kind: FetchAdd, Size: 8, Value: 1},
		sample(CompareSwap, 16, 0, nil),
	} {
		b.Run(fmt.Sprintf("%v-%dB", op.Kind, op.Size), func(b *testing.B) {
			var r Request
			args := make([]byte, 512)
			b.ReportAllocs()
			for b.Loop() {
				if err := op.Encode(&r, LittleEndian); err != nil {
					b.Fatal(err)
				}
				r.PutArgs(args)
			}
		})
	}
}
