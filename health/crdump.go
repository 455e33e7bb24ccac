package health

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/mlxvfio/mlxvfio/initseg"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// swResetSemaphore is the address in SpaceSemaphore that functions agree on
// before one of them resets the chip, or dumps it (Linux lib/pci_vsc.h,
// MLX5_SEMAPHORE_SW_RESET).
const swResetSemaphore = 0x20

// LockSWReset takes the software-reset semaphore: whoever holds it is the only
// function that may reset the chip. A locked gateway is waited for; an inner
// semaphore that another owner holds is ErrSemaphoreHeld at once. The gateway is
// free again on return. release gives the semaphore back; it has its own deadline,
// may be tried again after an error, does nothing once it has succeeded, and does
// not take from another owner what a reset gave away.
func (v *VSC) LockSWReset(ctx context.Context) (release func() error, err error) {
	var ticket uint32
	err = v.With(ctx, SpaceSemaphore, func(g *Gateway) error {
		ticket, err = g.lockSWReset(ctx)
		return err
	})
	if err != nil && ticket != 0 {
		// It was taken, but the gateway could not be given back properly.
		return nil, errors.Join(err, v.unlockSWReset(ticket))
	}
	if err != nil {
		return nil, err
	}
	released := false
	return func() error {
		if released {
			return nil
		}
		err := v.unlockSWReset(ticket)
		released = err == nil
		return err
	}, nil
}

// lockSWReset works in the selected semaphore space.
func (g *Gateway) lockSWReset(ctx context.Context) (ticket uint32, err error) {
	busy := func(holder uint32) error {
		return &VSCError{Op: "lock", Space: g.space, Addr: swResetSemaphore, HasAt: true, Err: ErrSemaphoreHeld,
			Detail: fmt.Sprintf("it reads %#x", holder), Remedy: "another function or tool resets or dumps the chip: wait for it"}
	}
	held, err := g.Read(ctx, swResetSemaphore)
	if err != nil {
		return 0, err
	}
	if held != 0 {
		return 0, busy(held)
	}
	for try := 0; ticket == 0; try++ {
		if ticket, err = g.v.get(vscCounter); err != nil {
			return 0, &VSCError{Op: "read the ticket counter", Err: err}
		}
		switch {
		case ticket == ^uint32(0):
			return 0, &VSCError{Op: "read the ticket counter", Err: vfio.ErrGone}
		case ticket == 0 && try == vscTries: // 0 means free
			return 0, &VSCError{Op: "read the ticket counter", Err: ErrGatewayTimeout, Detail: "it keeps reading 0"}
		}
	}
	if err := g.Write(ctx, swResetSemaphore, ticket); err != nil {
		return ticket, err // it may have arrived
	}
	if held, err = g.Read(ctx, swResetSemaphore); err != nil {
		return ticket, err
	}
	if held != ticket {
		return 0, busy(held)
	}
	return ticket, nil
}

// unlockLimit bounds how long giving a semaphore back may take.
const unlockLimit = 5 * time.Second

func (v *VSC) unlockSWReset(ticket uint32) error {
	ctx, cancel := context.WithTimeout(context.Background(), unlockLimit)
	defer cancel()
	return insist(func() error {
		return v.With(ctx, SpaceSemaphore, func(g *Gateway) error { return g.unlockSWReset(ctx, ticket) })
	})
}

func (g *Gateway) unlockSWReset(ctx context.Context, ticket uint32) error {
	held, err := g.Read(ctx, swResetSemaphore)
	if err != nil || held != ticket {
		return err // a reset freed it, and perhaps somebody has it by now
	}
	return g.Write(ctx, swResetSemaphore, 0)
}

// insist does f up to three times: a semaphore that stays held keeps every other
// function from resetting the chip.
func insist(f func() error) error {
	var errs []error
	for range 3 {
		err := f()
		if err == nil {
			return nil
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// CRDump is a copy of the device's configuration registers, as far as it lets
// them be scanned. Only the vendor can read it.
type CRDump struct {
	Taken time.Time `json:"taken"`
	// Size of the space in bytes; Words were read, in Spans of addresses without
	// holes.
	Size  uint32   `json:"size"`
	Words int      `json:"words"`
	Spans []CRSpan `json:"spans"`
}

// CRSpan is a run of dwords.
type CRSpan struct {
	Addr  uint32   `json:"addr"`
	Words []uint32 `json:"words"`
}

// CRDumpOptions tune DumpCR; the zero value is what Linux does.
type CRDumpOptions struct {
	// Limit ends the dump; 0 is 60 s, or what DTOR's full_crdump_to says if the
	// caller knows it.
	Limit time.Duration
	// MaxBytes refuses a larger space; 0 is 16 MiB.
	MaxBytes uint32
}

const defaultCRDumpMax = 16 << 20

// DumpCR reads SCAN_CRSPACE while it holds gateway and software-reset semaphore
// (Linux diag/crdump.c). It is all or nothing: after an error there is no dump,
// and both semaphores are free. Physical functions only.
func (v *VSC) DumpCR(ctx context.Context, o CRDumpOptions) (*CRDump, error) {
	if o.Limit <= 0 {
		o.Limit = initseg.DefaultFullCRDump
	}
	if o.MaxBytes == 0 {
		o.MaxBytes = defaultCRDumpMax
	}
	ctx, cancel := context.WithTimeoutCause(ctx, o.Limit, fmt.Errorf("the dump took longer than %v: %w", o.Limit, context.DeadlineExceeded))
	defer cancel()
	d := &CRDump{Taken: time.Now()}
	err := v.With(ctx, SpaceSemaphore, func(g *Gateway) (err error) {
		ticket, err := g.lockSWReset(ctx)
		if ticket != 0 {
			defer func() {
				// The scan may have used up ctx; the semaphore is given back all the same.
				undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), unlockLimit)
				defer cancel()
				err = errors.Join(err, insist(func() error {
					if err := g.Select(SpaceSemaphore); err != nil {
						return err
					}
					return g.unlockSWReset(undo, ticket)
				}))
			}()
		}
		if err != nil {
			return err
		}
		if err := g.Select(SpaceScanCR); err != nil {
			return err
		}
		size, ok := g.Size()
		if !ok {
			return &VSCError{Op: "dump", Space: SpaceScanCR, HasAt: true, Err: ErrSpaceUnsupported, Detail: "the device does not state a size"}
		}
		if size > o.MaxBytes {
			return &VSCError{Op: "dump", Space: SpaceScanCR, HasAt: true, Err: vfio.ErrRange, Detail: fmt.Sprintf("%d bytes, the limit is %d", size, o.MaxBytes)}
		}
		d.Size = size
		return g.Scan(ctx, 0, uint64(size&^3), d.add)
	})
	if err != nil {
		return nil, fmt.Errorf("dump of the configuration registers: %w", err)
	}
	return d, nil
}

func (d *CRDump) add(at, x uint32) error {
	d.Words++
	if n := len(d.Spans); n > 0 {
		if s := &d.Spans[n-1]; s.Addr+4*uint32(len(s.Words)) == at {
			s.Words = append(s.Words, x)
			return nil
		}
	}
	d.Spans = append(d.Spans, CRSpan{Addr: at, Words: []uint32{x}})
	return nil
}

// AppendBinary appends the dump as big-endian dwords: the size, then for each
// span its address, its number of dwords and the dwords.
func (d *CRDump) AppendBinary(b []byte) ([]byte, error) {
	b = binary.BigEndian.AppendUint32(b, d.Size)
	for _, s := range d.Spans {
		b = binary.BigEndian.AppendUint32(b, s.Addr)
		b = binary.BigEndian.AppendUint32(b, uint32(len(s.Words)))
		for _, w := range s.Words {
			b = binary.BigEndian.AppendUint32(b, w)
		}
	}
	return b, nil
}
