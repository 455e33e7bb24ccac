package tracer

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

func TestOwnerWays(t *testing.T) {
	f := newFake()
	o := NewOwner(f, OwnerOptions{})
	require.Equal(t, OwnerNone, o.State())
	require.NoError(t, o.Acquire(t.Context()))
	require.Equal(t, OwnerHeld, o.State())
	require.False(t, o.TakenUp())
	require.NoError(t, o.Acquire(t.Context()), "it is ours already")
	require.Equal(t, []string{"cap", "acquire", "cap"}, f.ops, "written, and read back")
	c, err := o.Check(t.Context(), "poll")
	require.NoError(t, err)
	require.True(t, c.Owner)
	require.NoError(t, o.Release(t.Context()))
	require.Equal(t, OwnerReleased, o.State())
	require.False(t, f.owner)
	n := len(f.ops)
	require.NoError(t, o.Release(t.Context()))
	require.ErrorIs(t, o.Acquire(t.Context()), ErrReleased)
	require.Len(t, f.ops, n, "who has released says nothing any more")

	// Loss: noticed by reading, never by asking again.
	f = newFake()
	o = NewOwner(f, OwnerOptions{})
	require.NoError(t, o.Acquire(t.Context()))
	f.owner = false // and nobody else took it: it is free for the asking
	_, err = o.Check(t.Context(), "event")
	require.ErrorIs(t, err, ErrLost)
	require.Equal(t, OwnerLost, o.State())
	require.ErrorIs(t, o.Acquire(t.Context()), ErrLost)
	f.owner = true
	_, err = o.Check(t.Context(), "poll")
	require.ErrorIs(t, err, ErrLost, "a loss is for good")
	require.NoError(t, o.Release(t.Context()))
	require.Equal(t, []string{"acquire"}, f.opsOf("acquire", "release"))
}

// TestOwnerBusy: asked again with growing pauses.
func TestOwnerBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.tool, f.freeFrom = true, 6
		begin := time.Now()
		var at []time.Duration
		o := NewOwner(f, OwnerOptions{Wait: -1, OnBusy: func(tries int, waited time.Duration) {
			require.Equal(t, len(at)+1, tries)
			at = append(at, waited)
		}})
		require.NoError(t, o.Acquire(t.Context()))
		ms := time.Millisecond
		require.Equal(t, []time.Duration{0, 10 * ms, 30 * ms, 70 * ms, 150 * ms}, at)
		require.Equal(t, 310*ms, time.Since(begin))
		require.NoError(t, o.Release(t.Context()))

		// Not for ever: the last try is when the time is over.
		f = newFake()
		f.tool = true
		begin = time.Now()
		o = NewOwner(f, OwnerOptions{Wait: 5 * time.Second})
		err := o.Acquire(t.Context())
		var be *BusyError
		require.ErrorAs(t, err, &be)
		require.ErrorIs(t, err, ErrBusy)
		require.Equal(t, 5*time.Second, time.Since(begin))
		require.Equal(t, f.asks, be.Tries)
		require.Less(t, be.Tries, 15)
		require.ErrorContains(t, err, fmt.Sprintf("asked %d times", be.Tries))
		require.Empty(t, f.opsOf("release"), "what is not ours is not given back")

		// A context ends the wait.
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, errPlanned)
		defer cancel()
		err = NewOwner(f, OwnerOptions{Wait: -1}).Acquire(ctx)
		require.ErrorIs(t, err, ErrBusy)
		require.ErrorIs(t, err, errPlanned)
	})
}

// TestOwnerEvent: an ownership event ends the pause, another one does not.
func TestOwnerEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.tool = true
		o := NewOwner(f, OwnerOptions{Wait: -1, Backoff: time.Hour, MaxBackoff: time.Hour, Events: f.events})
		begin := time.Now()
		go func() {
			time.Sleep(time.Second)
			f.events <- prm.TracerEventStringsDbUpdate
			time.Sleep(time.Second)
			f.mu.Lock()
			f.tool = false
			f.mu.Unlock()
			f.events <- prm.TracerEventOwnershipChange
		}()
		require.NoError(t, o.Acquire(t.Context()))
		require.Equal(t, 2*time.Second, time.Since(begin))
		require.Equal(t, 2, len(f.opsOf("acquire")))
		require.NoError(t, o.Release(t.Context()))
	})
}

// TestOwnerUnsure: an acquiring write whose answer is lost may have been executed.
func TestOwnerUnsure(t *testing.T) {
	f := newFake()
	f.on = func(op string) error {
		if op == "acquire" {
			f.owner = true // it arrives, and its answer does not
			return errPlanned
		}
		return nil
	}
	ctx, cancel := context.WithCancel(t.Context())
	o := NewOwner(f, OwnerOptions{})
	f2 := f.on
	f.on = func(op string) error {
		if op == "acquire" {
			cancel() // the caller's context is over as well
		}
		return f2(op)
	}
	require.ErrorIs(t, o.Acquire(ctx), errPlanned)
	require.False(t, f.owner)
	require.Equal(t, []string{"acquire", "release"}, f.opsOf("acquire", "release"))
	require.Equal(t, OwnerReleased, o.State())
}

// TestOwnerReadBack: an answer that says ours, which reading does not confirm, is not
// believed.
func TestOwnerReadBack(t *testing.T) {
	f := newFake()
	n := 0
	f.on = func(op string) error {
		if op == "cap" {
			if n++; n == 2 {
				f.owner = false
			}
		}
		return nil
	}
	require.ErrorIs(t, NewOwner(f, OwnerOptions{}).Acquire(t.Context()), ErrBusy)
}

func TestOwnerHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		o := NewOwner(f, OwnerOptions{Events: f.events})
		require.NoError(t, o.Acquire(t.Context()))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		require.NoError(t, o.Hold(ctx))
		begin := time.Now()
		go func() { time.Sleep(100 * time.Millisecond); f.steal(false) }()
		require.ErrorIs(t, o.Hold(t.Context()), ErrLost)
		require.Equal(t, 100*time.Millisecond, time.Since(begin))

		f = newFake()
		o = NewOwner(f, OwnerOptions{})
		require.NoError(t, o.Acquire(t.Context()))
		go func() { time.Sleep(100 * time.Millisecond); f.steal(true) }()
		begin = time.Now()
		require.ErrorIs(t, o.Hold(t.Context()), ErrLost)
		require.Equal(t, time.Second, time.Since(begin))
	})
}

// TestOwnerNotTakenUp: it was ours, from an earlier run, and went to a tool before we
// asked; what we get when the tool is done is not what that run left.
func TestOwnerNotTakenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.owner, f.freeFrom = true, 2
		f.on = func(op string) error {
			if op == "acquire" && f.asks == 0 {
				f.owner, f.tool = false, true
			}
			return nil
		}
		o := NewOwner(f, OwnerOptions{Wait: time.Second})
		require.NoError(t, o.Acquire(t.Context()))
		require.False(t, o.TakenUp())
		require.NoError(t, o.Release(t.Context()))
	})
}

// TestBusyErrorSaysWhatHelps: how often was asked, and what to do.
func TestBusyErrorSaysWhatHelps(t *testing.T) {
	require.ErrorContains(t, &BusyError{Tries: 1}, "asked once in 0s")
	require.ErrorContains(t, &BusyError{Tries: 3, Waited: time.Second}, "asked 3 times in 1s")
	require.ErrorContains(t, &BusyError{Tries: 1}, "wait longer (--wait, Options.Wait)")
}
