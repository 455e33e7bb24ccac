//go:build hw

package mlxvfio_test

import (
	"context"
	"fmt"
	"strings"

	"github.com/mlxvfio/mlxvfio/sim"
	"github.com/mlxvfio/mlxvfio/tracer/capture"
	"github.com/mlxvfio/mlxvfio/tracer/trace"
)

// loads judges a capture by the load that it holds: its messages say their numbers, and
// whoever knows the number knows every word. Where nothing is missing, none is.
type loads struct {
	blocks, messages int
	gaps             []capture.Gap
	missing          uint64 // blocks
	next             uint64 // number of the next message of the load; 0 before the first
	jumps            int    // places where numbers are missing
	counters         trace.Counters
	end              *capture.End
}

// play takes a source to its end. each is called with every record, and may be nil.
func (l *loads) play(ctx context.Context, src capture.Source, each func(*capture.Record) error) error {
	var p capture.Player
	var wrong error
	err := p.Play(ctx, src, func(r *capture.Record) error {
		switch r.Kind {
		case capture.KindBlock:
			if want := uint64(l.blocks) + l.missing; r.Index != want {
				return fmt.Errorf("block %d where %d is due", r.Index, want)
			}
			l.blocks++
		case capture.KindGap:
			if want := uint64(l.blocks) + l.missing; r.Gap.First != want {
				return fmt.Errorf("gap from block %d where %d is due", r.Gap.First, want)
			}
			l.gaps = append(l.gaps, r.Gap)
			l.missing += r.Gap.Blocks
		}
		if wrong == nil && each != nil {
			return each(r)
		}
		return wrong
	}, func(m *trace.Message) {
		if err := l.message(m); err != nil && wrong == nil {
			wrong = err
		}
	})
	l.counters, l.end = p.Counters(), p.End()
	if err == nil {
		err = wrong
	}
	if err == nil {
		err = l.counters.Check()
	}
	return err
}

func (l *loads) message(m *trace.Message) error {
	text := m.Text()
	if m.NParams == 0 || !strings.Contains(text, "load ") {
		return nil // firmware's own, or what a gap left of one
	}
	n := uint64(m.Params[0])
	if id, want := sim.LoadMessage(sim.TracePlain, n); id != m.EventID || want != text {
		return fmt.Errorf("message %d of the load is %d %q, want %d %q", n, m.EventID, text, id, want)
	}
	if l.messages > 0 && n != l.next {
		if n < l.next || len(l.gaps) == 0 {
			return fmt.Errorf("message %d of the load behind %d, and %d gaps", n, l.next-1, len(l.gaps))
		}
		l.jumps++
	}
	l.next = n + 1
	l.messages++
	return nil
}

// whole says whether everything is there.
func (l *loads) whole() error {
	switch {
	case len(l.gaps) > 0:
		return fmt.Errorf("%d gaps of %d blocks, the first %v", len(l.gaps), l.missing, &l.gaps[0])
	case l.messages == 0:
		return fmt.Errorf("no message of the load in %d blocks", l.blocks)
	case l.counters.OrphanParams+l.counters.UnknownStrings+l.counters.IncompleteMessages+l.counters.SkippedBlocks > 1:
		return fmt.Errorf("the decoder was not content: %+v", l.counters) // the last message may be cut
	}
	return nil
}
