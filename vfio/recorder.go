package vfio

import (
	"bufio"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"sync"
	"time"
)

// RecordSchema and RecordVersion stand in the first line of a record.
const (
	RecordSchema  = "mlxvfio.transport-record"
	RecordVersion = 1
)

// RecordEntry is one line of a record: one call of a verb, in the order in which
// the calls ended.
type RecordEntry struct {
	// Seq is the order in which the calls began, from 1; a gap is a call that was
	// left out because the record was full.
	Seq uint64 `json:"seq"`
	// Start is when the call began and Took how long it lasted, in nanoseconds;
	// Start counts from the beginning of the record.
	Start int64  `json:"start_ns"`
	Took  int64  `json:"took_ns"`
	Verb  Verb   `json:"verb"`
	Index int    `json:"index"`
	First int    `json:"first,omitempty"` // first interrupt of set-irqs
	Off   uint64 `json:"off"`             // offset in the region, or IOVA
	Len   uint64 `json:"len"`             // bytes, or number of vectors
	// Data is what was read or written, in hexadecimal and bus order.
	Data string `json:"data,omitempty"`
	// Cut says that Data is only the beginning.
	Cut   bool   `json:"cut,omitempty"`
	Error string `json:"error,omitempty"`
}

// recordHead is the first line, recordTail the last one of a full record.
type recordHead struct {
	Schema  string `json:"schema"`
	Version int    `json:"version"`
	Device  string `json:"device"`
	Backend string `json:"backend"`
	Began   string `json:"began"`
}

type recordTail struct {
	Full bool `json:"full"`
}

// RecordLimits bound a record.
type RecordLimits struct {
	Bytes int64 // of the whole record; 0 means 256 MiB
	Data  int   // bytes of one transfer that are kept; 0 means 4096
}

// Recorder is a Transport that writes every verb with its bytes to a sink, as
// JSON lines that ReadRecord reads back. Regions are not mapped through it, so
// that every access is seen; DMA memory is written without it, and is not
// recorded. It is safe for concurrent use.
type Recorder struct {
	*hooked
	limits RecordLimits
	began  time.Time

	mu      sync.Mutex
	sink    io.Writer
	seq     uint64
	left    int64
	dropped uint64
	err     error
}

// NewRecorder records t, which it owns, into sink, which stays the caller's.
func NewRecorder(t Transport, sink io.Writer) *Recorder {
	return NewRecorderLimits(t, sink, RecordLimits{})
}

// NewRecorderLimits is NewRecorder with limits of its own.
func NewRecorderLimits(t Transport, sink io.Writer, l RecordLimits) *Recorder {
	if l.Bytes <= 0 {
		l.Bytes = 256 << 20
	}
	if l.Data <= 0 {
		l.Data = 4096
	}
	r := &Recorder{limits: l, began: time.Now(), sink: sink, left: l.Bytes}
	r.hooked = newHooked(t, r.call)
	info, err := t.Info()
	if err != nil {
		info.Name = "unknown"
	}
	r.line(recordHead{RecordSchema, RecordVersion, info.Name, info.Backend, r.began.UTC().Format(time.RFC3339Nano)})
	return r
}

// Err is the first error of the sink. Recording ended there; the verbs did not.
func (r *Recorder) Err() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

// Dropped is the number of calls that were not recorded, for want of room or
// after an error of the sink.
func (r *Recorder) Dropped() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.dropped
}

func (r *Recorder) call(c Call, p []byte, do func() error) error {
	r.mu.Lock()
	r.seq++
	e := RecordEntry{Seq: r.seq, Start: int64(time.Since(r.began)), Verb: c.Verb, Index: c.Index, First: c.Start, Off: c.Off, Len: c.Len}
	r.mu.Unlock()
	err := do()
	e.Took = int64(time.Since(r.began)) - e.Start
	if err != nil {
		e.Error = err.Error()
	}
	if err == nil || c.Verb == VerbWrite { // a read that failed has no bytes
		keep := p[:min(len(p), r.limits.Data)]
		e.Data, e.Cut = hex.EncodeToString(keep), len(keep) < len(p)
	}
	r.line(e)
	return err
}

// fullLine is kept free for the line that says that the record is full.
var fullLine = []byte("{\"full\":true}\n")

// line writes one line, if there is room.
func (r *Recorder) line(v any) {
	b, err := json.Marshal(v)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err != nil || r.left < 0 {
		r.dropped++
		return
	}
	if err == nil {
		b = append(b, '\n')
		if r.left -= int64(len(b)); r.left < int64(len(fullLine)) {
			b, r.left = fullLine, -1
			r.dropped++
		}
		_, err = r.sink.Write(b)
	}
	if err != nil {
		r.err = fmt.Errorf("write transport record: %w", err)
	}
}

// ReadRecord reads a record back, entry by entry. The sequence ends with the
// record, or with an error: no record, another version, a line that is none, or
// ErrNoSpace after the last entry of a record that was full.
func ReadRecord(in io.Reader) iter.Seq2[RecordEntry, error] {
	return func(yield func(RecordEntry, error) bool) {
		fail := func(n int, err error) {
			yield(RecordEntry{}, &Error{Op: fmt.Sprintf("read transport record, line %d", n), Err: err})
		}
		sc := bufio.NewScanner(in)
		sc.Buffer(nil, 16<<20)
		n := 0
		for sc.Scan() {
			n++
			if n == 1 {
				var h recordHead
				if err := json.Unmarshal(sc.Bytes(), &h); err != nil {
					fail(n, err)
					return
				}
				if h.Schema != RecordSchema || h.Version != RecordVersion {
					fail(n, fmt.Errorf("%w: schema %q version %d, not %q version %d", ErrNotSupported, h.Schema, h.Version, RecordSchema, RecordVersion))
					return
				}
				continue
			}
			var x struct {
				RecordEntry
				recordTail
			}
			if err := json.Unmarshal(sc.Bytes(), &x); err != nil {
				fail(n, err)
				return
			}
			if x.Full {
				fail(n, fmt.Errorf("%w: the record was full here", ErrNoSpace))
				return
			}
			if !yield(x.RecordEntry, nil) {
				return
			}
		}
		if err := sc.Err(); err != nil {
			fail(n, err)
		} else if n == 0 {
			fail(n, io.ErrUnexpectedEOF)
		}
	}
}

// Bytes decodes Data.
func (e RecordEntry) Bytes() ([]byte, error) { return hex.DecodeString(e.Data) }
