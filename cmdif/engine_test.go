package cmdif

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/initseg"
	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/vfio"
)

func TestOpenPublishesAndWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.set(0x1fc, 1<<31)
		f.set(0xff8, 1<<29|7)  // cmd_exec_to 7 s
		f.set(0xffc, 0<<29|50) // cmd_q_init_to 50 ms
		dev, seg := f.device()
		after(30*time.Millisecond, func() { f.poke(0x1fc, 0) })
		start := time.Now()
		c, err := Open(context.Background(), dev, seg, Options{})
		require.NoError(t, err)
		require.InDelta(t, 30, time.Since(start).Milliseconds(), 2)
		require.Equal(t, 7*time.Second, c.Timeout())
		addr, _ := f.queue()
		require.NotZero(t, addr)
		require.Zero(t, addr%4096)
		require.Equal(t, addr, seg.QueueAddress())
		(&bench{fake: f, dev: dev, conn: c}).close()
	})
}

var errBroken = errors.New("socket closed")

func TestOpenRefusals(t *testing.T) {
	for _, tc := range []struct {
		name  string
		spoil func(*fake)
		check func(*testing.T, error)
	}{
		{"revision", func(f *fake) { f.set(4, 4<<16) }, func(t *testing.T, err error) {
			var e *initseg.RevisionError
			require.ErrorAs(t, err, &e)
			require.Equal(t, uint16(4), e.Got)
		}},
		{"33 entries", func(f *fake) { f.set(0x14, 6<<4|6) }, func(t *testing.T, err error) {
			var e *initseg.QueueError
			require.ErrorAs(t, err, &e)
		}},
		{"stride too small", func(f *fake) { f.set(0x14, 5<<4|5) }, func(t *testing.T, err error) {
			var e *initseg.QueueError
			require.ErrorAs(t, err, &e)
		}},
		{"more than a page", func(f *fake) { f.set(0x14, 5<<4|8) }, func(t *testing.T, err error) {
			var e *initseg.QueueError
			require.ErrorAs(t, err, &e)
		}},
		{"gone", func(f *fake) { f.gone.Store(true) }, func(t *testing.T, err error) {
			require.ErrorIs(t, err, vfio.ErrGone)
		}},
		{"never boots", func(f *fake) { f.set(0x1fc, 1<<31) }, func(t *testing.T, err error) {
			var e *initseg.NotReadyError
			require.ErrorAs(t, err, &e)
			require.Equal(t, initseg.PreInit, e.Phase)
			require.Equal(t, uint32(1<<31), e.Raw)
		}},
		{"never takes the queue over", func(f *fake) { f.publish = func() { f.set(0x1fc, 3<<30) } }, func(t *testing.T, err error) {
			var e *initseg.NotReadyError
			require.ErrorAs(t, err, &e)
			require.Equal(t, initseg.Init, e.Phase)
			require.Equal(t, initseg.DefaultInit, e.Limit)
			require.Equal(t, uint32(3<<30), e.Raw)
		}},
		{"goes away", func(f *fake) { f.publish = func() { f.gone.Store(true) } }, func(t *testing.T, err error) {
			require.ErrorIs(t, err, vfio.ErrGone)
		}},
		{"cannot be written", func(f *fake) { f.broken = errBroken }, func(t *testing.T, err error) {
			require.ErrorIs(t, err, errBroken)
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake(t)
				f.cfg[4] = 6 // memory space, bus master
				tc.spoil(f)
				dev, seg := f.device()
				_, err := Open(context.Background(), dev, seg, Options{})
				tc.check(t, err)
				if at := binary.BigEndian.Uint32(f.bar[0x14:]) >> 12; at != 0 && !f.gone.Load() {
					require.Zero(t, f.cfg[4]&4, "the device knows the page: it must be off the bus when the page is freed")
				}
				f.broken = nil
				require.Zero(t, dev.Space().Stats().LiveBuffers)
				require.NoError(t, dev.Close())
			})
		})
	}
}

// Every size around the mailbox borders and far beyond, both ways: the fake
// checks the form of every entry and mailbox, the echo checks the content.
func TestMessagesOfAnyLength(t *testing.T) {
	b := open(t, Options{VerifyOutputs: true})
	defer b.close()
	b.onCommand(echo)
	sizes := []int{8, 9, 15, 16, 17, 24, 527, 528, 529, 1039, 1040, 1041, 4112, 16 + 67*512, 102960, 16 + 8*GiveBatch}
	r := rand.New(rand.NewPCG(1, 2))
	for range 50 {
		sizes = append(sizes, 8+r.IntN(5000))
	}
	for i, n := range sizes {
		m := sizes[(i*7+3)%len(sizes)]
		in, out := msg(prm.OpNop, n, uint64(i)), make([]byte, m)
		require.NoError(t, b.conn.Exec(context.Background(), in, out))
		want := make([]byte, m)
		copy(want, echoed(in))
		require.True(t, bytes.Equal(want, out), "input of %d, output of %d bytes", n, m)
	}
	require.Equal(t, 0, boxes(16))
	require.Equal(t, 1, boxes(17))
	require.Equal(t, 202, boxes(102960), "MANAGE_PAGES of a ConnectX-4 with 12,868 pages")
	st := b.conn.Stats()
	require.Zero(t, st.MailboxesInUse)
	require.Zero(t, st.Active)
	require.Equal(t, uint64(len(sizes)), st.Ops[0].Completed())
}

// Commands complete in another order than they were sent; each caller gets its
// own reply.
func TestOutOfOrder(t *testing.T) {
	b := open(t, Options{})
	defer b.close()
	var mu sync.Mutex
	var held []*call
	r := rand.New(rand.NewPCG(3, 4))
	b.onCommand(func(c *call) {
		mu.Lock()
		held = append(held, c)
		full := len(held) == 31
		mu.Unlock()
		if full { // in a goroutine: this is a doorbell
			go func() {
				r.Shuffle(len(held), func(i, j int) { held[i], held[j] = held[j], held[i] })
				for _, c := range held {
					echo(c)
				}
			}()
		}
	})
	var wg sync.WaitGroup
	for i := range 31 {
		wg.Go(func() {
			in, out := msg(prm.OpNop, 100+i*40, uint64(i)), make([]byte, 100+i*40)
			if err := b.conn.Exec(context.Background(), in, out); err != nil {
				t.Error(err)
			}
			if !bytes.Equal(echoed(in), out) {
				t.Errorf("command %d got another reply", i)
			}
		})
	}
	wg.Wait()
	seen := map[int]bool{}
	for _, c := range held {
		seen[c.slot] = true
	}
	require.Len(t, seen, 31, "each command had a slot of its own")
	require.False(t, seen[31], "the last slot is reserved")
}

func TestSlotClasses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := open(t, Options{})
		defer b.close()
		var mu sync.Mutex
		held := map[prm.Opcode][]*call{}
		b.onCommand(func(c *call) {
			mu.Lock()
			defer mu.Unlock()
			held[c.op()] = append(held[c.op()], c)
		})
		count := func(op prm.Opcode) int {
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			return len(held[op])
		}
		var wg sync.WaitGroup
		send := func(op prm.Opcode, n int) {
			for range n {
				wg.Go(func() {
					if err := b.conn.Exec(context.Background(), msg(op, 16, 0), make([]byte, 16)); err != nil {
						t.Error(err)
					}
				})
			}
		}
		send(prm.OpCreateGeneralObject, 20)
		require.Equal(t, 16, count(prm.OpCreateGeneralObject), "throttled opcodes use half of the slots")
		send(prm.OpNop, 20)
		require.Equal(t, 15, count(prm.OpNop), "the others use the rest, but not the last")
		send(prm.OpManagePages, 2)
		require.Equal(t, 1, count(prm.OpManagePages), "page commands have one slot of their own")
		require.Equal(t, 31, held[prm.OpManagePages][0].slot)
		require.Equal(t, 4+5+1, b.conn.Stats().Waiting)

		for _, op := range []prm.Opcode{prm.OpManagePages, prm.OpNop, prm.OpCreateGeneralObject} {
			mu.Lock()
			cs := held[op]
			mu.Unlock()
			for _, c := range cs {
				c.reply(nil)
			}
			count(op)
			b.onCommand(func(c *call) { c.reply(nil) })
		}
		mu.Lock()
		for _, c := range held[prm.OpManagePages][1:] {
			c.reply(nil)
		}
		mu.Unlock()
		wg.Wait()
		require.Zero(t, b.conn.Stats().Waiting)
	})
}

func TestTimeoutQuarantineLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var lates []Late
		b := open(t, Options{OnLate: func(l Late) { lates = append(lates, l) }})
		defer b.close()
		var stuck *call
		b.onCommand(func(c *call) { stuck = c })
		start := time.Now()
		out := bytes.Repeat([]byte{0xaa}, 64)
		in := msg(prm.OpCreateEQ, 600, 7)
		err := b.conn.Exec(context.Background(), in, out)
		var te *TimeoutError
		require.ErrorAs(t, err, &te)
		require.Equal(t, TimeoutError{Opcode: prm.OpCreateEQ, Slot: 0, Age: 60 * time.Second, Limit: 60 * time.Second}, *te)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.True(t, Unanswered(err))
		require.Equal(t, 60*time.Second, time.Since(start))
		require.Equal(t, bytes.Repeat([]byte{0xaa}, 64), out, "the output is untouched")
		st := b.conn.Stats()
		require.Equal(t, 1, st.Quarantined)
		require.Equal(t, 3, st.MailboxesInUse, "the memory stays the device's")

		first := stuck
		b.onCommand(echo)
		for range 3 {
			require.NoError(t, b.conn.Exec(context.Background(), msg(prm.OpNop, 600, 1), make([]byte, 600)))
		}
		for _, r := range b.conn.History()[1:] {
			require.NotZero(t, r.Slot, "the slot is not used meanwhile")
		}
		require.Empty(t, lates)

		echo(first)
		require.NoError(t, b.conn.Exec(context.Background(), msg(prm.OpNop, 16, 1), make([]byte, 16)))
		st = b.conn.Stats()
		require.Equal(t, uint64(1), st.Late)
		require.Zero(t, st.Quarantined)
		require.Zero(t, st.MailboxesInUse)
		require.Len(t, lates, 1)
		require.Equal(t, prm.OpCreateEQ, lates[0].Opcode)
		require.Equal(t, OutcomeLate, lates[0].Outcome)
		require.Equal(t, echoed(in)[:64], lates[0].Reply)
	})
}

func TestCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := open(t, Options{})
		defer b.close()
		var calls int
		b.onCommand(func(*call) { calls++ })
		ctx, cancel := context.WithCancel(context.Background())
		after(5*time.Millisecond, cancel)
		err := b.conn.Exec(ctx, msg(prm.OpNop, 16, 0), make([]byte, 16))
		var ce *CanceledError
		require.ErrorAs(t, err, &ce)
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, 0, ce.Slot)
		require.Less(t, ce.Age, 10*time.Millisecond)
		require.Equal(t, 1, b.conn.Stats().Quarantined)

		err = b.conn.Exec(ctx, msg(prm.OpNop, 16, 0), make([]byte, 16))
		require.ErrorAs(t, err, &ce)
		require.Equal(t, -1, ce.Slot)
		require.False(t, Unanswered(err))
		require.Equal(t, 1, calls, "a cancelled context sends nothing")

		ctx, cancel = context.WithTimeout(context.Background(), 3*time.Second)
		defer cancel()
		start := time.Now()
		err = b.conn.Exec(ctx, msg(prm.OpNop, 16, 0), make([]byte, 16))
		var te *TimeoutError
		require.ErrorAs(t, err, &te)
		require.Equal(t, 3*time.Second, time.Since(start))
		require.ErrorIs(t, err, context.DeadlineExceeded)

		start = time.Now()
		require.ErrorAs(t, b.conn.ExecTimeout(context.Background(), msg(prm.OpNop, 16, 0), make([]byte, 16), time.Second), &te)
		require.Equal(t, time.Second, time.Since(start))
	})
}

func TestAllSlotsQuarantined(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := open(t, Options{Timeout: time.Second})
		defer b.close()
		var mu sync.Mutex
		var held []*call
		b.onCommand(func(c *call) {
			mu.Lock()
			defer mu.Unlock()
			held = append(held, c)
		})
		var te *TimeoutError
		var wg sync.WaitGroup
		for range 31 {
			wg.Go(func() { _ = b.conn.Exec(context.Background(), msg(prm.OpNop, 16, 0), make([]byte, 16)) })
		}
		// One more waits for a slot and must not wait in vain.
		time.Sleep(time.Millisecond)
		start := time.Now()
		err := b.conn.ExecTimeout(context.Background(), msg(prm.OpNop, 16, 0), make([]byte, 16), time.Hour)
		require.ErrorIs(t, err, ErrQuarantined)
		require.Less(t, time.Since(start), 2*time.Second)
		wg.Wait()
		require.ErrorIs(t, b.conn.Exec(context.Background(), msg(prm.OpNop, 16, 0), make([]byte, 16)), ErrQuarantined)
		require.Len(t, held, 31)

		// Page commands go on: in their slot, and in any other once that is lost.
		require.ErrorAs(t, b.conn.Exec(context.Background(), msg(prm.OpManagePages, 16, 0), make([]byte, 16)), &te)
		require.Equal(t, 31, te.Slot)
		for _, c := range held {
			if c.slot == 9 {
				c.reply(nil)
			}
		}
		b.onCommand(echo)
		require.NoError(t, b.conn.Exec(context.Background(), msg(prm.OpManagePages, 16, 0), make([]byte, 16)))
		require.Equal(t, 9, b.conn.History()[len(b.conn.History())-1].Slot)
		require.Equal(t, 31, b.conn.Stats().Quarantined)
		for _, c := range held {
			if c.slot != 9 {
				c.reply(nil)
			}
		}
		require.NoError(t, b.conn.Exec(context.Background(), msg(prm.OpNop, 16, 0), make([]byte, 16)))
		require.Zero(t, b.conn.Stats().Quarantined)
	})
}

// A command that waits for a slot gets it when a quarantined one comes back.
func TestWaiterGetsRecoveredSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.set(0x14, 1<<4|6) // two entries: one for commands, one for pages
		dev, seg := f.device()
		c, err := Open(context.Background(), dev, seg, Options{Timeout: time.Second})
		require.NoError(t, err)
		b := &bench{fake: f, dev: dev, conn: c}
		defer b.close()
		f.onCommand(func(c *call) {
			f.onCommand(echo)
			after(500*time.Millisecond, func() { c.reply(nil) })
		})
		done := make(chan error)
		go func() { done <- c.Exec(context.Background(), msg(prm.OpNop, 16, 0), make([]byte, 16)) }()
		time.Sleep(time.Millisecond)
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		defer cancel()
		var te *TimeoutError
		require.ErrorAs(t, c.Exec(ctx, msg(prm.OpNop, 16, 0), make([]byte, 16)), &te)
		require.Equal(t, -1, te.Slot, "there was no slot for it")
		require.NoError(t, <-done)
		require.Zero(t, c.Stats().Waiting)
	})
}

func TestDead(t *testing.T) {
	for _, events := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			b := open(t, Options{})
			defer b.close()
			if events {
				b.toEvents()
			}
			b.onCommand(func(*call) {})
			start := time.Now()
			var wg sync.WaitGroup
			for range 40 { // 31 in flight, 9 waiting for a slot
				wg.Go(func() {
					err := b.conn.Exec(context.Background(), msg(prm.OpNop, 600, 0), make([]byte, 16))
					var de *DeadError
					if !assertAs(t, err, &de) {
						return
					}
					if de.Slot >= 0 != Unanswered(err) {
						t.Errorf("%v: slot %d", err, de.Slot)
					}
				})
			}
			time.Sleep(time.Millisecond)
			b.conn.Dead(vfio.ErrGone)
			b.conn.Dead(ErrSignature) // the first reason stays
			wg.Wait()
			require.LessOrEqual(t, time.Since(start), 3*time.Millisecond)
			err := b.conn.Exec(context.Background(), msg(prm.OpNop, 16, 0), make([]byte, 16))
			require.ErrorIs(t, err, ErrDead)
			require.ErrorIs(t, err, vfio.ErrGone)
			require.NotErrorIs(t, err, ErrSignature)
			require.Equal(t, 31, b.conn.Stats().Quarantined)
		})
	}
}

// The Conn finds out by itself that the device reads all ones.
func TestGoneWhileWaiting(t *testing.T) {
	for _, events := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			b := open(t, Options{})
			defer b.close()
			if events {
				b.toEvents()
			}
			b.onCommand(func(*call) { b.gone.Store(true) })
			start := time.Now()
			err := b.conn.Exec(context.Background(), msg(prm.OpNop, 16, 0), make([]byte, 16))
			require.ErrorIs(t, err, ErrDead)
			require.ErrorIs(t, err, vfio.ErrGone)
			require.LessOrEqual(t, time.Since(start), 1100*time.Millisecond)
			require.ErrorIs(t, b.conn.Err(), vfio.ErrGone)
			b.gone.Store(false)
		})
	}
}

// A doorbell that cannot be rung ends the command at once, in both modes.
func TestBrokenDoorbell(t *testing.T) {
	for _, events := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			b := open(t, Options{})
			defer b.close()
			if events {
				b.toEvents()
			}
			b.mu.Lock()
			b.broken = errBroken
			b.mu.Unlock()
			start := time.Now()
			err := b.conn.NOP(context.Background())
			require.ErrorIs(t, err, ErrDead)
			require.ErrorIs(t, err, errBroken)
			require.Zero(t, time.Since(start))
			b.broken = nil
		})
	}
}

// Throttled commands that never complete stop their kind, and no other.
func TestThrottledQuarantine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := open(t, Options{Timeout: time.Second})
		defer b.close()
		b.onCommand(func(c *call) {
			if classOf(c.op()) != classThrottled {
				c.reply(nil)
			}
		})
		var wg sync.WaitGroup
		for range 16 {
			wg.Go(func() {
				var te *TimeoutError
				assertAs(t, b.conn.Exec(context.Background(), msg(prm.OpQueryGeneralObject, 16, 0), make([]byte, 16)), &te)
			})
		}
		wg.Wait()
		start := time.Now()
		require.ErrorIs(t, b.conn.Exec(context.Background(), msg(prm.OpSyncCrypto, 16, 0), make([]byte, 16)), ErrQuarantined)
		require.NoError(t, b.conn.NOP(context.Background()))
		_, err := b.conn.QueryPages(context.Background(), prm.QueryPagesRegular)
		require.NoError(t, err)
		require.Zero(t, time.Since(start))
	})
}

func TestCloseEndsWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := open(t, Options{})
		b.onCommand(func(*call) {})
		done := make(chan error)
		go func() { done <- b.conn.Exec(context.Background(), msg(prm.OpNop, 600, 0), make([]byte, 600)) }()
		time.Sleep(time.Millisecond)
		go func() {
			err := <-done
			if !assertIs(t, err, ErrClosed) {
				return
			}
			done <- nil
		}()
		b.close()
		<-done
		require.ErrorIs(t, b.conn.Exec(context.Background(), msg(prm.OpNop, 16, 0), make([]byte, 16)), ErrClosed)
		require.NoError(t, b.conn.Close())
	})
}

func TestTokensAreNeverZero(t *testing.T) {
	b := open(t, Options{History: 600})
	defer b.close()
	in, out := msg(prm.OpNop, 16, 0), make([]byte, 16)
	for range 600 {
		require.NoError(t, b.conn.Exec(context.Background(), in, out))
	}
	last := uint8(0)
	for _, r := range b.conn.History() {
		require.NotZero(t, r.Token)
		require.NotEqual(t, last, r.Token)
		last = r.Token
	}
}

func TestTooShortMessagesAreNotSent(t *testing.T) {
	b := open(t, Options{})
	defer b.close()
	var me *MessageError
	require.ErrorAs(t, b.conn.Exec(context.Background(), make([]byte, 7), make([]byte, 16)), &me)
	require.ErrorAs(t, b.conn.Exec(context.Background(), nil, make([]byte, 16)), &me)
	require.ErrorAs(t, b.conn.Exec(context.Background(), make([]byte, 16), make([]byte, 7)), &me)
	require.Zero(t, b.doorbel.Load())
}

func TestInlineCommandAllocatesNothing(t *testing.T) {
	b := open(t, Options{})
	defer b.close()
	b.instant = true
	in, out := msg(prm.OpNop, 16, 0), make([]byte, 16)
	ctx := context.Background()
	require.NoError(t, b.conn.Exec(ctx, in, out)) // the fake learns the entry
	require.Zero(t, testing.AllocsPerRun(200, func() {
		if err := b.conn.Exec(ctx, in, out); err != nil {
			t.Fatal(err)
		}
	}))
}

func TestEventModeAllocatesNothing(t *testing.T) {
	b := open(t, Options{})
	defer b.close()
	b.toEvents()
	b.instant = true
	b.events = b.conn.Complete
	in, out := msg(prm.OpNop, 600, 0), make([]byte, 600)
	ctx := context.Background()
	b.onCommand(func(c *call) { c.reply(nil); b.conn.Complete(1) })
	require.NoError(t, b.conn.Exec(ctx, in, out))
	require.Zero(t, testing.AllocsPerRun(200, func() {
		if err := b.conn.Exec(ctx, in, out); err != nil {
			t.Fatal(err)
		}
	}))
	require.Zero(t, b.conn.Stats().Recovered)
}

func BenchmarkCommandInline(b *testing.B) { benchmark(b, 16, 16) }

// An answer that comes at once, with one mailbox each way.
func BenchmarkCommandMailbox(b *testing.B) { benchmark(b, 280, 272) }

// QUERY_HCA_CAP's size.
func BenchmarkCommand4K(b *testing.B) { benchmark(b, 16, 4112) }

func benchmark(b *testing.B, inLen, outLen int) {
	f := open(b, Options{})
	defer f.close()
	f.instant = true
	in, out := msg(prm.OpNop, inLen, 0), make([]byte, outLen)
	ctx := context.Background()
	b.ReportAllocs()
	for b.Loop() {
		if err := f.conn.Exec(ctx, in, out); err != nil {
			b.Fatal(err)
		}
	}
	st := f.conn.Stats().Ops[0]
	b.ReportMetric(float64(st.Quantile(0.5)), "ns-median")
}

// The statistics hold what was sent.
func TestStatsAndHistory(t *testing.T) {
	b := open(t, Options{History: 3})
	defer b.close()
	b.onCommand(func(c *call) {
		if c.op() == prm.OpCreateEQ {
			c.refuse(prm.StatusLimit, 0xabcd)
			return
		}
		c.reply(nil)
	})
	ctx := context.Background()
	for range 4 {
		require.NoError(t, b.conn.Exec(ctx, msg(prm.OpNop, 16, 0), make([]byte, 16)))
	}
	in := msg(prm.OpCreateEQ, 280, 0)
	binary.BigEndian.PutUint16(in[6:], 0x33)
	require.Error(t, b.conn.Exec(ctx, in, make([]byte, 16)))
	st := b.conn.Stats()
	require.Len(t, st.Ops, 2)
	require.Equal(t, prm.OpCreateEQ, st.Ops[0].Opcode)
	require.Equal(t, [2]uint64{1, 1}, [2]uint64{st.Ops[0].Count, st.Ops[0].Failures})
	require.Equal(t, [2]uint64{4, 0}, [2]uint64{st.Ops[1].Count, st.Ops[1].Failures})
	require.Equal(t, uint64(4), st.Ops[1].Completed())
	require.Positive(t, st.Ops[1].Quantile(0.5))
	require.LessOrEqual(t, st.Ops[1].Quantile(1), st.Ops[1].Max)
	h := b.conn.History()
	require.Len(t, h, 3)
	last := h[2]
	require.Equal(t, OutcomeRefused, last.Outcome)
	require.Equal(t, uint16(0x33), last.OpMod)
	require.Equal(t, prm.StatusLimit, last.Status)
	require.Equal(t, uint32(0xabcd), last.Syndrome)
	require.Equal(t, in[:16], last.In[:])
	require.Equal(t, prm.OpNop, h[0].Opcode)
}
