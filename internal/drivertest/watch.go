package drivertest

import (
	"errors"
	"sync"

	"github.com/mlxvfio/mlxvfio/vfio"
)

// Watched is a Transport that keeps count of what was mapped and whether it was
// closed. It maps regions as the one beneath does.
type Watched struct {
	vfio.Transport
	dma *watchedMapper

	mu     sync.Mutex
	closes int
}

// Watch puts a count over t, which it owns.
func Watch(t vfio.Transport) *Watched {
	return &Watched{Transport: t, dma: &watchedMapper{Mapper: t.DMA(), live: map[uint64]uint64{}}}
}

// DMA is the Mapper, counted.
func (w *Watched) DMA() vfio.Mapper { return w.dma }

// Close closes the transport beneath.
func (w *Watched) Close() error {
	w.mu.Lock()
	w.closes++
	w.mu.Unlock()
	return w.Transport.Close()
}

// MapCalls is the number of successful Map calls.
func (w *Watched) MapCalls() int {
	w.dma.mu.Lock()
	defer w.dma.mu.Unlock()
	return w.dma.calls
}

// Check reports mappings that are left, and a transport that was not closed.
func (w *Watched) Check(r Reporter) {
	r.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.dma.mu.Lock()
	defer w.dma.mu.Unlock()
	if n := len(w.dma.live); n > 0 {
		r.Errorf("%d DMA mappings were left behind: %x", n, w.dma.live)
	}
	if w.closes == 0 {
		r.Errorf("the transport was not closed")
	}
}

type watchedMapper struct {
	vfio.Mapper
	mu    sync.Mutex
	live  map[uint64]uint64
	calls int
}

// Supply is that of the Mapper beneath, where no IOMMU guards the function.
func (m *watchedMapper) Supply(size int) (vfio.Backing, uint64, error) {
	p, ok := m.Mapper.(vfio.PhysicalMapper)
	if !ok {
		return nil, 0, &vfio.Error{Op: "allocate DMA memory", Err: vfio.ErrNotSupported}
	}
	return p.Supply(size)
}

func (m *watchedMapper) Map(x vfio.Mapping) error {
	if err := m.Mapper.Map(x); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.live[x.IOVA] = uint64(len(x.Bytes))
	m.calls++
	return nil
}

func (m *watchedMapper) Unmap(iova, size uint64) error {
	err := m.Mapper.Unmap(iova, size)
	if err == nil || errors.Is(err, vfio.ErrClosed) { // with a mapper that has gone, its mappings have gone
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.live, iova)
	}
	return err
}
