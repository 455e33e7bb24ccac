package export

import (
	"encoding/json"
	"io"

	"github.com/mlxvfio/mlxvfio/tracer/capture"
	"github.com/mlxvfio/mlxvfio/tracer/trace"
)

// JSONLines writes one object a message, as trace.Message.AppendJSON makes it; where
// blocks are missing {"gap":{…}}; and at the end {"summary":{…}} with every counter
// and, for a capture, "capture":{…} beside it.
type JSONLines struct {
	lines
	info *Info
}

// NewJSONLines writes to w.
func NewJSONLines(w io.Writer, i *Info) *JSONLines { return &JSONLines{newLines(w), i} }

// Message writes a line.
func (j *JSONLines) Message(m *trace.Message) error { return j.put(m.AppendJSON(j.buf[:0])) }

// gapJSON is a gap in JSON. From and To are absent where they are not known.
type gapJSON struct {
	From    *uint64 `json:"from,omitempty"`
	To      *uint64 `json:"to,omitempty"`
	First   uint64  `json:"first_block"`
	Blocks  uint64  `json:"blocks"`
	AtLeast bool    `json:"at_least"`
	Cause   string  `json:"cause"`
}

func newGapJSON(g *capture.Gap) gapJSON {
	x := gapJSON{First: g.First, Blocks: g.Blocks, AtLeast: g.AtLeast, Cause: g.Cause.String()}
	if g.HaveFrom {
		x.From = &g.From
	}
	if g.HaveTo {
		x.To = &g.To
	}
	return x
}

// Gap writes a line.
func (j *JSONLines) Gap(g *capture.Gap) error {
	b, err := json.Marshal(map[string]gapJSON{"gap": newGapJSON(g)})
	if err != nil {
		return err
	}
	return j.put(append(j.buf[:0], b...))
}

// captureJSON is what the summary says of a capture.
type captureJSON struct {
	Device   string `json:"device"`
	Firmware string `json:"firmware,omitempty"`
	Gaps     uint64 `json:"gaps"`
	Missing  uint64 `json:"missing_blocks"`
	AtLeast  bool   `json:"at_least"`
}

// Close writes the summary.
func (j *JSONLines) Close(e *End) error {
	b := e.Counters.AppendSummary(j.buf[:0])
	b = b[:len(b)-1]
	if m := j.info.Meta; m != nil {
		c, err := json.Marshal(captureJSON{m.Device, m.Firmware, e.Gaps, e.Missing, e.AtLeast})
		if err != nil {
			return err
		}
		b = append(append(b, `,"capture":`...), c...)
	}
	if e.Stopped != "" {
		s, err := json.Marshal(e.Stopped)
		if err != nil {
			return err
		}
		b = append(append(b, `,"stopped":`...), s...)
	}
	if err := j.put(append(b, `,"schema":"mlxvfio.trace-decode/1"}`...)); err != nil {
		return err
	}
	return j.w.Flush()
}

// Flush writes what is buffered.
func (j *JSONLines) Flush() error { return j.w.Flush() }
