package capture

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/mlxvfio/mlxvfio/tracer/trace"
)

// Why a Reader stopped, found with errors.Is in a *StopError.
var (
	// ErrNoEnd: the file ends after a whole record, but without an end record. Its
	// writer was killed, or is still writing.
	ErrNoEnd = errors.New("there is no end record: the writer was killed or is still writing")
	// ErrTruncated: the file ends inside a record.
	ErrTruncated = errors.New("the file ends inside a record: the writer was killed, or the file was cut")
	// ErrDamaged: a record is not what was written.
	ErrDamaged = errors.New("the file is damaged")
	// ErrFormat: this is no capture file, or one of a later major version.
	ErrFormat = errors.New("not a capture file that this version can read")
)

// StopError says where and why a Reader stopped. Everything it gave before is good.
type StopError struct {
	Offset  int64  // of the first byte that could not be used
	Records uint64 // that were read
	Blocks  uint64 // among them
	Err     error  // one of the sentinels, or the failure of the file
	Detail  string
}

func (e *StopError) Error() string {
	s := fmt.Sprintf("capture: stopped at byte %d, after %d records with %d blocks: %v", e.Offset, e.Records, e.Blocks, e.Err)
	if e.Detail != "" {
		s += ": " + e.Detail
	}
	return s
}

// Unwrap gives the reason.
func (e *StopError) Unwrap() error { return e.Err }

// ReaderOptions tune a Reader.
type ReaderOptions struct {
	// Follow waits at the end of the file for more, until the end record came or
	// the context of Next is over. Poll is how often it looks; 0 is 50 ms.
	Follow bool
	Poll   time.Duration
	// Salvage goes on behind damage, where the next record with a good checksum
	// begins, and says with a damage record what was left out.
	Salvage bool
}

// defaultFollow is how often a following Reader looks.
const defaultFollow = 50 * time.Millisecond

// Reader reads a capture file. It is a Source, for one goroutine. It holds one record
// at a time, and the string database. Records of kinds that it does not know are left
// out; they count in Unknown.
type Reader struct {
	src  io.Reader
	file *os.File
	o    ReaderOptions
	buf  []byte
	have []byte // of buf: read from src and not used
	off  int64  // of have

	begun, meta, ended bool
	seq                uint32
	records, blocks    uint64
	unknown            uint64
	db                 dbParts
	stop               error

	next     uint64 // number of the block that comes next
	haveNext bool
	last     uint64 // closing time of the last block
	haveLast bool
	gapped   bool    // a gap record with an uncertain count came: any number may follow
	held     *Record // a block in front of which a gap had to be made
}

// NewReader reads from src. Nothing is read before the first Next.
func NewReader(src io.Reader, o ReaderOptions) *Reader {
	if o.Poll <= 0 {
		o.Poll = defaultFollow
	}
	return &Reader{src: src, o: o, buf: make([]byte, 0, 64<<10)}
}

// Open reads the file path. Close it.
func Open(path string, o ReaderOptions) (*Reader, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("capture: %w", err)
	}
	r := NewReader(f, o)
	r.file = f
	return r, nil
}

// Close closes a file that Open opened.
func (r *Reader) Close() error {
	if r.file == nil {
		return nil
	}
	return r.file.Close()
}

// Offset is the number of bytes used so far.
func (r *Reader) Offset() int64 { return r.off }

// Unknown is the number of records of kinds that this version does not know.
func (r *Reader) Unknown() uint64 { return r.unknown }

// Next fills rec with the next record. After the end record it answers io.EOF. Where
// the file stops otherwise the error is a *StopError, and stays so. If ctx is over
// while it waits for more, its cause comes back and Next may be called again.
func (r *Reader) Next(ctx context.Context, rec *Record) error {
	if r.held != nil {
		*rec, r.held = *r.held, nil
		return nil
	}
	for {
		if r.stop != nil {
			return r.stop
		}
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		given, err := r.record(ctx, rec)
		if err != nil {
			return err
		}
		if given {
			return nil
		}
	}
}

// fail ends the reading, unless it is the context that is over.
func (r *Reader) fail(err error, detail string) error {
	r.stop = &StopError{Offset: r.off, Records: r.records, Blocks: r.blocks, Err: err, Detail: detail}
	return r.stop
}

// record reads one record; given is false for one that is kept or left out.
func (r *Reader) record(ctx context.Context, rec *Record) (given bool, err error) {
	if !r.begun {
		if err := r.header(ctx); err != nil {
			return false, err
		}
	}
	if r.ended {
		r.stop = io.EOF
		return false, io.EOF
	}
	ok, err := r.fill(ctx, recordHeader)
	if err != nil {
		return false, err
	}
	if !ok {
		if len(r.have) == 0 {
			return false, r.fail(ErrNoEnd, "")
		}
		return false, r.fail(ErrTruncated, fmt.Sprintf("%d bytes of a record's header", len(r.have)))
	}
	why := headerFault(r.have)
	total := 0
	if why == "" {
		total = recordHeader + int(binary.BigEndian.Uint32(r.have[8:]))
		if ok, err = r.fill(ctx, padded(total)); err != nil {
			return false, err
		}
		if !ok {
			if r.o.Salvage {
				// A damaged length looks just so.
				return r.salvage(ctx, rec, "the file ends inside a record")
			}
			return false, r.fail(ErrTruncated, fmt.Sprintf("%d of %d bytes of a record", len(r.have), padded(total)))
		}
		if got := recordSum(r.have[:total]); got != binary.BigEndian.Uint32(r.have) {
			why = fmt.Sprintf("record %d has the checksum %08x, not %08x", r.seq, got, binary.BigEndian.Uint32(r.have))
		} else if seq := binary.BigEndian.Uint32(r.have[12:]); seq != r.seq {
			why = fmt.Sprintf("record %d stands where %d should", seq, r.seq)
		}
	}
	if why == "" {
		given, why = r.take(rec, Kind(r.have[6]), r.have[recordHeader:total])
	}
	if why != "" {
		if r.o.Salvage {
			return r.salvage(ctx, rec, why)
		}
		return false, r.fail(ErrDamaged, why)
	}
	r.use(padded(total))
	r.records++
	r.seq++
	return given, nil
}

// headerFault says what is wrong with a record's header, apart from its checksum.
func headerFault(h []byte) string {
	if s := binary.BigEndian.Uint16(h[4:]); s != sync {
		return fmt.Sprintf("a record begins with the mark %04x, not %04x", s, sync)
	}
	if n := binary.BigEndian.Uint32(h[8:]); n > maxPayload {
		return fmt.Sprintf("a record of %d bytes; %d are the most", n, maxPayload)
	}
	return ""
}

// header reads the beginning of the file.
func (r *Reader) header(ctx context.Context) error {
	ok, err := r.fill(ctx, fileHeader)
	if err != nil {
		return err
	}
	if !ok || string(r.have[:len(Magic)]) != Magic {
		return r.fail(ErrFormat, fmt.Sprintf("it does not begin with %q", Magic))
	}
	if v := binary.BigEndian.Uint16(r.have[8:]); v != Major {
		return r.fail(ErrFormat, fmt.Sprintf("it is of version %d, this program reads %d; use a newer one", v, Major))
	}
	r.use(fileHeader)
	r.begun = true
	return nil
}

// use drops n bytes from the front.
func (r *Reader) use(n int) {
	r.have = r.have[n:]
	r.off += int64(n)
}

// fill reads until n bytes are there; ok is false if the file ends before.
func (r *Reader) fill(ctx context.Context, n int) (ok bool, err error) {
	for empty := 0; len(r.have) < n; {
		if cap(r.have) < n || cap(r.have)-len(r.have) == 0 {
			if cap(r.buf) < n {
				r.buf = make([]byte, 0, max(n, min(2*cap(r.buf), maxRecord+align)))
			}
			r.have = append(r.buf[:0], r.have...)
		}
		k, err := r.src.Read(r.have[len(r.have):cap(r.have)])
		r.have = r.have[:len(r.have)+k]
		switch {
		case k > 0:
			empty = 0
			continue // an error comes again
		case err == nil:
			if empty++; empty > 100 {
				return false, r.fail(io.ErrNoProgress, "")
			}
			continue
		case !errors.Is(err, io.EOF):
			return false, r.fail(err, "")
		case !r.o.Follow:
			return false, nil
		}
		if err := r.wait(ctx); err != nil {
			return false, err
		}
	}
	return true, nil
}

// wait sleeps until the file may have grown.
func (r *Reader) wait(ctx context.Context) error {
	if s, ok := r.src.(interface{ Stat() (os.FileInfo, error) }); ok {
		if st, err := s.Stat(); err == nil && st.Mode().IsRegular() && st.Size() < r.off+int64(len(r.have)) {
			return r.fail(ErrDamaged, "it became shorter while it was followed")
		}
	}
	t := time.NewTimer(r.o.Poll)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// take makes a record of a payload. why says what is wrong with it.
func (r *Reader) take(rec *Record, kind Kind, p []byte) (given bool, why string) {
	if !r.meta && kind != KindMeta && !r.o.Salvage {
		return false, fmt.Sprintf("the first record is of %v, not meta", kind)
	}
	rec.Kind, rec.Offset = kind, r.off
	switch kind {
	case KindMeta:
		m, err := parseMeta(p)
		if err != nil {
			return false, err.Error()
		}
		rec.Meta, r.meta = m, true
		return true, ""
	case KindStrings:
		db, err := r.db.take(p)
		if err != nil {
			r.db = dbParts{}
			return false, err.Error()
		}
		rec.DB = db
		return db != nil, ""
	case KindBlock, KindGap, KindClock, KindNote, KindEnd:
		if err := parse(rec, kind, p); err != nil {
			return false, err.Error()
		}
	default:
		r.unknown++
		return false, ""
	}
	switch kind {
	case KindBlock:
		return true, r.block(rec, p)
	case KindGap:
		r.next, r.haveNext, r.gapped = rec.Gap.First+rec.Gap.Blocks, true, rec.Gap.AtLeast
	case KindEnd:
		r.ended = true
	}
	return true, ""
}

// block checks the number of a block. Where some are missing of which no record
// tells, a gap is made: nothing is lost silently.
func (r *Reader) block(rec *Record, p []byte) (why string) {
	index := binary.BigEndian.Uint64(p)
	if r.haveNext && index < r.next {
		return fmt.Sprintf("block %d comes after block %d", index, r.next-1)
	}
	rec.Index = index
	copy(rec.Data[:], p[8:blockPayload])
	t, closed := trace.ClosedTime(rec.Data[:])
	if r.haveNext && index > r.next && !r.gapped {
		held := *rec
		r.held = &held
		rec.Kind = KindGap
		rec.Gap = Gap{
			From: r.last, HaveFrom: r.haveLast, To: t, HaveTo: closed,
			First: r.next, Blocks: index - r.next, Cause: CauseDamage,
		}
	}
	r.blocks++
	r.next, r.haveNext, r.gapped = index+1, true, false
	if closed {
		r.last, r.haveLast = t, true
	}
	return ""
}
