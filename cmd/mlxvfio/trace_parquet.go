package main

import (
	"encoding/json"
	"io"

	"github.com/mlxvfio/mlxvfio/tracer/capture"
	"github.com/mlxvfio/mlxvfio/tracer/export"
	"github.com/mlxvfio/mlxvfio/tracer/trace"
	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/compress/zstd"
)

// parquetRow is a message. docs/tracer.md describes the columns; they are those of
// export.Columns.
type parquetRow struct {
	Timestamp uint64   `parquet:"timestamp,delta"`
	Time      *int64   `parquet:"time,optional,timestamp(nanosecond:utc)"`
	TimeError *int64   `parquet:"time_error_ns,optional"`
	Device    string   `parquet:"device,dict"`
	Firmware  string   `parquet:"firmware,dict"`
	Block     uint64   `parquet:"block,delta"`
	EventID   uint32   `parquet:"event_id"`
	Lost      bool     `parquet:"lost"`
	Kind      string   `parquet:"kind,dict"`
	Pointer   *uint32  `parquet:"pointer,optional"`
	Format    *string  `parquet:"format,optional,dict"`
	Params    []uint32 `parquet:"params,list"`
	Text      string   `parquet:"text"`
}

// Rows of a row group, which is what is held in memory, and of a batch.
const (
	parquetGroup = 128 << 10
	parquetBatch = 1 << 10
)

// parquetSink writes messages as rows.
type parquetSink struct {
	w    *parquet.GenericWriter[parquetRow]
	i    *export.Info
	rows []parquetRow
	buf  []byte
	// strings of formats, made once; cleared where there are too many
	names map[*trace.Format]*string
}

func newParquet(w io.Writer, i *export.Info) *parquetSink {
	return &parquetSink{
		w: parquet.NewGenericWriter[parquetRow](w, parquet.MaxRowsPerRowGroup(parquetGroup), parquet.Compression(&zstd.Codec{}),
			parquet.CreatedBy("mlxvfio", "trace", "export")),
		i: i, names: map[*trace.Format]*string{},
	}
}

// Message adds a row.
func (p *parquetSink) Message(m *trace.Message) error {
	r := parquetRow{Timestamp: m.Time, Device: p.i.Device(), Block: m.Block, EventID: uint32(m.EventID), Lost: m.Lost, Kind: m.Kind.String()}
	if p.i.Meta != nil {
		r.Firmware = p.i.Meta.Firmware
	}
	if at, e, ok := p.i.At(m.Time); ok {
		ns, ens := at.UnixNano(), int64(e)
		r.Time, r.TimeError = &ns, &ens
	}
	if m.Kind != trace.KindOrphan {
		ptr := m.Pointer
		r.Pointer = &ptr
	}
	if m.Format != nil {
		r.Format = p.name(m.Format)
	}
	r.Params = append(r.Params, m.Params[:m.NParams]...)
	p.buf = m.AppendText(p.buf[:0])
	r.Text = string(p.buf)
	if p.rows = append(p.rows, r); len(p.rows) < parquetBatch {
		return nil
	}
	return p.flush()
}

func (p *parquetSink) name(f *trace.Format) *string {
	s, ok := p.names[f]
	if !ok {
		if len(p.names) > 1<<14 {
			clear(p.names)
		}
		n := f.Escaped()
		s = &n
		p.names[f] = s
	}
	return s
}

func (p *parquetSink) flush() error {
	_, err := p.w.Write(p.rows)
	p.rows = p.rows[:0]
	return err
}

// Gap writes nothing: the file's metadata has the number of missing blocks.
func (p *parquetSink) Gap(*capture.Gap) error { return nil }

// Close writes the rest, and what is known of the whole as key-value metadata.
func (p *parquetSink) Close(e *export.End) error {
	if err := p.flush(); err != nil {
		return err
	}
	for key, v := range map[string]any{
		"mlxvfio.schema": "trace-messages/1", "mlxvfio.source": p.i.Source, "mlxvfio.capture": p.i.Meta, "mlxvfio.counters": e.Counters,
		"mlxvfio.gaps": e.Gaps, "mlxvfio.missing_blocks": e.Missing, "mlxvfio.stopped": e.Stopped,
	} {
		s, ok := v.(string)
		if !ok {
			b, err := json.Marshal(v)
			if err != nil {
				return err
			}
			s = string(b)
		}
		p.w.SetKeyValueMetadata(key, s)
	}
	return p.w.Close()
}
