package cmdif

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// fateKind is how the device treats a command.
type fateKind uint8

const (
	fateAtOnce  fateKind = iota
	fateSoon             // within milliseconds, out of order
	fateSlow             // within the deadline
	fateTooLate          // after any deadline
	fateNever
	fateRefused  // with a status
	fateNotReady // so many times, then well
	fateForeign  // another command's token first, its own later
)

// fate is what the seed says about a command.
type fate struct {
	kind   fateKind
	delay  time.Duration
	times  int
	event  int // 0 lost, 1 without interrupt, 2 twice, 3 early and well, else once
	cancel int // 1: the caller leaves just before the completion, 2: just after
}

func (l *load) fateOf(r *rand.Rand) fate {
	x := fate{event: r.IntN(12), cancel: r.IntN(20)}
	switch k := r.IntN(200); {
	case k < 2:
		x.kind = fateNever
	case k < 6:
		x.kind, x.delay = fateTooLate, l.timeout+time.Duration(1+r.IntN(int(l.timeout)))
	case k < 10:
		x.kind, x.delay = fateSlow, l.timeout/10+time.Duration(r.IntN(int(l.timeout/2)))
	case k < 16:
		x.kind, x.delay = fateRefused, time.Duration(r.IntN(int(2*time.Millisecond)))
	case k < 20:
		x.kind, x.times = fateNotReady, 1+r.IntN(2)
	case k < 24:
		x.kind, x.delay = fateForeign, time.Duration(1+r.IntN(int(l.timeout/4)))
	case k < 90:
		x.kind = fateAtOnce
	default:
		x.kind, x.delay = fateSoon, time.Duration(1+r.IntN(int(5*time.Millisecond)))
	}
	return x
}

// replyOf is the reply to command id: its number, again and again.
func replyOf(id uint64, n int) []byte {
	out := make([]byte, n+8)
	for i := 8; i < n; i += 8 {
		binary.BigEndian.PutUint64(out[i:], id*uint64(i/8*2-1)) // odd multiples
	}
	return out[:n]
}

func checkReply(t testing.TB, id uint64, out []byte) {
	if want := replyOf(id, len(out)); string(want) != string(out) {
		t.Errorf("command %x got another reply, that of command %x", id, binary.BigEndian.Uint64(append(out[8:], make([]byte, 8)...)))
	}
}

// serve is the device.
func (l *load) serve(c *call) {
	if op := c.op(); op == prm.OpCreateEQ {
		c.reply(nil)
		return
	}
	id := binary.BigEndian.Uint64(c.in[8:])
	l.mu.Lock()
	x := l.cmds[id]
	if x == nil {
		l.mu.Unlock()
		l.t.Errorf("the device got command %x, which nobody sent", id)
		return
	}
	x.seen++
	seen, f, cancel := x.seen, x.fate, x.cancel
	if f.kind == fateNever && l.neverLeft.Add(-1) < 0 {
		l.neverLeft.Add(1)
		f = fate{kind: fateAtOnce, event: 9}
		x.fate = f
	}
	l.mu.Unlock()
	if seen > 1 && (f.kind != fateNotReady || seen > f.times+1) {
		l.t.Errorf("the device got command %x %d times, fate %+v", id, seen, f)
	}
	if string(c.in) != string(inputOf(id, c.op(), len(c.in))) {
		l.t.Errorf("command %x arrived with other bytes", id)
	}
	done := func() {
		if f.cancel == 1 {
			cancel()
		}
		l.complete(c, id, f, seen)
		if f.cancel == 2 {
			cancel()
		}
	}
	switch {
	case f.kind == fateNever:
	case f.kind == fateForeign:
		after(0, func() {
			c.entryToken = true
			l.complete(c, id, f, seen)
			after(f.delay, func() { c.entryToken = false; done() })
		})
	case f.delay == 0 && !l.hasEQ.Load():
		done()
	default: // events have a goroutine of their own
		after(f.delay, done)
	}
}

// complete hands a command back, after a look at its memory: it is still the
// device's, just as it was given.
func (l *load) complete(c *call, id uint64, f fate, seen int) {
	l.bus.RLock()
	off := l.off.Load()
	if !off && (f.kind != fateForeign || c.entryToken) { // which writes twice

		l.untouched(c, id)
	}
	l.bus.RUnlock()
	if off {
		return
	}
	if f.event == 3 {
		l.event(c, 9) // before there is anything to tell
	}
	switch {
	case f.kind == fateRefused:
		c.refuse(prm.StatusBadRes, uint32(id))
	case f.kind == fateNotReady && seen <= f.times:
		c.refuse(prm.StatusNotReady, uint32(id))
	default:
		c.reply(replyOf(id, c.outLen))
	}
	l.event(c, f.event)
}

// untouched asserts that the mailboxes are mapped and unchanged since the doorbell.
func (l *load) untouched(c *call, id uint64) {
	in := c.in[min(len(c.in), inlineSize):]
	for i, at := range c.inBox {
		b := l.dma(at, 576).Bytes()
		n := min(len(in), boxData)
		if string(b[:n]) != string(in[:n]) || b[0x23d] != c.token {
			l.t.Errorf("command %x: input mailbox %d was reused", id, i)
		}
		in = in[n:]
	}
	for i, at := range c.outBox {
		b := l.dma(at, 576).Bytes()
		if b[0x23d] != c.token || string(b[:boxData]) != string(make([]byte, boxData)) {
			l.t.Errorf("command %x: output mailbox %d was reused", id, i)
		}
	}
}

// event tells of a completion, if the device has an EQ.
func (l *load) event(c *call, how int) {
	l.bus.RLock()
	defer l.bus.RUnlock()
	if l.off.Load() || !l.hasEQ.Load() {
		return
	}
	bit := uint32(1) << c.slot
	switch how {
	case 0: // lost
	case 1:
		l.q.push(bit)
	case 2:
		l.conn.Complete(bit)
		l.conn.Complete(bit | 1<<31 | 1<<7)
	default:
		l.conn.Complete(bit)
	}
}
