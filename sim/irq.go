package sim

import (
	"fmt"

	"github.com/mlxvfio/mlxvfio/vfio"
)

// IRQInfo implements vfio.Transport: MSI-X, and the error and request
// interrupts of VFIO; no INTx and no MSI.
func (t *transport) IRQInfo(index int) (vfio.IRQInfo, error) {
	if err := t.begin("interrupt info"); err != nil {
		return vfio.IRQInfo{}, err
	}
	defer t.end()
	n, err := t.f.irqCount(index)
	return vfio.IRQInfo{Count: n, EventFD: n > 0}, err
}

func (f *function) irqCount(index int) (int, error) {
	switch {
	case index == vfio.IRQMSIX:
		return msixVectors, nil
	case index == vfio.IRQErr, index == vfio.IRQReq:
		return 1, nil
	case index >= 0 && index < vfio.NumIRQs:
		return 0, nil
	}
	return 0, f.badIndex("interrupt", index, vfio.NumIRQs)
}

// NewVector implements vfio.Transport.
func (t *transport) NewVector() (*vfio.Vector, error) {
	if err := t.begin("new vector"); err != nil {
		return nil, err
	}
	defer t.end()
	return vfio.NewChanVector(), nil
}

// SetIRQs implements vfio.Transport.
func (t *transport) SetIRQs(index, start int, vectors []*vfio.Vector) error {
	if err := t.begin("set interrupts"); err != nil {
		return err
	}
	defer t.end()
	f := t.f
	n, err := f.irqCount(index)
	if err != nil {
		return err
	}
	if start < 0 || start > n || len(vectors) > n-start {
		return &vfio.Error{Op: fmt.Sprintf("set interrupts %d+%d of index %d", start, len(vectors), index), Target: f.name,
			Err: vfio.ErrRange, Remedy: fmt.Sprintf("the index has %d vectors", n)}
	}
	table := f.vectors[:]
	if index != vfio.IRQMSIX {
		table = f.extra[index : index+1]
	}
	if n == 0 {
		return nil // nothing to attach or disable
	}
	if len(vectors) == 0 {
		clear(table)
		return nil
	}
	copy(table[start:], vectors)
	return nil
}

// interrupt raises an MSI-X vector. A vector that nobody attached loses the edge;
// the level rule of the next arm brings it back.
func (f *function) interrupt(vector int) {
	if vector >= msixVectors || f.vectors[vector] == nil || f.chip.faults.loseInterrupt(vector) {
		f.count.InterruptsLost++
		return
	}
	f.count.Interrupts++
	f.vectors[vector].Signal()
}
