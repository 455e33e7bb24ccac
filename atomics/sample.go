package atomics

import "math/rand/v2"

// sample is an operation of this kind and size with operands that are zero, or
// random if there is a source.
func sample(k Kind, size int, addr uint64, rng *rand.Rand) Op {
	op := Op{Kind: k, Size: size, Addr: addr}
	compare, masks, boundary := k.uses()
	next := func(used bool) uint64 {
		if rng == nil || !used {
			return 0
		}
		return rng.Uint64() & fieldMask(size)
	}
	if size <= 8 {
		op.Compare, op.Value = next(compare), next(true)
		// An add of 8 bytes with a boundary would be another WQE than one without.
		plain := k == FetchAdd && size == 8
		op.CompareMask, op.SwapMask, op.Boundary = next(masks), next(masks), next(boundary && !plain)
		return op
	}
	words := func(used bool) []uint64 {
		if !used {
			return nil
		}
		ws := make([]uint64, size/8)
		for i := range ws {
			ws[i] = next(true)
		}
		return ws
	}
	op.Wide = &Wide{Compare: words(compare), Value: words(true), CompareMask: words(masks), SwapMask: words(masks), Boundary: words(boundary)}
	return op
}

// Random is a random operation of this kind and size on the variable at addr,
// whose bytes are now v: of the comparisons half match, a quarter miss by one
// bit, and the rest by chance. Equal sources give equal operations.
func Random(k Kind, size int, addr uint64, v []byte, order Order, rng *rand.Rand) Op {
	op := sample(k, size, addr, rng)
	if compare, _, _ := k.uses(); !compare {
		return op
	}
	how := rng.IntN(4)
	if how == 3 {
		return op
	}
	miss := -1
	if how == 2 {
		miss = rng.IntN(8 * size)
	}
	word := func(i int) uint64 {
		ws := wordSize(size)
		x := order.load(v[i*ws : (i+1)*ws])
		if miss >= 0 && miss/(8*ws) == i {
			x ^= 1 << (miss % (8 * ws))
		}
		return x
	}
	if size <= 8 {
		op.Compare = word(0)
		return op
	}
	for i := range op.Wide.Compare {
		op.Wide.Compare[i] = word(i)
	}
	return op
}
