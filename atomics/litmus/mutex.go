package litmus

import (
	"context"
	"encoding/binary"
	"fmt"

	"github.com/mlxvfio/mlxvfio/atomics"
)

// mutex lets requesters take semaphores by compare-and-swap and work, without
// atomics, on a record that the semaphore protects. Two holders at once, a record
// found half written, and a count that is short in the end are contradictions.
func (r *runner) mutex(ctx context.Context) error {
	layouts := []layout{
		{"1 byte at every offset, 4 in a word", 1, []int{0, 1, 2, 3}},
		{"2 bytes at offsets 0 and 2 of a word, and at offset 1 of the next", 2, []int{0, 2, 5}},
		{"4 bytes, 2 side by side", 4, []int{0, 4}},
	}
	for _, l := range layouts {
		for _, byWrite := range []bool{false, true} {
			if err := r.mutexOf(ctx, l, byWrite); err != nil {
				return err
			}
		}
	}
	return nil
}

// How semaphores are given back.
const (
	byCAS   = ", released by compare-and-swap"
	byWRITE = ", released by WRITE"
)

// semaphores are those of one layout with the records they protect.
type semaphores struct {
	run     *runner
	layout  layout
	byWrite bool
	todo    int
	holder  []int    // port that believes to hold it, −1 for none
	count   []uint64 // what the record must hold
	state   []lockState
	taken   int
	tries   int
	vain    int // attempts posted in a row while nobody held or released one
	broken  string
	fault   atomics.Fault
}

// lockState is what a port is at.
type lockState struct {
	stage stage
	sem   int
}

type stage uint8

const (
	idle stage = iota
	acquiring
	acquired
	loading
	loaded
	releasing
)

// Places on the target.
const (
	semAt    = 2048
	recordAt = 2560 // 64 bytes each, of which the first 16 are used
)

func (r *runner) mutexOf(ctx context.Context, l layout, byWrite bool) error {
	const guarantee = "mutual exclusion"
	subject := l.name + byCAS
	if byWrite {
		subject = l.name + byWRITE
	}
	row := Row{Test: testMutex, Guarantee: guarantee, Subject: subject, Required: true, Verdict: NotOffered}
	if !r.offered(atomics.CompareSwap, l.size) {
		r.row(row)
		return nil
	}
	if byWrite && r.rig.MaxWrite < 4 {
		row.Detail = "the responder's queue pairs have no atomic writes"
		r.row(row)
		return nil
	}
	s := &semaphores{
		run: r, layout: l, byWrite: byWrite, todo: r.count(60 * len(l.at)),
		holder: make([]int, len(l.at)), count: make([]uint64, len(l.at)), state: make([]lockState, len(r.ports)),
	}
	before := r.fill(semAt-guard, guard+8+guard)
	for i, at := range l.at {
		s.holder[i] = -1
		clear(before[guard+at:][:l.size])
		r.rig.Target.Store(recordAt+64*i, make([]byte, 16))
	}
	r.rig.Target.Store(semAt-guard, before)
	err := r.drive(ctx, s.post, func() bool { return s.todo <= 0 && s.resting() })
	if err != nil {
		return err
	}
	s.audit(before)
	r.judge(testMutex, guarantee, fmt.Sprintf("%s; %d queues, %d host%s", subject, len(r.ports), r.rig.hosts(), plural(r.rig.hosts())),
		s.fault, s.broken, fmt.Sprintf("%d sections, %d attempts", s.taken, s.tries))
	return nil
}

// contradict notes the first contradiction; it ends the trial, since semaphores that
// are broken may never be free again.
func (s *semaphores) contradict(fault atomics.Fault, format string, a ...any) {
	if s.broken == "" {
		s.fault, s.broken = fault, fmt.Sprintf(format, a...)
	}
	s.todo = 0
}

// hopeless is how many attempts in vain, with no holder, mean that a release was
// lost: far more than can be in flight.
const hopeless = 1000

// nobody tells whether every port rests or only tries to get in.
func (s *semaphores) nobody() bool {
	for _, x := range s.state {
		if x.stage != idle && x.stage != acquiring {
			return false
		}
	}
	return true
}

func (s *semaphores) resting() bool {
	for _, x := range s.state {
		if x.stage != idle {
			return false
		}
	}
	return true
}

// id is what port p writes into a semaphore that it holds: its number in every
// byte, so that half a value is nobody's.
func (s *semaphores) id(p *port) uint64 {
	v := uint64(p.index + 1)
	return v * 0x01010101 & (1<<(8*s.layout.size) - 1)
}

func (s *semaphores) addr(sem int) uint64 { return uint64(semAt + s.layout.at[sem]) }

// post takes the port one step on.
func (s *semaphores) post(p *port) (bool, error) {
	x := &s.state[p.index]
	switch x.stage {
	case idle:
		if s.todo <= 0 {
			return false, nil
		}
		x.sem = s.run.rng.IntN(len(s.layout.at))
		return true, s.acquire(p, x)
	case acquired:
		return true, s.load(p, x)
	case loaded:
		if len(p.free) < 3 || p.req.Conn.SQ.Free() < 3*wqeBlocks {
			return false, nil
		}
		return true, s.release(p, x)
	}
	return false, nil
}

func (s *semaphores) acquire(p *port, x *lockState) error {
	x.stage = acquiring
	s.tries++
	if s.vain++; !s.nobody() {
		s.vain = 0
	} else if s.vain > hopeless {
		s.contradict(atomics.FaultLostUpdate, "all semaphores were released and none is free")
	}
	op := atomics.Op{Kind: atomics.CompareSwap, Size: s.layout.size, Addr: s.addr(x.sem), Value: s.id(p)}
	return p.atomic(op, 0, func(old uint64, ok bool) error {
		x.stage = idle
		if !ok {
			s.checkOwner(old)
			return nil
		}
		if h := s.holder[x.sem]; h >= 0 {
			s.contradict(atomics.FaultLostUpdate, "queue %d took semaphore %d while queue %d held it", p.index, x.sem, h)
		}
		s.holder[x.sem] = p.index
		s.taken++
		s.vain = 0
		s.todo--
		x.stage = acquired
		return nil
	})
}

// checkOwner looks at a value found in a semaphore: it must be somebody's.
func (s *semaphores) checkOwner(old uint64) {
	for _, p := range s.run.ports {
		if old == s.id(p) {
			return
		}
	}
	s.contradict(atomics.FaultLostUpdate, "a semaphore held 0x%x, which nobody wrote", old)
}

func (s *semaphores) load(p *port, x *lockState) error {
	x.stage = loading
	return p.read(recordAt+64*x.sem, 16, 0, func(b []byte) error {
		x.stage = loaded
		one, two := binary.NativeEndian.Uint64(b), binary.NativeEndian.Uint64(b[8:])
		if one != two || one != s.count[x.sem] {
			s.contradict(atomics.FaultLostUpdate, "in section %d of semaphore %d its record held %d and %d instead", s.count[x.sem], x.sem, one, two)
		}
		return nil
	})
}

// release writes the record in two halves and gives the semaphore back behind
// them: writes of one queue arrive in the order in which they were posted.
func (s *semaphores) release(p *port, x *lockState) error {
	x.stage = releasing
	sem := x.sem
	s.count[sem]++
	half := binary.NativeEndian.AppendUint64(nil, s.count[sem])
	nothing := func() error { return nil }
	if err := p.write(recordAt+64*sem, half, 0, nothing); err != nil {
		return err
	}
	if err := p.write(recordAt+64*sem+8, half, 0, nothing); err != nil {
		return err
	}
	// From now on another queue may find it free.
	if s.holder[sem] == p.index {
		s.holder[sem] = -1
	}
	if s.byWrite {
		return p.write(int(s.addr(sem)), make([]byte, s.layout.size), 0, func() error {
			x.stage = idle
			return nil
		})
	}
	op := atomics.Op{Kind: atomics.CompareSwap, Size: s.layout.size, Addr: s.addr(sem), Compare: s.id(p)}
	return p.atomic(op, 0, func(old uint64, ok bool) error {
		x.stage = idle
		if !ok {
			s.contradict(atomics.FaultLostUpdate, "queue %d held semaphore %d and found 0x%x in it", p.index, sem, old)
		}
		return nil
	})
}

// audit looks at memory when everything has come to rest: free semaphores,
// untouched neighbours, and records that count every section.
func (s *semaphores) audit(want []byte) {
	if !s.run.stop && s.broken == "" {
		if d := s.run.differs(semAt-guard, want, guard, 8); d != "" {
			s.contradict(atomics.FaultNeighbour, "after all were released, %s", d)
		}
	}
	for i, n := range s.count {
		b := s.run.target(recordAt+64*i, 16)
		one, two := binary.NativeEndian.Uint64(b), binary.NativeEndian.Uint64(b[8:])
		if one != n || two != n {
			s.contradict(atomics.FaultLostUpdate, "semaphore %d saw %d sections and its record counts %d and %d", i, n, one, two)
		}
	}
}
