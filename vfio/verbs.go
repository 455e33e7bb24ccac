package vfio

import "fmt"

// Verb names a call of Transport or Mapper, for decorators.
type Verb string

// The verbs of Transport and of its Mapper.
const (
	VerbInfo       Verb = "info"
	VerbRegionInfo Verb = "region-info"
	VerbRead       Verb = "read"
	VerbWrite      Verb = "write"
	VerbMapRegion  Verb = "map-region"
	VerbIRQInfo    Verb = "irq-info"
	VerbNewVector  Verb = "new-vector"
	VerbSetIRQs    Verb = "set-irqs"
	VerbReset      Verb = "reset"
	VerbClose      Verb = "close"
	VerbMapDMA     Verb = "map-dma"
	VerbUnmapDMA   Verb = "unmap-dma"
	VerbLimits     Verb = "dma-limits"
)

// Verbs lists all verbs.
func Verbs() []Verb {
	return []Verb{VerbInfo, VerbRegionInfo, VerbRead, VerbWrite, VerbMapRegion, VerbIRQInfo, VerbNewVector,
		VerbSetIRQs, VerbReset, VerbClose, VerbMapDMA, VerbUnmapDMA, VerbLimits}
}

// droppable tells that the verb answers nothing but success.
func (v Verb) droppable() bool {
	return v == VerbWrite || v == VerbSetIRQs || v == VerbReset || v == VerbHotReset || v == VerbMapDMA || v == VerbUnmapDMA
}

// Call is one call of a verb with its operands.
type Call struct {
	Verb  Verb
	Index int    // region or interrupt index
	Start int    // first interrupt of SetIRQs
	Off   uint64 // offset in the region, or IOVA
	Len   uint64 // bytes, or number of vectors
}

// around is called by a hooked transport for each verb: it calls do, or not, and
// answers for the verb. p is the data of a read, after do, or of a write, before.
type around func(c Call, p []byte, do func() error) error

// hooked is a Transport with something around every verb. Regions are never
// mapped through it, so that every access of a Window is seen.
type hooked struct {
	t      Transport
	dma    Mapper
	around around
}

func newHooked(t Transport, a around) *hooked {
	h := &hooked{t: t, around: a}
	h.dma = &hookedMapper{m: t.DMA(), around: a}
	return h
}

func (h *hooked) Info() (info DeviceInfo, err error) {
	err = h.around(Call{Verb: VerbInfo}, nil, func() error {
		info, err = h.t.Info()
		return err
	})
	if err != nil {
		return DeviceInfo{}, err
	}
	return info, nil
}

func (h *hooked) RegionInfo(index int) (info RegionInfo, err error) {
	err = h.around(Call{Verb: VerbRegionInfo, Index: index}, nil, func() error {
		info, err = h.t.RegionInfo(index)
		return err
	})
	if err != nil {
		return RegionInfo{}, err
	}
	info.Mappable = nil
	return info, nil
}

func (h *hooked) ReadRegion(index int, off uint64, p []byte) error {
	return h.around(Call{Verb: VerbRead, Index: index, Off: off, Len: uint64(len(p))}, p, func() error { return h.t.ReadRegion(index, off, p) })
}

func (h *hooked) WriteRegion(index int, off uint64, p []byte) error {
	return h.around(Call{Verb: VerbWrite, Index: index, Off: off, Len: uint64(len(p))}, p, func() error { return h.t.WriteRegion(index, off, p) })
}

func (h *hooked) MapRegion(index int) ([]Area, error) {
	return nil, h.around(Call{Verb: VerbMapRegion, Index: index}, nil, func() error {
		_, err := h.t.RegionInfo(index) // errors as MapRegion's, and maps nothing
		return err
	})
}

func (h *hooked) IRQInfo(index int) (info IRQInfo, err error) {
	err = h.around(Call{Verb: VerbIRQInfo, Index: index}, nil, func() error {
		info, err = h.t.IRQInfo(index)
		return err
	})
	if err != nil {
		return IRQInfo{}, err
	}
	return info, nil
}

func (h *hooked) NewVector() (v *Vector, err error) {
	err = h.around(Call{Verb: VerbNewVector}, nil, func() error {
		v, err = h.t.NewVector()
		return err
	})
	if err != nil {
		if v != nil { // made before the answer was changed
			_ = v.Close()
		}
		return nil, err
	}
	return v, nil
}

func (h *hooked) SetIRQs(index, start int, vectors []*Vector) error {
	return h.around(Call{Verb: VerbSetIRQs, Index: index, Start: start, Len: uint64(len(vectors))}, nil, func() error { return h.t.SetIRQs(index, start, vectors) })
}

func (h *hooked) DMA() Mapper { return h.dma }

func (h *hooked) Reset() error { return h.around(Call{Verb: VerbReset}, nil, h.t.Reset) }

func (h *hooked) Close() error { return h.around(Call{Verb: VerbClose}, nil, h.t.Close) }

type hookedMapper struct {
	m      Mapper
	around around
}

func (h *hookedMapper) Map(m Mapping) error {
	return h.around(Call{Verb: VerbMapDMA, Off: m.IOVA, Len: uint64(len(m.Bytes))}, nil, func() error { return h.m.Map(m) })
}

func (h *hookedMapper) Unmap(iova, size uint64) error {
	return h.around(Call{Verb: VerbUnmapDMA, Off: iova, Len: size}, nil, func() error { return h.m.Unmap(iova, size) })
}

func (h *hookedMapper) Limits() (l DMALimits, err error) {
	err = h.around(Call{Verb: VerbLimits}, nil, func() error {
		l, err = h.m.Limits()
		return err
	})
	if err != nil {
		return DMALimits{}, err
	}
	return l, nil
}

// Supply implements PhysicalMapper over what is beneath, if it does. It is no verb
// of the device: nothing is around it.
func (h *hookedMapper) Supply(size int) (Backing, uint64, error) { return supply(h.m, size) }

// supply asks a Mapper for memory.
func supply(m Mapper, size int) (Backing, uint64, error) {
	p, ok := m.(PhysicalMapper)
	if !ok {
		return nil, 0, &Error{Op: "allocate DMA memory", Err: fmt.Errorf("%w: this transport has no memory of its own", ErrNotSupported)}
	}
	return p.Supply(size)
}
