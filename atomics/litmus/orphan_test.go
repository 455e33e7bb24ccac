package litmus_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio"
	"github.com/mlxvfio/mlxvfio/atomics/litmus"
	"github.com/mlxvfio/mlxvfio/cmdif"
	"github.com/mlxvfio/mlxvfio/initseg"
	"github.com/mlxvfio/mlxvfio/queues"
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

// A function that dies while operations are in flight ends the wait for them at the next
// look, 0.1 s after the last completion, and not when the run would be stuck. Of two the
// one that died is named.
func TestDeathEndsARun(t *testing.T) {
	for _, c := range []struct {
		hosts int
		fault string
		is    error // nil: what the health buffer says
	}{{1, "fatal", nil}, {1, "all-ones", vfio.ErrGone}, {2, "fatal", nil}, {2, "all-ones", vfio.ErrGone}} {
		t.Run(fmt.Sprint(c.hosts, " ", c.fault), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				chips := make([]*sim.Chip, c.hosts)
				fns := make([]*mlxvfio.HCA, c.hosts)
				var hosts []litmus.Host
				for i := range chips {
					var err error
					chips[i], err = sim.New(sim.Options{})
					require.NoError(t, err)
				}
				if c.hosts == 2 {
					require.NoError(t, sim.Link(chips[0], chips[1]))
				}
				for i := range chips {
					var err error
					fns[i], err = mlxvfio.Open(t.Context(), chips[i].Function(0), mlxvfio.Options{CompletionVectors: 1})
					require.NoError(t, err)
					h := host(t, fns[i], string(rune('a'+i)))
					first, vs := fns[i].CompletionVectors()
					h.Vector, h.Index = vs[0], uint16(first)
					hosts = append(hosts, h)
				}
				b, err := litmus.Build(t.Context(), litmus.BuildOptions{Name: "dies", Responder: hosts[0], Requesters: hosts, NoProbe: true})
				require.NoError(t, err)
				dying := c.hosts - 1
				var died time.Time
				_, err = litmus.Run(t.Context(), &b.Rig, litmus.Options{Seed: 1, Progress: func(litmus.Row) {
					if died.IsZero() {
						died = time.Now()
						require.NoError(t, chips[dying].SetFault(c.fault, ""))
					}
				}})
				require.False(t, died.IsZero())
				require.ErrorIs(t, err, cmdif.ErrDead)
				var fe *initseg.FatalError
				require.Equal(t, c.is == nil, errors.As(err, &fe))
				if c.is != nil {
					require.ErrorIs(t, err, c.is)
				}
				require.ErrorContains(t, err, "host "+hosts[dying].Name+": device does not answer")
				require.NotContains(t, err.Error(), "no completion for")
				require.Less(t, time.Since(died), time.Second)
				_ = b.Close(t.Context())
				for i := range fns {
					err := fns[i].Close(t.Context())
					require.Equal(t, i == dying, err != nil, "%v", err)
				}
				for _, c := range chips {
					require.NoError(t, c.Close())
				}
			})
		})
	}
}

// When the time of a Close is over, what it was spent on is said, and not every object
// behind it; they go with the function.
func TestCloseOutOfTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, err := sim.New(sim.Options{})
		require.NoError(t, err)
		h, err := mlxvfio.Open(t.Context(), c.Function(0), mlxvfio.Options{})
		require.NoError(t, err)
		b, err := litmus.Build(t.Context(), litmus.BuildOptions{Name: "slow", Responder: host(t, h, "a"), NoProbe: true})
		require.NoError(t, err)
		require.NoError(t, c.SetFault("lost", "DESTROY_QP#1"))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err = b.Close(ctx)
		var te *cmdif.TimeoutError
		require.ErrorAs(t, err, &te)
		require.False(t, te.Late)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, 1, strings.Count(err.Error(), "DESTROY_"), "%v", err)
		require.NoError(t, c.ClearFault(""))
		var left *mlxvfio.LeftError
		require.ErrorAs(t, h.Close(t.Context()), &left, "with all of it")
		require.NoError(t, c.Close())
	})
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// What one device met explains nothing of another one: beside the death of the first,
// what is in use on the second is named, with its device, and so is the death of both.
func TestCloseOfTwo(t *testing.T) {
	for _, both := range []bool{false, true} {
		var chips []*sim.Chip
		var hcas []*mlxvfio.HCA
		for _, profile := range []string{"sim:cx5", "sim:cx7"} {
			o, err := sim.Parse(profile)
			require.NoError(t, err)
			c, err := sim.New(o)
			require.NoError(t, err)
			chips = append(chips, c)
		}
		require.NoError(t, sim.Link(chips[0], chips[1]))
		for _, c := range chips {
			h, err := mlxvfio.Open(t.Context(), c.Function(0), mlxvfio.Options{})
			require.NoError(t, err)
			hcas = append(hcas, h)
		}
		a, b := host(t, hcas[0], "a"), host(t, hcas[1], "b")
		bench, err := litmus.Build(t.Context(), litmus.BuildOptions{Name: "two", Responder: a, Requesters: []litmus.Host{a, b}, NoProbe: true})
		require.NoError(t, err)

		// A queue pair of somebody else completes on a CQ of the second.
		theirs := bench.Rig.Requesters[slices.IndexFunc(bench.Rig.Requesters, func(r litmus.Requester) bool { return r.Host == "b" })].Conn.CQ.(*queues.CQ)
		pd, err := b.Dev.AllocPD(t.Context())
		require.NoError(t, err)
		uar, err := b.Dev.AllocUAR(t.Context())
		require.NoError(t, err)
		qp, err := b.Dev.CreateQP(t.Context(), queues.QPOptions{Name: "user", PD: pd, UAR: uar, SendCQ: theirs, RecvCQ: theirs, LogSQ: 4})
		require.NoError(t, err)

		require.NoError(t, chips[0].SetFault("all-ones", ""))
		if both {
			require.NoError(t, chips[1].SetFault("all-ones", ""))
		}
		err = bench.Close(t.Context())
		joined, ok := err.(interface{ Unwrap() []error })
		require.True(t, ok)
		parts := joined.Unwrap()
		require.Len(t, parts, 2, "%v", err)
		var de *cmdif.DeadError
		require.ErrorAs(t, parts[0], &de)
		require.Equal(t, "sim:cx5.0", de.Device)
		if both {
			require.ErrorAs(t, parts[1], &de)
			require.Equal(t, "sim:cx7.0", de.Device)
		} else {
			var oe *queues.ObjectError
			require.ErrorAs(t, parts[1], &oe)
			require.ErrorIs(t, oe, queues.ErrInUse)
			require.Equal(t, "sim:cx7.0", oe.Device)
			require.Contains(t, oe.Error(), "sim:cx7.0: destroy the litmus CQ")
			require.NoError(t, qp.Destroy(t.Context()))
		}
		for i := range chips {
			_ = hcas[i].Close(t.Context()) // with something left
			require.NoError(t, chips[i].Close())
		}
	}
}
