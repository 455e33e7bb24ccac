package capture

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/mlxvfio/mlxvfio/tracer/trace"
)

// Player decodes the records of a capture. The zero value is ready. It is for one
// goroutine and allocates nothing for a block.
type Player struct {
	d     *trace.Decoder
	meta  *Meta
	end   *End
	gaps  uint64
	lost  uint64
	least bool
}

// Record takes the next record. emit gets the messages that become complete, as
// trace.Decoder.Block gives them; it may be nil. Errors: a block before any string
// database, and those of the decoder.
func (p *Player) Record(r *Record, emit func(*trace.Message)) error {
	switch r.Kind {
	case KindMeta:
		p.meta = r.Meta
	case KindStrings:
		if p.d != nil {
			return p.d.Restart(r.DB.Geometry, r.DB.Strings())
		}
		d, err := trace.NewDecoder(r.DB.Geometry, r.DB.Strings())
		if err != nil {
			return err
		}
		p.d = d
	case KindBlock:
		if p.d == nil {
			return fmt.Errorf("capture: block %d comes before any string database: what its events mean is not known", r.Index)
		}
		return p.d.Block(r.Index, r.Data[:], emit)
	case KindGap:
		p.gaps++
		p.lost += r.Gap.Blocks
		p.least = p.least || r.Gap.AtLeast
		if p.d != nil {
			p.d.Gap()
		}
	case KindDamage:
		if p.d != nil {
			p.d.Gap()
		}
	case KindEnd:
		e := r.End
		p.end = &e
	}
	return nil
}

// Play decodes a whole capture: until its end, an error of the source or of the
// decoder, or until each or ctx says so. each, which may be nil, sees every record
// before it is decoded. What is pending at the end is counted as incomplete. The end
// of the source (io.EOF) is no error.
func (p *Player) Play(ctx context.Context, src Source, each func(*Record) error, emit func(*trace.Message)) error {
	defer p.Flush()
	var r Record
	for {
		err := src.Next(ctx, &r)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil && each != nil {
			err = each(&r)
		}
		if err == nil {
			err = p.Record(&r, emit)
		}
		if err != nil {
			return err
		}
	}
}

// Flush ends the trace: what is pending is counted as incomplete.
func (p *Player) Flush() {
	if p.d != nil {
		p.d.Flush()
	}
}

// Counters are the decoder's.
func (p *Player) Counters() trace.Counters {
	if p.d == nil {
		return trace.Counters{}
	}
	return p.d.Counters()
}

// Meta is what the capture said about its device; nil before it did.
func (p *Player) Meta() *Meta { return p.meta }

// End is the capture's end; nil as long as it was not seen.
func (p *Player) End() *End { return p.end }

// Missing is how many gaps and missing blocks there were; atLeast if the true
// number of blocks may be higher.
func (p *Player) Missing() (gaps, blocks uint64, atLeast bool) { return p.gaps, p.lost, p.least }
