package sim

import (
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/vfio"
)

// The oracle knows bits only: a target of size bytes is a list of bits, for each
// the byte of memory and the bit in it, from the least significant bit of the
// first word on.

type bitPlace struct{ byteAt, bit int }

// places lists the bits of each word in the order of their significance.
func places(size int, o memOrder) (l []bitPlace) {
	w := min(size, 8)
	for base := 0; base < size; base += w {
		for i := range 8 * w {
			at := base + i/8
			if o == orderBig {
				at = base + w - 1 - i/8
			}
			l = append(l, bitPlace{at, i % 8})
		}
	}
	return l
}

// wireBit is bit i, counted as places does, of an operand in its big-endian form.
func wireBit(b []byte, size, i int) bool {
	w := min(size, 8)
	at := i/(8*w)*w + w - 1 - i%(8*w)/8
	return b[at]>>(i%8)&1 != 0
}

func memBit(m []byte, p bitPlace) bool { return m[p.byteAt]>>p.bit&1 != 0 }

func setMemBit(m []byte, p bitPlace, v bool) {
	m[p.byteAt] &^= 1 << p.bit
	if v {
		m[p.byteAt] |= 1 << p.bit
	}
}

// oracleCS is masked compare-and-swap, bit by bit: one comparison over all of it.
func oracleCS(m []byte, size int, o memOrder, swap, compare, swapMask, compareMask []byte) {
	l := places(size, o)
	for i, p := range l {
		if wireBit(compareMask, size, i) && wireBit(compare, size, i) != memBit(m, p) {
			return
		}
	}
	for i, p := range l {
		if wireBit(swapMask, size, i) {
			setMemBit(m, p, wireBit(swap, size, i))
		}
	}
}

// oracleFA is masked fetch-and-add: a full adder for each bit, whose carry goes to
// the next one of the same word unless the boundary has a one there.
func oracleFA(m []byte, size int, o memOrder, add, boundary []byte) {
	w := 8 * min(size, 8)
	carry := false
	for i, p := range places(size, o) {
		if i%w == 0 {
			carry = false
		}
		a, b := memBit(m, p), wireBit(add, size, i)
		setMemBit(m, p, a != b != carry)
		carry = (a && b || a && carry || b && carry) && !wireBit(boundary, size, i)
	}
}

// oracleReply is the old value in the big-endian form of an answer.
func oracleReply(m []byte, size int, o memOrder) []byte {
	out := make([]byte, size)
	w := min(size, 8)
	for i, p := range places(size, o) {
		if memBit(m, p) {
			out[i/(8*w)*w+w-1-i%(8*w)/8] |= 1 << (i % 8)
		}
	}
	return out
}

// TestAtomicUnit: every size, both operations and both orders of memory, against
// the oracle; operands of ones, zeros and single bits often.
func TestAtomicUnit(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	fill := func(n int) []byte {
		b := make([]byte, n)
		k := rng.IntN(4)
		for i := range b {
			switch k {
			case 0:
				b[i] = byte(rng.Uint32())
			case 1:
				b[i] = 0xff
			case 2:
				b[i] = 0xff * byte(rng.IntN(2))
			case 3:
				b[i] = byte(rng.Uint32() & rng.Uint32() & rng.Uint32())
			}
		}
		return b
	}
	const cases = 40000
	swapped := 0
	for range cases {
		size := 4 << min(rng.IntN(7), rng.IntN(7))
		order := memOrder(rng.IntN(2))
		cs, masked := rng.IntN(2) == 0, size != 8 || rng.IntN(4) > 0
		atom := uint8(0)
		var args [][]byte
		mem := fill(size)
		want := append([]byte(nil), mem...)
		reply := oracleReply(mem, size, order)
		ones, zeros := make([]byte, size), make([]byte, size)
		for i := range ones {
			ones[i] = 0xff
		}
		if masked {
			atom |= atomMasked
		}
		if cs {
			atom |= atomCS
			swap, compare, swapMask, compareMask := fill(size), fill(size), fill(size), fill(size)
			switch rng.IntN(3) {
			case 0:
				copy(compare, reply) // as in memory: it matches
			case 1:
				copy(compare, reply)
				compare[rng.IntN(size)] ^= 1 << rng.IntN(8) // but for one bit
			}
			args = [][]byte{swap, compare}
			if masked {
				args = append(args, swapMask, compareMask)
			} else {
				swapMask, compareMask = ones, ones
			}
			oracleCS(want, size, order, swap, compare, swapMask, compareMask)
		} else {
			add, boundary := fill(size), fill(size)
			args = [][]byte{add}
			if masked {
				args = append(args, boundary)
			} else {
				boundary = zeros
			}
			oracleFA(want, size, order, add, boundary)
		}
		var wire []byte
		for _, a := range args {
			wire = append(wire, a...)
		}
		require.Len(t, wire, atomicArgs(atom, size))
		var a atomicReq
		var old atomicWords
		a.setArgs(atom, size, wire)
		before := append([]byte(nil), mem...)
		a.run(vfio.MemOf(mem), order, &old)
		got := make([]byte, size)
		putWords(got, &old, size)
		if string(mem) != string(want) || string(got) != string(reply) {
			require.Fail(t, "not what the bits say", "size %d, atom %#x, order %d, memory %x, arguments %x:\n got %x, answer %x\nwant %x, answer %x",
				size, atom, order, before, wire, mem, got, want, reply)
		}
		if string(mem) != string(before) {
			swapped++
		}
	}
	require.Greater(t, swapped, cases/4, "the cases change memory often enough to mean something")
}

// TestAtomicAgainstHost: one word of 4 and 8 bytes is atomic against the host's
// processors: no increment of either side is lost.
func TestAtomicAgainstHost(t *testing.T) {
	for _, size := range []int{4, 8} {
		const n = 20000
		b := make([]byte, 8)
		m := vfio.MemOf(b)
		var wg sync.WaitGroup
		wg.Add(1)
		go func() {
			defer wg.Done()
			for range n {
				for size == 8 {
					if v := m.Load64(0); m.CompareAndSwap64(0, v, v+1<<32) {
						break
					}
				}
				for size == 4 {
					if v := m.Load32(0); m.CompareAndSwap32(0, v, v+1<<16) {
						break
					}
				}
			}
		}()
		var a atomicReq
		var old atomicWords
		args := make([]byte, 2*size)
		args[size-1] = 1
		a.setArgs(atomMasked, size, args)
		for range n {
			a.run(m.Slice(0, size), orderHost, &old)
		}
		wg.Wait()
		if size == 8 {
			require.Equal(t, uint64(n)<<32+n, m.Load64(0))
		} else {
			require.Equal(t, uint32(n)<<16+n, m.Load32(0))
		}
	}
}
