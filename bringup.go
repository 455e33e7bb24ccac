package mlxvfio

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/mlxvfio/mlxvfio/cmdif"
	"github.com/mlxvfio/mlxvfio/initseg"
	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// Stages up to INIT_HCA. Each file of stages keeps the order of the table.

// errNoTransport refuses a transport that is nil.
var errNoTransport error = &vfio.Error{Op: "open", Err: errors.New("the transport is nil"),
	Remedy: "give it a transport that was opened without an error, as from vfio.Open"}

func (h *HCA) upOpen(context.Context) (note string, err error) {
	if err := CheckCapRequests(h.o.Capabilities); err != nil {
		return "", err
	}
	if h.t == nil {
		return "", errNoTransport
	}
	info, err := h.t.Info()
	if err != nil {
		return "", err
	}
	h.name = info.Name
	h.log = h.log.With("bdf", info.Name)
	if h.space = h.o.Space; h.space == nil {
		h.space, err = vfio.NewAddressSpace(h.t.DMA(), vfio.SpaceOptions{Memory: h.o.Memory, SlabMax: privateSlabMax})
		if err != nil {
			return "", err
		}
		h.private = true
	}
	if h.dev, err = vfio.NewDevice(h.t, vfio.DeviceOptions{Space: h.space, Logger: h.o.Logger}); err != nil {
		return "", errors.Join(err, h.closeSpace())
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, h.downOpen(context.Background(), false))
			h.dev = nil
		}
	}()
	if h.bar, err = h.dev.Window(vfio.RegionBAR0); err != nil {
		return "", err
	}
	if h.bar.Size() < minBAR {
		return "", &vfio.Error{Op: fmt.Sprintf("map BAR0 (%d bytes)", h.bar.Size()), Target: info.Name, Err: vfio.ErrRange,
			Remedy: "this is not a ConnectX function; check the address"}
	}
	h.seg = initseg.New(h.bar)
	var cfg [12]byte
	if err = h.dev.ReadConfig(0, cfg[:]); err != nil {
		return "", err
	}
	h.pci = pciID{Vendor: binary.LittleEndian.Uint16(cfg[0:]), Device: binary.LittleEndian.Uint16(cfg[2:]), Revision: cfg[8]}
	if h.pci.Vendor == 0xffff {
		return "", &vfio.Error{Op: "read the PCI id", Target: info.Name, Err: vfio.ErrGone, Remedy: "check the slot and the power state; rescan the bus"}
	}
	return fmt.Sprintf("%v over %s", h.pci, info.Backend), nil
}

// minBAR is the least a BAR0 with an initialization segment and a first doorbell
// page has.
const minBAR = 64 << 10

func (h *HCA) closeSpace() error {
	if !h.private {
		return nil
	}
	return h.space.Close()
}

// downOpen unmaps before it closes the transport: a mapping outlives neither a
// socket nor a container. What could not be unmapped then is gone with the
// transport, and its memory is freed after it. The device masters the bus no
// more, so memory that it might have known of is free too, unless it is loose.
func (h *HCA) downOpen(context.Context, bool) error {
	var unmap error
	if h.queues != nil {
		unmap = h.abandonQueues()
		if !h.loose {
			unmap = errors.Join(unmap, h.queues.ReleaseOrphans())
		}
	}
	unmap = errors.Join(unmap, h.closeSpace())
	err := h.dev.Close()
	if h.private && h.space.Stats().Mappings > 0 {
		err = errors.Join(err, h.space.Close())
	}
	return hostOnly(errors.Join(unmap, err))
}

// abandonQueues ends what the caller made with package queues and did not destroy,
// so that a late post or poll is refused instead of touching memory that is not
// there any more. The error is a *LeftError.
func (h *HCA) abandonQueues() error {
	left, err := h.queues.Abandon(!h.loose)
	if len(left) > 0 {
		err = errors.Join(&LeftError{left}, err)
	}
	return err
}

func (h *HCA) upReset(context.Context) (string, error) {
	switch {
	case h.o.SkipReset:
		return "skipped: not wanted", nil
	case !h.dev.Info().CanReset:
		h.log.Warn("this function cannot be reset: what an earlier owner left may be in the way", "op", "reset")
		return "skipped: the function cannot be reset", nil
	}
	return "", h.dev.Reset()
}

func (h *HCA) upBusMaster(context.Context) (string, error) { return "", h.dev.SetBusMaster(true) }

func (h *HCA) downBusMaster(context.Context, bool) error {
	err := h.dev.SetBusMaster(false)
	if errors.Is(err, vfio.ErrGone) {
		return nil // a function that reads all ones does no DMA
	}
	return hostOnly(err)
}

func (h *HCA) upWaitFirmware(ctx context.Context) (string, error) {
	if err := h.seg.WaitReady(ctx, initseg.PreInit, h.waitOptions()); err != nil {
		return "", err
	}
	if err := h.seg.CheckRevision(); err != nil {
		return "", err
	}
	h.firmware = h.seg.FirmwareVersion().String()
	return "firmware " + h.firmware, nil
}

func (h *HCA) waitOptions() initseg.WaitOptions {
	return initseg.WaitOptions{Limit: h.o.FirmwareTimeout, Warn: func(p initseg.Phase, waited, limit time.Duration, raw uint32) {
		h.log.Warn("still waiting for firmware", "op", "wait-firmware", "phase", p.String(), "waited", waited, "limit", limit, "raw", raw)
	}}
}

func (h *HCA) upCommandQueue(ctx context.Context) (string, error) {
	c, err := cmdif.Open(ctx, h.dev, h.seg, cmdif.Options{
		Timeout: h.o.CommandTimeout, MaxSlots: h.o.CommandSlots, VerifyOutputs: h.o.VerifyChecksums,
		PreInit: h.waitOptions(), Init: h.waitOptions(),
		Trace: h.o.Trace, OnLate: h.lateCommand, Logger: h.o.Logger,
	})
	if err != nil {
		return "", err
	}
	h.conn = c
	return fmt.Sprintf("%d slots, limit %v", c.Stats().Slots, c.Timeout()), nil
}

// downCommandQueue frees the command page and the mailboxes. The device knows
// their addresses, so it must be off the bus; a command that it never completed
// it may still work on, until the reset.
func (h *HCA) downCommandQueue(_ context.Context, live bool) error {
	var errs []error
	if n := h.quarantined(); live && n > 0 {
		cause := fmt.Errorf("%d commands were never completed", n)
		if errs = h.isolate(cause); h.parked {
			return errors.Join(append(errs, cause)...)
		}
	} else if live {
		if err := h.dev.SetBusMaster(false); err != nil && !errors.Is(err, vfio.ErrGone) {
			return err // what isolates the device, and comes back here
		}
	}
	if h.loose {
		return hostOnly(errors.Join(errs...))
	}
	err := h.conn.Close()
	if ue := (*cmdif.UnansweredError)(nil); errors.As(err, &ue) {
		// Their callers know, and the device is off the bus: nothing is wrong with
		// what was freed here.
		h.log.Warn("commands never completed", "op", "close", "error", ue)
		err = ue.Err
	}
	return hostOnly(errors.Join(append(errs, err)...))
}

func (h *HCA) upEnable(ctx context.Context) (string, error) { return "", h.conn.EnableHCA(ctx, self) }

// self is the function itself, towards firmware.
var self = Function{}

func (h *HCA) downEnable(ctx context.Context, live bool) error {
	if !live {
		return nil
	}
	return h.conn.DisableHCA(ctx, self)
}

// upISSI follows Linux' policy (fw.c, mlx5_core_set_issi): 1 where it is
// supported, else 0; firmware without the command speaks 0.
func (h *HCA) upISSI(ctx context.Context) (string, error) {
	issi, err := h.conn.QueryISSI(ctx)
	switch {
	case errors.Is(err, cmdif.Status(prm.StatusBadOp)):
		return "ISSI 0: firmware knows no other", nil
	case err != nil:
		return "", err
	case issi.Has(1):
		if err := h.conn.SetISSI(ctx, 1); err != nil {
			return "", err
		}
		h.issi = 1
	case issi.Supported != 0 && !issi.Has(0):
		return "", &ISSIError{Supported: issi.Supported}
	}
	return fmt.Sprintf("ISSI %d", h.issi), nil
}

// ISSIError says that the device speaks no dialect this driver knows.
type ISSIError struct{ Supported uint32 }

// Error shows the bitmap.
func (e *ISSIError) Error() string {
	return fmt.Sprintf("agree on an interface step sequence id: the device supports the set %#x, this driver 0 and 1; update the firmware or the driver", e.Supported)
}

func (h *HCA) upBootPages(ctx context.Context) (string, error) {
	h.ledger = newLedger(h.space, pageLimit(h.o.PageLimit))
	h.worker = newPageWorker(h.conn, h.ledger, h.log, func() time.Duration { return h.reclaimLimit })
	note, err := h.givePages(ctx, prm.QueryPagesBoot)
	if err == nil {
		return note, nil
	}
	// Firmware may hold some of the pages: what was begun is undone with the rest.
	h.done++
	return "", err
}

// givePages gives what firmware asks for at this point of the bring-up.
func (h *HCA) givePages(ctx context.Context, which prm.QueryPagesOpMod) (string, error) {
	n := 0
	err := h.worker.do(ctx, func() error {
		r, err := h.conn.QueryPages(ctx, which)
		if err != nil || r.Pages <= 0 {
			return err
		}
		n = r.Pages
		return h.worker.give(ctx, r.Function, r.Pages)
	})
	return fmt.Sprintf("%d pages", n), err
}

func (h *HCA) downBootPages(ctx context.Context, live bool) error {
	if live {
		if err := h.worker.do(ctx, func() error { return h.worker.reclaim(ctx) }); err != nil && !errors.Is(err, ErrClosed) {
			return err
		}
	}
	h.worker.stop(!live)
	if out := h.ledger.snapshot(); out.Outstanding > 0 {
		return hostOnly(&LedgerError{out})
	}
	return hostOnly(h.ledger.trim(0))
}

// upDTOR reads the device's own limits. Linux asks for them wherever the
// segment states limits; a device without the register is none the worse.
func (h *HCA) upDTOR(ctx context.Context) (string, error) {
	if !h.seg.TimeoutsSupported() {
		return "skipped: the device states no limits", nil
	}
	t, err := h.conn.QueryTimeouts(ctx)
	if err != nil {
		return optional(err)
	}
	h.reclaimLimit, h.teardownLimit, h.timeouts = t.ReclaimPages, t.Teardown, t
	return fmt.Sprintf("teardown %v, reclaim %v", h.teardownLimit, h.reclaimLimit), nil
}

// optional turns a refusal by firmware into a note: the stage is one the driver
// can do without. Anything else stays an error.
func optional(err error) (string, error) {
	var ce *cmdif.CommandError
	if errors.As(err, &ce) {
		return fmt.Sprintf("skipped: firmware answered %v", ce.Status), nil
	}
	return "", err
}

// upHostEndianness: byte 0 of the register is 0 on a little-endian host. Linux
// writes it on physical functions only.
func (h *HCA) upHostEndianness(ctx context.Context) (string, error) {
	if h.pci.virtual() {
		return "skipped: virtual function", nil
	}
	return "", h.conn.SetHostEndianness(ctx)
}

func (h *HCA) upInitPages(ctx context.Context) (string, error) {
	return h.givePages(ctx, prm.QueryPagesInit)
}
