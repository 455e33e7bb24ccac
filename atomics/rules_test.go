package atomics

import (
	"encoding/json"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// payload is an atomic capability payload.
func payload(ops, sizes uint16) []byte {
	b := make([]byte, 0x1000)
	a := prm.AsAtomicCaps(b)
	a.SetAtomicOperations(ops)
	a.SetAtomicSizeQP(sizes)
	a.SetAtomicSizeDC(sizes)
	return b
}

func TestParseCaps(t *testing.T) {
	b := payload(0xf, 0x3c)
	prm.AsAtomicCaps(b).SetAtomicReq8BEndiannessMode(1)
	prm.AsAtomicCaps(b).SetSupportedAtomicReq8BEndiannessMode1(true)
	// The PCI fields stand at 0x280, 0x290 and 0x2a0 bits.
	copy(b[0x50:], []byte{0, 3, 0, 5, 0, 7})
	g := make([]byte, 0x1000)
	prm.AsCmdHCACap(g).SetAtomic(true)
	prm.AsCmdHCACap(g).SetLogMaxAtomicSizeQP(5)
	c, err := ParseCaps(b, g)
	require.NoError(t, err)
	require.Equal(t, Caps{
		Operations: 0xf, SizesQP: 0x3c, SizesDC: 0x3c, Mode: 1, ModeSelectable: true,
		PCIFetchAdd: 3, PCISwap: 5, PCICompareSwap: 7, LogMaxQP: 5,
	}, c)
	require.Equal(t, []int{4, 8, 16, 32}, c.Sizes())
	require.Equal(t, 32, c.MaxAtomicSize())

	// Without the general bit there are no atomics, whatever type 3 says.
	prm.AsCmdHCACap(g).SetAtomic(false)
	c, err = ParseCaps(b, g)
	require.NoError(t, err)
	require.Zero(t, c)
	// Type 3 alone is enough; nothing at all is no atomics.
	c, err = ParseCaps(b, nil)
	require.NoError(t, err)
	require.EqualValues(t, 0x3c, c.SizesQP)
	c, err = ParseCaps(nil, nil)
	require.NoError(t, err)
	require.Zero(t, c.MaxAtomicSize())
	_, err = ParseCaps(b[:10], nil)
	require.ErrorContains(t, err, "10 bytes")
	_, err = ParseCaps(b, b[:10])
	require.ErrorContains(t, err, "10 bytes")
}

// Linux' rule, value by value (mlx5_ib qp.c, get_atomic_mode).
func TestAtomicMode(t *testing.T) {
	for _, c := range []struct {
		ops, sizes uint16
		mode       prm.AtomicMode
		most       int
	}{
		{0xf, 0x3c, prm.AtomicModeUpTo32B, 32}, // a real ConnectX-4
		{0xf, 0x1fc, prm.AtomicModeUpTo256B, 256},
		{0xf, 0x1c, prm.AtomicModeUpTo16B, 16},
		{0xf, 0x7c, prm.AtomicModeUpTo64B, 64},
		{0xf, 0xfc, prm.AtomicModeUpTo128B, 128},
		{0xf, 0x0c, prm.AtomicModeUpTo8B, 8},
		{0xf, 0x04, prm.AtomicModeUpTo8B, 4},
		{0xc, 0x0c, prm.AtomicModeUpTo8B, 8},
		{0x4, 0x0c, prm.AtomicModeUpTo8B, 8},
		{0xf, 0xfe00 | 0x3c, prm.AtomicModeUpTo32B, 32}, // bits above 256 bytes mean nothing
		{0x3, 0x08, prm.AtomicModeIBSpec, 8},
		{0x3, 0x3c, prm.AtomicModeIBSpec, 8}, // no masked operation, no large argument
		{0xf, 0x00, prm.AtomicModeIBSpec, 8}, // masked operations without a size
		{0xc, 0x00, prm.AtomicModeNone, 0},
		{0x1, 0x08, prm.AtomicModeNone, 0},
		{0x0, 0x3c, prm.AtomicModeNone, 0},
	} {
		caps := Caps{Operations: c.ops, SizesQP: c.sizes}
		mode, err := caps.AtomicMode()
		require.Equal(t, c.mode, mode, "%+v", caps)
		require.Equal(t, c.most, caps.MaxAtomicSize(), "%+v", caps)
		if c.mode == prm.AtomicModeNone {
			require.ErrorIs(t, err, ErrNotOffered)
		} else {
			require.NoError(t, err)
			require.GreaterOrEqual(t, ModeSize(mode), c.most)
		}
	}
	sizes := []int{0, 8, 8, 8, 16, 32, 64, 128, 256, 0}
	for m, n := range sizes {
		require.Equal(t, n, ModeSize(prm.AtomicMode(m)), "mode %d", m)
	}
}

// An operation that is nil is refused like one that does not exist.
func TestNilOp(t *testing.T) {
	_, err := new(Profile).Encode(new(Request), nil)
	for _, err := range []error{err, (*Op)(nil).Check(), Caps{}.Check(nil), (*Op)(nil).Encode(new(Request), LittleEndian)} {
		var oe *OpError
		require.ErrorAs(t, err, &oe)
		require.ErrorIs(t, err, ErrKind)
		require.Equal(t, "it is nil; give an operation", oe.Remedy)
	}
}

func TestCapsCheck(t *testing.T) {
	cx4 := Caps{Operations: 0xf, SizesQP: 0x3c}
	old := Caps{Operations: 0x3, SizesQP: 0x8}
	for _, c := range []struct {
		caps Caps
		op   Op
		says string // empty: offered
	}{
		{cx4, Op{Kind: CompareSwap, Size: 1}, ""},
		{cx4, Op{Kind: FetchAdd, Size: 2, Addr: 1}, ""},
		{cx4, sample(FetchAdd, 32, 0, nil), ""},
		{cx4, sample(FetchAdd, 64, 0, nil), "lacks arguments of 64 bytes"},
		{old, Op{Kind: CompareSwap, Size: 8}, ""},
		{old, Op{Kind: FetchAdd, Size: 8}, ""},
		{old, Op{Kind: Swap, Size: 8}, "lacks EXT_CMP_SWAP"},
		{old, Op{Kind: FetchAdd, Size: 1}, "lacks EXT_FETCH_ADD"},
		{Caps{Operations: 0xc, SizesQP: 0x3c}, Op{Kind: FetchAdd, Size: 8}, "lacks FETCH_ADD"},
		{Caps{Operations: 0xc, SizesQP: 0x3c}, Op{Kind: CompareSwap, Size: 8}, "lacks CMP_SWAP"},
		{Caps{Operations: 0xf, SizesQP: 0x8}, Op{Kind: CompareSwap, Size: 1}, "lacks arguments of 4 bytes"},
	} {
		err := c.caps.Check(&c.op)
		if c.says == "" {
			require.NoError(t, err, "%v %d", c.op.Kind, c.op.Size)
			continue
		}
		require.ErrorIs(t, err, ErrNotOffered)
		require.ErrorContains(t, err, c.says)
	}
	require.ErrorIs(t, cx4.Check(&Op{Kind: Swap, Size: 4, Addr: 1}), ErrUnaligned)
	require.Equal(t, Caps{Operations: 0x3, SizesQP: 0x8, Mode: 1}, Caps{Operations: 0xf, SizesQP: 0x3c, Mode: 1}.And(old))
	require.Equal(t, "no atomics", Caps{}.String())
	require.Contains(t, cx4.String(), "4 8 16 32 bytes; max_atomic_size 32")
}

// The rule in both forms: as the facts write it, and as bytes that lie in one
// block.
func TestWriteRule(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	for range 20000 {
		most := 8 << rng.IntN(6)
		addr, n := rng.Uint64()>>rng.IntN(40), 1+rng.IntN(2*most)
		if addr > ^uint64(0)-uint64(n) {
			continue
		}
		oneBlock := addr/uint64(most) == (addr+uint64(n)-1)/uint64(most)
		require.Equal(t, oneBlock, WriteIsAtomic(addr, n, most), "%#x+%d, %d", addr, n, most)
		require.Equal(t, oneBlock, CheckWrite(addr, n, most) == nil)
	}
	require.True(t, WriteIsAtomic(0x1000, 256, 256))
	require.True(t, WriteIsAtomic(0x10ff, 1, 256))
	require.False(t, WriteIsAtomic(0x10ff, 2, 256))
	require.True(t, WriteIsAtomic(5, 0, 0))
	require.ErrorContains(t, CheckWrite(0x10ff, 2, 256), "crosses 0x1100")
	require.ErrorContains(t, CheckWrite(0x1000, 257, 256), "at most 256")
	require.ErrorContains(t, CheckWrite(0x1000, 1, 0), "no atomic writes")
	require.ErrorContains(t, CheckWrite(0x1001, 256, 256), "crosses 0x1100")
	for addr := uint64(0x1000); addr < 0x1010; addr++ {
		require.False(t, WriteIsAtomic(addr, -1, 8))
		require.ErrorIs(t, CheckWrite(addr, -1, 8), ErrNotAtomic)
	}
}

func TestPreflight(t *testing.T) {
	p := Caps{Operations: 0xf, SizesQP: 0x3c}.Preflight()
	require.NoError(t, p.Err())
	require.Equal(t, 32, p.MaxAtomicSize)
	require.Equal(t, "UP_TO_32B", p.AtomicMode)
	offered := map[string]bool{}
	for _, o := range p.Offers {
		if o.OK {
			offered[o.Kind.String()+" "+o.WQE] = true
		} else {
			require.NotEmpty(t, o.Reason)
		}
		require.Equal(t, o.Size <= 32, o.OK, "%v %d: %s", o.Kind, o.Size, o.Reason)
	}
	require.True(t, offered["xor ATOMIC_MASKED_FA opmod 0x9, 8 bytes"], "%v", offered)
	b, err := json.Marshal(p)
	require.NoError(t, err)
	require.Contains(t, string(b), `"max_atomic_size":32`)

	require.ErrorContains(t, Caps{}.Preflight().Err(), "atomics offered")
	require.ErrorContains(t, Caps{Operations: 0xf}.Preflight().Err(), "atomic_size_qp is empty")
	require.ErrorContains(t, Caps{Operations: 0xf, SizesQP: 0x3c, LogMaxQP: 8}.Preflight().Err(), "256 bytes")
	require.NoError(t, Caps{Operations: 0x3, SizesQP: 0x8}.Preflight().Err())
}

// The pre-flight's comparison notices masks that are wrong: a request encoded for
// the other order, and a boundary bit that is missing.
func TestMaskCheckNotices(t *testing.T) {
	for _, spoil := range []func(*Request){
		func(r *Request) { r.words[argBoundary] = 0 },
		func(r *Request) { r.words[argAdd] <<= 8; r.words[argBoundary] <<= 8 },
	} {
		caught := 0
		for v := range 256 {
			mem := []byte{byte(v), 1, 2, 3}
			want := append([]byte(nil), mem...)
			op := Op{Kind: FetchAdd, Size: 1, Value: 0x80}
			_, err := Apply(want, 0, &op, LittleEndian)
			require.NoError(t, err)
			var r Request
			require.NoError(t, op.Encode(&r, LittleEndian))
			spoil(&r)
			require.NoError(t, r.Execute(mem, LittleEndian, make([]byte, 4), BigEndian))
			if string(mem) != string(want) {
				caught++
			}
		}
		require.GreaterOrEqual(t, caught, 128)
	}
}
