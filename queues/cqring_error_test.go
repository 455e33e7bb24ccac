package queues

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// A failed WQE is shown with what it was; those flushed behind it are counted and
// point to it. Unknown syndromes keep their number (ruling W11).
func TestCompletionError(t *testing.T) {
	b := newBench(t, 5)
	require.NoError(t, b.sq.Nop(1, 0))
	require.NoError(t, b.sq.MaskedCompareSwap(2, 0, eightSGE, aRemote, &MaskedCS{Swap: 0x51, Compare: 0xc1, SwapMask: 0xe1, CompareMask: 0xf1}))
	for i := range 3 {
		require.NoError(t, b.sq.Send(uint64(3+i), Signalled, anSGE))
	}
	require.NoError(t, b.rq.Post(50, anSGE))
	b.dev.failed(prm.CQEReqErr, microQPN, 1, prm.WQEAtomicMaskedCS, prm.CQESyndRemoteAccessErr)
	for i := range 3 {
		b.dev.failed(prm.CQEReqErr, microQPN, uint16(3+i), prm.WQESend, prm.CQESyndWrFlushErr)
	}
	b.dev.failed(prm.CQERespErr, microQPN, 0, 0, prm.CQESyndWrFlushErr)
	got := b.poll(t, 8)
	require.Len(t, got, 5)

	var ce *CompletionError
	require.ErrorAs(t, b.Err(&got[0]), &ce)
	require.Equal(t, uint64(2), ce.WRID)
	require.Equal(t, prm.WQEAtomicMaskedCS, ce.Opcode)
	require.Equal(t, prm.CQESyndRemoteAccessErr, ce.Syndrome)
	require.Equal(t, uint8(0x81), ce.VendorError)
	require.Equal(t, uint16(1), ce.Index)
	require.Equal(t, uint32(4), ce.Flushed)
	require.Nil(t, ce.First)
	require.Equal(t, wanted(samples[21].want, 1), ce.Hex(), "the WQE as it was posted")
	require.Len(t, ce.Segments(), 7)
	for _, part := range []string{"MASKED_CS", "wrid 0x2", "QP 0x1234", "0x13", "REMOTE_ACCESS", "vendor syndrome 0x81", "raddr{raddr=0x102030405060700", "4 more flushed", "rkey"} {
		require.ErrorContains(t, ce, part)
	}
	require.ErrorIs(t, ce, &CompletionError{Syndrome: prm.CQESyndRemoteAccessErr})
	require.NotErrorIs(t, ce, &CompletionError{Syndrome: prm.CQESyndLocalProtErr})

	for i, c := range got[1:] {
		require.True(t, c.Flushed())
		require.Equal(t, []uint64{3, 4, 5, 50}[i], c.WRID)
		err := b.Err(&c)
		require.ErrorAs(t, err, &ce)
		require.Equal(t, c.Recv(), ce.Recv)
		require.NotNil(t, ce.First)
		require.ErrorIs(t, err, &CompletionError{Syndrome: prm.CQESyndRemoteAccessErr}, "the reason behind the flush")
		require.ErrorContains(t, err, "was flushed")
	}
	require.Equal(t, 64, b.sq.Free())

	// After RESET the failure is forgotten.
	b.Forget(microQPN)
	b.sq.Reset()
	require.NoError(t, b.sq.Send(9, Signalled, anSGE))
	b.dev.failed(prm.CQEReqErr, microQPN, 0, prm.WQESend, 0x77)
	c := b.poll(t, 1)[0]
	require.ErrorAs(t, b.Err(&c), &ce)
	require.Equal(t, prm.CQESyndrome(0x77), ce.Syndrome)
	require.ErrorContains(t, ce, "0x77")
	require.Zero(t, ce.Flushed)

	// A receive that failed shows its pieces.
	b.Forget(microQPN)
	require.NoError(t, b.rq.Post(60, anSGE))
	b.dev.failed(prm.CQERespErr, microQPN, 1, 0, prm.CQESyndLocalProtErr)
	c = b.poll(t, 1)[0]
	require.ErrorAs(t, b.Err(&c), &ce)
	require.True(t, ce.Recv)
	require.Len(t, ce.Segments(), 1)
	require.ErrorContains(t, ce, "receive (wrid 0x3c)")
	require.ErrorContains(t, ce, "lkey=0xaabbccdd")

	// A success has no error, and an error without a reason is one.
	require.NoError(t, b.Err(&Completion{}))
	require.NoError(t, b.sq.Nop(10, 0))
	b.dev.failed(prm.CQEReqErr, microQPN, b.sq.Index()-1, prm.WQENop, 0)
	c = b.poll(t, 1)[0]
	require.False(t, c.OK())
	require.Error(t, b.Err(&c))
}

// Every syndrome has words and a remedy, and vendors' page fault has its name.
func TestSyndromeWords(t *testing.T) {
	for _, v := range prm.CQESyndromeEnum.Values {
		e := &CompletionError{Syndrome: prm.CQESyndrome(v.Value), VendorError: 0x93}
		if e.Syndrome == prm.CQESyndWrFlushErr {
			continue
		}
		require.NotEmpty(t, remedies[e.Syndrome], v.Name)
		require.ErrorContains(t, e, v.Name)
		require.ErrorContains(t, e, "on-demand paging")
	}
}

// The hot paths, too, take no completion of a WQE that is not under way: of one that
// has completed, was never posted, or was forgotten with the others at a reset.
func TestNotOutstanding(t *testing.T) {
	for _, most := range []int{1, 4} {
		b := newBench(t, 5)
		dst := make([]Completion, most)
		takes := func(index uint16, wrid uint64) {
			t.Helper()
			b.dev.sent(microQPN, index, prm.WQENop)
			n, err := b.Poll(dst)
			require.NoError(t, err)
			require.Equal(t, 1, n)
			require.Equal(t, wrid, dst[0].WRID)
		}
		refuses := func(index uint16) {
			t.Helper()
			free := b.sq.Free()
			b.dev.sent(microQPN, index, prm.WQENop)
			n, err := b.Poll(dst)
			require.ErrorIs(t, err, ErrNotOutstanding)
			require.Zero(t, n)
			require.Equal(t, free, b.sq.Free())
		}
		post := func(wrid uint64) { require.NoError(t, b.sq.Nop(wrid, Signalled)) }
		for i := range uint64(3) {
			post(70 + i)
		}
		takes(0, 70) // from here on its completions are expected
		takes(1, 71)
		refuses(1) // a second time
		refuses(0)
		refuses(3) // not posted yet
		takes(2, 72)
		refuses(2)

		b.sq.Reset()
		refuses(0)
		post(80)
		refuses(1)
		refuses(2)
		takes(0, 80)
	}
}

// Entries that cannot be used are typed errors with the entry itself; those that
// are merely wrong are stepped over, those that end the CQ are not.
func TestCQErrors(t *testing.T) {
	for _, c := range []struct {
		name  string
		fill  func(e *prm.CQE64)
		want  error
		stays bool
	}{
		{"compressed", func(e *prm.CQE64) { e.SetFormat(prm.CQEFormatCompressed) }, ErrCQE, true},
		{"inline 32", func(e *prm.CQE64) { e.SetFormat(prm.CQEFormatInline32) }, ErrCQE, true},
		{"inline 64", func(e *prm.CQE64) { e.SetFormat(prm.CQEFormatInline64) }, ErrCQE, true},
		{"resize", func(e *prm.CQE64) { e.SetOpcode(prm.CQEResizeCQ) }, ErrCQE, false},
		{"unknown opcode", func(e *prm.CQE64) { e.SetOpcode(9) }, ErrCQE, false},
		{"signature error", func(e *prm.CQE64) { e.SetOpcode(prm.CQESigErr) }, ErrCQE, false},
		{"unknown queue pair", func(e *prm.CQE64) { e.SetQPN(5) }, ErrUnknownQueue, false},
		{"not posted", func(e *prm.CQE64) { e.SetWQECounter(2) }, ErrNotOutstanding, false},
		{"receive not posted", func(e *prm.CQE64) { e.SetOpcode(prm.CQERespSend) }, ErrNotOutstanding, false},
		{"error of nothing", func(e *prm.CQE64) { e.SetOpcode(prm.CQERespErr) }, ErrNotOutstanding, false},
	} {
		for _, most := range []int{1, 4} {
			for first := range uint16(2) { // of a CQ that nothing has completed on yet, or of one that expects this queue pair
				t.Run(fmt.Sprintf("%s by %d behind %d", c.name, most, first), func(t *testing.T) {
					b := newBench(t, 3)
					dst := make([]Completion, most)
					for i := range uint16(2) {
						require.NoError(t, b.sq.Nop(41+uint64(i), Signalled))
					}
					if first > 0 {
						b.dev.sent(microQPN, 0, prm.WQENop)
						n, err := b.Poll(dst)
						require.NoError(t, err)
						require.Equal(t, 1, n)
					}
					b.dev.write(func(e *prm.CQE64) {
						e.SetQPN(microQPN)
						e.SetWQECounter(first)
						c.fill(e)
					})
					b.dev.sent(microQPN, first, prm.WQENop)
					n, err := b.Poll(dst)
					require.Zero(t, n)
					require.ErrorIs(t, err, c.want)
					var ce *CQError
					require.ErrorAs(t, err, &ce)
					require.Equal(t, uint32(0x4321), ce.CQN)
					require.Equal(t, uint32(first), ce.Consumer)
					require.Equal(t, b.mem.Bytes()[64*first:64*first+64], ce.CQE)
					require.ErrorContains(t, err, hex.EncodeToString(ce.CQE))
					n, err = b.Poll(dst)
					if c.stays {
						require.Zero(t, n)
						require.ErrorIs(t, err, c.want, "it cannot go on")
						require.Equal(t, 62+int(first), b.sq.Free())
						return
					}
					require.NoError(t, err)
					require.Equal(t, 1, n)
					require.Equal(t, 41+uint64(first), dst[0].WRID, "the next one is good")
					require.Equal(t, 2+uint32(first), binary.BigEndian.Uint32(b.rec))
				})
			}
		}
	}
}

// Good completions in front of a bad one are delivered with the error.
func TestCQErrorBehindGood(t *testing.T) {
	b := newBench(t, 3)
	require.NoError(t, b.sq.Nop(1, Signalled))
	b.dev.sent(microQPN, 0, prm.WQENop)
	b.dev.sent(microQPN, 0, prm.WQENop) // twice
	dst := make([]Completion, 4)
	n, err := b.Poll(dst)
	require.Equal(t, 1, n)
	require.ErrorIs(t, err, ErrNotOutstanding)
	require.Equal(t, uint64(1), dst[0].WRID)
	n, err = b.Poll(nil)
	require.Zero(t, n)
	require.NoError(t, err)
}

// A device that laps the consumer is found out, and stays so.
func TestCQOverrun(t *testing.T) {
	for log := uint8(1); log < 5; log++ {
		for lap := 1; lap < 1<<log; lap++ {
			for polled := range 1<<log + 1 {
				for _, size := range []int{1, 32} { // the way of one, and of many
					lapped(t, log, lap, polled, size)
				}
			}
		}
	}
}

// lapped polls a ring that the device laps after some entries were polled.
func lapped(t *testing.T, log uint8, lap, polled, size int) {
	b := newBench(t, log)
	dst := make([]Completion, size)
	send := func() {
		index := b.sq.Index()
		require.NoError(t, b.sq.Nop(1, Signalled))
		b.dev.sent(microQPN, index, prm.WQENop)
	}
	for range polled {
		send()
		n, err := b.Poll(dst)
		require.NoError(t, err)
		require.Equal(t, 1, n)
		n, err = b.Poll(dst)
		require.NoError(t, err, "nothing new is no overrun")
		require.Zero(t, n)
	}
	for range 1<<log + lap {
		send()
	}
	for range 2 {
		n, err := b.Poll(dst)
		require.ErrorIs(t, err, ErrCQOverrun, "ring of %d lapped by %d after %d, polled by %d", 1<<log, lap, polled, size)
		require.Zero(t, n)
	}
}

func TestCQBreakAndClose(t *testing.T) {
	for _, most := range []int{1, 4} {
		for polled := range 9 { // the ring has 8
			b := newBench(t, 3)
			dst := make([]Completion, most)
			next := func() (int, error) {
				index := b.sq.Index()
				require.NoError(t, b.sq.Nop(1, Signalled))
				b.dev.sent(microQPN, index, prm.WQENop)
				return b.Poll(dst)
			}
			for range polled {
				n, err := next()
				require.NoError(t, err)
				require.Equal(t, 1, n)
			}
			b.Break(ErrCQOverrun, "the device said so")
			n, err := next()
			require.NoError(t, err, "what is there comes first")
			require.Equal(t, 1, n)
			b.Break(vfio.ErrGone, "later")
			for range 2 {
				n, err = b.Poll(dst)
				require.Zero(t, n)
				require.ErrorIs(t, err, ErrCQOverrun, "after %d, by %d", polled, most)
				require.ErrorContains(t, err, "the device said so")
			}

			clear(b.mem.Bytes())
			b.close()
			for range 2 {
				n, err = b.Poll(dst)
				require.Zero(t, n)
				require.ErrorIs(t, err, vfio.ErrClosed)
			}
			b.Forget(microQPN)
			b.Detach(microQPN)
			b.Arm(false)
		}
	}
}

// Any bytes in the ring: no panic, no completion of what was not posted, counters
// where they belong.
func FuzzPoll(f *testing.F) {
	f.Add(make([]byte, 256), uint8(3))
	good := make([]byte, 128)
	prm.AsCQE64(good).SetQPN(microQPN)
	f.Add(good, uint8(1))
	bad := make([]byte, 64)
	prm.AsCQE64(bad).SetOpcode(prm.CQEReqErr)
	prm.AsCQE64(bad).SetQPN(microQPN)
	f.Add(bad, uint8(9))
	f.Fuzz(func(t *testing.T, ring []byte, posts uint8) {
		b := newBench(t, 3)
		srq, _ := newSRQ(t, 2, 5)
		b.AttachShared(1, srq)
		live := map[uint64]bool{}
		for i := range uint64(posts % 20) {
			require.NoError(t, b.sq.MaskedCompareSwap(1000+i, 0, eightSGE, aRemote, &MaskedCS{}))
			require.NoError(t, b.rq.Post(2000+i, anSGE))
			live[1000+i], live[2000+i] = true, true
		}
		require.NoError(t, srq.Post(3000, anSGE))
		live[3000] = true
		copy(b.buf, ring)
		dst := make([]Completion, 3)
		for range 20 {
			n, err := b.Poll(dst)
			for _, c := range dst[:n] {
				require.True(t, live[c.WRID], "wrid %d", c.WRID)
				delete(live, c.WRID)
				if e := b.Err(&c); e != nil {
					require.NotEmpty(t, e.Error())
					require.False(t, c.OK())
				}
			}
			if err != nil {
				require.NotEmpty(t, err.Error())
				var ce *CQError
				require.True(t, errors.As(err, &ce))
			} else if n == 0 {
				break
			}
		}
		require.LessOrEqual(t, b.sq.pi-b.sq.ci, uint64(b.sq.Size()))
		require.LessOrEqual(t, b.rq.pi-b.rq.ci, uint32(b.rq.Size()))
		require.LessOrEqual(t, b.ci(), uint32(20*3))
		b.Forget(microQPN)
	})
}
