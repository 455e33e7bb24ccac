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

// A command that is not sent says why: the caller's time was over before it
// began, or others held the slots, which are named.
func TestNotSentSaysWhy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := open(t, Options{})
		defer b.close()
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		time.Sleep(2 * time.Second)
		err := b.conn.NOP(ctx)
		var te *TimeoutError
		require.ErrorAs(t, err, &te)
		require.True(t, te.Late)
		require.False(t, Unanswered(err))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, "NOP(0x80d) op_mod 0x0: not sent: the caller's time was over")
		require.NotContains(t, err.Error(), "slot")

		// One page command at a time: the second waits for the first.
		var held *call
		b.onCommand(func(c *call) { held = c })
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := b.conn.Exec(context.Background(), msg(prm.OpManagePages, 16, 0), make([]byte, 16)); err != nil {
				t.Error(err)
			}
		})
		time.Sleep(time.Second)
		ctx, cancel = context.WithTimeout(context.Background(), 3*time.Second)
		defer cancel()
		_, err = b.conn.QueryPages(ctx, prm.QueryPagesBoot)
		require.ErrorAs(t, err, &te)
		require.Equal(t, -1, te.Slot)
		require.False(t, te.Late)
		require.ErrorContains(t, err, "not sent: no free command slot within 3s; in flight: MANAGE_PAGES(0x108) op_mod 0x0 in slot 31 since 4s")
		rs := b.conn.InFlight()
		require.Len(t, rs, 1)
		require.Equal(t, [3]int{int(prm.OpManagePages), 31, 16}, [3]int{int(rs[0].Opcode), rs[0].Slot, rs[0].InLen})

		// So does a change of the mode, which waits for all of them.
		ctx, cancel = context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		err = b.conn.SwitchToEvents(ctx, func(context.Context) (EventQueue, error) { return nil, errors.New("not reached") })
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, "wait for the commands in flight (MANAGE_PAGES(0x108) op_mod 0x0 in slot 31 since 5s)")
		synctest.Wait()
		echo(held)
		wg.Wait()
		require.Empty(t, b.conn.InFlight())
	})
}

// An entry in quarantine that comes back with another command's token is not its
// command's late answer: slot and memory stay the device's.
func TestLateAnswerOfAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var lates []Late
		b := open(t, Options{OnLate: func(l Late) { lates = append(lates, l) }})
		defer b.close()
		var held *call
		b.onCommand(func(c *call) { held = c })
		var te *TimeoutError
		require.ErrorAs(t, b.conn.Exec(context.Background(), msg(prm.OpNop, 600, 0), make([]byte, 600)), &te)
		b.onCommand(echo)
		first := held
		first.entryToken = true
		first.reply(nil)
		require.NoError(t, b.conn.NOP(context.Background()))
		st := b.conn.Stats()
		require.Equal(t, 1, st.Quarantined)
		require.Zero(t, st.Late)
		require.Equal(t, 4, st.MailboxesInUse)
		require.Empty(t, lates)
		first.entryToken = false
		first.reply(nil)
		st = b.conn.Stats()
		require.Zero(t, st.Quarantined)
		require.Equal(t, uint64(1), st.Late)
		require.Len(t, lates, 1)
	})
}

// A device that cannot be kept off the bus keeps the page it was told of.
func TestOpenKeepsPageOfLooseDevice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.publish = func() { f.set(0x1fc, 3<<30) }
		dev, seg := f.device()
		require.NoError(t, dev.SetBusMaster(true))
		f.stuck = errBroken
		_, err := Open(context.Background(), dev, seg, Options{})
		require.ErrorIs(t, err, errBroken)
		require.Equal(t, 1, dev.Space().Stats().LiveBuffers)
		f.stuck = nil
		require.Error(t, dev.Close(), "the buffer is named")
	})
}
