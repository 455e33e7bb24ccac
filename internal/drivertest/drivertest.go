package drivertest

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// Options tune Run.
type Options struct {
	// Driver are the options every test starts from.
	Driver mlxvfio.Options
	// Sparse runs the tests that open once for each stage only for some of them:
	// for transports on which an open takes long.
	Sparse bool
	// Clean, if set, checks after each test what only the caller can see: the
	// state of the model, the processes of the bench.
	Clean func(r Reporter)
}

// suite is one run.
type suite struct {
	open func(t testing.TB) vfio.Transport
	o    Options
}

// limit bounds a single operation: a suite that hangs should say where.
const limit = 2 * time.Minute

// Run runs the suite on the function that open opens. open is called once for
// each bring-up, always after the transport of the previous one was closed.
func Run(t *testing.T, open func(t testing.TB) vfio.Transport, o Options) {
	s := &suite{open: open, o: o}
	// The first use makes the runtime open what it keeps.
	h, _ := s.up(t, nil)
	require.NoError(t, h.Close(t.Context()))
	for _, c := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"BringUp", s.bringUp},
		{"Polled", s.polled},
		{"Again", s.again},
		{"Commands", s.commands},
		{"Queues", s.queues},
		{"Vectors", s.vectors},
		{"Teardown", s.teardown},
		{"StageFails", s.stageFails},
		{"Cancelled", s.cancelled},
		{"PredecessorKilled", s.predecessorKilled},
		{"Unplugged", s.unplugged},
		{"CloseTwice", s.closeTwice},
		{"CloseCancelled", s.closeCancelled},
		{"Subscriptions", s.subscriptions},
	} {
		t.Run(c.name, c.run)
	}
}

// transport opens the function and has the test check at its end that nothing is
// left.
func (s *suite) transport(t testing.TB) *Watched {
	t.Helper()
	base := Now()
	w := Watch(s.open(t))
	t.Cleanup(func() {
		w.Check(t)
		base.Check(t)
		if s.o.Clean != nil {
			s.o.Clean(t)
		}
	})
	return w
}

// up brings the function up with the suite's options, changed by change.
func (s *suite) up(t testing.TB, change func(*mlxvfio.Options)) (*mlxvfio.HCA, *Watched) {
	t.Helper()
	w := s.transport(t)
	return s.upOn(t, w, change), w
}

func (s *suite) upOn(t testing.TB, tr vfio.Transport, change func(*mlxvfio.Options)) *mlxvfio.HCA {
	t.Helper()
	o := s.options(change)
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	h, err := mlxvfio.Open(ctx, tr, o)
	require.NoError(t, err)
	return h
}

func (s *suite) options(change func(*mlxvfio.Options)) mlxvfio.Options {
	o := s.o.Driver
	if change != nil {
		change(&o)
	}
	return o
}

// down closes and expects a perfect account.
func (s *suite) down(t testing.TB, h *mlxvfio.HCA) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), limit)
	defer cancel()
	require.NoError(t, h.Close(ctx))
	Balanced(t, h.Ledger())
}

// Balanced requires that firmware holds nothing.
func Balanced(r Reporter, l mlxvfio.PageLedger) {
	r.Helper()
	if l.Outstanding != 0 || l.Given != l.Returned+l.Dropped {
		r.Errorf("the page ledger does not balance: %+v", l)
	}
}

// stageNames is the table of stages by name.
func stageNames() []string {
	var n []string
	for _, s := range mlxvfio.Stages() {
		n = append(n, s.Name)
	}
	return n
}

// some thins a list out where opens take long.
func (s *suite) some(l []string) []string {
	if !s.o.Sparse {
		return l
	}
	var out []string
	for i := range l {
		if i%6 == 5 {
			out = append(out, l[i])
		}
	}
	return out
}
