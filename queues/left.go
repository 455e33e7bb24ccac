package queues

import (
	"errors"
	"fmt"
	"slices"
)

// object is something a Dev made and firmware knows of.
type object interface {
	// String names it in messages.
	String() string
	// abandon takes the host's part away without telling firmware, and makes every
	// later call answer vfio.ErrClosed. Unless free is set, the memory stays
	// allocated for good. It is false if the object was gone already.
	abandon(free bool) (bool, error)
}

// born notes an object that exists. Called with mu not held.
func (d *Dev) born(o object) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.objects == nil {
		d.objects = map[object]uint64{}
	}
	d.births++
	d.objects[o] = d.births
}

func (d *Dev) died(o object) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.objects, o)
}

// Abandon ends the objects that nobody has destroyed, newest first, without telling
// firmware: call it when the device has been taken down or cannot reach memory any
// more, before the address space and BAR0 are unmapped. Posts, polls and commands of
// these objects answer vfio.ErrClosed from then on, and rings and doorbells do
// nothing. Their memory is freed if free is set, and otherwise stays allocated: for a
// device that may still reach it. It answers the names of the objects.
//
// Like every use of a queue it must not run beside another one.
func (d *Dev) Abandon(free bool) (left []string, err error) {
	d.mu.Lock()
	all := make([]object, 0, len(d.objects))
	for o := range d.objects {
		all = append(all, o)
	}
	slices.SortFunc(all, func(a, b object) int {
		if d.objects[a] > d.objects[b] {
			return -1
		}
		return 1
	})
	d.mu.Unlock()
	var errs []error
	for _, o := range all {
		was, err := o.abandon(free)
		if was {
			left = append(left, o.String())
		}
		errs = append(errs, err)
	}
	return left, errors.Join(errs...)
}

func (m *queueMemory) give(free bool) error {
	if !free {
		return nil
	}
	return m.free()
}

// String names the queue pair.
func (q *QP) String() string { return fmt.Sprintf("queue pair %s (QPN %#x)", q.o.Name, q.number) }

func (q *QP) abandon(free bool) (bool, error) {
	if !q.life.end() {
		return false, nil
	}
	// The CQ's memory may be gone already.
	q.detach((*CQRing).unknow)
	return true, q.mem.give(free)
}

// String names the CQ.
func (q *CQ) String() string { return fmt.Sprintf("%s CQ (CQN %#x)", q.o.Name, q.cqn) }

func (q *CQ) abandon(free bool) (bool, error) {
	if !q.life.end() {
		return false, nil
	}
	q.close()
	return true, q.mem.give(free)
}

func (q *SRQ) abandon(free bool) (bool, error) {
	if !q.life.end() {
		return false, nil
	}
	q.close()
	return true, q.mem.give(free)
}

// String names the EQ.
func (q *EQ) String() string { return fmt.Sprintf("%s EQ (EQN %d)", q.o.Name, q.eqn) }

func (q *EQ) abandon(free bool) (bool, error) {
	if !q.life.end() {
		return false, nil
	}
	q.close()
	if !free {
		return true, nil
	}
	return true, q.buf.Free()
}

// String names the memory key.
func (m *MKey) String() string { return fmt.Sprintf("memory key %#x", m.key) }

func (m *MKey) abandon(free bool) (bool, error) {
	if !m.life.end() {
		return false, nil
	}
	m.close(free)
	return true, nil
}

// String names the doorbell page.
func (u *UAR) String() string { return fmt.Sprintf("doorbell page %#x", u.index) }

func (u *UAR) abandon(bool) (bool, error) {
	if !u.life.end() {
		return false, nil
	}
	u.dev.died(u)
	return true, nil
}

// String names the protection domain.
func (p *PD) String() string { return fmt.Sprintf("protection domain %#x", p.number) }

func (p *PD) abandon(bool) (bool, error) {
	if !p.life.end() {
		return false, nil
	}
	p.dev.died(p)
	return true, nil
}
