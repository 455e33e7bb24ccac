package vfio_test

import (
	"context"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/mlxvfio/mlxvfio/vfio"
)

// eventFD makes an eventfd vector that closes with the test.
func eventFD(t testing.TB) *vfio.Vector {
	t.Helper()
	v, err := vfio.NewEventFDVector()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, v.Close()) })
	return v
}

// both runs a test on either kind of vector.
func both(t *testing.T, f func(t *testing.T, v *vfio.Vector)) {
	t.Run("channel", func(t *testing.T) { f(t, vfio.NewChanVector()) })
	t.Run("eventfd", func(t *testing.T) { f(t, eventFD(t)) })
}

func TestVectorSignals(t *testing.T) {
	both(t, func(t *testing.T, v *vfio.Vector) {
		ctx := t.Context()
		require.False(t, v.TryWait())
		v.Signal()
		v.Signal()
		require.NoError(t, v.Wait(ctx))
		require.False(t, v.TryWait(), "two signals before a wait are one")
		v.Signal()
		require.True(t, v.TryWait())
		done := make(chan error, 1)
		go func() { done <- v.Wait(ctx) }()
		time.Sleep(time.Millisecond)
		v.Signal()
		require.NoError(t, <-done)
	})
}

func TestVectorContext(t *testing.T) {
	both(t, func(t *testing.T, v *vfio.Vector) {
		done, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, v.Wait(done), context.Canceled)
		v.Signal()
		require.NoError(t, v.Wait(done), "a pending interrupt wins")
		short, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		require.ErrorIs(t, v.Wait(short), context.DeadlineExceeded)
		v.Signal()
		require.NoError(t, v.Wait(t.Context()), "a wait after a cancelled one")
	})
}

func TestVectorClose(t *testing.T) {
	both(t, func(t *testing.T, v *vfio.Vector) {
		done := make(chan error, 1)
		go func() { done <- v.Wait(context.Background()) }()
		time.Sleep(time.Millisecond)
		require.NoError(t, v.Close())
		require.ErrorIs(t, <-done, vfio.ErrClosed)
		require.NoError(t, v.Close())
		v.Signal()
		require.False(t, v.TryWait())
		require.ErrorIs(t, v.Wait(t.Context()), vfio.ErrClosed)
		require.Equal(t, -1, v.FD())
	})
}

// A signal that was pending when the vector closed is not delivered afterwards.
func TestVectorClosePending(t *testing.T) {
	both(t, func(t *testing.T, v *vfio.Vector) {
		v.Signal()
		require.NoError(t, v.Close())
		for range 20 {
			require.ErrorIs(t, v.Wait(t.Context()), vfio.ErrClosed)
		}
	})
}

// The end of a context may come at the same moment as the interrupt. Whatever
// Wait answers, its deadline must be gone when the next Wait begins.
func TestVectorDeadlineDoesNotLinger(t *testing.T) {
	v := eventFD(t)
	for range 3000 {
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(cancel)
		wg.Go(v.Signal)
		if err := v.Wait(ctx); err != nil {
			require.ErrorIs(t, err, context.Canceled)
		}
		wg.Wait()
		v.Signal()
		// Both signals may be one by now, or two: at least one is pending.
		long, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		require.NoError(t, v.Wait(long))
		cancel()
		v.TryWait()
	}
}

// Many signallers, one waiter: none of the last signals of each is lost.
func TestVectorLosesNothing(t *testing.T) {
	both(t, func(t *testing.T, v *vfio.Vector) {
		var mu sync.Mutex
		sent := 0
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for range 500 {
					mu.Lock()
					sent++
					mu.Unlock()
					v.Signal()
				}
			})
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		for seen := 0; seen < 2000; {
			require.NoError(t, v.Wait(ctx), "%d seen", seen)
			mu.Lock()
			seen = sent
			mu.Unlock()
		}
		wg.Wait()
	})
}

// The channel vector lives under synctest: time does not pass while others run.
func TestVectorSynctest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := vfio.NewChanVector()
		start := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		require.ErrorIs(t, v.Wait(ctx), context.DeadlineExceeded)
		require.Equal(t, time.Hour, time.Since(start))

		time.AfterFunc(time.Minute, v.Signal)
		require.NoError(t, v.Wait(t.Context()))
		require.Equal(t, time.Hour+time.Minute, time.Since(start))

		done := make(chan error, 1)
		go func() { done <- v.Wait(t.Context()) }()
		synctest.Wait() // the goroutine waits
		require.NoError(t, v.Close())
		require.ErrorIs(t, <-done, vfio.ErrClosed)
	})
}

// A vector from a peer's descriptor is the peer's eventfd; its owner closes it.
func TestVectorFromFD(t *testing.T) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC) // blocking, as peers send them
	require.NoError(t, err)
	peer, err := unix.Dup(fd)
	require.NoError(t, err)
	v := vfio.VectorFromFD(fd)
	require.Equal(t, fd, v.FD())
	v.Signal()
	var b [8]byte
	n, err := unix.Read(peer, b[:])
	require.NoError(t, err)
	require.Equal(t, 8, n)
	_, err = unix.Write(peer, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	require.NoError(t, err)
	require.NoError(t, v.Wait(t.Context()))
	require.NoError(t, v.Close())
	_, err = unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
	require.ErrorIs(t, err, unix.EBADF)
	require.NoError(t, unix.Close(peer))
}

// A peer can fill the counter: a signal then must not block its sender.
func TestVectorFullCounter(t *testing.T) {
	v := eventFD(t)
	full := []byte{0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	_, err := unix.Write(v.FD(), full)
	require.NoError(t, err)
	done := make(chan struct{})
	go func() { v.Signal(); close(done) }()
	select {
	case <-done:
	case <-time.After(5 * time.Second):
		require.Fail(t, "Signal blocks")
	}
	require.True(t, v.TryWait())
}

// What is no open file is a closed vector: no later use may hit a file that
// reuses the number.
func TestVectorFromNothing(t *testing.T) {
	r, w, err := os.Pipe()
	require.NoError(t, err)
	fd := int(r.Fd())
	require.NoError(t, r.Close())
	require.NoError(t, w.Close())
	v := vfio.VectorFromFD(fd)
	v.Signal()
	require.False(t, v.TryWait())
	require.ErrorIs(t, v.Wait(t.Context()), vfio.ErrClosed)
	require.Equal(t, -1, v.FD())
	require.NoError(t, v.Close())
}

func BenchmarkVector(b *testing.B) {
	for name, v := range map[string]*vfio.Vector{"channel": vfio.NewChanVector(), "eventfd": eventFD(b)} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				v.Signal()
				if err := v.Wait(context.Background()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
