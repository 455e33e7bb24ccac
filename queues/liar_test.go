package queues_test

import (
	"encoding/binary"
	"math/bits"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio"
	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/queues"
	"github.com/mlxvfio/mlxvfio/sim"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// liar is the model with a firmware that does not say what it should: the answer
// of a command is changed after the device has written it and before the driver
// looks.
type liar struct {
	vfio.Transport
	mu    sync.Mutex
	maps  []vfio.Mapping
	queue uint64                      // bus address of the command queue
	lies  map[prm.Opcode]func([]byte) // given the mailbox data of the answer
}

func (l *liar) DMA() vfio.Mapper { return liarDMA{l.Transport.DMA(), l} }

type liarDMA struct {
	vfio.Mapper
	l *liar
}

func (d liarDMA) Map(m vfio.Mapping) error {
	if err := d.Mapper.Map(m); err != nil {
		return err
	}
	d.l.mu.Lock()
	defer d.l.mu.Unlock()
	d.l.maps = append(d.l.maps, m)
	return nil
}

// memory is n bytes at a bus address.
func (l *liar) memory(iova uint64, n int) []byte {
	for _, m := range l.maps {
		if iova >= m.IOVA && iova+uint64(n) <= m.IOVA+uint64(len(m.Bytes)) {
			return m.Bytes[iova-m.IOVA:][:n]
		}
	}
	return nil
}

// Registers of the initialization segment.
const (
	regQueueHigh = 0x10
	regQueueLow  = 0x14
	regDoorbell  = 0x18
)

func (l *liar) WriteRegion(index int, off uint64, p []byte) error {
	err := l.Transport.WriteRegion(index, off, p)
	if index != vfio.RegionBAR0 || len(p) != 4 || off < regQueueHigh || off > regDoorbell {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	v := binary.BigEndian.Uint32(p)
	switch off {
	case regQueueHigh:
		l.queue = uint64(v) << 32
	case regQueueLow:
		l.queue = l.queue&^0xffffffff | uint64(v&^0xfff)
	case regDoorbell:
		for ; v != 0; v &= v - 1 {
			l.lie(bits.TrailingZeros32(v))
		}
	}
	return err
}

func (l *liar) lie(slot int) {
	e := prm.AsCmdQueueEntry(l.memory(l.queue+uint64(slot)*prm.CmdQueueEntrySize, prm.CmdQueueEntrySize))
	op := prm.Opcode(binary.BigEndian.Uint16(e.CommandInputInlineData()))
	if f := l.lies[op]; f != nil {
		at := uint64(e.OutputMailboxPointer63_32())<<32 | uint64(e.OutputMailboxPointer31_9())<<9
		f(l.memory(at, 512))
	}
}

// lying makes QUERY_QP show a changed context.
func lying(f func(*prm.QPC)) map[prm.Opcode]func([]byte) {
	// The context begins at byte 0x18 of the answer, of which 0x10 are inline.
	return map[prm.Opcode]func([]byte){prm.OpQueryQP: func(b []byte) { f(prm.AsQPC(b[0x8:])) }}
}

func lyingBench(t *testing.T) (*bench, *liar) {
	c, err := sim.New(sim.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	b := &bench{t: t, chip: c}
	l := &liar{Transport: c.Function(0)}
	b.openOn(l, 0, mlxvfio.Options{CompletionVectors: 1})
	return b, l
}

// A device that does not take what atomic writes need is found out when the queue
// pair is created, whether it takes the fields with CREATE_QP, with RST2INIT only,
// or not at all; nothing is left behind.
func TestContextNotTaken(t *testing.T) {
	b, l := lyingBench(t)
	ctx := t.Context()
	cq := b.cq(4)
	create := func() (*queues.QP, error) {
		return b.dev.CreateQP(ctx, queues.QPOptions{Name: "test", PD: b.pd, SendCQ: cq, UAR: b.uar})
	}
	live := b.dev.Space.Stats().LiveBuffers

	l.lies = lying(func(c *prm.QPC) { c.SetAtomicLikeWriteEn(false) })
	_, err := create()
	var ce *queues.ContextError
	require.ErrorAs(t, err, &ce)
	require.Equal(t, "atomic_like_write_en", ce.Field)
	require.EqualValues(t, []uint64{1, 0}, []uint64{ce.Wanted, ce.Got})
	require.ErrorContains(t, err, "NoAtomicWrites")
	require.Equal(t, live, b.dev.Space.Stats().LiveBuffers)
	require.Equal(t, b.sent(prm.OpCreateQP), b.sent(prm.OpDestroyQP))

	// One that takes them with RST2INIT, as GPU libraries send them, is fine.
	l.lies = lying(func(c *prm.QPC) {
		if c.State() == prm.QPStateRst {
			c.SetAtomicLikeWriteEn(false)
			c.SetAtomicMode(prm.AtomicModeNone)
		}
	})
	q, err := create()
	require.NoError(t, err)
	require.Equal(t, prm.QPStateRst, q.State())
	require.NoError(t, q.ConnectLoopback(ctx, queues.ConnectOptions{}))
	require.NoError(t, q.Destroy(ctx))

	// One that takes atomic_mode with INIT2RTR only, too.
	l.lies = lying(func(c *prm.QPC) {
		if s := c.State(); s == prm.QPStateRst || s == prm.QPStateInit {
			c.SetAtomicMode(prm.AtomicModeNone)
		}
	})
	q, err = create()
	require.NoError(t, err)
	require.NoError(t, q.ConnectLoopback(ctx, queues.ConnectOptions{}))
	require.NoError(t, q.Destroy(ctx))

	// One that never takes it as wanted is found out on the way to RTR.
	l.lies = lying(func(c *prm.QPC) { c.SetAtomicMode(prm.AtomicModeUpTo8B) })
	q, err = create()
	require.NoError(t, err)
	err = q.ConnectLoopback(ctx, queues.ConnectOptions{})
	require.ErrorAs(t, err, &ce)
	require.Equal(t, queues.ContextError{QPN: q.Number(), Opcode: prm.OpInit2RtrQP, Field: "atomic_mode",
		Wanted: uint64(prm.AtomicModeUpTo256B), Got: uint64(prm.AtomicModeUpTo8B), Remedy: ce.Remedy}, *ce)
	require.NoError(t, q.Destroy(ctx))

	// A state that no command can have brought about is no matrix row.
	l.lies = nil
	q, err = create()
	require.NoError(t, err)
	l.lies = lying(func(c *prm.QPC) { c.SetState(prm.QPStateSqer) })
	_, err = q.Query(ctx)
	require.NoError(t, err)
	var se *queues.StateError
	require.ErrorAs(t, q.ToRTS(ctx, queues.RTSAttr{}), &se)
	require.Equal(t, prm.QPStateSqer, se.State)
	l.lies = nil
	require.NoError(t, q.Destroy(ctx))
}
