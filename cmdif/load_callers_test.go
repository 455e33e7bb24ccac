package cmdif

import (
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// inputOf is the input of command id: every byte depends on it.
func inputOf(id uint64, op prm.Opcode, n int) []byte {
	in := msg(op, n, id)
	binary.BigEndian.PutUint64(in[8:], id)
	return in
}

var loadOps = []prm.Opcode{
	prm.OpNop, prm.OpNop, prm.OpQueryISSI, prm.OpQueryAdapter, prm.OpQueryHCACap, prm.OpAccessReg, prm.OpAccessReg,
	prm.OpCreateMKey, prm.OpCreateGeneralObject, prm.OpQueryGeneralObject,
}

// caller sends its commands one after the other. Caller 0 is the page worker.
func (l *load) caller(w int) {
	r := rand.New(rand.NewPCG(l.seed, 1000+uint64(w)))
	for i := range l.each {
		op := loadOps[r.IntN(len(loadOps))]
		n, m := 16, 16
		switch r.IntN(4) { // else inline
		case 0:
			n += r.IntN(1500)
		case 1:
			m += r.IntN(4200)
		case 2:
			n, m = n+r.IntN(1500), m+r.IntN(1500)
		}
		if w == 0 {
			op, n = prm.OpManagePages, 16+8*r.IntN(1500)
		}
		l.one(r, uint64(w)<<32|uint64(i)<<8|l.seed&0xff|1<<56, op, n, m)
		if r.IntN(10) == 0 {
			time.Sleep(time.Duration(r.IntN(int(l.timeout / 100))))
		}
	}
}

// one sends one command and judges its answer.
func (l *load) one(r *rand.Rand, id uint64, op prm.Opcode, n, m int) {
	t := l.t
	x := &tracked{id: id, fate: l.fateOf(r)}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var canceled atomic.Int64
	leave := func() {
		canceled.CompareAndSwap(0, time.Now().UnixNano())
		cancel()
	}
	x.cancel = leave
	l.mu.Lock()
	l.cmds[id] = x
	l.mu.Unlock()

	limit := l.timeout
	exec := l.conn.Exec
	switch k := r.IntN(40); k {
	case 0: // before it begins
		leave()
	case 1, 2, 3: // while it waits for a slot, or after the doorbell
		stop := time.AfterFunc(time.Duration(r.IntN(int(8*time.Millisecond))), leave)
		defer stop.Stop()
	case 4, 5:
		limit = time.Duration(r.IntN(int(l.timeout)))
		var c context.CancelFunc
		ctx, c = context.WithTimeout(ctx, limit)
		defer c()
	case 6:
		limit = time.Duration(1 + r.IntN(int(l.timeout)))
		exec = func(ctx context.Context, in, out []byte) error {
			return l.conn.ExecTimeout(ctx, in, out, limit)
		}
	case 7:
		exec = l.conn.ExecPolled
	}
	in, out := inputOf(id, op, n), make([]byte, m)
	start := time.Now()
	err := exec(ctx, in, out)
	took := time.Since(start)

	l.mu.Lock()
	seen := x.seen
	x.givenUp = Unanswered(err)
	f, endedAt := x.fate, l.endedAt
	l.mu.Unlock()
	if took > limit+l.slack {
		t.Errorf("command %x: answered after %v, it had %v: %v", id, took, limit, err)
	}
	var (
		te *TimeoutError
		ce *CanceledError
		de *DeadError
		ro *CommandError
		re *ReplyError
	)
	sent := true // what the answer says about the device
	switch {
	case err == nil:
		checkReply(t, id, out)
	case errors.As(err, &ro):
		if ro.Syndrome != uint32(id) || f.kind != fateRefused && f.kind != fateNotReady || ro.Opcode != op {
			t.Errorf("command %x, fate %+v, got the refusal of another: %v", id, f, err)
		}
	case errors.As(err, &re):
		if f.kind != fateForeign || !errors.Is(err, ErrNotOurs) {
			t.Errorf("command %x, fate %+v: %v", id, f, err)
		}
	case errors.As(err, &ce):
		sent = ce.Slot >= 0
		at := canceled.Load()
		if at == 0 {
			t.Errorf("command %x: nobody cancelled it: %v", id, err)
		} else if d := time.Since(time.Unix(0, at)); d > l.slack && d > time.Since(start.Add(l.slack)) {
			t.Errorf("command %x: told %v after it was cancelled", id, d)
		}
	case errors.As(err, &te):
		sent = te.Slot >= 0
		if took < min(limit, l.timeout)-l.slack && !l.wall {
			t.Errorf("command %x: timed out after %v, it had %v", id, took, limit)
		}
		if sent && !endedAt.IsZero() && start.After(endedAt) {
			t.Errorf("command %x: on a device that had ended (%v) before it was sent, told %v", id, l.end, err)
		}
	case errors.As(err, &de):
		sent = de.Slot >= 0
		if !l.ended.Load() {
			t.Errorf("command %x: %v", id, err)
		}
	case errors.Is(err, ErrClosed):
		sent = false
		if l.end != endClose || !l.ended.Load() {
			t.Errorf("command %x: %v", id, err)
		}
	case errors.Is(err, ErrQuarantined):
		sent = false
	default:
		t.Errorf("command %x: an error of no kind: %v", id, err)
	}
	// A command that is sent again because firmware was not ready may end unsent.
	// A doorbell that a device out of reach does not see counts as rung.
	if sent != (seen > 0) && f.kind != fateNotReady && (seen > 0 || l.end != endGone || !l.ended.Load()) {
		t.Errorf("command %x: the device saw it %d times, the answer is %v", id, seen, err)
	}
	if err != nil && ro == nil && string(out) != string(make([]byte, m)) {
		t.Errorf("command %x: its output was written, although %v", id, err)
	}
}
