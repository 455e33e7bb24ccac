package capture

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/mlxvfio/mlxvfio/tracer/trace"
)

// Kind says what a Record holds.
type Kind uint8

// Kinds of records. Their numbers are those of the file.
const (
	KindMeta    Kind = 1 // Meta: the device; first, once
	KindStrings Kind = 2 // DB: from here on messages are to be decoded with it
	KindBlock   Kind = 3 // Index and Data
	KindGap     Kind = 4 // Gap: blocks are missing here
	KindClock   Kind = 5 // Clock: device and host clocks, read together
	KindNote    Kind = 6 // Note: what happened, for people
	KindEnd     Kind = 7 // End: why it is over; last, once

	// KindDamage is not in files: a salvaging Reader tells with it what it had to
	// leave out.
	KindDamage Kind = 0xff
)

var kindNames = map[Kind]string{
	KindMeta: "meta", KindStrings: "strings", KindBlock: "block", KindGap: "gap", KindClock: "clock",
	KindNote: "note", KindEnd: "end", KindDamage: "damage",
}

// String is the kind in one word.
func (k Kind) String() string {
	if s := kindNames[k]; s != "" {
		return s
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

// Record is one piece of a capture. Only the fields of its Kind mean anything. A
// Source fills it again and again; what Meta and DB point to is not changed by
// anybody.
type Record struct {
	Kind   Kind
	Offset int64 // where it begins in the file; −1 for a live capture
	Index  uint64
	Data   [trace.BlockSize]byte
	Meta   *Meta
	DB     *trace.DB
	Gap    Gap
	Clock  Clock
	Note   Note
	End    End
	Damage Damage
}

// Source gives the records of a capture in order. Next fills r; after the last
// record it answers io.EOF. A file that ends otherwise than with an end record
// answers a *StopError. It is for one goroutine.
type Source interface {
	Next(ctx context.Context, r *Record) error
}

// Meta describes what was captured from and how.
type Meta struct {
	Device     string    `json:"device"`                // name of the function, its BDF where it has one
	PCIID      string    `json:"pci_id,omitempty"`      // vendor:device
	Firmware   string    `json:"firmware,omitempty"`    // major.minor.subminor
	PSID       string    `json:"psid,omitempty"`        // board
	RingBlocks uint64    `json:"ring_blocks,omitempty"` // blocks of the device's ring
	ClockKHz   uint32    `json:"clock_khz,omitempty"`   // device_frequency_khz; whether traces tick with it is not stated anywhere
	Started    time.Time `json:"started"`
	TakenUp    bool      `json:"taken_up,omitempty"` // the function owned the tracer already, from an earlier run
	Tool       string    `json:"tool,omitempty"`     // what wrote the capture
}

// Cause says why blocks are missing. Several may come together in one gap.
type Cause uint8

// Causes of gaps.
const (
	// CauseOverwritten: the device came around and wrote over blocks that had not
	// been read, or over the block that was being read.
	CauseOverwritten Cause = 1 << iota
	// CauseBackPressure: whoever takes the blocks was too slow, and the queue in
	// front of it was full.
	CauseBackPressure
	// CauseOrder: a block whose closing time is not after the one before it,
	// though the device had gone on.
	CauseOrder
	// CauseDamage: the file is damaged here.
	CauseDamage
)

// String lists the causes.
func (c Cause) String() string {
	var l []string
	for i, n := range []string{"overwritten", "back-pressure", "order", "damage"} {
		if c>>i&1 != 0 {
			l = append(l, n)
		}
	}
	if len(l) == 0 {
		return "unknown"
	}
	return strings.Join(l, "+")
}

// Gap says that blocks are missing between two that are there.
type Gap struct {
	// From and To are the closing times of the last block before the gap and of
	// the first one after it: every block whose time is between the two is
	// missing, and no other. HaveFrom and HaveTo: there are such blocks.
	From, To         uint64
	HaveFrom, HaveTo bool
	// Blocks is how many are missing, the first of them with the number First.
	First, Blocks uint64
	// AtLeast says that Blocks is the least it can be: the device came around
	// between two looks at the ring, and nothing in the ring tells how often.
	// Blocks is right if that was once; the true number differs from it by a
	// multiple of the ring's blocks.
	AtLeast bool
	Cause   Cause
}

// String says what is missing.
func (g *Gap) String() string {
	n := fmt.Sprint(g.Blocks)
	if g.AtLeast {
		n = "at least " + n
	}
	side := func(have bool, t uint64, other string) string {
		if !have {
			return other
		}
		return fmt.Sprintf("0x%x", t)
	}
	return fmt.Sprintf("%s blocks missing between %s and %s (%v)", n, side(g.HaveFrom, g.From, "the beginning"), side(g.HaveTo, g.To, "the end"), g.Cause)
}

// Clock is one reading of the clocks.
type Clock struct {
	// Host is the host's time in the middle of the reading, Mono the same on its
	// monotonic clock, since the capture began.
	Host time.Time
	Mono time.Duration
	// Ticks is the tracer's own clock (MTRC_CTRL.current_timestamp, 53 bits), read
	// within ±Error of Host. HaveTicks: it was read.
	Ticks     uint64
	HaveTicks bool
	Error     time.Duration
	// Timer is the device's internal timer, read within ±TimerError of Host.
	// That traces tick with it is not stated anywhere.
	Timer      uint64
	HaveTimer  bool
	TimerError time.Duration
	// RealTime is the device's real-time clock; zero on devices without one.
	RealSeconds, RealNanoseconds uint32
}

// Note is something worth knowing that happened during the capture.
type Note struct {
	Time time.Time
	Text string
}

// Reason says why a capture ended.
type Reason uint8

// Reasons.
const (
	ReasonStopped   Reason = iota // as asked
	ReasonLost                    // another owner took the tracer
	ReasonDevice                  // the device does not answer any more
	ReasonFailed                  // something else went wrong
	reasonUndefined               // first that is not defined
)

var reasonNames = [...]string{"stopped", "ownership lost", "device lost", "failed"}

// String is the reason in words.
func (r Reason) String() string {
	if int(r) < len(reasonNames) {
		return reasonNames[r]
	}
	return fmt.Sprintf("reason %d", uint8(r))
}

// End is the end of a capture, with its totals.
type End struct {
	Time   time.Time
	Reason Reason
	Text   string // more about the reason; empty if it was asked for
	Blocks uint64 // block records
	Gaps   uint64 // gap records
	Lost   uint64 // blocks missing, the sum over the gaps
}

// Damage is a stretch of a file that a salvaging Reader left out.
type Damage struct {
	From, To int64 // offsets: [From, To)
	Why      string
}
