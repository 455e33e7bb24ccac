package health

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/mlxvfio/mlxvfio/cmdif"
	"github.com/mlxvfio/mlxvfio/health/blackbox"
	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// Names of the sections of a black box; docs/blackbox.md says what stands in each.
const (
	SectionAbout    = "about.json"
	SectionReport   = "health/report.json"
	SectionBuffer   = "health/buffer.json"
	SectionRaw      = "health/buffer.bin"
	SectionHistory  = "health/history.json"
	SectionSegment  = "init-segment.bin"
	SectionCommands = "commands.json"
	SectionHexdump  = "commands.txt"
	SectionEvents   = "events.json"
	SectionCaps     = "capabilities.json"
	SectionLedger   = "ledger.json"
	SectionFirmware = "firmware.json"
	SectionEnv      = "environment.json"
	SectionTracer   = "tracer.bin"
	SectionCRDump   = "crdump.bin"
	SectionRecovery = "recovery.json"
	SectionNotes    = "notes.txt"
)

// CommandLog is the command interface as a black box sees it: *cmdif.Conn. Its
// methods must return at once, whatever the device does.
type CommandLog interface {
	History() []cmdif.Record
	InFlight() []cmdif.Record
}

var _ CommandLog = (*cmdif.Conn)(nil)

// Evidence says where the sections of a black box come from. What is nil is left
// out and named in the notes. Nothing of it may send a command or wait for the
// device; a source that panics costs its section only.
type Evidence struct {
	Device string
	Reason string       // why the box is written
	Window *vfio.Window // BAR 0
	// Monitor gives report and history.
	Monitor  *Monitor
	Commands CommandLog
	// These are put into JSON as they are.
	Events, Capabilities, Ledger, Firmware, Environment func() any
	// Recovery is the report of the last recovery, if there was one.
	Recovery func() any
	// TracerTail is the last part of the tracer's ring, in the format of its room.
	TracerTail func() ([]byte, error)
	// VSC, if set, is asked for a dump of the configuration registers; CRDump
	// bounds it. The software-reset semaphore is held meanwhile.
	VSC    *VSC
	CRDump CRDumpOptions
	Notes  []string
}

// Collect gathers the sections, the most telling first: where a bound cuts, it
// cuts the last.
func (e *Evidence) Collect(ctx context.Context) []blackbox.Section {
	c := &collector{notes: append([]string(nil), e.Notes...)}
	c.json(SectionAbout, func() (any, error) {
		return struct {
			Schema string    `json:"schema"`
			Device string    `json:"device"`
			Reason string    `json:"reason"`
			Taken  time.Time `json:"taken"`
		}{"mlxvfio.blackbox-about/1", e.Device, e.Reason, time.Now().UTC()}, nil
	})
	if m := e.Monitor; m != nil {
		c.json(SectionReport, func() (any, error) { return m.Report(), nil })
	} else {
		c.missing(SectionReport, "no monitor was running")
	}
	e.registers(c)
	e.commands(c)
	c.optional(SectionEvents, e.Events)
	c.optional(SectionLedger, e.Ledger)
	c.optional(SectionFirmware, e.Firmware)
	c.optional(SectionEnv, e.Environment)
	if m := e.Monitor; m != nil {
		c.json(SectionHistory, func() (any, error) { return m.History(), nil })
	}
	c.optional(SectionCaps, e.Capabilities)
	if e.Recovery != nil {
		c.optional(SectionRecovery, e.Recovery)
	}
	if e.TracerTail != nil {
		c.bytes(SectionTracer, e.TracerTail)
	} else {
		c.missing(SectionTracer, "no tracer was running")
	}
	if e.VSC != nil {
		c.bytes(SectionCRDump, func() ([]byte, error) {
			d, err := e.VSC.DumpCR(ctx, e.CRDump)
			if err != nil {
				return nil, err
			}
			return d.AppendBinary(nil)
		})
	}
	notes := blackbox.Section{Name: SectionNotes, Data: []byte(strings.Join(c.notes, "\n") + "\n")}
	// The notes are short, and say what is not there: they come second.
	return append(c.out[:1:1], append([]blackbox.Section{notes}, c.out[1:]...)...)
}

// segmentRanges are the parts of the initialization segment that are worth keeping
// and safe to read.
var segmentRanges = [][2]uint64{{0x0000, 0x0018}, {0x01f8, 0x0244}, {0x0ff8, 0x1008}, {0x1010, 0x1014}, {0x1040, 0x1048}}

func (e *Evidence) registers(c *collector) {
	w := e.Window
	if w == nil {
		c.missing(SectionBuffer, "no window on BAR 0")
		return
	}
	if w.Size() < windowEnd {
		c.missing(SectionBuffer, "the window on BAR 0 is too small")
		return
	}
	var b Buffer
	c.json(SectionBuffer, func() (any, error) {
		NewSampler(w).ReadBuffer(&b)
		return &b, nil
	})
	c.bytes(SectionRaw, func() ([]byte, error) { return b.Raw[:], nil })
	c.bytes(SectionSegment, func() ([]byte, error) {
		var p []byte
		for _, r := range segmentRanges {
			for off := r[0]; off < r[1] && off+4 <= w.Size(); off += 4 {
				p = binary.BigEndian.AppendUint32(p, uint32(off))
				p = binary.BigEndian.AppendUint32(p, w.ReadBE32(off))
			}
		}
		return p, nil
	})
}

// commandRecord is a cmdif.Record in JSON.
type commandRecord struct {
	Posted   time.Time     `json:"posted"`
	Latency  time.Duration `json:"latency_ns"`
	InFlight bool          `json:"in_flight"`
	Slot     int           `json:"slot"`
	Token    uint8         `json:"token"`
	Opcode   string        `json:"opcode"`
	Number   uint16        `json:"opcode_number"`
	OpMod    uint16        `json:"op_mod"`
	InLen    int           `json:"in_bytes"`
	OutLen   int           `json:"out_bytes"`
	Outcome  string        `json:"outcome"`
	Delivery uint8         `json:"delivery_status"`
	Status   string        `json:"status"`
	Syndrome uint32        `json:"syndrome"`
	In       string        `json:"in"`  // the first bytes, hex
	Out      string        `json:"out"` // the first bytes, hex; empty while in flight
}

func (e *Evidence) commands(c *collector) {
	if e.Commands == nil {
		c.missing(SectionCommands, "no command interface")
		return
	}
	var done, flying []cmdif.Record
	c.json(SectionCommands, func() (any, error) {
		flying, done = e.Commands.InFlight(), e.Commands.History()
		list := make([]commandRecord, 0, len(done)+len(flying))
		for i := range done {
			list = append(list, recordOf(&done[i], false))
		}
		for i := range flying {
			list = append(list, recordOf(&flying[i], true))
		}
		return list, nil
	})
	c.bytes(SectionHexdump, func() ([]byte, error) {
		var b []byte
		for i := range done {
			b = appendRecord(b, &done[i], false)
		}
		for i := range flying {
			b = appendRecord(b, &flying[i], true)
		}
		return b, nil
	})
}

func recordOf(r *cmdif.Record, flying bool) commandRecord {
	x := commandRecord{
		Posted: r.Posted, Latency: r.Latency, InFlight: flying, Slot: r.Slot, Token: r.Token,
		Opcode: r.Opcode.String(), Number: uint16(r.Opcode), OpMod: r.OpMod, InLen: r.InLen, OutLen: r.OutLen,
		In: fmt.Sprintf("%x", r.In[:min(len(r.In), r.InLen)]), Outcome: "in flight",
	}
	if !flying {
		x.Outcome, x.Delivery, x.Status, x.Syndrome = r.Outcome.String(), uint8(r.Delivery), r.Status.String(), r.Syndrome
		x.Out = fmt.Sprintf("%x", r.Out[:min(len(r.Out), r.OutLen)])
	}
	return x
}

// appendRecord writes a command as mlx5_core's dumps look: rows of four big-endian
// words. Only the inline bytes are kept of a finished command.
func appendRecord(b []byte, r *cmdif.Record, flying bool) []byte {
	what := r.Outcome.String()
	if flying {
		what = "in flight"
	}
	b = fmt.Appendf(b, "cmd[%d]: %s(0x%x) op_mod 0x%x token 0x%02x posted %s: %s", r.Slot, r.Opcode, uint16(r.Opcode), r.OpMod, r.Token, r.Posted.UTC().Format(time.RFC3339Nano), what)
	if !flying {
		b = fmt.Appendf(b, " after %v, delivery 0x%x, status %s, syndrome 0x%x", r.Latency, uint8(r.Delivery), r.Status, r.Syndrome)
	}
	b = append(b, '\n')
	b = appendRow(b, r.Slot, fmt.Sprintf("input, %d bytes", r.InLen), r.In[:])
	if !flying {
		b = appendRow(b, r.Slot, fmt.Sprintf("output, %d bytes", r.OutLen), r.Out[:])
	}
	return b
}

func appendRow(b []byte, slot int, what string, p []byte) []byte {
	b = fmt.Appendf(b, "cmd[%d]: 000:", slot)
	for ; len(p) >= 4; p = p[4:] {
		b = fmt.Appendf(b, " %08x", binary.BigEndian.Uint32(p))
	}
	return fmt.Appendf(b, " (%s)\n", what)
}

// EventRecord is one event of the device for a black box.
type EventRecord struct {
	Time    time.Time `json:"time"`
	EQN     uint8     `json:"eqn"`
	Type    uint8     `json:"type"`
	SubType uint8     `json:"sub_type"`
	Text    string    `json:"text"`
	Entry   string    `json:"entry"` // 64 bytes, hex
}

// EventRecordOf makes the record of an entry; text is what it means.
func EventRecordOf(at time.Time, eqn uint8, e *prm.EQE, text string) EventRecord {
	return EventRecord{Time: at, EQN: eqn, Type: uint8(e.EventType()), SubType: e.EventSubType(), Text: text, Entry: fmt.Sprintf("%x", e[:])}
}

// collector gathers sections; what fails becomes a note.
type collector struct {
	out   []blackbox.Section
	notes []string
}

func (c *collector) missing(name, why string) {
	c.notes = append(c.notes, fmt.Sprintf("%s: not there: %s", name, why))
}

func (c *collector) optional(name string, f func() any) {
	if f == nil {
		c.missing(name, "nobody gave it")
		return
	}
	c.json(name, func() (any, error) { return f(), nil })
}

func (c *collector) json(name string, f func() (any, error)) {
	c.bytes(name, func() ([]byte, error) {
		x, err := f()
		if err != nil {
			return nil, err
		}
		return json.Marshal(x)
	})
}

func (c *collector) bytes(name string, f func() ([]byte, error)) {
	at := time.Now()
	p, err := c.guard(f)
	if err != nil {
		c.missing(name, oneLine(err))
		return
	}
	c.out = append(c.out, blackbox.Section{Name: name, Data: p, Time: at})
}

// guard turns a panic of a source into its failure: evidence is gathered when
// things are broken.
func (c *collector) guard(f func() ([]byte, error)) (p []byte, err error) {
	defer func() {
		if x := recover(); x != nil {
			p, err = nil, fmt.Errorf("gathering it panicked: %v", x)
		}
	}()
	return f()
}

// SampleSize is the size of a sample as AppendSample encodes it, in bytes.
const SampleSize = 40

// AppendSample encodes a sample for a blackbox.Recorder: wall clock (Unix
// nanoseconds, 64 bits), time since the watch began (nanoseconds, 64 bits), the
// dwords at 0x1010, 0x14, 0x230 and 0x23c, the state as a number, and a reserved
// dword; big-endian.
func AppendSample(b []byte, s *Sample, st State) []byte {
	b = binary.BigEndian.AppendUint64(b, uint64(s.At.UnixNano()))
	b = binary.BigEndian.AppendUint64(b, uint64(s.Elapsed))
	for _, x := range [...]uint32{s.Health, s.NIC, s.FW, s.Synd, uint32(st), 0} {
		b = binary.BigEndian.AppendUint32(b, x)
	}
	return b
}

// ParseSample decodes what AppendSample encoded; false if it is something else.
func ParseSample(p []byte) (s Sample, st State, ok bool) {
	if len(p) != SampleSize {
		return s, 0, false
	}
	word := func(i int) uint32 { return binary.BigEndian.Uint32(p[16+4*i:]) }
	s = Sample{
		At: time.Unix(0, int64(binary.BigEndian.Uint64(p))), Elapsed: time.Duration(binary.BigEndian.Uint64(p[8:])),
		Health: word(0), NIC: word(1), FW: word(2), Synd: word(3),
	}
	return s, State(word(4)), true
}
