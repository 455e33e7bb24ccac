package queues

import (
	"encoding/binary"
	"errors"
	"math/bits"

	"github.com/mlxvfio/mlxvfio/vfio"
)

// maxPageShift is log2 of the largest page a work queue is described with:
// slabs are aligned no better, so a larger one would bring nothing.
const maxPageShift = 21

// queueMemory is DMA memory of a queue: its ring and its doorbell record.
type queueMemory struct {
	ring, record *vfio.Buffer
}

// allocQueue gives memory for a ring of size bytes, page-aligned, and for its
// doorbell record.
func (d *Dev) allocQueue(name string, size int) (queueMemory, error) {
	size = max(size, 1<<adapterPageShift)
	align := min(1<<bits.Len(uint(size-1)), 1<<maxPageShift)
	ring, err := d.Space.Alloc(size, vfio.BufferOptions{Align: align, Name: name})
	if err != nil {
		return queueMemory{}, err
	}
	record, err := d.Space.Alloc(RecordSize, vfio.BufferOptions{Name: name + " doorbell record"})
	if err != nil {
		return queueMemory{}, errors.Join(err, ring.Free())
	}
	return queueMemory{ring, record}, nil
}

// free gives the memory back.
func (m *queueMemory) free() error { return errors.Join(m.ring.Free(), m.record.Free()) }

// pages describes the ring: the page size, and the addresses of its pages. It is
// contiguous on the bus and aligned as allocQueue says.
func (m *queueMemory) pages() (shift uint8, pas []uint64) {
	size := uint64(m.ring.Size())
	shift = min(uint8(bits.Len64(size-1)), maxPageShift)
	for at := uint64(0); at < size; at += 1 << shift {
		pas = append(pas, m.ring.IOVA()+at)
	}
	return shift, pas
}

// withPages is a command of size bytes with a page list behind it.
func withPages(size int, pas []uint64) []byte {
	in := make([]byte, size, size+8*len(pas))
	for _, pa := range pas {
		in = binary.BigEndian.AppendUint64(in, pa)
	}
	return in
}

// undo cleans up after a creation that failed with err: memory is freed if the
// device cannot know of it, and kept until the device was reset otherwise.
func (d *Dev) undo(err error, ms ...queueMemory) error {
	errs := []error{err}
	for _, m := range ms {
		if answered(err) {
			errs = append(errs, m.free())
			continue
		}
		d.orphan(m.ring)
		d.orphan(m.record)
	}
	return errors.Join(errs...)
}
