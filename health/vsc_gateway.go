package health

import (
	"context"
	"fmt"

	"github.com/mlxvfio/mlxvfio/vfio"
)

// Gateway is the VSC while it is held: one space is selected. It belongs to the
// function that With calls, on its goroutine.
type Gateway struct {
	v     *VSC
	space Space
	size  uint32 // bytes of the space; 0: the device does not say
}

// Space is the selected space.
func (g *Gateway) Space() Space { return g.space }

// Size is the size of the space in bytes; ok is false where the device does not
// say.
func (g *Gateway) Size() (n uint32, ok bool) { return g.size, g.size != 0 }

// Select changes to another space: the field is written, read back, and status 0
// means that the device refuses (Linux pci_vsc.c, mlx5_vsc_gw_set_space). After
// an error no space is selected.
func (g *Gateway) Select(s Space) error {
	g.space, g.size = s, 0
	fail := func(err error, detail, remedy string) error {
		return &VSCError{Op: fmt.Sprintf("select space %v", s), Err: err, Detail: detail, Remedy: remedy}
	}
	ctl, err := g.v.get(vscControl)
	if err != nil {
		return fail(err, "", "")
	}
	if err := g.v.put(vscControl, ctl&^0xffff|uint32(s)); err != nil {
		return fail(err, "", "")
	}
	if ctl, err = g.v.get(vscControl); err != nil {
		return fail(err, "", "")
	}
	switch {
	case ctl == ^uint32(0):
		return fail(vfio.ErrGone, "", "")
	case ctl>>29 == 0:
		return fail(ErrSpaceUnsupported, fmt.Sprintf("control reads %#x", ctl), "this device or its security settings do not allow it")
	case ctl&0xffff != uint32(s):
		return fail(ErrGatewayLost, fmt.Sprintf("control reads %#x", ctl), "another tool uses the gateway without its semaphore")
	}
	if ctl>>28&1 != 0 {
		n, err := g.v.get(vscAddress)
		if err != nil {
			return fail(err, "", "")
		}
		g.size = n & vscAddrMask
	}
	return nil
}

func (g *Gateway) fail(op string, addr uint32, err error, detail string) error {
	return &VSCError{Op: op, Space: g.space, Addr: addr, HasAt: true, Err: err, Detail: detail}
}

// check refuses addresses the space does not have.
func (g *Gateway) check(op string, addr uint32) error {
	switch {
	case addr%4 != 0 || addr > vscAddrMask:
		return g.fail(op, addr, vfio.ErrRange, "an address is a multiple of 4 below 2^30")
	case g.size != 0 && (addr >= g.size || g.size-addr < 4):
		return g.fail(op, addr, vfio.ErrRange, fmt.Sprintf("the space has %#x bytes", g.size))
	}
	return nil
}

// await polls until the flag reads as wanted and answers the address register.
func (g *Gateway) await(ctx context.Context, op string, addr uint32, flag bool) (uint32, error) {
	p := pauser{}
	defer p.stop()
	var x uint32
	for try := 1; try <= vscTries; try++ {
		var err error
		if x, err = g.v.get(vscAddress); err != nil {
			return 0, g.fail(op, addr, err, "")
		}
		if x == ^uint32(0) {
			return 0, g.fail(op, addr, vfio.ErrGone, "")
		}
		if x&vscFlag != 0 == flag {
			if x&vscSyndrome != 0 {
				return 0, g.refused(op, addr)
			}
			return x, nil
		}
		if try%vscSpin == 0 {
			if err := p.pause(ctx, vscPause); err != nil {
				return 0, g.fail(op, addr, fmt.Errorf("%w: %w", ErrGatewayTimeout, err), "")
			}
		}
	}
	return 0, g.fail(op, addr, ErrGatewayTimeout, fmt.Sprintf("address register reads %#x after %d tries", x, vscTries))
}

// refused shows the syndrome code of the control register (mstflint).
func (g *Gateway) refused(op string, addr uint32) error {
	ctl, err := g.v.get(vscControl)
	if err != nil {
		return g.fail(op, addr, ErrGatewayRefused, "")
	}
	return g.fail(op, addr, ErrGatewayRefused, fmt.Sprintf("syndrome code %d", ctl>>24&15))
}

// Read reads the dword at addr, a multiple of 4 inside the space.
func (g *Gateway) Read(ctx context.Context, addr uint32) (uint32, error) {
	x, _, err := g.read(ctx, addr)
	return x, err
}

// read also answers the address the device would read next.
func (g *Gateway) read(ctx context.Context, addr uint32) (x, next uint32, err error) {
	if err := g.check("read", addr); err != nil {
		return 0, 0, err
	}
	if err := g.v.put(vscAddress, addr); err != nil {
		return 0, 0, g.fail("read", addr, err, "")
	}
	if _, err = g.await(ctx, "read", addr, true); err != nil {
		return 0, 0, err
	}
	if x, err = g.v.get(vscData); err != nil {
		return 0, 0, g.fail("read", addr, err, "")
	}
	if next, err = g.v.get(vscAddress); err != nil {
		return 0, 0, g.fail("read", addr, err, "")
	}
	if next == ^uint32(0) {
		return 0, 0, g.fail("read", addr, vfio.ErrGone, "")
	}
	return x, next & vscAddrMask, nil
}

// Write writes the dword at addr, a multiple of 4 inside the space.
func (g *Gateway) Write(ctx context.Context, addr, x uint32) error {
	if err := g.check("write", addr); err != nil {
		return err
	}
	if err := g.v.put(vscData, x); err != nil {
		return g.fail("write", addr, err, "")
	}
	if err := g.v.put(vscAddress, addr|vscFlag); err != nil {
		return g.fail("write", addr, err, "")
	}
	_, err := g.await(ctx, "write", addr, false)
	return err
}

// Scan reads from address from up to, but not including, to, in the order the
// device gives: after each dword it names the next address, and what it jumps
// over cannot be read. An address that does not grow ends the scan with
// ErrGatewayRefused. f may stop it with an error.
func (g *Gateway) Scan(ctx context.Context, from uint32, to uint64, f func(addr, x uint32) error) error {
	if to <= uint64(from) {
		return nil
	}
	if to%4 != 0 || to > vscAddrMask+1 || g.size != 0 && to > uint64(g.size) {
		return g.fail("read block", from, vfio.ErrRange, fmt.Sprintf("up to %#x; the space has %#x bytes", to, g.size))
	}
	for at := from; uint64(at) < to; {
		if ctx.Err() != nil {
			return g.fail("read block", at, context.Cause(ctx), "")
		}
		x, next, err := g.read(ctx, at)
		if err != nil {
			return err
		}
		if err := f(at, x); err != nil {
			return err
		}
		if next <= at || next%4 != 0 {
			if uint64(at)+4 >= to {
				return nil // the last dword has no next one
			}
			return g.fail("read block", at, ErrGatewayRefused, fmt.Sprintf("the next address is %#x", next))
		}
		at = next
	}
	return nil
}
