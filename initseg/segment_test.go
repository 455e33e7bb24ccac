package initseg

import (
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// bar is a function whose BAR 0 is memory, with a log of writes and a hook on
// reads.
type bar struct {
	mu     sync.Mutex
	mem    [0x5000]byte
	writes []write
	onRead func(off uint64) // with mu held
	broken error
}

type write struct {
	off uint64
	v   uint32
}

func (b *bar) set(off int, v uint32) { binary.BigEndian.PutUint32(b.mem[off:], v) }

func (b *bar) poke(off int, v uint32) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.set(off, v)
}

func (b *bar) fill(v byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range b.mem {
		b.mem[i] = v
	}
}

func (b *bar) Info() (vfio.DeviceInfo, error) { return vfio.DeviceInfo{Name: "bar"}, nil }
func (b *bar) RegionInfo(int) (vfio.RegionInfo, error) {
	return vfio.RegionInfo{Size: uint64(len(b.mem)), Read: true, Write: true}, nil
}

func (b *bar) ReadRegion(_ int, off uint64, p []byte) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.broken != nil {
		return b.broken
	}
	if b.onRead != nil {
		b.onRead(off)
	}
	copy(p, b.mem[off:])
	return nil
}

func (b *bar) WriteRegion(_ int, off uint64, p []byte) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.writes = append(b.writes, write{off, binary.BigEndian.Uint32(p)})
	copy(b.mem[off:], p)
	return nil
}

func (b *bar) MapRegion(int) ([]vfio.Area, error)     { return nil, nil }
func (b *bar) IRQInfo(int) (vfio.IRQInfo, error)      { return vfio.IRQInfo{}, nil }
func (b *bar) NewVector() (*vfio.Vector, error)       { return vfio.NewChanVector(), nil }
func (b *bar) SetIRQs(int, int, []*vfio.Vector) error { return nil }
func (b *bar) DMA() vfio.Mapper                       { return noDMA{} }
func (b *bar) Reset() error                           { return nil }
func (b *bar) Close() error                           { return nil }

type noDMA struct{}

func (noDMA) Map(vfio.Mapping) error          { return vfio.ErrNotSupported }
func (noDMA) Unmap(uint64, uint64) error      { return vfio.ErrNotSupported }
func (noDMA) Limits() (vfio.DMALimits, error) { return vfio.DMALimits{}, vfio.ErrNotSupported }

func segment(t *testing.T) (*bar, *Segment) {
	t.Helper()
	b := &bar{}
	d, err := vfio.NewDevice(b, vfio.DeviceOptions{})
	require.NoError(t, err)
	w, err := d.Window(vfio.RegionBAR0)
	require.NoError(t, err)
	return b, New(w)
}

// Every field, on random contents, equals what the generated layout of
// initial_seg says.
func TestFieldsEqualTheLayout(t *testing.T) {
	b, s := segment(t)
	r := rand.New(rand.NewPCG(1, 1))
	for range 60 {
		for i := range b.mem {
			b.mem[i] = byte(r.Uint32())
		}
		v := prm.AsInitialSeg(b.mem[:])
		require.Equal(t, Version{v.FWRevMajor(), v.FWRevMinor(), v.FWRevSubminor()}, s.FirmwareVersion())
		require.Equal(t, v.CmdInterfaceRev(), s.CommandInterfaceRev())
		require.Equal(t, uint64(v.CmdqPhyAddr63_32())<<32|uint64(v.CmdqPhyAddr31_12())<<12, s.QueueAddress())
		require.Equal(t, v.NicInterface(), s.NICInterface())
		q, err := s.Queue()
		require.Equal(t, Queue{v.LogCmdqSize(), v.LogCmdqStride()}, q)
		require.Equal(t, q.LogSize > 5 || q.LogStride < 6 || q.LogSize+q.LogStride > 12, err != nil, "%+v: %v", q, err)
		require.Equal(t, State{
			Raw:              binary.BigEndian.Uint32(b.mem[0x1fc:]),
			Initializing:     v.Initializing(),
			FWResetSupported: v.FWResetSupported(),
			NICSupported:     v.NicInterfaceSupported(),
			EmbeddedCPU:      v.EmbeddedCpu(),
			Recovery:         v.Recovery(),
			PreBootHold:      v.PreBootBiosHold(),
			InitStep:         v.InitializingState(),
			ResetState:       v.ResetStateMachine(),
			PreBootAction:    v.PreBootAction(),
		}, s.State())
		require.Equal(t, v.NoDramNicOffset(), s.NoDRAMOffset())
		require.Equal(t, uint64(v.InternalTimerH())<<32|uint64(v.InternalTimerL()), s.InternalTimer())
		require.Equal(t, v.HealthSyndrome(), s.Health().Syndrome)
		require.Equal(t, v.HealthCounter(), s.Health().Counter)
		var h [HealthBufferSize]byte
		s.HealthBuffer(&h)
		require.Equal(t, v.HealthBuffer()[:], h[:])
		if d, ok := s.CommandTimeout(); ok {
			require.Equal(t, d, inUnits(v.CmdExecTO()))
		}
		if d, ok := s.InitTimeout(); ok {
			require.Equal(t, d, inUnits(v.CmdQInitTO()))
		}
		require.False(t, s.Gone())
	}
	// Places the layout has names for but no getter is used above.
	for path, off := range map[string]uint64{
		"command_doorbell_vector": offDoorbell, "clear_int": offClearInt,
		"health_buffer.fw_version": offHealthFW, "cmd_exec_to.to_value": offCmdExecTO,
	} {
		ref, err := prm.InitialSegStruct.Lookup(path)
		require.NoError(t, err)
		require.Equal(t, off, uint64(ref.Off/32*4), path)
	}
}

func inUnits(d *prm.DefaultTimeout) time.Duration {
	unit := map[prm.TimeoutMultiplier]time.Duration{
		prm.TimeoutMilliseconds: time.Millisecond, prm.TimeoutSeconds: time.Second,
		prm.TimeoutMinutes: time.Minute, prm.TimeoutHours: time.Hour,
	}
	return time.Duration(d.ToValue()) * unit[d.ToMultiplier()&3]
}

func TestVersionText(t *testing.T) {
	require.Equal(t, "16.35.4030", Version{16, 35, 4030}.String())
	require.Equal(t, "14.12.0020", Version{14, 12, 20}.String())
}

// The high half goes first: the low half publishes the address.
func TestPublishQueue(t *testing.T) {
	b, s := segment(t)
	require.NoError(t, s.PublishQueue(0x12_3456_7000))
	require.Equal(t, []write{{0x10, 0x12}, {0x14, 0x34567000}}, b.writes)
	require.Equal(t, uint64(0x12_3456_7000), s.QueueAddress())
	require.ErrorContains(t, s.PublishQueue(0x12_3456_7800), "multiple of 4096")
	require.Len(t, b.writes, 2)
	s.RingDoorbell(1 << 31)
	s.ClearInterrupt()
	require.NoError(t, s.AckReset())
	require.Equal(t, []write{{0x18, 1 << 31}, {0x100c, 1}, {0x1fc, 1 << 22}}, b.writes[2:])
}

// The queue address survives; the read-only bits below are written as zero.
func TestSetNICInterface(t *testing.T) {
	b, s := segment(t)
	b.set(0x14, 0x34567000|0x800|3<<8|5<<4|6)
	require.Equal(t, prm.NICInterface(3), s.NICInterface())
	require.NoError(t, s.SetNICInterface(prm.NICInterfaceDisabled))
	require.NoError(t, s.SetNICInterface(prm.NICInterfaceSwReset))
	require.Equal(t, []write{{0x14, 0x34567100}, {0x14, 0x34567700}}, b.writes)
	require.Error(t, s.SetNICInterface(8))
	b.fill(0xff)
	require.ErrorIs(t, s.SetNICInterface(prm.NICInterfaceDisabled), vfio.ErrGone)
	require.Len(t, b.writes, 2)
	require.Equal(t, prm.NICInterfaceSwReset, s.NICInterface(), "what a dead link reads as")
}

func TestQueueShapes(t *testing.T) {
	b, s := segment(t)
	for v, ok := range map[uint32]bool{
		5<<4 | 6: true, 0<<4 | 6: true, 5<<4 | 7: true, 0<<4 | 12: true,
		6<<4 | 6: false, 5<<4 | 5: false, 5<<4 | 8: false, 0: false, 0xff: false,
	} {
		b.set(0x14, 0xabcde000|v)
		q, err := s.Queue()
		require.Equal(t, ok, err == nil, "0x%x: %v", v, err)
		if !ok {
			var e *QueueError
			require.ErrorAs(t, err, &e)
			require.Equal(t, q, e.Queue)
		}
	}
	b.fill(0xff)
	_, err := s.Queue()
	require.ErrorIs(t, err, vfio.ErrGone)
}

// The low half wraps between the reads: the timer never jumps by 2^32.
func TestTimerWrap(t *testing.T) {
	b, s := segment(t)
	b.set(0x1000, 7)
	b.set(0x1004, 0xffffffff)
	n := 0
	b.onRead = func(off uint64) {
		if n++; n == 2 { // just before the low half is read
			b.set(0x1000, 8)
			b.set(0x1004, 3)
		}
	}
	require.Equal(t, uint64(8)<<32|3, s.InternalTimer())
	require.Equal(t, 5, n)
	b.onRead = nil
	b.set(0x1040, 100)
	b.set(0x1044, 999)
	sec, ns := s.RealTime()
	require.Equal(t, [2]uint32{100, 999}, [2]uint32{sec, ns})
	b.fill(0xff)
	require.Equal(t, ^uint64(0), s.InternalTimer(), "a dead device ends it")

	// So does one that answers anything.
	n = 0
	b.onRead = func(off uint64) {
		n++
		b.set(int(off), uint32(n))
	}
	require.Equal(t, uint64(17)<<32|16, s.InternalTimer())
	require.Equal(t, 17, n)
	sec, ns = s.RealTime()
	require.Equal(t, [2]uint32{34, 33}, [2]uint32{sec, ns})
	require.Equal(t, 34, n)
}

func TestTimeouts(t *testing.T) {
	for v, want := range map[uint32]time.Duration{
		0:                0,
		2000:             2 * time.Second,
		1<<29 | 60:       time.Minute,
		2<<29 | 3:        3 * time.Minute,
		3<<29 | 2:        2 * time.Hour,
		4<<29 | 5:        5 * time.Millisecond, // the third bit means nothing
		0x1ff00000 | 1:   time.Millisecond,     // neither do bits 28:20
		3<<29 | 0xfffff:  0xfffff * time.Hour,
		0x80000000 | 100: 100 * time.Millisecond,
	} {
		require.Equal(t, want, DecodeTimeout(v), "0x%x", v)
	}
	b, s := segment(t)
	b.set(0xff8, 1<<29|9)
	_, ok := s.CommandTimeout()
	require.False(t, ok, "cmd_q_init_to 0: not supported at all")
	require.False(t, s.TimeoutsSupported())
	b.set(0xffc, 500)
	d, ok := s.CommandTimeout()
	require.True(t, ok)
	require.Equal(t, 9*time.Second, d)
	d, ok = s.InitTimeout()
	require.True(t, ok)
	require.Equal(t, 500*time.Millisecond, d)
	b.set(0xff8, 0)
	_, ok = s.CommandTimeout()
	require.False(t, ok)
	b.fill(0xff)
	require.False(t, s.TimeoutsSupported())
}

func TestGone(t *testing.T) {
	b, s := segment(t)
	require.NoError(t, s.Alive())
	b.fill(0xff)
	require.True(t, s.Gone())
	err := s.Alive()
	require.ErrorIs(t, err, vfio.ErrGone)
	require.ErrorContains(t, err, "lspci")
	_, err = s.Initializing()
	require.ErrorIs(t, err, vfio.ErrGone)
	require.ErrorIs(t, s.CheckRevision(), vfio.ErrGone)
	b.set(0x230, 0x100c0000) // one dword of ones is not enough
	require.NoError(t, s.Alive())
	busy, err := s.Initializing()
	require.NoError(t, err)
	require.True(t, busy)

	// A trap that fails reads as all ones; the reason is in the error.
	b, s = segment(t)
	b.broken = errors.New("socket closed")
	err = s.Alive()
	require.ErrorIs(t, err, vfio.ErrGone)
	require.ErrorIs(t, err, b.broken)
	require.ErrorIs(t, s.Err(), b.broken)

	// One that knows what to do about it has the only word on that.
	b, s = segment(t)
	b.broken = &vfio.Error{Op: "read", Target: "socket", Err: vfio.ErrClosed, Remedy: "restart the server"}
	err = s.Alive()
	require.EqualError(t, err, "initialization segment: look for the device: device reads all ones (socket: read: handle is closed); restart the server")
	require.ErrorIs(t, err, vfio.ErrGone)
	require.ErrorIs(t, err, vfio.ErrClosed)
}

func TestRevision(t *testing.T) {
	b, s := segment(t)
	b.set(0, 12<<16|14)
	b.set(4, 5<<16|1220)
	require.NoError(t, s.CheckRevision())
	b.set(4, 6<<16|1220)
	err := s.CheckRevision()
	var e *RevisionError
	require.ErrorAs(t, err, &e)
	require.Equal(t, RevisionError{6, Version{14, 12, 1220}}, *e)
	require.ErrorContains(t, err, "14.12.1220")
}

func TestWaitReady(t *testing.T) {
	ctx := context.Background()
	t.Run("at once", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			_, s := segment(t)
			start := time.Now()
			require.NoError(t, s.WaitReady(ctx, PreInit, WaitOptions{}))
			require.Zero(t, time.Since(start))
		})
	})
	t.Run("later, with warnings", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b, s := segment(t)
			b.set(0x1fc, 1<<31|5<<16)
			time.AfterFunc(65*time.Second, func() { b.poke(0x1fc, 0) })
			var warned []time.Duration
			start := time.Now()
			require.NoError(t, s.WaitReady(ctx, PreInit, WaitOptions{Warn: func(p Phase, waited, limit time.Duration, raw uint32) {
				require.Equal(t, PreInit, p)
				require.Equal(t, DefaultPreInit, limit)
				require.Equal(t, uint32(1<<31|5<<16), raw)
				warned = append(warned, waited)
			}}))
			require.InDelta(t, 65, time.Since(start).Seconds(), 0.01)
			require.Equal(t, []time.Duration{20 * time.Second, 40 * time.Second, 60 * time.Second}, warned)
		})
	})
	t.Run("limits", func(t *testing.T) {
		for _, tc := range []struct {
			phase Phase
			o     WaitOptions
			reg   uint32 // cmd_q_init_to
			want  time.Duration
		}{
			{PreInit, WaitOptions{}, 700, 120 * time.Second},
			{Init, WaitOptions{}, 0, 2 * time.Second},
			{Init, WaitOptions{}, 700, 700 * time.Millisecond},
			{Init, WaitOptions{Limit: 3 * time.Millisecond}, 700, 3 * time.Millisecond},
			{PreInit, WaitOptions{Limit: time.Hour, Poll: time.Minute}, 0, time.Hour},
		} {
			synctest.Test(t, func(t *testing.T) {
				b, s := segment(t)
				b.set(0x1fc, 0x80030000)
				b.set(0xffc, tc.reg)
				err := s.WaitReady(ctx, tc.phase, tc.o)
				var e *NotReadyError
				require.ErrorAs(t, err, &e)
				require.Equal(t, NotReadyError{Phase: tc.phase, Limit: tc.want, Waited: tc.want, Raw: 0x80030000}, *e)
				require.True(t, e.Timeout())
				require.ErrorContains(t, err, tc.phase.String())
				require.ErrorContains(t, err, "0x80030000")
			})
		}
	})
	t.Run("gone", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b, s := segment(t)
			b.set(0x1fc, 1<<31)
			time.AfterFunc(time.Second, func() { b.fill(0xff) })
			start := time.Now()
			require.ErrorIs(t, s.WaitReady(ctx, PreInit, WaitOptions{}), vfio.ErrGone)
			require.InDelta(t, 1000, time.Since(start).Milliseconds(), 3)
		})
	})
	t.Run("cancelled", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b, s := segment(t)
			b.set(0x1fc, 1<<31)
			why := errors.New("enough")
			ctx, cancel := context.WithCancelCause(ctx)
			time.AfterFunc(time.Second, func() { cancel(why) })
			require.ErrorIs(t, s.WaitReady(ctx, Init, WaitOptions{}), why)
		})
	})
}

func TestSmallWindowPanics(t *testing.T) {
	w := &vfio.Window{}
	require.Panics(t, func() { New(w) })
}
