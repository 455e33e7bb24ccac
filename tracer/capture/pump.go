package capture

import (
	"context"
	"errors"
	"io"
)

// Readier is a Source that knows how many records it can give without waiting. Pump
// flushes when there are none, and only then or when its buffer is full.
type Readier interface{ Ready() int }

// Pump writes a source to a file until the source ends, ctx does, or each, which may
// be nil and sees every record, answers an error. It flushes whenever the source has
// nothing more at the moment. The answer is the end that the source told, if it came
// that far, and nil after io.EOF. Close is the caller's.
func Pump(ctx context.Context, w *Writer, src Source, each func(*Record) error) (*End, error) {
	var (
		r   Record
		end *End
	)
	ready, knows := src.(Readier)
	for {
		if !knows || ready.Ready() == 0 {
			if err := w.Flush(); err != nil {
				return end, err
			}
		}
		err := src.Next(ctx, &r)
		if errors.Is(err, io.EOF) {
			return end, w.Flush()
		}
		if err != nil {
			return end, errors.Join(err, w.Flush())
		}
		if r.Kind == KindEnd {
			e := r.End
			end = &e
		}
		if err := w.Write(&r); err != nil {
			return end, err
		}
		if each != nil {
			if err := each(&r); err != nil {
				return end, errors.Join(err, w.Flush())
			}
		}
	}
}
