package vfiouser

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/mlxvfio/mlxvfio/vfio"
	"github.com/mlxvfio/mlxvfio/vfio/vfiotest"
)

const attach = irqSetDataEventFD | irqSetActionTrigger

// setIRQs makes a SET_IRQS request and gives the errno answered.
func (r *raw) setIRQs(flags uint32, index, start, count int, data []byte, fds ...int) unix.Errno {
	r.t.Helper()
	h, b := r.ask(cmdSetIRQs, body(irqSet{20, flags, uint32(index), uint32(start), uint32(count), data}), fds...)
	require.Empty(r.t, b)
	return unix.Errno(h.errno)
}

// TestInterrupts goes through attaching as QEMU does it: portions of 16 eventfds,
// all torn down and sent again when one is added.
func TestInterrupts(t *testing.T) {
	noLeaks(t)
	d := newDevice(vfiotest.RAMOptions{Vectors: 64})
	r := rawDial(t, serve(t, d, Options{}), true)
	base := countFDs(t)
	evs := eventfds(t, 64)
	for range 3 {
		for i := 0; i < 64; i += 16 {
			require.Zero(t, r.setIRQs(attach, vfio.IRQMSIX, i, 16, nil, evs[i:i+16]...))
		}
		for i := range 64 {
			require.True(t, d.Raise(i))
			require.True(t, fired(evs[i]), "interrupt %d", i)
		}
		require.Equal(t, base+2*64, countFDs(t), "the eventfds and the server's copies of them")
		require.Zero(t, r.setIRQs(irqSetDataNone|irqSetActionTrigger, vfio.IRQMSIX, 0, 0, nil))
		require.Equal(t, base+64, countFDs(t))
		require.False(t, d.Raise(0))
	}
}

func TestInterruptsInPart(t *testing.T) {
	noLeaks(t)
	d := newDevice(vfiotest.RAMOptions{Vectors: 8})
	r := rawDial(t, serve(t, d, Options{}), true)
	evs := eventfds(t, 9)
	require.Zero(t, r.setIRQs(attach, vfio.IRQMSIX, 0, 8, nil, evs[:8]...))
	require.Zero(t, r.setIRQs(attach, vfio.IRQMSIX, 2, 3, nil), "without files: detach")
	require.Zero(t, r.setIRQs(attach, vfio.IRQMSIX, 7, 1, nil, evs[8]), "replace")
	for i, on := range []bool{true, true, false, false, false, true, true, true} {
		require.Equal(t, on, d.Raise(i), "interrupt %d", i)
	}
	for i, want := range []bool{true, true, false, false, false, true, true, false, true} {
		require.Equal(t, want, fired(evs[i]), "eventfd %d", i)
	}

	// A client may raise its own interrupts.
	require.Zero(t, r.setIRQs(irqSetDataBool|irqSetActionTrigger, vfio.IRQMSIX, 0, 3, []byte{1, 0, 1}))
	require.True(t, fired(evs[0]))
	require.False(t, fired(evs[1]))
	require.Zero(t, r.setIRQs(irqSetDataNone|irqSetActionTrigger, vfio.IRQMSIX, 1, 2, nil))
	require.True(t, fired(evs[1]))
}

// TestINTxIsTolerated: QEMU touches it although there is none.
func TestINTxIsTolerated(t *testing.T) {
	noLeaks(t)
	r := rawDial(t, serve(t, newDevice(vfiotest.RAMOptions{}), Options{}), true)
	ev := eventfds(t, 1)[0]
	for _, flags := range []uint32{
		irqSetDataNone | irqSetActionTrigger, irqSetDataNone | irqSetActionMask, irqSetDataNone | irqSetActionUnmask,
	} {
		require.Zero(t, r.setIRQs(flags, vfio.IRQINTx, 0, 0, nil))
		require.Zero(t, r.setIRQs(flags, vfio.IRQINTx, 0, 1, nil))
	}
	require.Zero(t, r.setIRQs(attach, vfio.IRQINTx, 0, 1, nil, ev))
	require.Zero(t, r.setIRQs(irqSetDataEventFD|irqSetActionUnmask, vfio.IRQINTx, 0, 1, nil, ev))
	require.Zero(t, r.setIRQs(irqSetDataNone|irqSetActionTrigger, vfio.IRQMSI, 0, 0, nil), "disabling what is not there")
}

func TestInterruptRequestsRefused(t *testing.T) {
	noLeaks(t)
	d := newDevice(vfiotest.RAMOptions{Vectors: 8})
	r := rawDial(t, serve(t, d, Options{}), true)
	evs := eventfds(t, 8)
	file, err := os.CreateTemp(t.TempDir(), "")
	require.NoError(t, err)
	defer func() { require.NoError(t, file.Close()) }()
	for name, c := range map[string]struct {
		flags               uint32
		index, start, count int
		data                []byte
		fds                 []int
		want                unix.Errno
	}{
		"no such index":         {attach, 5, 0, 1, nil, evs[:1], unix.EINVAL},
		"huge index":            {attach, 1 << 31, 0, 1, nil, evs[:1], unix.EINVAL},
		"beyond the last":       {attach, vfio.IRQMSIX, 7, 2, nil, evs[:2], unix.EINVAL},
		"start all ones":        {attach, vfio.IRQMSIX, 0xffffffff, 2, nil, evs[:2], unix.EINVAL},
		"more than files":       {attach, vfio.IRQMSIX, 0, 3, nil, evs[:2], unix.EINVAL},
		"fewer than files":      {attach, vfio.IRQMSIX, 0, 1, nil, evs[:2], unix.EINVAL},
		"no count but a file":   {attach, vfio.IRQMSIX, 0, 0, nil, evs[:1], unix.EINVAL},
		"index without":         {attach, vfio.IRQMSI, 0, 1, nil, evs[:1], unix.EINVAL},
		"two kinds of data":     {irqSetDataNone | attach, vfio.IRQMSIX, 0, 1, nil, evs[:1], unix.EINVAL},
		"two actions":           {irqSetActionMask | attach, vfio.IRQMSIX, 0, 1, nil, evs[:1], unix.EINVAL},
		"no action":             {irqSetDataNone, vfio.IRQMSIX, 0, 1, nil, nil, unix.EINVAL},
		"unknown flag":          {attach | 1<<20, vfio.IRQMSIX, 0, 1, nil, evs[:1], unix.EINVAL},
		"mask":                  {irqSetDataNone | irqSetActionMask, vfio.IRQMSIX, 0, 1, nil, nil, unix.ENOTTY},
		"not an eventfd":        {attach, vfio.IRQMSIX, 0, 2, nil, []int{evs[0], int(file.Fd())}, unix.EINVAL},
		"booleans out of range": {irqSetDataBool | irqSetActionTrigger, vfio.IRQMSIX, 6, 3, []byte{1, 1, 1}, nil, unix.EINVAL},
	} {
		require.Equal(t, c.want, r.setIRQs(c.flags, c.index, c.start, c.count, c.data, c.fds...), name)
		require.False(t, d.Raise(0), name)
	}
}
