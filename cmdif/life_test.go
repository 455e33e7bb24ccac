package cmdif

import (
	"context"
	"encoding/binary"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// The Conn ends while a command that is about to be admitted reports what came late:
// that command is not sent.
func TestEndWhileAdmitting(t *testing.T) {
	for _, end := range []string{"dead", "closed"} {
		t.Run(end, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var b *bench
				b = open(t, Options{OnLate: func(Late) {
					if end == "dead" {
						b.conn.Dead(vfio.ErrGone)
						return
					}
					b.offBus()
					if err := b.conn.Close(); err != nil {
						t.Error(err)
					}
				}})
				var held *call
				b.onCommand(func(c *call) { held = c })
				ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
				defer cancel()
				require.Error(t, b.conn.NOP(ctx))
				echo(held)
				rung := b.doorbel.Load()
				err := b.conn.Exec(context.Background(), msg(prm.OpNop, 600, 0), make([]byte, 600))
				require.ErrorIs(t, err, map[string]error{"dead": vfio.ErrGone, "closed": ErrClosed}[end])
				require.False(t, Unanswered(err))
				require.Equal(t, rung, b.doorbel.Load(), "the doorbell is not rung")
				require.Zero(t, b.conn.Stats().Active)
				b.close()
			})
		})
	}
}

// A caller that leaves while the message is built, here in the memory for its
// mailboxes, has sent nothing.
func TestLeavingWhileBuilding(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := open(t, Options{})
		defer b.close()
		const huge = 40 << 20 // beyond any slab
		ctx, cancel := context.WithCancel(context.Background())
		b.onMap = cancel
		err := b.conn.Exec(ctx, make([]byte, huge), make([]byte, 600))
		var ce *CanceledError
		require.ErrorAs(t, err, &ce)
		require.Equal(t, -1, ce.Slot)
		require.Zero(t, b.doorbel.Load())
		st := b.conn.Stats()
		require.Equal(t, [3]int{0, 0, 0}, [3]int{st.Active, st.Quarantined, st.MailboxesInUse})

		b.onMap = func() { b.conn.Dead(errBroken) }
		err = b.conn.Exec(context.Background(), make([]byte, 2*huge), make([]byte, 600))
		var de *DeadError
		require.ErrorAs(t, err, &de)
		require.Equal(t, -1, de.Slot)
		require.Equal(t, b.conn.Device().Info().Name, de.Device)
		require.NotEmpty(t, de.Device)
		require.Zero(t, b.doorbel.Load())
	})
}

// What a command that is sent again because firmware was not ready leaves in the
// output: the last NOT_READY, or nothing if it ended otherwise.
func TestNotReadyAndThenNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := openEntries(t, 1, Options{})
		defer b.close()
		b.onCommand(func(c *call) {
			c.reply(append([]byte{byte(prm.StatusNotReady), 0, 0, 0, 1, 2, 3, 4}, make([]byte, 600)...))
		})
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		defer cancel()
		out := make([]byte, 600)
		for i := range out {
			out[i] = 0xaa
		}
		var ce *CommandError
		require.ErrorAs(t, b.conn.Exec(ctx, msg(prm.OpNop, 16, 0), out), &ce)
		require.Equal(t, append([]byte{byte(prm.StatusNotReady), 0, 0, 0, 1, 2, 3, 4}, make([]byte, 592)...), out)

		// Not ready, and the second time never answered.
		b.onCommand(func(c *call) {
			b.onCommand(func(*call) {})
			c.refuse(prm.StatusNotReady, 7)
		})
		for i := range out {
			out[i] = 0xaa
		}
		want := string(out)
		var te *TimeoutError
		require.ErrorAs(t, b.conn.ExecTimeout(context.Background(), msg(prm.OpNop, 16, 0), out, time.Second), &te)
		require.Equal(t, want, string(out), "the output is untouched")
	})
}

// No token is given to two commands at a time, however long one of them is held, and
// none twice in a row to a slot.
func TestTokensAreOneCommands(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := open(t, Options{})
		var mu sync.Mutex
		hold := 0
		inUse, last := map[byte]bool{}, map[int]byte{}
		b.onCommand(func(c *call) {
			mu.Lock()
			defer mu.Unlock()
			if inUse[c.token] || c.token == 0 || last[c.slot] == c.token {
				t.Errorf("token %d in slot %d, before it %d; in use: %v", c.token, c.slot, last[c.slot], inUse)
			}
			last[c.slot] = c.token
			if hold > 0 {
				hold--
				inUse[c.token] = true
				return
			}
			c.reply(nil)
		})
		for round := range 5 {
			mu.Lock()
			hold = 5 // these stay for ever
			mu.Unlock()
			for range 5 {
				ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
				require.Error(t, b.conn.NOP(ctx))
				cancel()
			}
			for range 300 - 7*round { // round the tokens, at another place each time
				require.NoError(t, b.conn.NOP(context.Background()))
			}
		}
		require.Equal(t, 25, b.conn.Stats().Quarantined)
		b.close()
	})
}

// Also if all other tokens were used in between, in another slot.
func TestTokenOfTheCommandBefore(t *testing.T) {
	b := openEntries(t, 1, Options{})
	defer b.close()
	last := map[int]byte{}
	b.onCommand(func(c *call) {
		if last[c.slot] == c.token {
			t.Errorf("slot %d has token %d twice in a row", c.slot, c.token)
		}
		last[c.slot] = c.token
		c.reply(nil)
	})
	for range 3 {
		require.NoError(t, b.conn.NOP(context.Background()))
		for range 254 { // page commands have a slot of their own
			_, err := b.conn.QueryPages(context.Background(), prm.QueryPagesBoot)
			require.NoError(t, err)
		}
	}
}

// A device that writes the end of an entry once more, after the entry was used again,
// has not answered the new command with that.
func TestOldAnswerAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := openEntries(t, 1, Options{MaxSlots: 1, Timeout: time.Second})
		defer b.close()
		var old *call
		for range 300 {
			b.onCommand(func(c *call) {
				prev := old
				old = c
				if prev == nil {
					echo(c)
					return
				}
				after(time.Millisecond, func() {
					prev.entry.StoreBE32(0x3c, uint32(prev.token)<<24)
					after(10*time.Millisecond, func() { echo(c) })
				})
			})
			in, out := msg(prm.OpNop, 16, 1), make([]byte, 16)
			err := b.conn.Exec(context.Background(), in, out)
			if err == nil {
				require.Equal(t, echoed(in), out)
				continue
			}
			require.ErrorIs(t, err, ErrNotOurs)
			time.Sleep(20 * time.Millisecond)
			require.Zero(t, b.conn.Stats().Quarantined, "its own answer came later")
		}
		require.Equal(t, uint64(299), b.conn.Stats().Foreign)
	})
}

// A deadline shorter than the look at the device does not hide that it is dead.
func TestShortDeadlineOnDeadDevice(t *testing.T) {
	for _, events := range []bool{false, true} {
		for _, how := range []string{"context", "limit"} {
			synctest.Test(t, func(t *testing.T) {
				b := open(t, Options{})
				defer b.close()
				if events {
					b.toEvents()
				}
				b.onCommand(func(*call) {
					b.fake.mu.Lock()
					defer b.fake.mu.Unlock()
					h := prm.AsHealthBuffer(b.bar[0x200:0x240])
					h.SetSynd(prm.SyndFWInternalErr)
					h.SetRFR(true)
				})
				ctx, limit := context.Background(), 20*time.Millisecond
				if how == "context" {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, limit)
					defer cancel()
					limit = time.Minute
				}
				var de *DeadError
				require.ErrorAs(t, b.conn.ExecTimeout(ctx, msg(prm.OpNop, 16, 0), make([]byte, 16), limit), &de)
				require.Equal(t, 0, de.Slot)
				require.Error(t, b.conn.Err())
			})
		}
	}
}

// Close names the commands that never completed, and frees everything.
func TestCloseNamesTheUnanswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := open(t, Options{Timeout: time.Second})
		var held []*call
		b.onCommand(func(c *call) { held = append(held, c) })
		for i := range 7 {
			require.Error(t, b.conn.Exec(context.Background(), inputOf(uint64(i), prm.OpCreateCQ, 300), make([]byte, 16)))
		}
		st := b.conn.Stats()
		require.Len(t, st.Unanswered, 7)
		for i, r := range st.Unanswered {
			require.Equal(t, uint64(i), binary.BigEndian.Uint64(r.In[8:]))
			require.Equal(t, i, r.Slot)
			require.Equal(t, OutcomeTimeout, r.Outcome)
			require.Equal(t, time.Second, r.Latency)
		}
		echo(held[3]) // in time for the Close
		var late int
		b.conn.onLate = func(l Late) { late++ }
		b.offBus()
		err := b.conn.Close()
		var ue *UnansweredError
		require.ErrorAs(t, err, &ue)
		require.NoError(t, ue.Err)
		require.Len(t, ue.Commands, 6)
		require.Equal(t, 1, late)
		require.ErrorContains(t, err, "fake: close command interface: 6 commands never completed: CREATE_CQ(0x400) op_mod 0x0 in slot 0 since 7s,")
		require.ErrorContains(t, err, ", and 2 more; the device forgets them at the next reset")
		require.Zero(t, b.dev.Space().Stats().LiveBuffers)
		require.NoError(t, b.conn.Close())
		b.conn.Complete(0xffffffff) // too late, and harmless
		require.NoError(t, b.dev.Close())
	})
}

// An event of a Conn that is dead wakes nobody and takes nothing back.
func TestCompleteOnDeadDevice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := open(t, Options{})
		var held *call
		b.onCommand(func(c *call) { held = c })
		ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
		defer cancel()
		require.Error(t, b.conn.Exec(ctx, msg(prm.OpNop, 600, 0), make([]byte, 16)))
		b.conn.Dead(errBroken)
		echo(held)
		b.conn.Complete(1)
		st := b.conn.Stats()
		require.Equal(t, 1, st.Quarantined)
		require.Equal(t, 2, st.MailboxesInUse)
		b.close() // and yet it has answered
	})
}

// The mode is changed one way at a time.
func TestSwitchTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := open(t, Options{})
		defer b.close()
		b.toEvents()
		err := b.conn.SwitchToEvents(context.Background(), func(context.Context) (EventQueue, error) {
			t.Error("called")
			return nil, errors.New("called")
		})
		require.ErrorContains(t, err, "by events already")
		require.True(t, b.conn.EventMode())
	})
}

// While the mode changes nothing but CREATE_EQ reaches the device, whenever it came:
// before the switch, in the drain, while the EQ is made.
func TestSwitchKeepsOthersOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := openEntries(t, 1, Options{})
		defer b.close()
		var mu sync.Mutex
		var seen []prm.Opcode
		b.onCommand(func(c *call) {
			mu.Lock()
			seen = append(seen, c.op())
			mu.Unlock()
			after(10*time.Millisecond, func() {
				echo(c)
				if b.conn.EventMode() {
					b.conn.Complete(1 << c.slot)
				}
			})
		})
		ops := func() []prm.Opcode {
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			return append([]prm.Opcode(nil), seen...)
		}
		var wg sync.WaitGroup
		send := func() {
			for _, op := range []prm.Opcode{prm.OpQueryAdapter, prm.OpQueryPages, prm.OpSyncCrypto} {
				wg.Go(func() { assertIs(t, b.conn.Exec(context.Background(), msg(op, 16, 0), make([]byte, 16)), nil) })
			}
			synctest.Wait()
		}
		wg.Go(func() { assertIs(t, b.conn.NOP(context.Background()), nil) })
		synctest.Wait()
		wg.Go(func() {
			time.Sleep(time.Millisecond)
			send() // in the drain
		})
		err := b.conn.SwitchToEvents(context.Background(), func(ctx context.Context) (EventQueue, error) {
			send()
			time.Sleep(5 * time.Millisecond)
			require.Equal(t, []prm.Opcode{prm.OpNop}, ops())
			assertIs(t, b.conn.Exec(ctx, msg(prm.OpCreateEQ, 16, 0), make([]byte, 16)), nil)
			time.Sleep(5 * time.Millisecond)
			require.Equal(t, []prm.Opcode{prm.OpNop, prm.OpCreateEQ}, ops())
			return &fakeEQ{conn: b.conn}, nil
		})
		require.NoError(t, err)
		wg.Wait()
		require.Len(t, ops(), 8)
		require.Zero(t, b.conn.Stats().Recovered)
	})
}

// Waiting for a slot allocates nothing either, once there have been as many waiters.
func TestWaitingAllocatesNothing(t *testing.T) {
	b := openEntries(t, 1, Options{})
	defer b.close()
	b.onCommand(func(c *call) { c.reply(nil) })
	b.instant = true
	var stop bool
	var mu sync.Mutex
	var wg sync.WaitGroup
	ctx := context.Background()
	run := func() {
		in, out := msg(prm.OpNop, 16, 0), make([]byte, 16)
		for {
			mu.Lock()
			s := stop
			mu.Unlock()
			if s {
				return
			}
			if err := b.conn.Exec(ctx, in, out); err != nil {
				t.Error(err)
				return
			}
		}
	}
	for range 3 {
		wg.Go(run)
	}
	in, out := msg(prm.OpNop, 16, 0), make([]byte, 16)
	n := testing.AllocsPerRun(2000, func() {
		if err := b.conn.Exec(ctx, in, out); err != nil {
			t.Fatal(err)
		}
	})
	mu.Lock()
	stop = true
	mu.Unlock()
	wg.Wait()
	// Of all four callers together. The race detector makes the runtime allocate now
	// and then; a waiter a command would be twelve allocations.
	require.LessOrEqual(t, n, 1.0)
}

// What the device handed back before it died is an answer.
func TestAnsweredBeforeDeath(t *testing.T) {
	for _, events := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			b := open(t, Options{})
			defer b.close()
			if events {
				b.toEvents()
			}
			b.onCommand(func(c *call) { after(time.Millisecond, func() { echo(c); b.conn.Dead(errBroken) }) })
			in, out := msg(prm.OpNop, 600, 3), make([]byte, 600)
			require.NoError(t, b.conn.Exec(context.Background(), in, out))
			require.Equal(t, echoed(in), out)
			require.Zero(t, b.conn.Stats().Quarantined)
		})
	}
}
