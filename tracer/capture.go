package tracer

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mlxvfio/mlxvfio/tracer/capture"
	"github.com/mlxvfio/mlxvfio/tracer/trace"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// Capture is a running capture, and a capture.Source: meta, strings, then blocks,
// gaps, clocks and notes as they come, and the end. Next and Ready are for one
// goroutine; everything else may be called by any.
//
//	Open ─ acquire, strings, configure, on ─▶ running ─▶ ending ─▶ over ─ Close ─▶ memory free
//	                                             │ Stop, Close, the context of Open, loss of
//	                                             │ ownership, a dead device, a panic inside
//	                                             └─ off, read the rest, give the tracer back
type Capture struct {
	d     Device
	o     Options
	meta  *capture.Meta
	buf   *Buffer
	owner *Owner
	start time.Time

	ctx     context.Context // of Open
	stop    context.CancelFunc
	stopped context.Context // over when the capture is to end
	quit    context.CancelFunc
	events  <-chan Event
	cancel  func() // of the subscription
	read    *reader
	queue   *queue
	done    chan struct{} // the control goroutine has ended

	mu     sync.Mutex
	caps   Caps
	db     *trace.DB
	first  *trace.DB // with which it began
	info   StringsInfo
	reason capture.Reason
	err    error // why it ended
	undone error // what went wrong in ending it
	freed  bool

	// For Next alone.
	begun int
	tail  []*capture.Record
	ended bool

	// For the control goroutine alone.
	armed bool
	on    atomic.Bool
	stats counters
}

// Ready is the number of records that Next gives without waiting.
func (c *Capture) Ready() int { return c.queue.ready() }

// Next fills r with the next record, and waits for it. After the record of kind end
// it answers io.EOF. When ctx is over it answers its cause, unless the capture is
// ending: what is left comes first then, so that a context that ends both does not
// cost the rest. It allocates nothing for a block.
func (c *Capture) Next(ctx context.Context, r *capture.Record) error {
	switch c.begun {
	case 0:
		c.begun++
		*r = capture.Record{Kind: capture.KindMeta, Offset: -1, Meta: c.meta}
		return nil
	case 1:
		c.begun++
		*r = capture.Record{Kind: capture.KindStrings, Offset: -1, DB: c.firstDB()}
		return nil
	}
	over := ctx.Done()
	for {
		if c.queue.pop(r) {
			return nil
		}
		if c.queue.closed.Load() && c.queue.ready() == 0 {
			return c.last(ctx, r)
		}
		select {
		case <-c.queue.filled:
		case <-over:
			if c.ctx.Err() == nil && c.stopped.Err() == nil {
				return context.Cause(ctx)
			}
			over = nil // the end is near
		}
	}
}

// last gives what comes after the queue: records that found no room in it, and the end.
func (c *Capture) last(ctx context.Context, r *capture.Record) error {
	if c.ended {
		return io.EOF
	}
	<-c.done // gives the tracer back; it takes no longer than stopLimit three times
	if c.tail == nil {
		c.tail = append(c.read.feed.rest(), &capture.Record{Kind: capture.KindEnd, End: c.end()})
	}
	*r, c.tail = *c.tail[0], c.tail[1:]
	r.Offset = -1
	c.ended = len(c.tail) == 0
	return nil
}

// end is the end record.
func (c *Capture) end() capture.End {
	c.mu.Lock()
	defer c.mu.Unlock()
	f := c.read.feed
	e := capture.End{
		Time: time.Now(), Reason: c.reason, Blocks: f.blocks.Load(), Gaps: f.gaps.Load(),
		Lost: f.overwritten.Load() + f.backPressure.Load() + f.order.Load(),
	}
	if err := join(c.err, c.undone); err != nil {
		e.Text = strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	return e
}

// Stop ends the capture: the device stops, Next gives what is left and the end. It
// does not wait.
func (c *Capture) Stop() { c.stop() }

// Done is closed when the tracer was given back.
func (c *Capture) Done() <-chan struct{} { return c.done }

// Err is why the capture ended, once it has, and what went wrong in giving the tracer
// back: nil if it was asked to end, and did.
func (c *Capture) Err() error {
	select {
	case <-c.done:
	default:
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return join(c.err, c.undone)
}

// Close ends the capture, if it is not over, gives the tracer back, destroys the
// memory key and frees the memory. What Next has not taken yet stays there for it, as
// far as it was in the queue; the rest counts as missing. The error is what went wrong
// on the way, not why the capture ended. If the device does not answer or ctx ends the
// wait, it may be called again, or Release after a reset. After it has succeeded it does
// nothing.
func (c *Capture) Close(ctx context.Context) error {
	c.stop()
	c.quit()
	for _, ch := range []<-chan struct{}{c.done, c.read.done} {
		select {
		case <-ch:
		case <-ctx.Done():
			return fmt.Errorf("close the firmware tracer: wait for its end: %w", context.Cause(ctx))
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.freed {
		return nil
	}
	if err := c.buf.Free(ctx); err != nil {
		return join(c.undone, fmt.Errorf("close the firmware tracer: %w", err))
	}
	c.freed = true
	return c.undone
}

// Release ends the capture and frees the host's part of its memory alone: only for a
// device that was reset or cannot reach memory any more.
func (c *Capture) Release() error {
	c.stop()
	c.quit()
	<-c.done
	<-c.read.done
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.freed {
		return nil
	}
	c.freed = true
	return c.buf.Release()
}

// Meta describes the capture.
func (c *Capture) Meta() *capture.Meta { return c.meta }

// Caps is MTRC_CAP as read last.
func (c *Capture) Caps() Caps {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.caps
}

// DB is the string database as read last, and where it came from.
func (c *Capture) DB() (*trace.DB, StringsInfo) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.db, c.info
}

// Owner is the state of the ownership.
func (c *Capture) Owner() OwnerState { return c.owner.State() }

// Stats takes a snapshot.
func (c *Capture) Stats() Stats {
	f, r, s := c.read.feed, &c.read.stats, &c.stats
	return Stats{
		Blocks: f.blocks.Load(), Gaps: f.gaps.Load(), Overwritten: f.overwritten.Load(), BackPressure: f.backPressure.Load(), Order: f.order.Load(),
		Unclosed: r.unclosed.Load(), Torn: r.torn.Load(), Laps: r.laps.Load(), Looks: r.looks.Load(), FoundByPoll: r.foundByPoll.Load(),
		Events: s.events.Load(), OwnerEvents: s.ownerEvents.Load(), Armed: s.armed.Load(), Restarts: s.restarts.Load(),
		Waiting: c.queue.ready(), Queue: len(c.queue.slots), HighWater: c.queue.high.Load(),
	}
}

// Tail copies the newest blocks that the ring holds, as they lie in memory now, oldest
// first: for a report about a device in trouble, without taking anything from Next. A
// block that the device was writing meanwhile is left out. At most the ring's
// blocks, and most of them. After Close there are none.
func (c *Capture) Tail(most int) [][trace.BlockSize]byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.freed {
		return nil
	}
	return tail(c.buf.Mem, max(most, 0))
}

func tail(mem vfio.Mem, n int) (out [][trace.BlockSize]byte) {
	ring := mem.Len() / trace.BlockSize
	var copyOf = make([]byte, mem.Len())
	for i := range ring {
		for {
			w := mem.LoadBE64(i*trace.BlockSize + closingWord)
			for k := i * trace.BlockSize; k < (i+1)*trace.BlockSize; k += 8 {
				putNative(copyOf[k:], mem.Load64(k))
			}
			if mem.LoadBE64(i*trace.BlockSize+closingWord) == w {
				break
			}
		}
	}
	r := trace.NewRing(copyOf)
	// The oldest place may be half written over.
	for i, first := 1, r.Oldest(); i < ring; i++ {
		b := r.Block((first + i) % ring)
		if _, closed := trace.ClosedTime(b); closed {
			out = append(out, [trace.BlockSize]byte(b))
		}
	}
	return out[max(len(out)-n, 0):]
}
