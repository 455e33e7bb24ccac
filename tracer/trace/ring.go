package trace

import "fmt"

// Ring is the image of a trace ring: whole blocks in increasing address, the
// writer having wrapped any number of times.
type Ring struct {
	image []byte
	tail  int // bytes after the last whole block
}

// TruncatedError says that a ring image ends inside a block.
type TruncatedError struct {
	At   int64 // offset of the piece
	Have int   // its bytes
}

func (e *TruncatedError) Error() string {
	return fmt.Sprintf("trace: the image ends inside a block: %d of %d bytes at offset %d; the blocks before it are whole", e.Have, BlockSize, e.At)
}

// NewRing takes an image, without copying it.
func NewRing(image []byte) *Ring {
	tail := len(image) % BlockSize
	return &Ring{image: image[:len(image)-tail], tail: tail}
}

// Blocks is the number of whole blocks.
func (r *Ring) Blocks() int { return len(r.image) / BlockSize }

// Err is a TruncatedError if the image has a piece of a block at its end.
func (r *Ring) Err() error {
	if r.tail == 0 {
		return nil
	}
	return &TruncatedError{At: int64(len(r.image)), Have: r.tail}
}

// Block returns block i, shared.
func (r *Ring) Block(i int) []byte { return r.image[i*BlockSize : (i+1)*BlockSize : (i+1)*BlockSize] }

// Oldest finds the block that the device wrote first: the first closed block whose
// time is before that of the closed block in front of it, in serial arithmetic
// modulo 2^53; block 0 if there is none. Closing times that are unreliable order
// blocks all the same.
func (r *Ring) Oldest() int {
	var prev uint64
	have := false
	for i := range r.Blocks() {
		t, closed := ClosedTime(r.Block(i))
		if !closed {
			continue
		}
		if have && Elapsed(t, prev) >= 1<<(TimeBits-1) {
			return i
		}
		prev, have = t, true
	}
	return 0
}

// StartError says that a start block is not in the image.
type StartError struct{ Start, Blocks int }

func (e *StartError) Error() string {
	return fmt.Sprintf("trace: start block %d: the image has %d blocks, 0 to %d", e.Start, e.Blocks, e.Blocks-1)
}

// Decode decodes every block of the ring once, in the order in which the device
// wrote them, and ends the trace. start is the first block, or −1 for Oldest. The
// blocks' numbers are their places in the image. After the last whole block it
// returns Err.
func (r *Ring) Decode(d *Decoder, start int, emit func(*Message)) error {
	n := r.Blocks()
	if start < -1 || start >= n && start > 0 {
		return &StartError{Start: start, Blocks: n}
	}
	if start < 0 {
		start = r.Oldest()
	}
	for i := range n {
		k := start + i
		if k >= n {
			k -= n
		}
		if err := d.Block(uint64(k), r.Block(k), emit); err != nil {
			return err
		}
	}
	d.Flush()
	return r.Err()
}
