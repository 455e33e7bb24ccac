package export

import (
	"fmt"
	"io"

	"github.com/mlxvfio/mlxvfio/tracer/capture"
	"github.com/mlxvfio/mlxvfio/tracer/trace"
)

// Text writes messages as the kernel's mlx5_fw tracepoint prints them, one a line:
//
//	<device> [0x<time>] <lost> [0x<event id>] <text>
//
// Gaps and a stop are lines that begin with "# ".
type Text struct {
	lines
	device string
}

// NewText writes to w.
func NewText(w io.Writer, i *Info) *Text { return &Text{newLines(w), i.Device()} }

// Message writes a line.
func (t *Text) Message(m *trace.Message) error { return t.put(m.AppendLine(t.buf[:0], t.device)) }

// Gap writes a line.
func (t *Text) Gap(g *capture.Gap) error { return t.put(fmt.Appendf(t.buf[:0], "# %v", g)) }

// Flush writes what is buffered.
func (t *Text) Flush() error { return t.w.Flush() }

// Close writes the stop.
func (t *Text) Close(e *End) error {
	if e.Stopped != "" {
		if err := t.put(append(append(t.buf[:0], "# "...), e.Stopped...)); err != nil {
			return err
		}
	}
	return t.w.Flush()
}

// Line writes a message of a device of its own.
func (t *Text) Line(m *trace.Message, device string) error {
	return t.put(m.AppendLine(t.buf[:0], device))
}

// Note writes a line that is no message.
func (t *Text) Note(s string) error { return t.put(append(append(t.buf[:0], "# "...), s...)) }
