package queues

import (
	"context"
	"fmt"

	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// PD is a protection domain: a queue pair reaches memory only through memory keys
// of its own domain. Its methods are safe for concurrent use.
type PD struct {
	dev    *Dev
	number uint32
	life   refs
}

// AllocPD asks firmware for a protection domain (opcode 0x800). The caller owns
// it until Free or Release.
func (d *Dev) AllocPD(ctx context.Context) (*PD, error) {
	in, out := make([]byte, prm.AllocPDInSize), make([]byte, prm.AllocPDOutSize)
	prm.AsAllocPDIn(in).SetOpcode(prm.OpAllocPD)
	if err := d.exec(ctx, "allocate a protection domain", in, out); err != nil {
		return nil, err
	}
	p := &PD{dev: d, number: prm.AsAllocPDOut(out).PD()}
	d.born(p)
	return p, nil
}

// Number is the number firmware knows it by, 24 bits.
func (p *PD) Number() uint32 { return p.number }

// Free gives the domain back to firmware (opcode 0x801). Memory keys and queue
// pairs in it must be destroyed before: ErrInUse. A second call answers
// vfio.ErrClosed.
func (p *PD) Free(ctx context.Context) error {
	op := fmt.Sprintf("free protection domain %#x", p.number)
	err := p.life.destroy(p.dev, op, func() error {
		in, out := make([]byte, prm.DeallocPDInSize), make([]byte, prm.DeallocPDOutSize)
		cmd := prm.AsDeallocPDIn(in)
		cmd.SetOpcode(prm.OpDeallocPD)
		cmd.SetPD(p.number)
		return p.dev.exec(ctx, op, in, out)
	})
	if err == nil {
		p.dev.died(p)
	}
	return err
}

// Release forgets the domain without telling firmware: only for a device that was
// reset, is disabled, or cannot reach memory any more. A second call does nothing.
func (p *PD) Release() { _, _ = p.abandon(true) }

// take counts a user of the domain, which must be of device d.
func (p *PD) take(d *Dev, op string) error {
	switch {
	case p == nil:
		return refuse(op, "PD", ErrMissing, "allocate one with AllocPD")
	case p.dev != d:
		return refuse(op, "PD", ErrForeign, "domain %#x is another device's; allocate one on this device", p.number)
	case !p.life.use():
		return refuse(op, "PD", vfio.ErrClosed, "domain %#x was freed", p.number)
	}
	return nil
}
