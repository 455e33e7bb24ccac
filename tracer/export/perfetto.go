package export

import (
	"encoding/json"
	"io"
	"strconv"

	"github.com/mlxvfio/mlxvfio/tracer/capture"
	"github.com/mlxvfio/mlxvfio/tracer/trace"
)

// Perfetto writes the JSON object form of the Chrome trace event format, which
// ui.perfetto.dev and chrome://tracing open: the device is a process, each event id a
// thread with an instant event a message, and gaps are slices on a thread of their
// own. Times are microseconds from Info.Base on.
type Perfetto struct {
	lines
	i       *Info
	some    bool
	threads [256]bool
	gaps    bool
	text    []byte
}

// gapTID is the thread of gaps; those of event ids have the id.
const gapTID = 1000

// NewPerfetto writes to w.
func NewPerfetto(w io.Writer, i *Info) *Perfetto { return &Perfetto{lines: newLines(w), i: i} }

// event begins an event in buf: everything up to its own fields.
func (p *Perfetto) event() []byte {
	b := p.buf[:0]
	if p.some {
		return append(b, ',')
	}
	p.some = true
	name := p.i.Device()
	if name == "" {
		name = "firmware trace"
	}
	b = append(b, `{"displayTimeUnit":"ns","traceEvents":[`...)
	b = append(b, '\n')
	return append(p.meta(b, "process_name", 0, "name", quote(name)), ",\n"...)
}

// meta appends a metadata event.
func (p *Perfetto) meta(b []byte, name string, tid int, key string, value []byte) []byte {
	b = append(b, `{"name":"`+name+`","ph":"M","pid":1,"tid":`...)
	b = strconv.AppendInt(b, int64(tid), 10)
	b = append(b, `,"args":{"`+key+`":`...)
	return append(append(b, value...), "}}"...)
}

// thread appends the name and place of a thread, and what separates it from the next
// event.
func (p *Perfetto) thread(b []byte, tid int, name string) []byte {
	b = append(p.meta(b, "thread_name", tid, "name", quote(name)), ",\n"...)
	return append(p.meta(b, "thread_sort_index", tid, "sort_index", strconv.AppendInt(nil, int64(tid), 10)), ",\n"...)
}

// quote is a JSON string.
func quote(s string) []byte {
	b, err := json.Marshal(s)
	if err != nil { // a string is always marshalled
		return []byte(`""`)
	}
	return b
}

// micro appends a time in µs. Three digits are nanoseconds.
func micro(b []byte, ns float64) []byte { return strconv.AppendFloat(b, ns/1e3, 'f', 3, 64) }

// Message writes an event.
func (p *Perfetto) Message(m *trace.Message) error {
	b := p.event()
	if !p.threads[m.EventID] {
		p.threads[m.EventID] = true
		b = p.thread(b, int(m.EventID), "event 0x"+strconv.FormatUint(uint64(m.EventID), 16))
	}
	p.text = m.AppendText(p.text[:0])
	b = append(b, `{"name":`...)
	b = append(b, quote(string(p.text))...)
	b = append(b, `,"cat":"`+m.Kind.String()+`","ph":"i","s":"t","ts":`...)
	b = micro(b, p.i.Nanoseconds(m.Time))
	b = append(b, `,"pid":1,"tid":`...)
	b = strconv.AppendUint(b, uint64(m.EventID), 10)
	b = append(b, `,"args":{"timestamp":`...)
	b = strconv.AppendUint(b, m.Time, 10)
	b = append(b, `,"block":`...)
	b = strconv.AppendUint(b, m.Block, 10)
	if m.Lost {
		b = append(b, `,"lost":true`...)
	}
	if m.Format != nil {
		b = append(append(b, `,"format":`...), quote(m.Format.Escaped())...)
	}
	return p.put(append(b, "}}"...))
}

// Gap writes a slice from the block before to the one after; a gap without one of
// them begins at the first tick or has no length.
func (p *Perfetto) Gap(g *capture.Gap) error {
	b := p.event()
	if !p.gaps {
		p.gaps = true
		b = p.thread(b, gapTID, "missing blocks")
	}
	from := 0.0
	if g.HaveFrom {
		from = p.i.Nanoseconds(g.From)
	}
	to := from
	if g.HaveTo {
		to = max(p.i.Nanoseconds(g.To), from)
	}
	args, err := json.Marshal(newGapJSON(g))
	if err != nil {
		return err
	}
	b = append(b, `{"name":`...)
	b = append(b, quote(g.String())...)
	b = micro(append(b, `,"cat":"gap","ph":"X","ts":`...), from)
	b = micro(append(b, `,"dur":`...), to-from)
	b = append(b, `,"pid":1,"tid":1000,"args":`...)
	return p.put(append(append(b, args...), '}'))
}

// Close ends the object, with what is known of the whole.
func (p *Perfetto) Close(e *End) error {
	other := map[string]any{
		"source": p.i.Source, "time_from": p.i.Calibrated(), "base_timestamp": p.i.Base,
		"counters": e.Counters, "missing_blocks": e.Missing,
	}
	if p.i.Meta != nil {
		other["capture"] = p.i.Meta
	}
	if e.Stopped != "" {
		other["stopped"] = e.Stopped
	}
	o, err := json.Marshal(other)
	if err != nil {
		return err
	}
	var b []byte
	if !p.some { // the process alone
		b = p.event()
		b = b[:len(b)-2]
		b = append(b, '\n')
	} else {
		b = p.buf[:0]
	}
	b = append(append(b, `],"otherData":`...), o...)
	if err := p.put(append(b, '}')); err != nil {
		return err
	}
	return p.w.Flush()
}
