package atomics

import "fmt"

// WriteIsAtomic is the rule by which an RDMA WRITE to a QP with
// atomic_like_write_en is one atomic operation: it lies in one naturally aligned
// block of the largest atomic size of the responder's QP, (addr mod maxSize) + n ≤
// maxSize. maxSize is a power of two, 0 where no write is atomic. The rule comes
// from a public article alone (docs/sources.md); package litmus tells
// whether a device keeps it. A write of no bytes is trivially atomic.
func WriteIsAtomic(addr uint64, n, maxSize int) bool {
	if n == 0 {
		return true
	}
	return n > 0 && maxSize > 0 && addr&uint64(maxSize-1)+uint64(n) <= uint64(maxSize)
}

// CheckWrite is WriteIsAtomic with the reason: an error that wraps ErrNotAtomic
// and says whether the write is too large or where it crosses a boundary.
func CheckWrite(addr uint64, n, maxSize int) error {
	if WriteIsAtomic(addr, n, maxSize) {
		return nil
	}
	switch {
	case maxSize <= 0:
		return fmt.Errorf("write of %d bytes to 0x%x: %w: the responder's QP has no atomic writes; connect to one with atomic_like_write_en, or post it as a plain write", n, addr, ErrNotAtomic)
	case n < 0:
		return fmt.Errorf("write of %d bytes to 0x%x: %w: no such length", n, addr, ErrNotAtomic)
	case n > maxSize:
		return fmt.Errorf("write of %d bytes to 0x%x: %w: the responder's QP writes at most %d bytes at once; write less, or post it as a plain write", n, addr, ErrNotAtomic, maxSize)
	}
	edge := (addr | uint64(maxSize-1)) + 1
	return fmt.Errorf("write of %d bytes to 0x%x: %w: it crosses 0x%x, a multiple of %d; move the data to one side, or post it as a plain write", n, addr, ErrNotAtomic, edge, maxSize)
}
