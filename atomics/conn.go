package atomics

import (
	"context"
	"encoding/binary"
	"fmt"
	"runtime"
	"time"

	"github.com/mlxvfio/mlxvfio/queues"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// Memory is memory that a device may reach: its bus address and keys, and, where
// it belongs to this process, the bytes. Mem is empty for a peer's memory.
type Memory struct {
	Mem  vfio.Mem
	Addr uint64
	LKey uint32
	RKey uint32
}

// Slice is n bytes of m from off on.
func (m Memory) Slice(off, n int) Memory {
	s := Memory{Addr: m.Addr + uint64(off), LKey: m.LKey, RKey: m.RKey}
	if m.Mem.Len() != 0 {
		s.Mem = m.Mem.Slice(off, n)
	}
	return s
}

// SGE is n bytes at off as a piece of local memory.
func (m Memory) SGE(off, n int) queues.SGE {
	return queues.SGE{Addr: m.Addr + uint64(off), Len: uint32(n), LKey: m.LKey}
}

// Remote is the byte at off as the peer's memory.
func (m Memory) Remote(off int) queues.Remote {
	return queues.Remote{Addr: m.Addr + uint64(off), RKey: m.RKey}
}

// Load copies len(p) bytes at off, both multiples of 8, in atomic 64-bit loads:
// for memory that a device may be writing.
func (m Memory) Load(off int, p []byte) {
	for i := 0; i < len(p); i += 8 {
		binary.NativeEndian.PutUint64(p[i:], m.Mem.Load64(off+i))
	}
}

// Store is the counterpart of Load.
func (m Memory) Store(off int, p []byte) {
	for i := 0; i < len(p); i += 8 {
		m.Mem.Store64(off+i, binary.NativeEndian.Uint64(p[i:]))
	}
}

// CompletionQueue is what is needed of a CQ; *queues.CQ is one.
type CompletionQueue interface {
	Poll(dst []queues.Completion) (int, error)
	Err(c *queues.Completion) error
}

// Conn is a connected queue pair with the CQ on which its work completes. It and
// the CQ belong to one caller at a time.
type Conn struct {
	SQ *queues.SendQueue
	RQ *queues.RecvQueue // only package litmus receives
	CQ CompletionQueue
}

// Idle is called when there is nothing to poll: it waits a little, or for an
// interrupt, or lets a model go on. An error ends the operation.
type Idle func(ctx context.Context) error

// Yield is the Idle that polls on: it lets other goroutines run.
func Yield(ctx context.Context) error {
	runtime.Gosched()
	return ctx.Err()
}

// Post writes the WQE of the request into q: the reply goes to the Size bytes at
// reply, whatever its Len is; rkey opens the responder's memory. It allocates
// nothing unless it refuses, and does not ring.
func (r *Request) Post(q *queues.SendQueue, wrid uint64, f queues.Flags, reply queues.SGE, rkey uint32) error {
	reply.Len = uint32(r.Size)
	to := queues.Remote{Addr: r.Addr, RKey: rkey}
	switch {
	case !r.Masked() && r.Adds():
		return q.FetchAdd(wrid, f, reply, to, r.words[argAdd])
	case !r.Masked():
		return q.CompareSwap(wrid, f, reply, to, r.words[argCompare], r.words[argSwap])
	case r.Adds() && r.n == 1:
		return q.MaskedFetchAdd(wrid, f, reply, to, &queues.MaskedFA{Add: r.words[argAdd], Boundary: r.words[argBoundary]})
	case r.Adds():
		return q.MaskedFetchAddWide(wrid, f, reply, to, &queues.MaskedFAWide{Add: r.arg(argAdd), Boundary: r.arg(argBoundary)})
	case r.n == 1:
		return q.MaskedCompareSwap(wrid, f, reply, to, &queues.MaskedCS{
			Swap: r.words[argSwap], Compare: r.words[argCompare], SwapMask: r.words[argSwapMask], CompareMask: r.words[argCompareMask],
		})
	}
	return q.MaskedCompareSwapWide(wrid, f, reply, to, &queues.MaskedCSWide{
		Swap: r.arg(argSwap), Compare: r.arg(argCompare), SwapMask: r.arg(argSwapMask), CompareMask: r.arg(argCompareMask),
	})
}

// waiter runs one operation at a time on a Conn.
type waiter struct {
	conn Conn
	idle Idle
	wrid uint64 // of the newest operation
	busy bool   // it has not completed: a caller stopped waiting
	// stuck bounds the wait for one operation, besides the context; 0 does not.
	stuck time.Duration
	comp  [8]queues.Completion
}

// post rings and waits for what f posts with the wrid it is given, after what an
// earlier caller may have left behind.
func (w *waiter) do(ctx context.Context, f func(wrid uint64) error) error {
	if w.busy {
		if err := w.wait(ctx); err != nil {
			return fmt.Errorf("wait for an earlier operation: %w", err)
		}
	}
	w.wrid++
	if err := f(w.wrid); err != nil {
		return err
	}
	w.busy = true
	w.conn.SQ.Ring()
	return w.wait(ctx)
}

// wait polls until the newest operation has completed.
func (w *waiter) wait(ctx context.Context) error {
	var since time.Time
	for empty := 0; ; empty++ {
		n, err := w.conn.CQ.Poll(w.comp[:])
		for i := range w.comp[:n] {
			c := &w.comp[i]
			if c.Recv() || c.WRID != w.wrid || c.QPN != w.conn.SQ.QPN() {
				continue
			}
			w.busy = false
			if !c.OK() {
				return w.conn.CQ.Err(c)
			}
			return nil
		}
		if err != nil {
			return err
		}
		if n != 0 {
			continue
		}
		if err := w.idle(ctx); err != nil {
			return fmt.Errorf("wait for a completion: %w", err)
		}
		if w.stuck == 0 || empty&63 != 63 {
			continue
		}
		if since.IsZero() {
			since = time.Now()
		} else if d := time.Since(since); d > w.stuck {
			return fmt.Errorf("%w for %v: look at the queue pair's state and the health of the function", ErrStuck, d.Round(time.Millisecond))
		}
	}
}
