package mlxvfio_test

import (
	"context"
	"io"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio"
	"github.com/mlxvfio/mlxvfio/cmdif"
	"github.com/mlxvfio/mlxvfio/initseg"
	"github.com/mlxvfio/mlxvfio/sim"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// faultKind is a way in which a device, its transport or its host fails. It is
// raised just before a stage of the bring-up.
type faultKind struct {
	name string
	// raise makes it happen from now on.
	raise func(c *sim.Chip, f *vfio.Faulty) error
	// cancel ends the caller's context instead: before the stage, or that long
	// after it has begun.
	cancel bool
	after  time.Duration
	// stages restricts it; empty is every stage.
	stages []string
	// change adapts the driver's options.
	change func(*mlxvfio.Options)
	// want checks the error; nil allows no error at all.
	want func(t *testing.T, err error)
	// mayPass: at some stages the fault has nothing to bite any more, or the
	// driver can do without what failed.
	mayPass bool
	// remedy is what the message must advise.
	remedy string
	// gone: the device is beyond reach, so it cannot be made to forget the pages
	// before they are freed; a real one has no way to touch them either.
	gone bool
}

// fault raises a fault of the model.
func fault(name, arg string) func(*sim.Chip, *vfio.Faulty) error {
	return func(c *sim.Chip, _ *vfio.Faulty) error { return c.SetFault(name, arg) }
}

// verb makes calls of the transport fail.
func verb(x vfio.Fault) func(*sim.Chip, *vfio.Faulty) error {
	return func(_ *sim.Chip, f *vfio.Faulty) error { f.Add(x); return nil }
}

// as checks for an error type.
func as[E error](t *testing.T, err error) {
	t.Helper()
	var e E
	require.ErrorAs(t, err, &e)
}

func is(targets ...error) func(*testing.T, error) {
	return func(t *testing.T, err error) {
		t.Helper()
		for _, x := range targets {
			require.ErrorIs(t, err, x)
		}
	}
}

func checked(o *mlxvfio.Options) { o.VerifyChecksums = true }

// commandStages is where commands are sent.
var commandStages = []string{
	"enable-hca", "issi", "boot-pages", "dtor", "host-endianness", "query-caps", "set-caps", "init-pages", "init-hca",
	"driver-version", "query-caps-again", "query-adapter", "registers", "alloc-uar", "command-eq", "event-mode", "async-eq", "pages-eq", "ready",
}

// both raises two faults.
func both(a, b func(*sim.Chip, *vfio.Faulty) error) func(*sim.Chip, *vfio.Faulty) error {
	return func(c *sim.Chip, f *vfio.Faulty) error {
		if err := a(c, f); err != nil {
			return err
		}
		return b(c, f)
	}
}

// resetBehind resets the function behind the driver's back, at once or after a
// time, as an administrator does through sysfs.
func resetBehind(d time.Duration) func(*sim.Chip, *vfio.Faulty) error {
	return func(c *sim.Chip, _ *vfio.Faulty) error {
		if d == 0 {
			c.ResetFunction(0)
		} else {
			time.AfterFunc(d, func() { c.ResetFunction(0) })
		}
		return nil
	}
}

func onBAR0(c vfio.Call) bool { return c.Index == vfio.RegionBAR0 }

// reported: the error is one of the types a caller can tell apart.
func reported(t *testing.T, err error) {
	t.Helper()
	require.NotEmpty(t, errorNames.Describe(err))
}

var faultKinds = []faultKind{
	{name: "every command refused", raise: fault("status", "=BAD_SYS_STATE_ERR/0x1234"), stages: commandStages,
		want: as[*cmdif.CommandError], remedy: "syndrome 0x1234; the command does not belong to this stage"},
	{name: "one command refused", raise: fault("status", "#1=INT_ERR"), stages: commandStages, mayPass: true,
		want: as[*cmdif.CommandError], remedy: "read the health buffer"},
	{name: "busy for ever", raise: fault("status", "=NOT_READY"), stages: commandStages,
		want: as[*cmdif.CommandError], remedy: "wait and try again, or reset the function"},
	{name: "no resources", raise: fault("status", "MANAGE_PAGES=NO_RES_ERR"), stages: []string{"boot-pages", "init-pages"},
		want: as[*cmdif.CommandError], remedy: "give the device the pages it asks for"},
	{name: "message not delivered", raise: fault("delivery", "=IN_LENGTH_ERR"), stages: commandStages,
		want: as[*cmdif.DeliveryError], remedy: "a length the device does not take"},
	{name: "command never completes", raise: fault("lost", ""), stages: commandStages,
		want: as[*cmdif.TimeoutError], remedy: "read the health buffer and reset the function"},
	{name: "one command never completes", raise: fault("lost", "#1"), stages: commandStages,
		want: as[*cmdif.TimeoutError], remedy: "reset the function"},
	{name: "command completes too late", raise: fault("late", "=10s"), stages: commandStages,
		want: as[*cmdif.TimeoutError], remedy: "reset the function"},
	{name: "slow but in time", raise: fault("late", "=300ms"), stages: commandStages},
	{name: "completes twice", raise: fault("duplicate", ""), stages: commandStages},
	{name: "answer of another command", raise: fault("token", ""), stages: commandStages,
		want: is(cmdif.ErrNotOurs), remedy: "reset the function"},
	{name: "wrong signature", raise: fault("signature", ""), stages: commandStages, change: checked,
		want: is(cmdif.ErrSignature), remedy: "suspect memory corruption or firmware"},
	{name: "event never written", raise: fault("lost-event", ""), stages: []string{"command-eq", "event-mode"},
		want: as[*mlxvfio.InterruptError], remedy: "neither an event"},
	{name: "interrupt never raised", raise: fault("lost-irq", ""), stages: []string{"open", "vectors", "command-eq", "event-mode"},
		want: as[*mlxvfio.InterruptError], remedy: "interrupt remapping"},
	{name: "interrupt of the async EQ never raised", raise: fault("lost-irq", "1"), stages: []string{"open", "async-eq", "ready"},
		want: as[*mlxvfio.InterruptError], remedy: `MSI-X vector 1\) did not arrive, its event did; check interrupt remapping`},
	{name: "interrupt of the pages EQ never raised", raise: fault("lost-irq", "2"), stages: []string{"open", "pages-eq", "ready"},
		want: as[*mlxvfio.InterruptError], remedy: `MSI-X vector 2\) did not arrive, its event did; check interrupt remapping`},
	{name: "firmware never ready", raise: fault("init-never", ""), stages: []string{"open", "reset", "wait-firmware", "command-queue"},
		want: as[*initseg.NotReadyError], remedy: "reset the function, and if that does not help power-cycle"},
	{name: "wrong interface revision", raise: fault("cmdif-rev", "4"), stages: []string{"open", "reset", "bus-master", "wait-firmware", "command-queue"},
		want: as[*initseg.RevisionError], remedy: "update the firmware or the driver"},
	{name: "no common ISSI", raise: fault("issi", "4"), stages: []string{"open", "enable-hca", "issi"},
		want: as[*mlxvfio.ISSIError], remedy: "update the firmware or the driver"},
	{name: "firmware starves", raise: fault("page-starvation", "100"), stages: []string{"open", "query-caps", "init-pages", "init-hca"},
		want: as[*cmdif.CommandError], remedy: "INIT_HCA.*;"},
	{name: "the host has too few pages", stages: []string{"open"}, change: func(o *mlxvfio.Options) { o.PageLimit = 100 },
		want: is(vfio.ErrNoSpace), remedy: "raise Options.PageLimit"},
	{name: "reads all ones", raise: fault("all-ones", ""), gone: true, mayPass: true,
		want: is(vfio.ErrGone), remedy: "check (the slot|that the function is present)"},
	{name: "fatal error of firmware", raise: fault("fatal", ""), stages: commandStages,
		want: as[*initseg.FatalError], remedy: "FW_INTERNAL_ERR.*reset the function and open it again"},
	{name: "no DMA mapping", raise: verb(vfio.Fault{Verb: vfio.VerbMapDMA, Times: -1, Err: syscall.ENOMEM}),
		stages: []string{"open", "command-queue"}, want: is(syscall.ENOMEM), remedy: "map-dma"},
	{name: "no large DMA mapping", raise: verb(vfio.Fault{Verb: vfio.VerbMapDMA, Times: -1, Err: vfio.ErrNoSpace,
		Match: func(c vfio.Call) bool { return c.Len > 2<<20 }}), stages: []string{"open"}},
	{name: "unmap fails once", raise: verb(vfio.Fault{Verb: vfio.VerbUnmapDMA, Err: syscall.EINVAL}), stages: []string{"open"},
		want: is(syscall.EINVAL), mayPass: true},
	{name: "no interrupts", raise: verb(vfio.Fault{Verb: vfio.VerbSetIRQs, Times: -1, Err: syscall.EINVAL}),
		stages: []string{"open", "vectors"}, want: is(syscall.EINVAL), remedy: "set-irqs"},
	{name: "no descriptors", raise: verb(vfio.Fault{Verb: vfio.VerbNewVector, Nth: 2, Times: -1, Err: syscall.EMFILE}),
		stages: []string{"open", "vectors"}, want: is(syscall.EMFILE), remedy: "new-vector"},
	{name: "reset fails", raise: verb(vfio.Fault{Verb: vfio.VerbReset, Times: -1, Err: syscall.EIO}),
		stages: []string{"open", "reset"}, want: is(syscall.EIO), remedy: "reset"},
	{name: "configuration space unwritable", raise: verb(vfio.Fault{Verb: vfio.VerbWrite, Times: -1, Err: syscall.EIO,
		Match: func(c vfio.Call) bool { return c.Index == vfio.RegionConfig }}),
		stages: []string{"open", "bus-master"}, want: is(syscall.EIO), remedy: "write 2 bytes at 0x4"},
	{name: "configuration space short", raise: verb(vfio.Fault{Verb: vfio.VerbRead, Times: -1, Short: 1,
		Match: func(c vfio.Call) bool { return c.Index == vfio.RegionConfig }}),
		stages: []string{"open"}, want: is(io.ErrUnexpectedEOF), remedy: "read"},
	{name: "BAR0 unreadable", raise: verb(vfio.Fault{Verb: vfio.VerbRead, Times: -1, Err: syscall.EIO,
		Match: func(c vfio.Call) bool { return c.Index == vfio.RegionBAR0 }}),
		want: is(syscall.EIO), mayPass: true, remedy: "."},
	{name: "BAR0 unwritable", raise: verb(vfio.Fault{Verb: vfio.VerbWrite, Times: -1, Err: syscall.EIO,
		Match: func(c vfio.Call) bool { return c.Index == vfio.RegionBAR0 }}),
		want: is(syscall.EIO), mayPass: true, remedy: "."},
	// Between a command's doorbell and its completion: commands take 300 ms, and it
	// happens after 100.
	{name: "all ones between doorbell and completion", raise: both(fault("late", "=300ms"), fault("all-ones", "100ms")), stages: commandStages,
		gone: true, want: is(vfio.ErrGone), remedy: "check (the slot|that the function is present)"},
	{name: "fatal error between doorbell and completion", raise: both(fault("late", "=300ms"), fault("fatal", "now+after=100ms")), stages: commandStages,
		want: as[*initseg.FatalError], remedy: "reset the function and open it again"},
	{name: "reset behind the driver's back", raise: resetBehind(0), mayPass: true,
		want: reported, remedy: "."},
	{name: "reset between doorbell and completion", raise: both(fault("late", "=300ms"), resetBehind(100*time.Millisecond)), stages: commandStages,
		want: reported, remedy: "reset the function|check the slot"},
	{name: "unplugged", raise: func(_ *sim.Chip, f *vfio.Faulty) error { f.Unplug(); return nil }, gone: true, mayPass: true,
		want: is(vfio.ErrGone), remedy: "check (the slot|that the function is present)"},
	{name: "unplugged between doorbell and completion", raise: both(fault("late", "=300ms"), func(_ *sim.Chip, f *vfio.Faulty) error {
		time.AfterFunc(100*time.Millisecond, f.Unplug)
		return nil
	}), stages: commandStages, gone: true, want: is(vfio.ErrGone), remedy: "check (the slot|that the function is present)"},
	{name: "cancelled", cancel: true, want: is(context.Canceled), remedy: "open it again"},
	{name: "cancelled between doorbell and completion", cancel: true, after: 100 * time.Millisecond, raise: fault("late", "=300ms"), stages: commandStages,
		want: is(context.Canceled), remedy: "."},
	{name: "one read of BAR0 fails", raise: verb(vfio.Fault{Verb: vfio.VerbRead, Err: syscall.EIO, Match: onBAR0}),
		want: reported, mayPass: true, remedy: "."},
	{name: "one read of BAR0 is short", raise: verb(vfio.Fault{Verb: vfio.VerbRead, Short: 2, Match: onBAR0}),
		want: reported, mayPass: true, remedy: "."},
	{name: "one write of BAR0 fails", raise: verb(vfio.Fault{Verb: vfio.VerbWrite, Err: syscall.EIO, Match: onBAR0}),
		want: reported, mayPass: true, remedy: "."},
	{name: "one write of BAR0 is lost", raise: verb(vfio.Fault{Verb: vfio.VerbWrite, Drop: true, Match: onBAR0}),
		want: reported, mayPass: true, remedy: "."},
	{name: "the function cannot be queried", raise: verb(vfio.Fault{Verb: vfio.VerbInfo, Times: -1, Err: syscall.EIO}),
		stages: []string{"open"}, want: is(syscall.EIO), remedy: "info"},
	{name: "regions cannot be queried", raise: verb(vfio.Fault{Verb: vfio.VerbRegionInfo, Times: -1, Err: syscall.EIO}),
		stages: []string{"open"}, want: is(syscall.EIO), remedy: "region-info"},
	{name: "BAR0 cannot be mapped", raise: verb(vfio.Fault{Verb: vfio.VerbMapRegion, Times: -1, Err: syscall.EAGAIN}),
		stages: []string{"open"}, want: is(syscall.EAGAIN), remedy: "map-region"},
	{name: "interrupts cannot be queried", raise: verb(vfio.Fault{Verb: vfio.VerbIRQInfo, Times: -1, Err: syscall.EIO}),
		stages: []string{"open", "vectors"}, want: is(syscall.EIO), remedy: "irq-info"},
	{name: "the IOMMU cannot be queried", raise: verb(vfio.Fault{Verb: vfio.VerbLimits, Times: -1, Err: syscall.EIO}),
		stages: []string{"open"}, want: is(syscall.EIO), remedy: "dma-limits"},
	{name: "interrupts are not attached", raise: verb(vfio.Fault{Verb: vfio.VerbSetIRQs, Drop: true}),
		stages: []string{"open", "vectors"}, want: as[*mlxvfio.InterruptError], remedy: "interrupt remapping"},
	{name: "interrupts cannot be detached", raise: verb(vfio.Fault{Verb: vfio.VerbSetIRQs, Times: -1, Err: syscall.EIO,
		Match: func(c vfio.Call) bool { return c.Len == 0 }}), stages: []string{"vectors", "ready"}, want: is(syscall.EIO), mayPass: true, remedy: "set-irqs"},
	{name: "reset is lost", raise: verb(vfio.Fault{Verb: vfio.VerbReset, Times: -1, Drop: true}), stages: []string{"open", "reset"}},
	{name: "the transport fails to close", raise: verb(vfio.Fault{Verb: vfio.VerbClose, Err: syscall.EIO}), stages: []string{"open", "ready"},
		want: is(syscall.EIO), mayPass: true, remedy: "close"},
	{name: "the caller's own error", raise: func(*sim.Chip, *vfio.Faulty) error { return errPlanned },
		want: is(errPlanned), remedy: "bring-up stage"},
}
