package health

import (
	"context"
	"errors"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/vfio"
)

func openFake(t *testing.T, f *fakeVSC) *VSC {
	t.Helper()
	v, err := OpenVSC(f)
	require.NoError(t, err)
	require.Equal(t, fakeVSCAt, v.Offset())
	require.Zero(t, f.writes, "looking for the capability writes nothing")
	return v
}

func TestVSCFind(t *testing.T) {
	none := newFakeVSC()
	none.cfg[0x9d] = 0
	short := newFakeVSC()
	short.cfg[fakeVSCAt+2] = 0x10
	loop := newFakeVSC()
	loop.cfg[0x9d] = 0x60
	noList := newFakeVSC()
	noList.cfg[6] = 0
	for name, f := range map[string]*fakeVSC{"none": none, "too short": short, "chain that does not end": loop, "no list": noList} {
		_, err := OpenVSC(f)
		require.ErrorIs(t, err, ErrNoVSC, name)
	}
	_, err := OpenVSC(&fakeVSC{ones: true})
	require.ErrorIs(t, err, vfio.ErrGone)
}

func TestVSCReadWrite(t *testing.T) {
	f := newFakeVSC()
	v := openFake(t, f)
	x, err := v.Read(t.Context(), SpaceCR, 0xf0014)
	require.NoError(t, err)
	require.Equal(t, uint32(0x20d), x)
	require.NoError(t, v.Write(t.Context(), SpaceCR, 0x100, 0xfeed))
	require.Equal(t, uint32(0xfeed), f.spaces[2].words[0x100])
	require.Zero(t, f.sem)

	dst := []uint32{9, 9, 9, 9, 9, 9, 9, 9}
	holes, err := v.ReadBlock(t.Context(), SpaceScanCR, 0, dst)
	require.NoError(t, err)
	require.Equal(t, 3, holes, "the device jumps from 8 to 24")
	require.Equal(t, []uint32{0xc0de0000, 0xc0de0004, 0xc0de0008, 0, 0, 0, 0xc0de0018, 0xc0de001c}, dst)

	spaces, err := v.Spaces(t.Context())
	require.NoError(t, err)
	require.Equal(t, map[Space]uint32{SpaceCR: 0, SpaceScanCR: 64, SpaceSemaphore: 0}, spaces)
}

func TestVSCBounds(t *testing.T) {
	f := newFakeVSC()
	v := openFake(t, f)
	for _, c := range []struct {
		space Space
		addr  uint32
	}{{SpaceScanCR, 64}, {SpaceScanCR, 2}, {SpaceCR, 1 << 30}, {SpaceCR, 0xfffffffc}} {
		before := f.writes
		_, err := v.Read(t.Context(), c.space, c.addr)
		require.ErrorIs(t, err, vfio.ErrRange, "%v %#x", c.space, c.addr)
		require.ErrorIs(t, v.Write(t.Context(), c.space, c.addr, 1), vfio.ErrRange)
		require.LessOrEqual(t, f.writes, before+6, "semaphore and space only")
		require.Zero(t, f.sem)
	}
	_, err := v.ReadBlock(t.Context(), SpaceScanCR, 0, make([]uint32, 17))
	require.ErrorIs(t, err, vfio.ErrRange)
	require.NoError(t, func() error { _, err := v.ReadBlock(t.Context(), SpaceScanCR, 60, make([]uint32, 1)); return err }())
	_, err = v.Read(t.Context(), SpaceICMD, 0)
	require.ErrorIs(t, err, ErrSpaceUnsupported)
	require.Contains(t, err.Error(), "ICMD")
	require.Zero(t, f.sem)
}

// TestVSCHeld: a gateway of another owner is waited for, within the context, and
// never taken or freed.
func TestVSCHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeVSC()
		v := openFake(t, f)
		f.sem = 0xabcd
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		start := time.Now()
		_, err := v.Read(ctx, SpaceCR, 0)
		require.ErrorIs(t, err, ErrGatewayHeld)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Contains(t, err.Error(), "0xabcd")
		require.InDelta(t, 50, time.Since(start).Milliseconds(), 2)
		require.Equal(t, uint32(0xabcd), f.sem)
		require.Zero(t, f.freed)

		// Without a deadline the tries are counted: about two seconds.
		start = time.Now()
		_, err = v.Read(context.Background(), SpaceCR, 0)
		require.ErrorIs(t, err, ErrGatewayHeld)
		require.InDelta(t, vscTries, time.Since(start).Milliseconds(), 5)

		// It is taken as soon as it is free.
		go func() {
			time.Sleep(10 * time.Millisecond)
			f.mu.Lock()
			f.sem = 0
			f.mu.Unlock()
		}()
		x, err := v.Read(t.Context(), SpaceCR, 0xf0014)
		require.NoError(t, err)
		require.Equal(t, uint32(0x20d), x)
	})
}

// TestVSCSemaphoreAlwaysFreed fails every access to configuration space in turn:
// whatever fails, the semaphores are free again or the error says what is wrong.
func TestVSCSemaphoreAlwaysFreed(t *testing.T) {
	ops := map[string]func(*VSC) error{
		"read":  func(v *VSC) error { _, err := v.Read(t.Context(), SpaceCR, 0xf0014); return err },
		"write": func(v *VSC) error { return v.Write(t.Context(), SpaceCR, 0, 1) },
		"block": func(v *VSC) error { _, err := v.ReadBlock(t.Context(), SpaceScanCR, 0, make([]uint32, 4)); return err },
		"dump":  func(v *VSC) error { _, err := v.DumpCR(t.Context(), CRDumpOptions{}); return err },
		"lock": func(v *VSC) error {
			release, err := v.LockSWReset(t.Context())
			if err != nil {
				return err
			}
			return release()
		},
	}
	for key := range 2 * len(ops) {
		name := slices.Sorted(maps.Keys(ops))[key/2]
		op := ops[name]
		n := 1
		for ; ; n++ {
			f := newFakeVSC()
			v := openFake(t, f)
			f.failAt, f.arrives = n, key%2 != 0
			err := op(v)
			gw, sw := f.semaphores()
			if f.failAt > 0 {
				require.NoError(t, err)
				break // it needed fewer accesses
			}
			if err != nil {
				require.ErrorIs(t, err, errFakeConfig, "%s, access %d", name, n)
			} else {
				require.Contains(t, []string{"dump", "lock"}, name, "only giving the inner semaphore back is tried again")
			}
			require.Zero(t, gw, "%s, access %d failed: gateway held", name, n)
			require.Zero(t, sw, "%s, access %d failed: semaphore held", name, n)
		}
		require.Greater(t, n, 5, name)
	}
}

func TestVSCPanicFrees(t *testing.T) {
	f := newFakeVSC()
	v := openFake(t, f)
	require.Panics(t, func() { _ = v.With(t.Context(), SpaceCR, func(*Gateway) error { panic("x") }) })
	require.Zero(t, f.sem)
	_, err := v.Read(t.Context(), SpaceCR, 0)
	require.NoError(t, err)
}

func TestVSCStuckAndSyndrome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeVSC()
		v := openFake(t, f)
		f.stuckFlag = true
		_, err := v.Read(t.Context(), SpaceCR, 0)
		require.ErrorIs(t, err, ErrGatewayTimeout)
		require.Zero(t, f.sem)
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Millisecond)
		defer cancel()
		_, err = v.Read(ctx, SpaceCR, 0)
		require.ErrorIs(t, err, ErrGatewayTimeout)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Zero(t, f.sem, "given back although the context is over")
		f.stuckFlag, f.syndrome = false, true
		err = v.Write(t.Context(), SpaceCR, 0, 1)
		require.ErrorIs(t, err, ErrGatewayRefused)
		require.Contains(t, err.Error(), "syndrome code 5")
	})
}

// TestVSCStolen: what another owner took meanwhile is not freed under it.
func TestVSCStolen(t *testing.T) {
	f := newFakeVSC()
	v := openFake(t, f)
	err := v.With(t.Context(), SpaceCR, func(*Gateway) error { f.sem = 0x777; return nil })
	require.ErrorIs(t, err, ErrGatewayLost)
	require.Equal(t, uint32(0x777), f.sem)
	f.sem = 0
	require.NoError(t, v.With(t.Context(), SpaceCR, func(*Gateway) error { f.sem = 0; return nil }), "a reset frees it")
}

func TestVSCGoneWhileHeld(t *testing.T) {
	f := newFakeVSC()
	v := openFake(t, f)
	err := v.With(t.Context(), SpaceCR, func(g *Gateway) error {
		f.ones = true
		_, err := g.Read(t.Context(), 0)
		return err
	})
	require.ErrorIs(t, err, vfio.ErrGone)
	_, err = v.Read(t.Context(), SpaceCR, 0)
	require.ErrorIs(t, err, vfio.ErrGone)
}

func TestSWResetSemaphore(t *testing.T) {
	f := newFakeVSC()
	v := openFake(t, f)
	release, err := v.LockSWReset(t.Context())
	require.NoError(t, err)
	gw, sw := f.semaphores()
	require.Zero(t, gw, "only the inner semaphore stays held")
	require.NotZero(t, sw)
	_, err = v.LockSWReset(t.Context())
	require.ErrorIs(t, err, ErrSemaphoreHeld)
	_, err = v.DumpCR(t.Context(), CRDumpOptions{})
	require.ErrorIs(t, err, ErrSemaphoreHeld)
	_, now := f.semaphores()
	require.Equal(t, sw, now, "a busy semaphore is left alone")
	require.Zero(t, f.tried, "and not even asked for")
	require.NoError(t, release())
	require.NoError(t, release(), "a second release does nothing")
	_, sw = f.semaphores()
	require.Zero(t, sw)

	// What a reset gave to somebody else is not taken away.
	release, err = v.LockSWReset(t.Context())
	require.NoError(t, err)
	f.spaces[0xa].words[swResetSemaphore] = 0x4711
	require.NoError(t, release())
	_, sw = f.semaphores()
	require.Equal(t, uint32(0x4711), sw)
}

func TestCRDump(t *testing.T) {
	f := newFakeVSC()
	v := openFake(t, f)
	d, err := v.DumpCR(t.Context(), CRDumpOptions{})
	require.NoError(t, err)
	require.Equal(t, uint32(64), d.Size)
	require.Equal(t, 13, d.Words)
	require.Len(t, d.Spans, 2)
	require.Equal(t, uint32(24), d.Spans[1].Addr)
	require.Equal(t, uint32(0xc0de003c), d.Spans[1].Words[9])
	gw, sw := f.semaphores()
	require.Zero(t, gw|sw)
	b, err := d.AppendBinary(nil)
	require.NoError(t, err)
	require.Len(t, b, 4+2*8+13*4)

	_, err = v.DumpCR(t.Context(), CRDumpOptions{MaxBytes: 32})
	require.ErrorIs(t, err, vfio.ErrRange)
	f.spaces[7].size = 0
	_, err = v.DumpCR(t.Context(), CRDumpOptions{})
	require.ErrorIs(t, err, ErrSpaceUnsupported)
	f.spaces[7].size, f.spaces[7].stuck = 64, true
	d, err = v.DumpCR(t.Context(), CRDumpOptions{})
	require.ErrorIs(t, err, ErrGatewayRefused)
	require.Nil(t, d, "a partial dump is discarded")
	gw, sw = f.semaphores()
	require.Zero(t, gw|sw)
}

// TestCRDumpDeadline: the limit ends a dump in its middle, and the semaphores are
// free.
func TestCRDumpDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeVSC()
		v := openFake(t, f)
		n := 0
		f.onRead = func(reg int) {
			if reg == vscData {
				n++
				f.stuckFlag = n == 5
			}
		}
		go func() { time.Sleep(20 * time.Millisecond); f.mu.Lock(); f.stuckFlag = false; f.mu.Unlock() }()
		d, err := v.DumpCR(t.Context(), CRDumpOptions{Limit: 10 * time.Millisecond})
		require.True(t, errors.Is(err, context.DeadlineExceeded), "%v", err)
		require.Nil(t, d)
		time.Sleep(time.Second)
		gw, sw := f.semaphores()
		require.Zero(t, gw)
		require.Zero(t, sw)
	})
}
