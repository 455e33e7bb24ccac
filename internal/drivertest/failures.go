package drivertest

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio"
	"github.com/mlxvfio/mlxvfio/cmdif"
	"github.com/mlxvfio/mlxvfio/vfio"
)

var errInjected = errors.New("injected by the test")

// stageFails: a failure at any stage undoes exactly the stages before it, last
// one first.
func (s *suite) stageFails(t *testing.T) {
	names := stageNames()
	for _, stage := range s.some(names) {
		at := slices.Index(names, stage)
		var undone []string
		_, err := mlxvfio.Open(t.Context(), s.transport(t), s.options(func(o *mlxvfio.Options) {
			o.BeforeStage = func(name string) error {
				if name == stage {
					return errInjected
				}
				return nil
			}
			o.OnStage = func(e mlxvfio.StageEvent) {
				if e.Undo {
					require.NoError(t, e.Err, "undo %s", e.Stage)
					undone = append(undone, e.Stage)
				}
			}
		}))
		var se *mlxvfio.StageError
		require.ErrorAs(t, err, &se)
		require.ErrorIs(t, err, errInjected)
		require.Equal(t, stage, se.Stage)
		require.Equal(t, names[:at], append([]string{}, se.Done...))
		require.Empty(t, se.Undo, "%v", err)
		Balanced(t, se.Ledger)
		slices.Reverse(undone)
		require.Subset(t, names[:at], undone)
		require.True(t, slices.IsSortedFunc(undone, func(a, b string) int { return slices.Index(names, a) - slices.Index(names, b) }))
		if at > slices.Index(names, "init-pages") {
			require.Contains(t, undone, "boot-pages")
			require.Equal(t, se.Ledger.Given, se.Ledger.Returned, "pages come back by command: %+v", se.Ledger)
			require.Positive(t, se.Ledger.Given)
		}
	}
	h, _ := s.up(t, nil)
	s.down(t, h)
}

// cancelled: a bring-up stops where its context ends.
func (s *suite) cancelled(t *testing.T) {
	for _, stage := range s.some(stageNames()) {
		ctx, cancel := context.WithCancel(t.Context())
		_, err := mlxvfio.Open(ctx, s.transport(t), s.options(func(o *mlxvfio.Options) {
			o.BeforeStage = func(name string) error {
				if name == stage {
					cancel()
				}
				return nil
			}
		}))
		cancel()
		var se *mlxvfio.StageError
		require.ErrorAs(t, err, &se)
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, stage, se.Stage)
		require.ErrorContains(t, err, "open it again")
		Balanced(t, se.Ledger)
	}
	h, _ := s.up(t, nil)
	s.down(t, h)
}

// teardown: the other ways of taking firmware down, or the regular one where the
// device cannot.
func (s *suite) teardown(t *testing.T) {
	for _, k := range []mlxvfio.TeardownKind{mlxvfio.TeardownFast, mlxvfio.TeardownForced} {
		h, _ := s.up(t, func(o *mlxvfio.Options) { o.Teardown = k })
		can := slices.Contains(h.Info().Teardowns, k.String())
		s.down(t, h)
		l := h.Ledger()
		if can {
			require.Equal(t, l.Given, l.Dropped, "%v: firmware drops all pages at once", k)
		} else {
			require.Equal(t, l.Given, l.Returned, "%v is not offered: pages come back one by one", k)
		}
		h, _ = s.up(t, nil)
		s.down(t, h)
	}
}

// predecessorKilled: the transport goes away under a driver that never got to
// tear down, as when its process is killed; the next open works.
func (s *suite) predecessorKilled(t *testing.T) {
	for _, polled := range []bool{false, true} {
		// Over a decorator, which maps no region: a store into a mapping that has
		// gone would end this process too.
		w := vfio.NewFaulty(s.transport(t), nil)
		h := s.upOn(t, w, func(o *mlxvfio.Options) { o.Polled, o.CommandTimeout = polled, time.Second })
		require.NoError(t, w.Close())
		err := h.Close(t.Context())
		var ce *mlxvfio.CloseError
		require.ErrorAs(t, err, &ce)
		require.ErrorIs(t, err, vfio.ErrClosed)
		Balanced(t, ce.Ledger)
		h, _ = s.up(t, nil)
		s.down(t, h)
	}
}

// unplugged: the device reads all ones from one moment on.
func (s *suite) unplugged(t *testing.T) {
	w := s.transport(t)
	f := vfio.NewFaulty(w, nil)
	h := s.upOn(t, f, func(o *mlxvfio.Options) { o.CommandTimeout = 20 * time.Second })
	f.Unplug()
	start := time.Now()
	err := h.Conn().NOP(t.Context())
	require.ErrorIs(t, err, cmdif.ErrDead)
	require.ErrorIs(t, err, vfio.ErrGone)
	require.Less(t, time.Since(start), 10*time.Second, "a device that is gone is noticed before the deadline")
	require.ErrorIs(t, h.Conn().NOP(t.Context()), cmdif.ErrDead)
	err = h.Close(t.Context())
	var ce *mlxvfio.CloseError
	require.ErrorAs(t, err, &ce)
	require.ErrorIs(t, err, vfio.ErrGone)
	Balanced(t, ce.Ledger)
	h, _ = s.up(t, nil)
	s.down(t, h)
}

func (s *suite) closeTwice(t *testing.T) {
	h, _ := s.up(t, nil)
	s.down(t, h)
	require.NoError(t, h.Close(t.Context()))
	require.Error(t, h.Conn().NOP(t.Context()))
}

// closeCancelled: without time for a conversation, the device is isolated.
func (s *suite) closeCancelled(t *testing.T) {
	h, _ := s.up(t, nil)
	canReset := h.Device().Info().CanReset
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := h.Close(ctx)
	var ce *mlxvfio.CloseError
	require.ErrorAs(t, err, &ce)
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, canReset, ce.Reset)
	Balanced(t, ce.Ledger)
	h, _ = s.up(t, nil)
	s.down(t, h)
}
