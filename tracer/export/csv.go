package export

import (
	"encoding/csv"
	"io"
	"strconv"
	"time"

	"github.com/mlxvfio/mlxvfio/tracer/capture"
	"github.com/mlxvfio/mlxvfio/tracer/trace"
)

// Columns are those of CSV and Parquet, in their order.
var Columns = []string{
	"timestamp", "time", "time_error_ns", "device", "firmware", "block", "event_id", "lost",
	"kind", "pointer", "format", "params", "text",
}

// CSV writes one row a message under a header (RFC 4180, quoted where needed).
// Columns of what is not known are empty. Gaps are not in it: a block number that
// jumps shows them.
type CSV struct {
	w      *csv.Writer
	i      *Info
	row    []string
	buf    []byte
	header bool
}

// NewCSV writes to w.
func NewCSV(w io.Writer, i *Info) *CSV {
	return &CSV{w: csv.NewWriter(w), i: i, row: make([]string, len(Columns))}
}

// Message writes a row.
func (c *CSV) Message(m *trace.Message) error {
	if err := c.begin(); err != nil {
		return err
	}
	r := c.row
	r[0], r[1], r[2] = strconv.FormatUint(m.Time, 10), "", ""
	if at, e, ok := c.i.At(m.Time); ok {
		r[1], r[2] = at.UTC().Format(time.RFC3339Nano), strconv.FormatInt(int64(e), 10)
	}
	r[3], r[4] = c.i.Device(), ""
	if c.i.Meta != nil {
		r[4] = c.i.Meta.Firmware
	}
	r[5], r[6] = strconv.FormatUint(m.Block, 10), strconv.Itoa(int(m.EventID))
	r[7], r[8] = strconv.FormatBool(m.Lost), m.Kind.String()
	r[9], r[10] = "", ""
	if m.Kind != trace.KindOrphan {
		r[9] = strconv.FormatUint(uint64(m.Pointer), 10)
	}
	if m.Format != nil {
		r[10] = m.Format.Escaped()
	}
	c.buf = c.buf[:0]
	for n, p := range m.Params[:m.NParams] {
		if n > 0 {
			c.buf = append(c.buf, ' ')
		}
		c.buf = strconv.AppendUint(c.buf, uint64(p), 10)
	}
	r[11] = string(c.buf)
	c.buf = m.AppendText(c.buf[:0])
	r[12] = string(c.buf)
	return c.w.Write(r)
}

func (c *CSV) begin() error {
	if c.header {
		return nil
	}
	c.header = true
	return c.w.Write(Columns)
}

// Gap writes nothing.
func (c *CSV) Gap(*capture.Gap) error { return nil }

// Close writes what is buffered, and the header if there was no message.
func (c *CSV) Close(*End) error {
	if err := c.begin(); err != nil {
		return err
	}
	c.w.Flush()
	return c.w.Error()
}
