package vfiouser

import (
	"fmt"
	"math/bits"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/mlxvfio/mlxvfio/vfio"
)

// setIRQs serves DEVICE_SET_IRQS. QEMU sends eventfds in portions of at most
// max_msg_fds, and a portion without any to detach; it also disables interrupt
// kinds that the function does not have, INTx above all, which is no error.
func (c *session) setIRQs(m *message) error {
	q, err := parseIRQSet(m.body)
	switch {
	case err != nil:
		return err
	case int64(q.index) >= int64(len(c.irqs)),
		bits.OnesCount32(q.flags&irqSetDataMask) != 1,
		bits.OnesCount32(q.flags&irqSetActionsMask) != 1,
		q.flags&^(irqSetDataMask|irqSetActionsMask) != 0:
		return fmt.Errorf("SET_IRQS index %d, flags %#x: %w", q.index, q.flags, unix.EINVAL)
	}
	index, have := int(q.index), c.irqs[q.index].Count
	if q.flags&irqSetActionTrigger == 0 {
		if index == vfio.IRQINTx {
			return nil // nothing of ours is masked: there is no INTx
		}
		return fmt.Errorf("mask interrupts of index %d: %w", index, unix.ENOTTY)
	}
	if have == 0 && index == vfio.IRQINTx {
		return nil
	}
	if q.flags&irqSetDataNone != 0 && q.count == 0 {
		return c.detach(index)
	}
	if uint64(q.start)+uint64(q.count) > uint64(have) {
		return fmt.Errorf("interrupts %d+%d of index %d, which has %d: %w", q.start, q.count, index, have, unix.EINVAL)
	}
	start, count := int(q.start), int(q.count)
	switch {
	case q.flags&irqSetDataEventFD != 0:
		return c.attach(index, start, count, m)
	case q.flags&irqSetDataBool != 0:
		for i, on := range q.data {
			if on != 0 {
				c.signal(index, start+i)
			}
		}
	default:
		for i := range count {
			c.signal(index, start+i)
		}
	}
	return nil
}

// signal raises an interrupt as the function would.
func (c *session) signal(index, i int) {
	if index < len(c.vectors) && i < len(c.vectors[index]) && c.vectors[index][i] != nil {
		c.vectors[index][i].Signal()
	}
}

// attach connects count interrupts to the eventfds of m, or detaches them when
// it brought none.
func (c *session) attach(index, start, count int, m *message) error {
	if len(m.fds) != 0 && len(m.fds) != count {
		return fmt.Errorf("%d eventfds for %d interrupts: %w", len(m.fds), count, unix.EINVAL)
	}
	if count == 0 { // an empty list would mean all of them to the transport
		return nil
	}
	if !c.irqs[index].EventFD {
		return fmt.Errorf("interrupt index %d takes no eventfds: %w", index, unix.EINVAL)
	}
	for _, fd := range m.fds {
		if !isEventFD(fd) {
			return fmt.Errorf("file descriptor for interrupt index %d is no eventfd: %w", index, unix.EINVAL)
		}
	}
	vectors := make([]*vfio.Vector, count)
	for i := range m.fds {
		vectors[i] = vfio.VectorFromFD(m.take(i))
	}
	if err := c.t.SetIRQs(index, start, vectors); err != nil {
		closeVectors(vectors)
		return err
	}
	if c.vectors == nil {
		c.vectors = make([][]*vfio.Vector, len(c.irqs))
	}
	if c.vectors[index] == nil {
		c.vectors[index] = make([]*vfio.Vector, c.irqs[index].Count)
	}
	held := c.vectors[index][start : start+count]
	closeVectors(held)
	copy(held, vectors)
	return nil
}

// detach disables a whole interrupt index.
func (c *session) detach(index int) error {
	if c.irqs[index].Count == 0 {
		return nil
	}
	if err := c.t.SetIRQs(index, 0, nil); err != nil {
		return err
	}
	if index < len(c.vectors) {
		closeVectors(c.vectors[index])
		c.vectors[index] = nil
	}
	return nil
}

// detachAll ends every interrupt of a client that left. Closing a vector that
// the function still holds is harmless: Signal on it does nothing.
func (c *session) detachAll() {
	for index, vs := range c.vectors {
		if vs == nil {
			continue
		}
		if err := c.detach(index); err != nil {
			c.log.Error("interrupts could not be detached after a client left", "index", index, "err", err)
			closeVectors(vs)
		}
	}
	c.vectors = nil
}

func closeVectors(vs []*vfio.Vector) {
	for _, v := range vs {
		if v != nil {
			_ = v.Close() // an eventfd has nothing to lose
		}
	}
}

// isEventFD keeps a client from making us write into anything else, and from
// blocking us with a full pipe. Without /proc the client is trusted.
func isEventFD(fd int) bool {
	name, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
	return err != nil || strings.HasPrefix(name, "anon_inode:[eventfd")
}
