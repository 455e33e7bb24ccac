package litmus

import (
	"context"
	"encoding/binary"
	"fmt"

	"github.com/mlxvfio/mlxvfio/atomics"
	"github.com/mlxvfio/mlxvfio/queues"
)

// ordering tries the orders within one queue that users build on.
func (r *runner) ordering(ctx context.Context) error {
	if err := r.writeThenSend(ctx); err != nil {
		return err
	}
	if err := r.writeThenAtomic(ctx); err != nil {
		return err
	}
	for _, f := range []struct {
		name  string
		flags queues.Flags
	}{
		{"with fence (mode 4)", queues.Fence},
		{"with fence for reads (mode 2)", queues.FenceReads},
		{"without fence", 0},
	} {
		if err := r.readThenAtomic(ctx, f.name, f.flags); err != nil {
			return err
		}
	}
	return nil
}

// Places on the target.
const (
	dataAt   = 4096 // two messages a port, or one variable with what is before it
	dataSize = 512
	pairAt   = 2048 // 16 bytes a port
)

// writeThenSend: when a message arrives, what the same queue wrote before it is
// there.
func (r *runner) writeThenSend(ctx context.Context) error {
	row := Row{
		Test: testOrder, Guarantee: "a WRITE is there when the SEND behind it arrives", Required: true, Verdict: NotOffered,
		Subject: fmt.Sprintf("1 to %d bytes", dataSize), Detail: "no receiving end",
	}
	type stream struct {
		p          *port
		sent, came int
		piece      [2][2]int // offset and length of what each of two messages wrote
	}
	var streams []*stream
	by := make([]*stream, len(r.ports))
	broken, wrong, fault := "", 0, atomics.FaultLateWrite
	places := (TargetSize - dataAt) / dataSize
	for _, p := range r.ports {
		if p.req.Accept.RQ == nil || len(streams) == places/2 {
			continue
		}
		s := &stream{p: p}
		base := dataAt + len(streams)*2*dataSize
		streams = append(streams, s)
		by[p.index] = s
		p.received = func(payload []byte) error {
			no := int(binary.LittleEndian.Uint64(payload))
			if no != s.came {
				broken, wrong, fault = fmt.Sprintf("message %d arrived in place of %d", no, s.came), wrong+1, atomics.FaultOrder
			}
			s.came++
			at := s.piece[no&1]
			for i, b := range r.target(base+no&1*dataSize, dataSize)[at[0]:][:at[1]] {
				if b != tag(no) {
					broken, wrong = fmt.Sprintf("when message %d arrived, byte %d of the data written before it was not there", no, i), wrong+1
					break
				}
			}
			return nil
		}
		for i := range recvs {
			if err := p.postRecv(i); err != nil {
				return err
			}
		}
	}
	if len(streams) == 0 {
		r.row(row)
		return nil
	}
	todo := r.count(300)
	err := r.drive(ctx, func(p *port) (bool, error) {
		s := by[p.index]
		// Two places take turns, so no data is overwritten before it was looked at.
		if s == nil || todo <= 0 || s.sent-s.came >= 2 || len(p.free) < 2 || p.req.Conn.SQ.Free() < 2*wqeBlocks {
			return false, nil
		}
		todo--
		at := dataAt
		for i, x := range streams {
			if x == s {
				at += i * 2 * dataSize
			}
		}
		// Half of them are as large as can be, and so no atomic writes.
		off, n := 0, dataSize
		if r.rng.IntN(2) == 0 {
			n = 1 + r.rng.IntN(dataSize)
			off = r.rng.IntN(dataSize - n + 1)
		}
		s.piece[s.sent&1] = [2]int{off, n}
		data := make([]byte, n)
		for i := range data {
			data[i] = tag(s.sent)
		}
		nothing := func() error { return nil }
		if err := p.write(at+s.sent&1*dataSize+off, data, queues.NonAtomic, nothing); err != nil {
			return false, err
		}
		no := binary.LittleEndian.AppendUint64(nil, uint64(s.sent))
		s.sent++
		return true, p.send(no, 0, nothing)
	}, func() bool {
		for _, s := range streams {
			if s.came < s.sent && !r.stop {
				return false
			}
		}
		return todo <= 0
	})
	if err != nil {
		return err
	}
	messages := 0
	for _, s := range streams {
		messages += s.came
	}
	if broken != "" {
		broken = fmt.Sprintf("%d of %d: %s", wrong, messages, broken)
	}
	r.judge(row.Test, row.Guarantee, fmt.Sprintf("%s, %d queues", row.Subject, len(streams)), fault, broken, fmt.Sprintf("%d messages", messages))
	return nil
}

// tag is the byte that fills the data of message no.
func tag(no int) byte { return byte(no*37 + 1) }

// writeThenAtomic: an atomic finds what the same queue wrote just before.
func (r *runner) writeThenAtomic(ctx context.Context) error {
	const guarantee = "an atomic behind a WRITE of the same queue sees it"
	size := r.pairSize()
	if size == 0 {
		r.row(Row{Test: testOrder, Guarantee: guarantee, Subject: "8 bytes", Required: true, Verdict: NotOffered})
		return nil
	}
	todo, wrong, broken := r.count(400), 0, ""
	busy := make([]bool, len(r.ports))
	err := r.drive(ctx, func(p *port) (bool, error) {
		if todo <= 0 || busy[p.index] || len(p.free) < 2 || p.req.Conn.SQ.Free() < 2*wqeBlocks {
			return false, nil
		}
		todo--
		busy[p.index] = true
		// The variable is the end of what is written, which is more than it where
		// there is room.
		at, n := pairAt+16*p.index, size
		if end := dataAt + dataSize*(p.index+1); end <= TargetSize && r.rng.IntN(2) == 0 {
			at, n = end-8, size+r.rng.IntN(dataSize-8)
		}
		v := r.rng.Uint64() >> (64 - 8*size)
		b := make([]byte, n)
		p.orderOf(atomics.FetchAdd, size).Store(b[n-size:], v)
		if err := p.write(at-(n-size), b, queues.NonAtomic, func() error { return nil }); err != nil {
			return false, err
		}
		return true, p.atomic(atomics.Op{Kind: atomics.FetchAdd, Size: size, Addr: uint64(at), Value: 1}, 0, func(old uint64, _ bool) error {
			busy[p.index] = false
			if old != v {
				wrong++
				broken = fmt.Sprintf("wrote 0x%x, and the atomic behind it found 0x%x", v, old)
			}
			return nil
		})
	}, func() bool { return todo <= 0 })
	if err != nil {
		return err
	}
	if wrong > 0 {
		broken = fmt.Sprintf("%d times: %s", wrong, broken)
	}
	r.judge(testOrder, guarantee, fmt.Sprintf("%d bytes", size), atomics.FaultLateWrite, broken, "")
	return nil
}

// pairSize is the size of the variable in tests of pairs of operations.
func (r *runner) pairSize() int {
	for _, s := range []int{8, 4} {
		if r.offered(atomics.FetchAdd, s) {
			return s
		}
	}
	return 0
}

// readThenAtomic: a READ in front of an atomic returns the value before it if the
// atomic is fenced. Without fence the responder may fetch the data of the READ
// after the atomic is done; that is no fault, and worth knowing.
func (r *runner) readThenAtomic(ctx context.Context, name string, flags queues.Flags) error {
	size := r.pairSize()
	row := Row{Test: testOrder, Guarantee: "a READ does not see the atomic behind it", Subject: name, Required: flags != 0, Verdict: NotOffered}
	if size == 0 {
		r.row(row)
		return nil
	}
	todo, late, pairs, broken := r.count(400), 0, 0, ""
	type pair struct {
		busy int
		next uint64
	}
	state := make([]pair, len(r.ports))
	for i := range r.ports {
		b := make([]byte, 16)
		r.ports[i].orderOf(atomics.FetchAdd, size).Store(b[:size], 0)
		r.rig.Target.Store(pairAt+16*i, b)
	}
	err := r.drive(ctx, func(p *port) (bool, error) {
		x := &state[p.index]
		if todo <= 0 || x.busy > 0 || len(p.free) < 2 || p.req.Conn.SQ.Free() < 2*wqeBlocks {
			return false, nil
		}
		todo--
		pairs++
		x.busy = 2
		was := x.next
		x.next++
		at := pairAt + 16*p.index
		err := p.read(at, 8, 0, func(b []byte) error {
			x.busy--
			switch v := p.orderOf(atomics.FetchAdd, size).Load(b[:size]); v {
			case was:
			case was + 1:
				late++
			default:
				broken = fmt.Sprintf("the READ found %d where only %d or %d can be", v, was, was+1)
			}
			return nil
		})
		if err != nil {
			return false, err
		}
		return true, p.atomic(atomics.Op{Kind: atomics.FetchAdd, Size: size, Addr: uint64(at), Value: 1}, flags, func(old uint64, _ bool) error {
			x.busy--
			if old != was {
				broken = fmt.Sprintf("the atomic found %d and must find %d", old, was)
			}
			return nil
		})
	}, func() bool { return todo <= 0 })
	if err != nil {
		return err
	}
	fault := atomics.FaultNoFence
	if broken != "" {
		fault = atomics.FaultLostUpdate
	}
	if flags != 0 || broken != "" {
		if broken == "" && late > 0 {
			broken = fmt.Sprintf("%d of %d saw it", late, pairs)
		}
		r.judge(row.Test, row.Guarantee, row.Subject, fault, broken, fmt.Sprintf("%d pairs", pairs))
		return nil
	}
	row.Guarantee, row.Verdict, row.Detail = "a READ sees the atomic behind it", NotSeen, fmt.Sprintf("%d pairs", pairs)
	if late > 0 {
		row.Verdict, row.Detail = Seen, fmt.Sprintf("%d of %d pairs: use a fence", late, pairs)
	}
	r.row(row)
	return nil
}
