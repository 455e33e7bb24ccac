package capture

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/mlxvfio/mlxvfio/tracer/trace"
)

// ErrClosed is answered by a Writer that was closed.
var ErrClosed = errors.New("capture: the file was closed")

// writerBuffer is what a Writer collects before it calls its io.Writer: a kill loses
// no more than this, and only of what was taken since the last Flush.
const writerBuffer = 16 << 10

// Writer writes a capture file, front to back. It is for one goroutine. Block
// allocates nothing. An error of the io.Writer sticks: every later call answers it,
// and the file is good up to the record before it.
type Writer struct {
	w    io.Writer
	file *os.File // of Create
	buf  []byte
	seq  uint32
	at   int64 // bytes handed to w
	err  error
	end  End
	done bool
}

// NewWriter begins a file: header and meta record, which are written at once. w gets
// whole records, several at a time.
func NewWriter(w io.Writer, m *Meta) (*Writer, error) {
	text, err := json.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("capture: meta record: %w", err)
	}
	if len(text) > maxPayload {
		return nil, fmt.Errorf("capture: meta record of %d bytes; %d are the most", len(text), maxPayload)
	}
	x := &Writer{w: w, buf: make([]byte, 0, writerBuffer+maxRecord/8)}
	x.buf = append(x.buf, Magic...)
	x.buf = binary.BigEndian.AppendUint16(x.buf, Major)
	x.buf = binary.BigEndian.AppendUint16(x.buf, Minor)
	x.buf = append(x.buf, 0, 0, 0, 0)
	x.finish(append(x.begin(KindMeta), text...))
	return x, x.Flush()
}

// Create makes the file path for a Writer, which closes it. It refuses to replace a
// file unless replace is set.
func Create(path string, m *Meta, replace bool) (*Writer, error) {
	flags := os.O_WRONLY | os.O_CREATE | os.O_EXCL
	if replace {
		flags = os.O_WRONLY | os.O_CREATE | os.O_TRUNC
	}
	f, err := os.OpenFile(path, flags, 0o644)
	if err != nil {
		if errors.Is(err, os.ErrExist) {
			return nil, fmt.Errorf("capture: %w; choose another name or remove it first", err)
		}
		return nil, fmt.Errorf("capture: %w", err)
	}
	w, err := NewWriter(f, m)
	if err != nil {
		st, serr := f.Stat()
		err = errors.Join(err, serr, f.Close())
		if serr == nil && st.Mode().IsRegular() { // a device that was written to stays
			err = errors.Join(err, os.Remove(path))
		}
		return nil, err
	}
	w.file = f
	return w, nil
}

// begin appends a record's header; the caller appends the payload and calls finish.
func (w *Writer) begin(k Kind) []byte {
	b := append(w.buf, 0, 0, 0, 0, sync>>8, sync&0xff, byte(k), 0, 0, 0, 0, 0)
	return binary.BigEndian.AppendUint32(b, w.seq)
}

// finish fills in length and checksum of the record that began at the old end of the
// buffer, and pads it.
func (w *Writer) finish(b []byte) {
	rec := b[len(w.buf):]
	n := len(rec) - recordHeader
	binary.BigEndian.PutUint32(rec[8:], uint32(n))
	binary.BigEndian.PutUint32(rec, recordSum(rec))
	for range padded(n) - n {
		b = append(b, 0)
	}
	w.buf = b
	w.seq++
}

// room sees to it that a record may be added.
func (w *Writer) room() error {
	if w.err == nil && w.done {
		return ErrClosed
	}
	if w.err == nil && len(w.buf) >= writerBuffer {
		return w.Flush()
	}
	return w.err
}

// Block adds a block, which is copied. index is its number since the capture began,
// lost ones counted.
func (w *Writer) Block(index uint64, data *[trace.BlockSize]byte) error {
	if err := w.room(); err != nil {
		return err
	}
	b := binary.BigEndian.AppendUint64(w.begin(KindBlock), index)
	w.finish(append(b, data[:]...))
	w.end.Blocks++
	return nil
}

// Write adds any record but meta, which NewWriter wrote, and end, which Close does:
// those are left out. So Write takes whatever a Source gives.
func (w *Writer) Write(r *Record) error {
	if r.Kind == KindBlock {
		return w.Block(r.Index, &r.Data)
	}
	if err := w.room(); err != nil {
		return err
	}
	switch r.Kind {
	case KindStrings:
		return w.strings(r.DB)
	case KindGap:
		w.finish(appendGap(w.begin(KindGap), &r.Gap))
		w.end.Gaps++
		w.end.Lost += r.Gap.Blocks
	case KindClock:
		w.finish(appendClock(w.begin(KindClock), &r.Clock))
	case KindNote:
		w.finish(appendNote(w.begin(KindNote), &r.Note))
	case KindMeta, KindEnd, KindDamage:
	default:
		return fmt.Errorf("capture: a record of %v cannot be written", r.Kind)
	}
	return nil
}

// strings adds a string database, in pieces.
func (w *Writer) strings(db *trace.DB) error {
	if db == nil {
		db = &trace.DB{}
	}
	if len(db.Sections) > maxSections {
		return fmt.Errorf("capture: a string database of %d sections; %d are the most", len(db.Sections), maxSections)
	}
	for i, s := range db.Sections { // before anything is written: half a database is damage
		if len(s.Data) > maxSection {
			return fmt.Errorf("capture: section %d of the string database has %d bytes; %d are the most", i, len(s.Data), maxSection)
		}
	}
	for i, s := range db.Sections {
		for off := 0; off == 0 || off < len(s.Data); off += pieceSize {
			b := append(w.begin(KindStrings), stringsPiece, byte(i), 0, 0)
			b = binary.BigEndian.AppendUint32(b, uint32(off))
			b = binary.BigEndian.AppendUint64(b, s.Base)
			b = binary.BigEndian.AppendUint64(b, uint64(len(s.Data)))
			w.finish(append(b, s.Data[off:min(off+pieceSize, len(s.Data))]...))
			if err := w.Flush(); err != nil {
				return err
			}
		}
	}
	g, sum := db.Geometry, HashDB(db)
	b := append(w.begin(KindStrings), stringsAll, g.TrcVer, g.FirstString, g.NumString)
	b = binary.BigEndian.AppendUint32(b, uint32(len(db.Sections)))
	w.finish(append(b, sum[:]...))
	return nil
}

// Flush hands everything to the io.Writer. Call it when nothing more is there at the
// moment, so that a kill loses nothing that was taken before.
func (w *Writer) Flush() error {
	if w.err != nil || len(w.buf) == 0 {
		return w.err
	}
	n, err := w.w.Write(w.buf)
	if err == nil && n < len(w.buf) {
		err = io.ErrShortWrite
	}
	n = min(max(n, 0), len(w.buf))
	if err != nil {
		w.cutOff(n)
		w.err = fmt.Errorf("capture: write at byte %d: %w; the file is good up to the last record before that", w.at, err)
		return w.err
	}
	w.at += int64(n)
	w.buf = w.buf[:0]
	return nil
}

// cutOff takes back what a failing write did not store: n bytes of the buffer are in
// the file. The totals are those of whole records.
func (w *Writer) cutOff(n int) {
	at := 0
	if w.at == 0 {
		at = fileHeader
	}
	for at < len(w.buf) {
		rec := w.buf[at:]
		size := int(binary.BigEndian.Uint32(rec[8:]))
		if at += padded(recordHeader + size); at <= n {
			continue
		}
		switch Kind(rec[6]) {
		case KindBlock:
			w.end.Blocks--
		case KindGap:
			w.end.Gaps--
			w.end.Lost -= binary.BigEndian.Uint64(rec[recordHeader+24:])
		default: // not among the totals
		}
	}
	w.at += int64(n)
	w.buf = w.buf[:0]
}

// Sync flushes and has the file system store the file, against a loss of power.
func (w *Writer) Sync() error {
	if err := w.Flush(); err != nil || w.file == nil {
		return err
	}
	if err := w.file.Sync(); err != nil {
		return fmt.Errorf("capture: %w", err)
	}
	return nil
}

// Size is the number of bytes of the file so far, buffered ones counted, but for those
// that could not be written.
func (w *Writer) Size() int64 { return w.at + int64(len(w.buf)) }

// Totals are the numbers for the end record, as of now: after a failure those of the
// records that are whole in the file.
func (w *Writer) Totals() (blocks, gaps, lost uint64) { return w.end.Blocks, w.end.Gaps, w.end.Lost }

// Close writes the end record with time, reason and text of e and the totals of this
// file, and closes a file that Create made. A second call answers ErrClosed.
func (w *Writer) Close(e *End) error {
	if w.done {
		return ErrClosed
	}
	w.done = true
	end := *e
	end.Blocks, end.Gaps, end.Lost = w.end.Blocks, w.end.Gaps, w.end.Lost
	err := w.err
	if err == nil {
		w.finish(appendEnd(w.begin(KindEnd), &end))
		err = w.Flush()
	}
	if w.file != nil {
		if cerr := w.file.Close(); err == nil && cerr != nil {
			err = fmt.Errorf("capture: %w", cerr)
		}
	}
	return err
}
