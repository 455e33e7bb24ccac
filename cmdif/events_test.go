package cmdif

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

func assertAs[E error](t testing.TB, err error, target *E) bool {
	if !errors.As(err, target) {
		t.Errorf("got %T %v, want %T", err, err, *target)
		return false
	}
	return true
}

func assertIs(t testing.TB, err, target error) bool {
	if !errors.Is(err, target) {
		t.Errorf("got %v, want %v", err, target)
		return false
	}
	return true
}

// fakeEQ is a command EQ whose events wait until someone polls.
type fakeEQ struct {
	mu     sync.Mutex
	events []uint32
	conn   *Conn
	polls  int
}

func (q *fakeEQ) push(vector uint32) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.events = append(q.events, vector)
}

func (q *fakeEQ) Poll() int {
	q.mu.Lock()
	vs := q.events
	q.events = nil
	q.polls++
	q.mu.Unlock()
	for _, v := range vs {
		q.conn.Complete(v)
	}
	return len(vs)
}

// toEvents switches to event mode.
func (b *bench) toEvents() *fakeEQ {
	b.t.Helper()
	q := &fakeEQ{conn: b.conn}
	require.NoError(b.t, b.conn.SwitchToEvents(context.Background(), func(context.Context) (EventQueue, error) { return q, nil }))
	require.True(b.t, b.conn.EventMode())
	return q
}

func TestEventMode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := open(t, Options{})
		defer b.close()
		b.toEvents()
		b.onCommand(func(c *call) {
			after(3*time.Millisecond, func() {
				echo(c)
				b.conn.Complete(1 << c.slot)
			})
		})
		var wg sync.WaitGroup
		start := time.Now()
		for i := range 62 {
			wg.Go(func() {
				in, out := msg(prm.OpNop, 1000, uint64(i)), make([]byte, 1000)
				if err := b.conn.Exec(context.Background(), in, out); err != nil {
					t.Error(err)
				}
				if string(out) != string(echoed(in)) {
					t.Errorf("command %d got another reply", i)
				}
			})
		}
		wg.Wait()
		require.Equal(t, 6*time.Millisecond, time.Since(start), "31 at a time, woken by the event itself")
		st := b.conn.Stats()
		require.Zero(t, st.Recovered)
		require.Zero(t, st.Spurious)
	})
}

// An event that lies in the queue while its interrupt got lost is found, and so
// is a completion without any event.
func TestLostInterruptAndLostEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := open(t, Options{})
		defer b.close()
		q := b.toEvents()
		b.onCommand(func(c *call) { echo(c); q.push(1 << c.slot) })
		start := time.Now()
		require.NoError(t, b.conn.Exec(context.Background(), msg(prm.OpNop, 16, 0), make([]byte, 16)))
		require.LessOrEqual(t, time.Since(start), time.Second)
		st := b.conn.Stats()
		require.Equal(t, [2]uint64{1, 1}, [2]uint64{st.Recovered, st.LostInterrupts})

		b.onCommand(echo) // no event at all
		require.NoError(t, b.conn.Exec(context.Background(), msg(prm.OpNop, 16, 0), make([]byte, 16)))
		st = b.conn.Stats()
		require.Equal(t, [2]uint64{2, 1}, [2]uint64{st.Recovered, st.LostInterrupts})

		b.conn.Complete(1) // the late event
		require.Equal(t, uint64(1), b.conn.Stats().Spurious)
	})
}

// The queue is polled before a time-out is declared, also when the deadline is
// shorter than the pulse.
func TestPollBeforeTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := open(t, Options{})
		defer b.close()
		q := b.toEvents()
		b.onCommand(func(c *call) { echo(c); q.push(1 << c.slot) })
		require.NoError(t, b.conn.ExecTimeout(context.Background(), msg(prm.OpNop, 16, 0), make([]byte, 16), 10*time.Millisecond))
		b.onCommand(func(*call) {})
		polls := q.polls
		var te *TimeoutError
		require.ErrorAs(t, b.conn.ExecTimeout(context.Background(), msg(prm.OpNop, 16, 0), make([]byte, 16), 10*time.Millisecond), &te)
		require.Greater(t, q.polls, polls)
		require.Equal(t, 10*time.Millisecond, te.Age)
	})
}

func TestDuplicateAndForeignEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := open(t, Options{})
		defer b.close()
		b.toEvents()
		b.onCommand(func(c *call) {
			after(time.Millisecond, func() {
				b.conn.Complete(1 << c.slot) // too early: the entry is still the device's
				echo(c)
				b.conn.Complete(1<<c.slot | 1<<20) // 20 is free
				b.conn.Complete(1 << c.slot)
			})
		})
		for i := range 5 {
			in, out := msg(prm.OpNop, 100, uint64(i)), make([]byte, 100)
			require.NoError(t, b.conn.Exec(context.Background(), in, out))
			require.Equal(t, echoed(in), out)
			time.Sleep(10 * time.Millisecond)
		}
		require.GreaterOrEqual(t, b.conn.Stats().Spurious, uint64(10))
		require.Zero(t, b.conn.Stats().Recovered)
	})
}

// A late completion in event mode frees the slot through its event.
func TestLateEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := open(t, Options{})
		defer b.close()
		b.toEvents()
		var held *call
		b.onCommand(func(c *call) { held = c })
		ctx, cancel := context.WithCancel(context.Background())
		after(time.Millisecond, cancel)
		require.ErrorIs(t, b.conn.Exec(ctx, msg(prm.OpNop, 700, 0), make([]byte, 700)), context.Canceled)
		require.Equal(t, 1, b.conn.Stats().Quarantined)
		echo(held)
		b.conn.Complete(1 << held.slot)
		st := b.conn.Stats()
		require.Equal(t, uint64(1), st.Late)
		require.Zero(t, st.Quarantined)
		require.Zero(t, st.MailboxesInUse)
	})
}

// While the mode changes only CREATE_EQ and its undoing pass; the rest waits and
// then runs in the new mode.
func TestSwitch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := open(t, Options{})
		defer b.close()
		q := &fakeEQ{conn: b.conn}
		var mu sync.Mutex
		var order []prm.Opcode
		slow := 20 * time.Millisecond
		b.onCommand(func(c *call) {
			mu.Lock()
			order = append(order, c.op())
			mu.Unlock()
			d := slow
			if c.op() == prm.OpCreateEQ {
				d = 0
			}
			after(d, func() {
				echo(c)
				if b.conn.EventMode() {
					b.conn.Complete(1 << c.slot)
				}
			})
		})
		exec := func(op prm.Opcode) error {
			return b.conn.Exec(context.Background(), msg(op, 16, 0), make([]byte, 16))
		}
		var wg sync.WaitGroup
		wg.Go(func() { assertIs(t, exec(prm.OpNop), nil) })
		time.Sleep(time.Millisecond)
		start := time.Now()
		err := b.conn.SwitchToEvents(context.Background(), func(ctx context.Context) (EventQueue, error) {
			require.GreaterOrEqual(t, time.Since(start), 18*time.Millisecond, "the command in flight is waited for")
			wg.Go(func() { assertIs(t, exec(prm.OpQueryAdapter), nil) })
			wg.Go(func() { assertIs(t, exec(prm.OpQueryPages), nil) })
			time.Sleep(5 * time.Millisecond)
			if err := exec(prm.OpCreateEQ); err != nil {
				return nil, err
			}
			return q, nil
		})
		require.NoError(t, err)
		wg.Wait()
		require.Equal(t, prm.OpNop, order[0])
		require.Equal(t, prm.OpCreateEQ, order[1], "the others came after it")
		require.Len(t, order, 4)
		require.Zero(t, b.conn.Stats().Recovered)

		wg.Go(func() { assertIs(t, exec(prm.OpNop), nil) })
		time.Sleep(time.Millisecond)
		require.NoError(t, b.conn.SwitchToPolling(context.Background()))
		require.False(t, b.conn.EventMode())
		wg.Wait()
		require.NoError(t, exec(prm.OpDestroyEQ))
	})
}

func TestSwitchFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := open(t, Options{Timeout: time.Second})
		defer b.close()
		boom := errors.New("no vector")
		err := b.conn.SwitchToEvents(context.Background(), func(ctx context.Context) (EventQueue, error) {
			return nil, errors.Join(boom, b.conn.Exec(ctx, msg(prm.OpDestroyEQ, 16, 0), make([]byte, 16)))
		})
		require.ErrorIs(t, err, boom)
		require.False(t, b.conn.EventMode())
		require.NoError(t, b.conn.Exec(context.Background(), msg(prm.OpNop, 16, 0), make([]byte, 16)), "polled mode goes on")

		b.onCommand(func(*call) {})
		done := make(chan error)
		go func() { done <- b.conn.Exec(context.Background(), msg(prm.OpNop, 16, 0), make([]byte, 16)) }()
		time.Sleep(time.Millisecond)
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		defer cancel()
		err = b.conn.SwitchToEvents(ctx, func(context.Context) (EventQueue, error) { t.Error("called"); return nil, nil })
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Error(t, <-done)
		// A stuck command does not hold the next switch up.
		b.toEvents()
		b.conn.Dead(boom)
		require.NoError(t, b.conn.SwitchToPolling(context.Background()))
		require.Error(t, b.conn.SwitchToEvents(context.Background(), nil))
	})
}

func TestExecPolledInEventMode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := open(t, Options{})
		defer b.close()
		q := b.toEvents()
		b.onCommand(func(c *call) { after(2*time.Millisecond, func() { echo(c) }) })
		start := time.Now()
		require.NoError(t, b.conn.ExecPolled(context.Background(), msg(prm.OpNop, 16, 0), make([]byte, 16)))
		require.Less(t, time.Since(start), 5*time.Millisecond)
		require.Zero(t, q.polls)
	})
}
