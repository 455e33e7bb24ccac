package sim

import (
	"encoding/binary"
	"runtime"
	"time"

	"github.com/mlxvfio/mlxvfio/vfio"
)

const (
	traceBlock  = 256
	traceEvents = traceBlock / 8
	traceEpoch  = 128 // ticks that the 7 bits of an event's stamp count
	traceMask   = 1<<53 - 1
	traceLost   = 1 << 63
	traceStamp  = 0xff // event id of timestamps

	// traceFlush is how long a block may stay open.
	traceFlush = time.Millisecond
)

// traceStream is the block being filled and the place of the next one. Times are
// ticks of the device's clock, counted beyond 53 bits; last never goes back.
type traceStream struct {
	block  [traceBlock]byte
	used   int    // events in it
	pos    uint32 // place of the block in the buffer
	blocks uint64 // written since MTRC_CONF
	base   uint64 // what the tracer's clock is ahead of the device's
	last   uint64 // of the latest event or stamp
	opened uint64
	// A message's header waits for the timestamp event that dates it: pending,
	// and the time of the oldest such header.
	pending bool
	header  uint64
	tmsn    uint16
	lost    bool // the next event says that some were lost
	stamps  int
	flusher bool // a flush is scheduled
}

func (s *traceStream) open(now uint64) {
	s.last = max(s.last, now)
	s.drop()
}

// drop forgets the open block.
func (s *traceStream) drop() {
	s.used, s.pending, s.flusher = 0, false, false
}

// awkward is the way of a device that makes the most of the rules: messages run
// across blocks and timestamps come as late as they may.
func (t *tracer) awkward() bool {
	return len(t.chip.faults.list) > 0 && t.chip.faults.has("trace-awkward")
}

// limit is the latest time at which the headers that wait may be dated. The rule
// of decoders finds the time of a message that is at most 128 ticks older than
// its timestamp event; a tidy device stays in one period of the 7-bit stamps.
func (t *tracer) limit() uint64 {
	if t.awkward() {
		return t.stream.header + traceEpoch
	}
	return (t.stream.header/traceEpoch + 1) * traceEpoch
}

// settle moves on to a moment: what waits for its date and cannot wait until then
// is dated. It gives the moment at which the next event is.
func (t *tracer) settle(at uint64) uint64 {
	s := &t.stream
	if s.pending && at >= t.limit() {
		t.stamp(t.limit())
	}
	s.last = max(s.last, at)
	return s.last
}

// message writes one message at a moment. raw events and damaged ones are the
// callers' own business.
func (t *tracer) message(id uint8, pointer uint32, words []uint32, at uint64, about *logged) {
	s := &t.stream
	at = max(at, s.last+1)
	need := 1 + len(words)
	if s.pending && at >= t.limit() {
		need++ // the timestamp that is due goes before it
	}
	if !t.awkward() && s.used+need > traceEvents-1 {
		t.close(at)
	}
	at = t.settle(at)
	head := uint64(id)<<48 | uint64(s.tmsn)<<35
	s.tmsn = (s.tmsn + 1) & (1<<13 - 1)
	if !s.pending {
		s.pending, s.header = true, at
	}
	w := head | uint64(pointer)
	if s.lost {
		w |= traceLost
		s.lost = false
	}
	t.count.Messages++
	about.event = w | at%traceEpoch<<56
	about.at = at
	t.log.message(about, words)
	t.put(w)
	for i, v := range words {
		w := head | uint64(i+1)<<32 | uint64(v)
		if about.unknown { // to readers each word is a message of its own
			t.orphan(w, *about)
		}
		t.put(w)
	}
}

// orphan is a parameter whose message readers do not know: it is dated on its own.
func (t *tracer) orphan(w uint64, about logged) {
	s := &t.stream
	if !s.pending {
		s.pending, s.header = true, s.last
	}
	about.event, about.at = w|s.last%traceEpoch<<56, s.last
	t.log.message(&about, nil)
}

// put writes an event at the time of the last one.
func (t *tracer) put(w uint64) {
	s := &t.stream
	if s.used == 0 {
		s.opened = s.last
		t.arrangeFlush()
	}
	t.count.Events++
	binary.BigEndian.PutUint64(s.block[s.used*8:], w|s.last%traceEpoch<<56)
	s.used++
	if s.used == traceEvents/2 && len(t.chip.faults.list) > 0 && t.chip.faults.has("trace-torn") {
		t.store(s.block[:traceBlock/2])
	}
	if s.used == traceEvents-1 {
		t.close(s.last)
	}
}

// stampWord is a timestamp event.
func (t *tracer) stampWord(at uint64) uint64 {
	t.stream.stamps++
	at &= traceMask
	w := at&0xff<<56 | traceStamp<<48 | at>>40<<32 | at>>8&0xffffffff
	if x := t.chip.faults.find("trace-unreliable"); x != nil && t.stream.stamps%x.n == 0 {
		w |= t.unreliable() << 45
		t.count.Unreliable++
	}
	return w
}

// version is trc_ver; unreliable the bit of urts that goes with it. Versions 2
// and 3 are reserved: the bit between the two known ones stands for theirs.
func (t *tracer) version() uint8 {
	if x := t.chip.faults.find("trace-version"); x != nil {
		return uint8(x.n)
	}
	return t.chip.prof.trcVer
}

func (t *tracer) unreliable() uint64 { return []uint64{4, 1, 2, 2}[t.version()&3] }

// stamp dates the headers that wait, in the middle of a block.
func (t *tracer) stamp(at uint64) {
	s := &t.stream
	w := t.stampWord(at)
	s.last, s.pending = at, false
	t.count.Events++
	t.count.Stamps++
	t.log.stamped(w)
	binary.BigEndian.PutUint64(s.block[s.used*8:], w)
	s.used++
	if s.used == traceEvents-1 {
		t.close(at)
	}
}

// close ends the open block: what is not used of it repeats the closing
// timestamp.
func (t *tracer) close(now uint64) {
	s := &t.stream
	at := now
	if s.pending {
		at = min(at, t.limit())
	}
	at = max(at, s.last+1)
	w := t.stampWord(at)
	s.last, s.pending = at, false
	for i := s.used; i < traceEvents; i++ {
		binary.BigEndian.PutUint64(s.block[i*8:], w)
		t.count.Events++
		t.count.Stamps++
	}
	s.used = 0
	t.log.stamped(w)
	if !t.store(s.block[:]) {
		t.count.BlocksUnwritten++
		s.lost = true
		t.log.drop()
		return
	}
	t.count.Blocks++
	t.log.block(s.blocks, s.pos, at, w)
	s.blocks++
	s.pos = (s.pos + 1) & (t.blocks() - 1)
	t.fresh = true
	t.raise()
}

// arrangeFlush sees to it that a block does not stay open for long.
func (t *tracer) arrangeFlush() {
	s := &t.stream
	if s.flusher {
		return
	}
	s.flusher = true
	gen := t.gen
	t.chip.sched.after(t.owner, traceFlush, func() {
		if gen != t.gen {
			return
		}
		s.flusher = false
		t.pump()
		if s.used == 0 {
			return
		}
		now := t.ticks()
		if now-s.opened >= t.tickCount(traceFlush) {
			t.close(now)
			return
		}
		t.arrangeFlush()
	})
}

// tickCount is a time in ticks of the device's clock.
func (t *tracer) tickCount(d time.Duration) uint64 {
	return uint64(d) * uint64(t.chip.prof.clockKHz) / uint64(time.Millisecond)
}

// keyOf is the key that a configuration names, if the tracer can write through
// it: MTT, local write, no remote right, no UMR, no QP of its own, pages of 4096
// bytes or more, aligned to them, and long enough.
func (t *tracer) keyOf(f *function, c prmConf) (*mkey, bool) {
	k, ok := f.mkeys.get(c.TraceMKey() >> 8)
	if !ok || k.key != c.TraceMKey() || k.free || k.mode != modeMTT {
		return nil, false
	}
	if x := t.chip.faults.find("trace-mkey"); x != nil && x.n == keyTolerated {
		return k, true
	}
	if !k.localWrite || k.remoteRead || k.remoteWrite || k.remoteRMW || k.ctx.UMREn() || k.qpn != anyQP ||
		k.shift < 12 || k.start%pageSize != 0 || k.length < pageSize<<c.LogTraceBufferSize() {
		return nil, false
	}
	return k, true
}

// prmConf is what keyOf asks of MTRC_CONF.
type prmConf interface {
	TraceMKey() uint32
	LogTraceBufferSize() uint8
}

// store writes the beginning of the block to its place, the last word last.
func (t *tracer) store(p []byte) bool {
	k, ok := t.keyOf(t.owner, &t.conf)
	if !ok {
		return false
	}
	iova, run, ok := k.page(k.start + uint64(t.stream.pos)*traceBlock)
	return ok && run >= traceBlock && t.owner.storeTrace(iova, p)
}

// storeTrace writes a block, or its beginning, so that who sees the last word
// sees the rest, and who sees the rest of this block sees the last word of the one
// before. Where plain stores keep their order the words in between are copied.
func (f *function) storeTrace(iova uint64, p []byte) bool {
	if raceDetector || runtime.GOARCH != "amd64" {
		return f.dmaData(iova, p, true)
	}
	n := len(p) - 8
	return f.dma(iova, len(p), true, func(m vfio.Mem, _ int) {
		m.CopyIn(0, p[:n])
		m.StoreBE64(n, binary.BigEndian.Uint64(p[n:]))
	})
}
