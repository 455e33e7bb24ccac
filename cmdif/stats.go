package cmdif

import (
	"cmp"
	"math/bits"
	"slices"
	"time"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// LatencyBuckets is the number of buckets of a latency histogram: bucket i
// counts durations of 2^(i−1) to 2^i − 1 ns; bucket 0 counts 0 ns.
const LatencyBuckets = 40

// OpStats are the numbers of one opcode. Latency runs from the doorbell to the
// checked reply, of commands that completed in time.
type OpStats struct {
	Opcode   prm.Opcode
	Count    uint64 // commands handed to the device
	Failures uint64 // of these, without success for whatever reason
	Timeouts uint64 // of the failures, given up (deadline or cancelled)
	Retries  uint64 // sent again because firmware was not ready
	Total    time.Duration
	Min, Max time.Duration
	Latency  [LatencyBuckets]uint64
}

// Completed is the number of commands the device answered in time.
func (o *OpStats) Completed() uint64 {
	var n uint64
	for _, c := range o.Latency {
		n += c
	}
	return n
}

// Quantile is the upper bound of the bucket that holds the q-th part (0 … 1) of
// the latencies, 0 without any.
func (o *OpStats) Quantile(q float64) time.Duration {
	all := o.Completed()
	if all == 0 {
		return 0
	}
	want := uint64(q * float64(all))
	var sum uint64
	for i, c := range o.Latency {
		if sum += c; sum > want || sum == all {
			return min(time.Duration(1)<<i-1, o.Max)
		}
	}
	return o.Max
}

func (o *OpStats) completed(d time.Duration) {
	if o.Min == 0 || d < o.Min {
		o.Min = d
	}
	o.Max = max(o.Max, d)
	o.Total += d
	o.Latency[min(bits.Len64(uint64(max(d, 0))), LatencyBuckets-1)]++
}

// Stats is a snapshot of a Conn.
type Stats struct {
	Ops         []OpStats // by opcode, ascending
	EventMode   bool
	Entries     int // of the queue
	Slots       int // entries in use (Options.MaxSlots): Free + Active + Quarantined
	Free        int // slots without a command
	Active      int // commands in flight
	Quarantined int // slots whose command was given up
	Waiting     int // callers waiting for a slot
	// Unanswered are the commands in the quarantined slots, by slot; see
	// Conn.Unanswered.
	Unanswered []Record

	Late           uint64 // quarantined commands that completed after all
	Recovered      uint64 // completions found by polling in event mode
	LostInterrupts uint64 // of these, the event was in the EQ: nobody woke up
	Spurious       uint64 // completion events for a slot without a completion
	Foreign        uint64 // entries handed back with another command's token

	Mailboxes, MailboxesInUse int
}

// Stats gives a snapshot. It is safe to call at any time. It first takes back
// the quarantined slots whose commands have completed, so OnLate may run.
func (c *Conn) Stats() Stats {
	c.reap()
	total, used := c.boxes.counts()
	c.mu.Lock()
	defer c.mu.Unlock()
	s := Stats{
		EventMode:      c.events.Load() != nil,
		Entries:        len(c.slots),
		Slots:          bits.OnesCount32(c.all),
		Free:           bits.OnesCount32(c.free),
		Unanswered:     c.unansweredLocked(),
		Active:         c.active,
		Quarantined:    bits.OnesCount32(c.quarantined),
		Waiting:        c.waiting,
		Late:           c.late,
		Recovered:      c.recovered.Load(),
		LostInterrupts: c.lost.Load(),
		Spurious:       c.spurious.Load(),
		Foreign:        c.foreign,
		Mailboxes:      total,
		MailboxesInUse: used,
	}
	for _, o := range c.ops {
		s.Ops = append(s.Ops, *o)
	}
	slices.SortFunc(s.Ops, func(a, b OpStats) int { return cmp.Compare(a.Opcode, b.Opcode) })
	return s
}

// InFlight are the commands the device is working on, by slot: those that are
// waited for, not those that were given up. Of each record only what was known
// when the command was sent is set (Posted, Slot, Token, Opcode, OpMod, InLen,
// OutLen, In).
func (c *Conn) InFlight() []Record {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.inFlightLocked()
}

func (c *Conn) inFlightLocked() []Record {
	var rs []Record
	for i := range c.slots {
		// A slot that is busy stays so under the lock, and its command no longer
		// changes these fields.
		if s := &c.slots[i]; s.state.Load() == slotBusy {
			r := &s.rec
			rs = append(rs, Record{Posted: r.Posted, Slot: r.Slot, Token: r.Token, Opcode: r.Opcode, OpMod: r.OpMod, InLen: r.InLen, OutLen: r.OutLen, In: r.In})
		}
	}
	return rs
}

// Unanswered are the commands that were given up and that the device has not
// completed, by slot: each holds its slot and its memory. Outcome says why it was
// given up, Latency after what time.
func (c *Conn) Unanswered() []Record {
	c.reap()
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.unansweredLocked()
}

func (c *Conn) unansweredLocked() []Record {
	var rs []Record
	for q := c.quarantined; q != 0; q &= q - 1 {
		rs = append(rs, c.slots[bits.TrailingZeros32(q)].rec)
	}
	return rs
}

// Record is one command in the history kept for a post-mortem.
type Record struct {
	Posted  time.Time
	Latency time.Duration // until completion or until it was given up
	Slot    int
	Token   uint8
	Opcode  prm.Opcode
	OpMod   uint16
	InLen   int
	OutLen  int
	In      [inlineSize]byte // first bytes of the input
	Out     [inlineSize]byte // first bytes of the output, if Outcome says there is one
	Outcome Outcome
	// Delivery is the delivery status; Status and Syndrome are the firmware's.
	Delivery prm.DeliveryStatus
	Status   prm.CommandStatus
	Syndrome uint32
}

// Outcome is how a command ended.
type Outcome uint8

// Outcomes of commands.
const (
	OutcomeDone     Outcome = iota // completed and answered OK
	OutcomeRefused                 // completed with a status, or not delivered
	OutcomeBadReply                // the reply failed a check
	OutcomeTimeout                 // given up at the deadline
	OutcomeCanceled                // given up by the caller
	OutcomeDead                    // given up because the device died
	OutcomeLate                    // completed after it was given up
)

func (o Outcome) String() string {
	return [...]string{"done", "refused", "bad reply", "timeout", "cancelled", "device dead", "late"}[o]
}

// history is a ring of the last commands; guarded by Conn.mu.
type history struct {
	ring []Record
	next int
	full bool
}

func (h *history) add(r *Record) {
	if len(h.ring) == 0 {
		return
	}
	h.ring[h.next] = *r
	if h.next++; h.next == len(h.ring) {
		h.next, h.full = 0, true
	}
}

// History gives the last commands in the order in which they ended, oldest
// first. A command that completed late stands there twice.
func (c *Conn) History() []Record {
	c.mu.Lock()
	defer c.mu.Unlock()
	h := &c.history
	if !h.full {
		return slices.Clone(h.ring[:h.next])
	}
	return slices.Concat(h.ring[h.next:], h.ring[:h.next])
}
