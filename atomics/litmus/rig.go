package litmus

import (
	"errors"
	"fmt"
	"time"

	"github.com/mlxvfio/mlxvfio/atomics"
	"github.com/mlxvfio/mlxvfio/queues"
)

// Sizes of the memory a Rig brings along, in bytes.
const (
	// TargetSize and TargetAlign are those of the target.
	TargetSize  = 8192
	TargetAlign = 4096
	// LocalSize is each requester's scratch memory; it is aligned to 64.
	LocalSize = slots * slotSize
	// AcceptSize is the receive buffer of each responder end.
	AcceptSize = recvs * recvSize
)

// Rig is what litmus tests run on: requesters that are connected to one responder
// and share its target memory. It works over anything that has queue pairs; all
// memory belongs to this process, also that of a second host. The suite uses it
// alone while it runs and leaves the queue pairs connected.
type Rig struct {
	// Name says what it is, for the card.
	Name string
	// Target is TargetSize bytes of the responder's memory, aligned to
	// TargetAlign, with remote read, write and atomic rights.
	Target atomics.Memory
	// Requesters are two or more.
	Requesters []Requester
	// Caps are the atomic capabilities that requesters and responder share.
	Caps atomics.Caps
	// MaxWrite is up to how many bytes the responder's queue pairs claim to write
	// atomically: the size of their atomic_mode where atomic_like_write_en is set,
	// else 0.
	MaxWrite int
	// Idle is called while there is nothing to poll; nil polls on.
	Idle atomics.Idle
}

// Requester is a queue pair that works on the target.
type Requester struct {
	// Host is the host it belongs to: "a", "b".
	Host string
	// Conn is the queue pair. Requesters may share a CQ.
	Conn atomics.Conn
	// Profile holds the byte orders that a probe over this Conn found.
	Profile atomics.Profile
	// Local is LocalSize bytes of the requester's memory.
	Local atomics.Memory
	// Accept is the responder's end of the queue pair, for messages. RQ may be nil:
	// then tests with messages leave this requester out.
	Accept Accept
}

// Accept is the receiving end of a connection.
type Accept struct {
	RQ *queues.RecvQueue
	CQ atomics.CompletionQueue
	// QPN is the number of the responder's queue pair.
	QPN uint32
	// Local is AcceptSize bytes of the responder's memory.
	Local atomics.Memory
}

// Options tune a run. The zero value is good.
type Options struct {
	// Seed decides the order in which operations are issued, their operands and
	// their places. Equal seeds give equal runs where the device is
	// deterministic.
	Seed uint64
	// Scale multiplies the number of operations; 0 is 1, which is some ten
	// thousand.
	Scale float64
	// Budget bounds the run; 0 is 50 seconds. Tests that reach it report what they
	// did until then.
	Budget time.Duration
	// Stuck is how long the device may complete nothing before the run ends with
	// an error; 0 is 10 seconds.
	Stuck time.Duration
	// Progress, if set, hears of every row as it comes.
	Progress func(Row)
}

func (o *Options) defaults() {
	if o.Scale <= 0 {
		o.Scale = 1
	}
	if o.Budget <= 0 {
		o.Budget = 50 * time.Second
	}
	if o.Stuck <= 0 {
		o.Stuck = 10 * time.Second
	}
}

// check refuses a Rig that the suite cannot run on.
func (r *Rig) check() error {
	var errs []error
	bad := func(format string, a ...any) { errs = append(errs, fmt.Errorf(format, a...)) }
	if len(r.Requesters) < 2 {
		bad("%d requesters: concurrency needs two or more", len(r.Requesters))
	}
	if len(r.Requesters) > maxPorts {
		bad("%d requesters: at most %d have names that fit a byte", len(r.Requesters), maxPorts)
	}
	if r.Target.Mem.Len() < TargetSize || r.Target.Addr&(TargetAlign-1) != 0 {
		bad("target of %d bytes at 0x%x: it needs %d, aligned to %d", r.Target.Mem.Len(), r.Target.Addr, TargetSize, TargetAlign)
	}
	if r.MaxWrite < 0 || r.MaxWrite > 256 || r.MaxWrite&(r.MaxWrite-1) != 0 {
		bad("atomic writes of %d bytes: a power of two up to 256, or 0", r.MaxWrite)
	}
	for i := range r.Requesters {
		q := &r.Requesters[i]
		if q.Conn.SQ == nil || q.Conn.CQ == nil {
			bad("requester %d: it needs a send queue and its CQ", i)
			continue
		}
		if q.Conn.SQ.Size() < minSQ {
			bad("requester %d: a send queue of %d blocks; it needs %d", i, q.Conn.SQ.Size(), minSQ)
		}
		if q.Local.Mem.Len() < LocalSize || q.Local.Addr&63 != 0 {
			bad("requester %d: scratch memory of %d bytes at 0x%x; it needs %d, aligned to 64", i, q.Local.Mem.Len(), q.Local.Addr, LocalSize)
		}
		if q.Accept.RQ != nil && (q.Accept.CQ == nil || q.Accept.Local.Mem.Len() < AcceptSize || q.Accept.RQ.Size() < recvs) {
			bad("requester %d: its receiving end needs a CQ, %d bytes of memory and %d receive WQEs", i, AcceptSize, recvs)
		}
	}
	if len(errs) > 0 {
		return fmt.Errorf("litmus on %s: %w", r.Name, errors.Join(errs...))
	}
	return nil
}

// hosts is the number of different hosts among the requesters.
func (r *Rig) hosts() int {
	seen := map[string]bool{}
	for i := range r.Requesters {
		seen[r.Requesters[i].Host] = true
	}
	return len(seen)
}
