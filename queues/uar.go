package queues

import (
	"context"
	"errors"
	"fmt"

	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// Doorbell offsets inside a UAR page, in bytes (Linux eq.c, doorbell.h, driver.h).
const (
	// UARCQDoorbell takes the 8-byte arm doorbell of a CQ.
	UARCQDoorbell = 0x20
	// UAREQArm takes the 4-byte consumer index of an EQ and asks for one interrupt.
	UAREQArm = 0x40
	// UAREQUpdate takes the 4-byte consumer index of an EQ and nothing else.
	UAREQUpdate = 0x48
	// UARBlueFlame is where the first BlueFlame register begins.
	UARBlueFlame = 0x800
)

// adapterPageShift is log2 of the adapter's own page size, 4096 bytes, whatever
// the host's is.
const adapterPageShift = 12

// UARLayout is the rule that places a UAR index in BAR0 (Linux uar.c,
// uar2pfn). On a host with 4 KiB pages both settings give the
// same place.
type UARLayout struct {
	// PageShift is log2 of the host page size that SET_HCA_CAP announced
	// (12 + log_uar_page_sz).
	PageShift uint8
	// FourK is the capability uar_4k: indexes count 4 KiB pages. Without it
	// they count host pages.
	FourK bool
}

// Offset is the byte offset in BAR0 of the 4 KiB doorbell page with this index.
func (l UARLayout) Offset(index uint32) uint64 {
	shift := l.PageShift
	if l.FourK || shift < adapterPageShift {
		shift = adapterPageShift
	}
	return uint64(index) << shift
}

// UAR is a page of doorbells in BAR0, handed out by ALLOC_UAR. Its methods that
// ring are safe for concurrent use, since each is a single store.
type UAR struct {
	dev   *Dev
	index uint32
	off   uint64
	life  refs
}

// AllocUAR asks firmware for a doorbell page (opcode 0x802). The caller owns
// it until Free or Release.
func (d *Dev) AllocUAR(ctx context.Context) (*UAR, error) {
	in, out := make([]byte, prm.AllocUARInSize), make([]byte, prm.AllocUAROutSize)
	prm.AsAllocUARIn(in).SetOpcode(prm.OpAllocUAR)
	if err := d.exec(ctx, "allocate a doorbell page", in, out); err != nil {
		return nil, err
	}
	u := &UAR{dev: d, index: prm.AsAllocUAROut(out).UAR()}
	u.off = d.Layout.Offset(u.index)
	if u.off+1<<adapterPageShift > d.BAR.Size() {
		err := &vfio.Error{
			Op:     fmt.Sprintf("place UAR %#x at BAR0+%#x (BAR0 has %#x bytes)", u.index, u.off, d.BAR.Size()),
			Err:    vfio.ErrRange,
			Remedy: "firmware and driver disagree on the UAR page size; reset the function and try again",
		}
		return nil, errors.Join(err, u.Free(ctx))
	}
	d.born(u)
	return u, nil
}

// Index is the number firmware knows the page by.
func (u *UAR) Index() uint32 { return u.index }

// Offset is the byte offset of the page in BAR0.
func (u *UAR) Offset() uint64 { return u.off }

// Write32 stores one big-endian dword at byte off of the page.
func (u *UAR) Write32(off uint64, v uint32) { u.dev.BAR.WriteBE32(u.off+off, v) }

// Write64 stores one big-endian quadword at byte off of the page, in a single
// store where the transport can.
func (u *UAR) Write64(off, v uint64) { u.dev.BAR.WriteBE64(u.off+off, v) }

// check refuses a doorbell page that cannot be used for an object of d.
func (u *UAR) check(d *Dev, op string) error {
	switch {
	case u == nil:
		return refuse(op, "UAR", ErrMissing, "allocate one with AllocUAR")
	case u.dev != d:
		return refuse(op, "UAR", ErrForeign, "page %#x is another device's", u.index)
	case !u.life.alive():
		return refuse(op, "UAR", vfio.ErrClosed, "page %#x was freed", u.index)
	}
	return nil
}

// take is check, and counts a user of the page.
func (u *UAR) take(d *Dev, op string) error {
	if err := u.check(d, op); err != nil {
		return err
	}
	if !u.life.use() {
		return refuse(op, "UAR", vfio.ErrClosed, "page %#x is being freed", u.index)
	}
	return nil
}

// Free gives the page back to firmware (opcode 0x803). Event queues, CQs and queue
// pairs that ring in it must be destroyed before: ErrInUse. A second call answers
// vfio.ErrClosed.
func (u *UAR) Free(ctx context.Context) error {
	op := fmt.Sprintf("free UAR %#x", u.index)
	err := u.life.destroy(u.dev, op, func() error {
		in, out := make([]byte, prm.DeallocUARInSize), make([]byte, prm.DeallocUAROutSize)
		cmd := prm.AsDeallocUARIn(in)
		cmd.SetOpcode(prm.OpDeallocUAR)
		cmd.SetUAR(u.index)
		return u.dev.exec(ctx, op, in, out)
	})
	if err == nil {
		u.dev.died(u)
	}
	return err
}

// Release forgets the page without telling firmware: only for a device that was
// reset, is disabled, or cannot reach memory any more. A second call does nothing.
func (u *UAR) Release() { _, _ = u.abandon(true) }
