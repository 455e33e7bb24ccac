package mlxvfio_test

import (
	"context"
	"errors"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio"
	"github.com/mlxvfio/mlxvfio/cmdif"
	"github.com/mlxvfio/mlxvfio/internal/drivertest"
	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/queues"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// Tests of callers who run out of time, of devices that cannot be cut off, and
// of memory that a device may still know of.

// A bring-up that ends between two batches of pages books what was sent and
// nothing else: the undo gets every page back.
func TestCancelBetweenBatches(t *testing.T) {
	for _, deadline := range []bool{false, true} {
		inBubble(t, func(t *testing.T) {
			c := chip(t, "sim:cx4")
			ctx, cancel := context.WithCancel(t.Context())
			if deadline {
				ctx, cancel = context.WithTimeout(t.Context(), time.Second)
			}
			defer cancel()
			sent := 0
			start := time.Now()
			_, err := mlxvfio.Open(ctx, c.Function(0), mlxvfio.Options{Trace: func(e cmdif.TraceEvent) {
				if e.Opcode != prm.OpManagePages {
					return
				}
				if sent++; sent != 4 { // boot pages, and the first batch for INIT_HCA
					return
				}
				if deadline {
					time.Sleep(time.Second)
				}
				cancel()
			}})
			var se *mlxvfio.StageError
			require.ErrorAs(t, err, &se)
			require.Equal(t, "init-pages", se.Stage)
			require.Empty(t, se.Undo, "%v", err)
			require.Regexp(t, "not sent|before it was sent", err.Error())
			require.Equal(t, se.Ledger.Given, se.Ledger.Returned)
			require.Positive(t, se.Ledger.Given)
			require.LessOrEqual(t, time.Since(start), 2*time.Second)
			drivertest.Balanced(t, se.Ledger)
			spotless(c, 0)(t)
		})
	}
}

// Firmware that asks for more than the host can give is refused at once, and
// nothing is allocated for it.
func TestHugePageRequest(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h, c := opened(t, "sim:cx5", mlxvfio.Options{})
		before := h.Stats().DMA
		require.True(t, c.RequestPages(0, 1<<29))
		sleep(1)
		require.Equal(t, 1, h.Ledger().Refused)
		require.Zero(t, c.State(0).PagesWanted, "firmware was told")
		require.Equal(t, before.MappedBytes, h.Stats().DMA.MappedBytes)
		closed(t, h, c)
	})
}

// Close returns when its ctx is over, whatever the page worker is at.
func TestCloseDuringHugeRequest(t *testing.T) {
	c := chip(t, "sim:cx5")
	h, err := mlxvfio.Open(t.Context(), c.Function(0), mlxvfio.Options{PageLimit: -1})
	require.NoError(t, err)
	require.True(t, c.RequestPages(0, 1<<29))
	for h.Ledger().Requests == 0 {
		time.Sleep(time.Millisecond)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	start := time.Now()
	err = h.Close(ctx)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "wait for the page worker")
	require.Less(t, time.Since(start), 2*time.Second)
	drivertest.Balanced(t, h.Ledger())
	spotless(c, 0)(t)
}

// A bring-up whose ctx is over is undone within the device's own limit for a
// teardown, and the error names the command that did not come back.
func TestUndoIsShort(t *testing.T) {
	for name, fault := range map[string][2]string{
		"a command of the teardown is lost": {"lost", "DESTROY_EQ"},
		"a page command is lost":            {"lost", "MANAGE_PAGES"},
		"firmware is slow":                  {"late", "=1s"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				c := chip(t, "sim:cx5")
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
				defer cancel()
				start := time.Now()
				_, err := mlxvfio.Open(ctx, c.Function(0), mlxvfio.Options{BeforeStage: func(stage string) error {
					if stage != "ready" {
						return nil
					}
					require.NoError(t, c.SetFault(fault[0], fault[1]))
					if fault[1] == "MANAGE_PAGES" {
						require.True(t, c.RequestPages(0, 64))
					}
					<-ctx.Done()
					return nil
				}})
				var se *mlxvfio.StageError
				require.ErrorAs(t, err, &se)
				require.ErrorIs(t, se.Err, context.DeadlineExceeded)
				require.NotEmpty(t, se.Undo)
				require.Less(t, time.Since(start), 6*time.Second, "%v", err)
				if fault[0] == "lost" {
					require.ErrorContains(t, errors.Join(se.Undo...), fault[1]+"(0x")
				}
				drivertest.Balanced(t, se.Ledger)
				spotless(c, 0)(t)
			})
		})
	}
}

// A second Close waits for the first one, or for its own ctx.
func TestCloseBesideClose(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h, c := opened(t, "sim:cx5", mlxvfio.Options{CommandTimeout: 10 * time.Second})
		require.NoError(t, c.SetFault("late", "TEARDOWN_HCA=5s"))
		first := make(chan error, 1)
		go func() { first <- h.Close(context.Background()) }()
		sleep(1)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		err := h.Close(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, "wait for the close that is going on")
		require.Equal(t, time.Second, time.Since(start))
		require.NoError(t, h.Close(t.Context()))
		require.InDelta(t, 4, time.Since(start).Seconds(), 0.1, "the first one took 5 s")
		require.NoError(t, <-first)
		spotless(c, 0)(t)
	})
}

// restless is a function whose reset restores the command register with bus
// mastering on, as a kernel does that saved it before, and whose BAR memory and
// registers the test looks at.
type restless struct{ vfio.Transport }

func (r restless) Reset() error {
	if err := r.Transport.Reset(); err != nil {
		return err
	}
	return r.WriteRegion(vfio.RegionConfig, 4, []byte{6, 0})
}

func (r restless) busMaster(t *testing.T) bool {
	t.Helper()
	var b [2]byte
	require.NoError(t, r.ReadRegion(vfio.RegionConfig, 4, b[:]))
	return b[0]&4 != 0
}

// Memory the device knows is freed only when it is off the bus: before the
// command queue's in an orderly close, and after a reset in any case.
func TestOffTheBusBeforeMemoryIsFreed(t *testing.T) {
	for _, cut := range []bool{false, true} {
		c := chip(t, "sim:cx5")
		r := restless{c.Function(0)}
		on := map[string]bool{}
		h, err := mlxvfio.Open(t.Context(), r, mlxvfio.Options{OnStage: func(e mlxvfio.StageEvent) {
			if e.Undo && e.Stage != "open" {
				on[e.Stage] = r.busMaster(t)
			}
		}})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		if cut {
			cancel()
		}
		err = h.Close(ctx)
		cancel()
		require.Equal(t, cut, err != nil, "%v", err)
		require.False(t, on["command-queue"], "%v", on)
		require.Equal(t, !cut, on["pages-eq"], "the driver must master the bus while it is asked: %v", on)
		spotless(c, 0)(t)
	}
}

// stubborn is a function that cannot be reset and, once it is told so, ignores
// that bus mastering is switched off.
type stubborn struct {
	vfio.Transport
	deaf *atomic.Bool
}

func (s stubborn) Info() (vfio.DeviceInfo, error) {
	i, err := s.Transport.Info()
	i.CanReset = false
	return i, err
}

func (s stubborn) WriteRegion(i int, off uint64, p []byte) error {
	if i == vfio.RegionConfig && s.deaf.Load() {
		return syscall.EIO
	}
	return s.Transport.WriteRegion(i, off, p)
}

// A device that cannot be cut off keeps the memory it may reach, if others share
// the address space; in a space of its own unmapping is enough.
func TestLooseDevice(t *testing.T) {
	for _, shared := range []bool{true, false} {
		c := chip(t, "sim:cx5")
		tr := stubborn{c.Function(0), new(atomic.Bool)}
		var o mlxvfio.Options
		if shared {
			space, err := vfio.NewAddressSpace(tr.DMA(), vfio.SpaceOptions{})
			require.NoError(t, err)
			o.Space = space
		}
		h, err := mlxvfio.Open(t.Context(), tr, o)
		require.NoError(t, err)
		_, err = h.OpenData(t.Context(), mlxvfio.DataOptions{Name: "path"})
		require.NoError(t, err)
		pages := h.Ledger().Outstanding
		tr.deaf.Store(true)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		err = h.Close(ctx)
		var ce *mlxvfio.CloseError
		require.ErrorAs(t, err, &ce)
		require.ErrorIs(t, err, syscall.EIO)
		require.False(t, ce.Reset)
		require.Equal(t, shared, ce.Loose)
		if !shared {
			drivertest.Balanced(t, h.Ledger())
			held(c, 0)(t)
			continue
		}
		require.Equal(t, pages, ce.Ledger.Outstanding, "the claim stands")
		require.ErrorContains(t, err, "may still reach the memory it was given")
		names := o.Space.Close().Error()
		for _, n := range []string{"firmware pages", "command queue", "command mailboxes", "command EQ", "async EQ", "pages EQ", "path"} {
			require.Contains(t, names, n)
		}
	}
}

// The ring of an event queue whose creation has no answer stays: firmware may
// have created it, and writes it.
func TestUnansweredEQKeepsItsRing(t *testing.T) {
	for _, fault := range []string{"lost", "late"} {
		inBubble(t, func(t *testing.T) {
			c := chip(t, "sim:cx5")
			tr := c.Function(0)
			space, err := vfio.NewAddressSpace(tr.DMA(), vfio.SpaceOptions{})
			require.NoError(t, err)
			h, err := mlxvfio.Open(t.Context(), tr, mlxvfio.Options{Space: space})
			require.NoError(t, err)
			u, err := h.Queues().AllocUAR(t.Context())
			require.NoError(t, err)
			before := space.Stats()
			arg := "CREATE_EQ"
			if fault == "late" {
				arg += "=3s"
			}
			require.NoError(t, c.SetFault(fault, arg))
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err = h.Queues().CreateEQ(ctx, queues.EQOptions{Name: "orphan", LogSize: 10, UAR: u, Mask: queues.MaskOf(prm.EventDbBfCongestion)})
			as[*cmdif.TimeoutError](t, err)
			require.Equal(t, before.LiveBuffers+1, space.Stats().LiveBuffers)
			require.Equal(t, before.LiveBytes+64<<10, space.Stats().LiveBytes)

			// One that firmware refuses is forgotten at once.
			require.NoError(t, c.ClearFault(""))
			require.NoError(t, c.SetFault("status", "CREATE_EQ=BAD_PARAM_ERR"))
			_, err = h.Queues().CreateEQ(t.Context(), queues.EQOptions{Name: "refused", LogSize: 10, UAR: u})
			as[*cmdif.CommandError](t, err)
			require.Equal(t, before.LiveBuffers+1, space.Stats().LiveBuffers)

			sleep(5)
			_ = h.Close(t.Context()) // firmware has an EQ that nobody can destroy
			require.Zero(t, space.Stats().LiveBuffers, "free once the device is off the bus")
			require.NoError(t, space.Close())
			spotless(c, 0)(t)
		})
	}
}

// The interrupt of every event queue is seen to arrive, by an event that firmware
// is asked to write; where that is not possible the note of the stage says so.
func TestInterruptsAreChecked(t *testing.T) {
	note := func(c [2]string, want string) {
		t.Helper()
		inBubble(t, func(t *testing.T) {
			m := chip(t, "sim:cx5")
			var got string
			h, err := mlxvfio.Open(t.Context(), m.Function(0), mlxvfio.Options{
				BeforeStage: func(s string) error {
					if s == "ready" && c[0] != "" {
						return m.SetFault(c[0], c[1])
					}
					return nil
				},
				OnStage: func(e mlxvfio.StageEvent) {
					if e.Stage == "ready" && !e.Undo {
						got = e.Note
					}
				}})
			require.NoError(t, err)
			require.Equal(t, want, got)
			require.Zero(t, h.Stats().Events.Delivered, "no subscriber hears of it")
			closed(t, h, m)
		})
	}
	note([2]string{}, "2 event queues in order; interrupts: async arrive, pages arrive")
	note([2]string{"status", "GEN_EQE=BAD_OP_ERR"}, "2 event queues in order; interrupts: async not checked (GEN_EQE: BAD_OP_ERR), pages not checked (GEN_EQE: BAD_OP_ERR)")
	note([2]string{"lost-irq", "2#1"}, "2 event queues in order; interrupts: async arrive, pages arrive")
}

// Capabilities are kept as they were before the driver changed them.
func TestPowerOnCapabilities(t *testing.T) {
	h, c := opened(t, "sim:cx5", mlxvfio.Options{})
	changed := 0
	for _, r := range h.CapReport() {
		p, ok := h.Cap(r.Type)
		require.True(t, ok)
		v, err := prm.CapStruct(r.Type).Get(p.PowerOn, r.Field)
		require.NoError(t, err)
		require.Equal(t, r.Before, v, r.Field)
		if r.After != r.Before {
			changed++
		}
	}
	require.Positive(t, changed)
	for _, p := range h.Caps() {
		switch p.Type {
		case prm.CapGeneral, prm.CapAtomic, prm.CapRoce:
			require.Len(t, p.PowerOn, mlxvfio.CapSize)
		default:
			require.Nil(t, p.PowerOn, p.Type)
		}
	}
	closed(t, h, c)
}
