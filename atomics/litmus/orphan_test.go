package litmus_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio"
	"github.com/mlxvfio/mlxvfio/atomics/litmus"
	"github.com/mlxvfio/mlxvfio/cmdif"
	"github.com/mlxvfio/mlxvfio/sim"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// Memory over which a key may exist, because the command that was to make or to end
// the key has no answer, is neither freed under the device nor left for good: it is
// freed with the function.
func TestUnansweredKeyKeepsItsMemory(t *testing.T) {
	for _, c := range []struct{ fault, arg string }{
		{"lost", "CREATE_MKEY#1"}, {"lost", "CREATE_MKEY#2"}, {"late", "CREATE_MKEY#1=10s"},
		{"lost", "DESTROY_MKEY#1"}, {"status", "DESTROY_MKEY#1=RES_BUSY"},
	} {
		t.Run(c.fault+"@"+c.arg, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { unansweredKey(t, c.fault, c.arg) })
		})
	}
}

func unansweredKey(t *testing.T, fault, arg string) {
	c, err := sim.New(sim.Options{})
	require.NoError(t, err)
	tr := c.Function(0)
	space, err := vfio.NewAddressSpace(tr.DMA(), vfio.SpaceOptions{})
	require.NoError(t, err)
	h, err := mlxvfio.Open(t.Context(), tr, mlxvfio.Options{Space: space})
	require.NoError(t, err)
	before := space.Stats().LiveBuffers
	require.NoError(t, c.SetFault(fault, arg))
	b, err := litmus.Build(t.Context(), litmus.BuildOptions{Name: "orphan", Responder: host(t, h, "a"), Queues: 1, NoProbe: true})
	if arg[0] == 'C' {
		var te *cmdif.TimeoutError
		require.ErrorAs(t, err, &te)
	} else {
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		require.Error(t, b.Close(ctx))
		cancel()
	}
	require.NotContains(t, errText(err), "not freed")
	if left := space.Stats().LiveBuffers - before; arg == "DESTROY_MKEY#1" {
		require.Positive(t, left) // the time was up for everything behind it too
	} else {
		require.Equal(t, 1, left, "the one that the device may reach")
	}
	require.NoError(t, c.ClearFault(""))
	time.Sleep(10 * time.Second)
	_ = h.Close(context.Background()) // with something left that nobody could destroy
	require.Zero(t, space.Stats().LiveBuffers, "free once the device is off the bus")
	require.NoError(t, space.Close())
	require.Zero(t, c.Counters(0).DMAFaults)
	require.NoError(t, c.Close())
}

// A device that dies is said to be dead once, by what met it, and its objects are not
// said to be in use.
func TestCloseOnADeadDevice(t *testing.T) {
	c, err := sim.New(sim.Options{})
	require.NoError(t, err)
	h, err := mlxvfio.Open(t.Context(), c.Function(0), mlxvfio.Options{})
	require.NoError(t, err)
	b, err := litmus.Build(t.Context(), litmus.BuildOptions{Name: "dead", Responder: host(t, h, "a"), NoProbe: true})
	require.NoError(t, err)
	require.NoError(t, c.SetFault("all-ones", ""))
	err = b.Close(t.Context())
	require.ErrorIs(t, err, cmdif.ErrDead)
	require.ErrorIs(t, err, vfio.ErrGone)
	require.Regexp(t, `^destroy the queue pair litmus a 0 \(QPN 0x[0-9a-f]+\): DESTROY_QP\(0x501\)[^\n]*reads all ones[^\n]*$`, err.Error())
	var ce *mlxvfio.CloseError
	require.ErrorAs(t, h.Close(t.Context()), &ce, "with all of it")
	require.False(t, ce.Loose)
	require.NoError(t, c.Close())

	// Of one that lives and keeps an object the others are given back, and what it
	// keeps in turn goes without saying.
	c, err = sim.New(sim.Options{})
	require.NoError(t, err)
	h, err = mlxvfio.Open(t.Context(), c.Function(0), mlxvfio.Options{})
	require.NoError(t, err)
	b, err = litmus.Build(t.Context(), litmus.BuildOptions{Name: "kept", Responder: host(t, h, "a"), NoProbe: true})
	require.NoError(t, err)
	require.NoError(t, c.SetFault("status", "DESTROY_QP#1=BAD_RES_STATE_ERR"))
	qps := c.State(0).QPs
	err = b.Close(t.Context())
	require.ErrorContains(t, err, "DESTROY_QP")
	require.Equal(t, 1, c.State(0).QPs, "of %d", qps)
	require.NotErrorIs(t, err, vfio.ErrInUse)
	_ = h.Close(t.Context()) // with something left that nobody could destroy
	require.NoError(t, c.Close())
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
