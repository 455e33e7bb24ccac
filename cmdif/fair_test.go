package cmdif

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// openEntries is open on a device with 1<<log queue entries.
func openEntries(t testing.TB, log uint32, o Options) *bench {
	f := newFake(t)
	f.set(0x14, log<<4|6)
	dev, seg := f.device()
	c, err := Open(context.Background(), dev, seg, o)
	require.NoError(t, err)
	return &bench{fake: f, dev: dev, seg: seg, conn: c}
}

// Slots go to commands in the order in which they came: at every moment, whoever is
// sent next is the first of those that may use what is free. The order is known here,
// since each command is in its place before the next one comes; completions come in
// any order, and some who wait leave.
func TestFirstComeFirstServed(t *testing.T) {
	for seed := range loadSeeds(t, 20) {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { inOrder(t, rand.New(rand.NewPCG(seed, 5))) })
		})
	}
}

// queued is a command in the model of the line.
type queued struct {
	id     uint64
	class  class
	cancel context.CancelFunc
}

func inOrder(t *testing.T, r *rand.Rand) {
	log := []uint32{0, 1, 3, 5}[r.IntN(4)]
	b := openEntries(t, log, Options{MaxSlots: []int{0, 0, 1, 5}[r.IntN(4)], Timeout: time.Hour})
	var mu sync.Mutex
	var arrived []*call
	b.onCommand(func(c *call) {
		mu.Lock()
		defer mu.Unlock()
		arrived = append(arrived, c)
	})
	// The model.
	ordinary := b.conn.Stats().Slots - 1 // without the slot of page commands
	own := log > 0
	if !own {
		ordinary = 1
	}
	var (
		line               []queued
		busy               = map[uint64]class{} // in flight, or given up and not answered
		normals, throttled int
	)
	may := func(cl class) bool {
		pages := len(busy) - normals // in flight, of class page
		switch {
		case cl == classThrottled:
			return normals < ordinary && throttled < (ordinary+1)/2 && (own || pages == 0)
		case cl == classNormal:
			return normals < ordinary && (own || pages == 0)
		case !own:
			return len(busy) == 0
		}
		return pages == 0
	}
	var held []*call
	// settle lets what may run run, and compares it with the model.
	settle := func() {
		synctest.Wait()
		mu.Lock()
		now := arrived
		arrived = nil
		mu.Unlock()
		var got, want []uint64
		for _, c := range now {
			got = append(got, binary.BigEndian.Uint64(c.in[8:]))
		}
		held = append(held, now...)
		for i := 0; i < len(line); {
			w := line[i]
			if !may(w.class) {
				i++
				continue
			}
			want = append(want, w.id)
			busy[w.id] = w.class
			if w.class != classPage {
				normals++
			}
			if w.class == classThrottled {
				throttled++
			}
			line = slices.Delete(line, i, i+1)
		}
		slices.Sort(got) // sent by goroutines of their own
		slices.Sort(want)
		require.Equal(t, want, got, "who is sent now")
		require.Equal(t, len(line), b.conn.Stats().Waiting)
	}
	var wg sync.WaitGroup
	next := uint64(0)
	come := func() {
		next++
		id := next
		op := loadOps[r.IntN(len(loadOps))]
		if r.IntN(8) == 0 {
			op = prm.OpManagePages
		}
		ctx, cancel := context.WithCancel(context.Background())
		line = append(line, queued{id, classOf(op), cancel})
		wg.Go(func() {
			defer cancel()
			in, out := inputOf(id, op, 16+r.IntN(600)), make([]byte, 16)
			if err := b.conn.Exec(ctx, in, out); err == nil {
				checkReply(t, id, out)
			} else if !errors.Is(err, context.Canceled) {
				t.Errorf("command %d: %v", id, err)
			}
		})
	}
	finish := func(c *call) {
		id := binary.BigEndian.Uint64(c.in[8:])
		c.reply(replyOf(id, c.outLen))
		cl := busy[id]
		delete(busy, id)
		if cl != classPage {
			normals--
		}
		if cl == classThrottled {
			throttled--
		}
		time.Sleep(2 * reapEvery) // polling, and looking after what was given up
	}
	for range 400 {
		switch k := r.IntN(10); {
		case k < 5:
			come()
		case k < 9 && len(held) > 0:
			i := r.IntN(len(held))
			c := held[i]
			held = slices.Delete(held, i, i+1)
			finish(c)
		case len(line) > 0: // leaves the line
			i := r.IntN(len(line))
			line[i].cancel()
			line = slices.Delete(line, i, i+1)
		}
		settle()
	}
	for len(held) > 0 {
		c := held[0]
		held = held[1:]
		finish(c)
		settle()
	}
	wg.Wait()
	b.close()
}

// Callers that all want the same get the same. Those whose commands complete in the
// same moment line up again in any order, 31 of 500 at a time: no more than four turns
// of 62 can come of that.
func TestNobodyStarves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := open(t, Options{})
		defer b.close()
		b.onCommand(func(c *call) { after(time.Millisecond, func() { echo(c); b.conn.Complete(1 << c.slot) }) })
		b.toEvents()
		const callers = 500
		var done [callers]int
		var wg sync.WaitGroup
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		for i := range callers {
			wg.Go(func() {
				op := loadOps[i%len(loadOps)]
				if classOf(op) != classNormal {
					op = prm.OpNop
				}
				for b.conn.Exec(ctx, msg(op, 16, 0), make([]byte, 16)) == nil {
					done[i]++
				}
			})
		}
		wg.Wait()
		least, most := slices.Min(done[:]), slices.Max(done[:])
		require.GreaterOrEqual(t, least, 1000*31/callers-2)
		require.LessOrEqual(t, most-least, 4)
		time.Sleep(time.Second)
	})
}

// A command whose caller leaves while it waits never reaches the device, also if a
// slot becomes free in the same moment.
func TestLeavingAtTheGrant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := openEntries(t, 5, Options{MaxSlots: 1})
		defer b.close()
		var mu sync.Mutex
		var seen []uint64
		b.onCommand(func(c *call) {
			mu.Lock()
			seen = append(seen, binary.BigEndian.Uint64(c.in[8:]))
			mu.Unlock()
			after(time.Millisecond, func() { echo(c) })
		})
		left := 0
		for round := range uint64(200) {
			var wg sync.WaitGroup
			ctx, cancel := context.WithCancel(context.Background())
			wg.Go(func() {
				assertIs(t, b.conn.Exec(context.Background(), inputOf(2*round+1, prm.OpNop, 16), make([]byte, 16)), nil)
			})
			synctest.Wait()
			wg.Go(func() {
				err := b.conn.Exec(ctx, inputOf(2*round+2, prm.OpNop, 16), make([]byte, 16))
				mu.Lock()
				defer mu.Unlock()
				var ce *CanceledError
				sent := slices.Contains(seen, 2*round+2)
				if errors.As(err, &ce) {
					left++
					if sent != (ce.Slot >= 0) {
						t.Errorf("sent %v: %v", sent, err)
					}
					if ce.Slot >= 0 && ce.Age < time.Millisecond {
						t.Errorf("sent after its caller had left: %v", err)
					}
				}
			})
			// Near the completion of the first.
			time.Sleep(time.Millisecond + time.Duration(round%7)*5*time.Microsecond)
			cancel()
			wg.Wait()
			time.Sleep(20 * time.Millisecond)
		}
		require.Positive(t, left)
		require.Zero(t, b.conn.Stats().Quarantined)
	})
}

// Nor does one whose time is over in the moment in which a slot becomes free.
func TestDeadlineAtTheGrant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := openEntries(t, 5, Options{MaxSlots: 1})
		defer b.close()
		b.toEvents()
		var mu sync.Mutex
		late := 0
		b.onCommand(func(c *call) {
			if binary.BigEndian.Uint64(c.in[8:]) == 2 {
				mu.Lock()
				late++
				mu.Unlock()
			}
			after(time.Millisecond, func() { echo(c); b.conn.Complete(1 << c.slot) })
		})
		for range 100 {
			var wg sync.WaitGroup
			wg.Go(func() {
				assertIs(t, b.conn.Exec(context.Background(), inputOf(1, prm.OpNop, 16), make([]byte, 16)), nil)
			})
			synctest.Wait()
			wg.Go(func() {
				var te *TimeoutError
				err := b.conn.ExecTimeout(context.Background(), inputOf(2, prm.OpNop, 16), make([]byte, 16), time.Millisecond)
				if assertAs(t, err, &te) && te.Slot != -1 {
					t.Errorf("sent when its time was over: %v", err)
				}
			})
			wg.Wait()
			time.Sleep(time.Millisecond)
		}
		require.Zero(t, late)
		require.Zero(t, b.conn.Stats().Quarantined)
	})
}

// All slots are given up within a moment, by callers that leave. The device is well
// and will answer: the next command waits for that, and is not refused.
func TestStormOfCancellations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := open(t, Options{})
		defer b.close()
		b.onCommand(func(c *call) { after(50*time.Millisecond, func() { echo(c) }) })
		ctx, cancel := context.WithCancel(context.Background())
		after(time.Millisecond, cancel)
		var wg sync.WaitGroup
		for range 1000 {
			wg.Go(func() { assertIs(t, b.conn.NOP(ctx), context.Canceled) })
		}
		wg.Wait()
		require.Equal(t, 31, b.conn.Stats().Quarantined)
		start := time.Now()
		require.NoError(t, b.conn.NOP(context.Background()))
		require.Less(t, time.Since(start), 50*time.Millisecond+reapEvery+50*time.Millisecond+2*longestSleep)
		time.Sleep(time.Second)
		require.Equal(t, uint64(31), b.conn.Stats().Late)
	})
}

// A device that goes away while every slot is given up and one more command waits.
func TestGoneWhileAllAreGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := openEntries(t, 1, Options{})
		b.onCommand(func(*call) {})
		ctx, cancel := context.WithCancel(context.Background())
		after(time.Millisecond, cancel)
		assertIs(t, b.conn.NOP(ctx), context.Canceled)
		after(5*time.Millisecond, func() { b.gone.Store(true) })
		start := time.Now()
		var de *DeadError
		require.ErrorAs(t, b.conn.NOP(context.Background()), &de)
		require.Equal(t, -1, de.Slot)
		require.LessOrEqual(t, time.Since(start), 5*time.Millisecond+2*reapEvery)
		b.close()
	})
}

// The wait for a slot that no one gives back ends when the command that holds it has
// had all its time.
func TestGivenUpEarlyAndNeverAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := openEntries(t, 1, Options{Timeout: 3 * time.Second})
		defer b.close()
		b.onCommand(func(*call) {})
		ctx, cancel := context.WithCancel(context.Background())
		after(time.Second, cancel)
		start := time.Now()
		assertIs(t, b.conn.NOP(ctx), context.Canceled)
		require.ErrorIs(t, b.conn.ExecTimeout(context.Background(), msg(prm.OpNop, 16, 0), make([]byte, 16), time.Hour), ErrQuarantined)
		require.InDelta(t, 3, time.Since(start).Seconds(), 0.05)
	})
}

// One slot: one command at a time, and page commands beside it.
func TestMaxSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := openEntries(t, 5, Options{MaxSlots: 1})
		defer b.close()
		st := b.conn.Stats()
		require.Equal(t, [3]int{32, 2, 2}, [3]int{st.Entries, st.Slots, st.Free})
		var mu sync.Mutex
		slots := map[prm.Opcode]map[int]bool{}
		b.onCommand(func(c *call) {
			mu.Lock()
			defer mu.Unlock()
			if slots[c.op()] == nil {
				slots[c.op()] = map[int]bool{}
			}
			slots[c.op()][c.slot] = true
			after(time.Millisecond, func() { echo(c) })
		})
		start := time.Now()
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() { assertIs(t, b.conn.NOP(context.Background()), nil) })
			wg.Go(func() {
				_, err := b.conn.QueryPages(context.Background(), prm.QueryPagesRegular)
				assertIs(t, err, nil)
			})
			wg.Go(func() {
				assertIs(t, b.conn.Exec(context.Background(), msg(prm.OpSyncCrypto, 16, 0), make([]byte, 16)), nil)
			})
		}
		wg.Wait()
		require.GreaterOrEqual(t, time.Since(start), 40*time.Millisecond, "40 ordinary commands, one after the other")
		require.Equal(t, map[int]bool{0: true}, slots[prm.OpNop])
		require.Equal(t, map[int]bool{0: true}, slots[prm.OpSyncCrypto])
		require.Equal(t, map[int]bool{31: true}, slots[prm.OpQueryPages])
		for _, n := range []int{0, 31, 32, 1000} {
			c := openEntries(t, 5, Options{MaxSlots: n})
			require.Equal(t, 32, c.conn.Stats().Slots, n)
			c.close()
		}
		c := openEntries(t, 0, Options{MaxSlots: 1})
		require.Equal(t, 1, c.conn.Stats().Slots)
		c.close()
	})
}
