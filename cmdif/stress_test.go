package cmdif

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// A device that answers late, never, out of order, without event or with too
// many, and callers that give up: no reply reaches the wrong caller, and no slot
// is lost without being reported. The seed decides everything.
func TestAnyDisorder(t *testing.T) {
	for seed := range uint64(12) {
		synctest.Test(t, func(t *testing.T) { disorder(t, seed, seed%2 == 1) })
	}
}

func disorder(t *testing.T, seed uint64, events bool) {
	const workers, each = 50, 20
	var late atomic.Int64
	b := open(t, Options{Timeout: 2 * time.Second, History: workers * each * 3, OnLate: func(Late) { late.Add(1) }})
	defer b.close()
	var q *fakeEQ
	if events {
		q = b.toEvents()
	}
	var mu sync.Mutex
	r := rand.New(rand.NewPCG(seed, 99))
	roll := func(n int) int { mu.Lock(); defer mu.Unlock(); return r.IntN(n) }
	var never, sent atomic.Int64
	b.onCommand(func(c *call) {
		sent.Add(1)
		finish := func() {
			echo(c)
			if !events {
				return
			}
			switch roll(10) {
			case 0: // the event gets lost
			case 1: // its interrupt does
				q.push(1 << c.slot)
			case 2:
				b.conn.Complete(1 << c.slot)
				b.conn.Complete(1 << c.slot)
			default:
				b.conn.Complete(1 << c.slot)
			}
		}
		switch k := roll(100); {
		case k == 0 && never.Load() < 8:
			never.Add(1)
		case k < 3: // later than anybody waits
			after(time.Duration(2100+roll(3000))*time.Millisecond, finish)
		case k < 60:
			after(time.Duration(1+roll(5000))*time.Microsecond, finish)
		case events: // not from the doorbell: the EQ has a goroutine of its own
			after(0, finish)
		default:
			finish()
		}
	})
	var ok, timeouts, canceled, unsent atomic.Int64
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := range each {
				op := []prm.Opcode{prm.OpNop, prm.OpNop, prm.OpManagePages, prm.OpCreateGeneralObject, prm.OpQueryAdapter}[roll(5)]
				n, m := 8+roll(1500), 8+roll(1500)
				in, out := msg(op, n, uint64(w*each+i)), make([]byte, m)
				ctx, cancel := context.WithCancel(context.Background())
				if roll(20) == 0 {
					stop := time.AfterFunc(time.Duration(roll(3000))*time.Microsecond, cancel)
					defer stop.Stop()
				}
				err := b.conn.Exec(ctx, in, out)
				cancel()
				var te *TimeoutError
				var ce *CanceledError
				switch {
				case err == nil:
					ok.Add(1)
					want := make([]byte, m)
					copy(want, echoed(in))
					if string(want) != string(out) {
						t.Errorf("seed %d: a reply of another command", seed)
					}
				case errors.As(err, &te) && te.Slot >= 0:
					timeouts.Add(1)
				case errors.As(err, &ce) && ce.Slot >= 0:
					canceled.Add(1)
				case errors.As(err, &te), errors.As(err, &ce), errors.Is(err, ErrQuarantined):
					unsent.Add(1)
				default:
					t.Errorf("seed %d: %v", seed, err)
				}
			}
		})
	}
	wg.Wait()
	time.Sleep(10 * time.Second)
	b.onCommand(func(c *call) { sent.Add(1); echo(c); b.conn.Complete(1 << c.slot) })
	require.NoError(t, b.conn.Exec(context.Background(), msg(prm.OpNop, 16, 0), make([]byte, 16)))
	ok.Add(1)
	st := b.conn.Stats()
	t.Logf("seed %d events %v: ok %d, timeouts %d, cancelled %d, unsent %d, never %d, late %d, recovered %d, lost %d, spurious %d",
		seed, events, ok.Load(), timeouts.Load(), canceled.Load(), unsent.Load(), never.Load(), st.Late, st.Recovered, st.LostInterrupts, st.Spurious)
	require.Equal(t, int(never.Load()), st.Quarantined, "exactly the commands that never completed hold a slot")
	require.Equal(t, uint64(timeouts.Load()+canceled.Load())-uint64(never.Load()), st.Late)
	require.Equal(t, st.Late, uint64(late.Load()))
	require.Zero(t, st.Active)
	require.Zero(t, st.Waiting)
	var count, failures uint64
	for _, o := range st.Ops {
		count += o.Count
		failures += o.Failures
	}
	require.Equal(t, uint64(sent.Load()), count)
	require.Equal(t, uint64(timeouts.Load()+canceled.Load()), failures)
	require.Equal(t, ok.Load()+timeouts.Load()+canceled.Load(), sent.Load())
	require.Len(t, b.conn.History(), int(count+st.Late))
	if !events {
		require.Zero(t, st.Recovered)
	}
}
