package export

import (
	_ "embed" // the page
	"encoding/json"
	"fmt"
	"html"
	"io"
	"strings"

	"github.com/mlxvfio/mlxvfio/tracer/analyze"
	"github.com/mlxvfio/mlxvfio/tracer/capture"
	"github.com/mlxvfio/mlxvfio/tracer/trace"
)

// Sizes of a report: how finely it resolves time, how many formats have a lane of
// their own, how many messages it holds one by one, and how many gaps.
const (
	reportBins     = 4096
	reportLanes    = 48
	reportMessages = 10000
	reportGaps     = 2000
)

//go:embed report.html
var reportPage string

// Report collects the second pass of a trace for an HTML page. Memory is bounded:
// every message counts in a bin of its format, and single messages are kept only if
// there are few.
type Report struct {
	i        *Info
	res      *analyze.Result
	name     func(*trace.Message) string
	span     float64
	lanes    map[string]int
	bins     [][]uint32
	messages []reportMessage
	gaps     []reportGap
	moreGaps uint64
}

// reportData is what the page draws. Times are ticks since First.
type reportData struct {
	Title      string             `json:"title"`
	Source     string             `json:"source"`
	Meta       *capture.Meta      `json:"meta,omitempty"`
	Result     *analyze.Result    `json:"result"`
	Findings   *analyze.Findings  `json:"findings"`
	Thresholds []thresholdData    `json:"thresholds"`
	Counters   trace.Counters     `json:"counters"`
	Stopped    string             `json:"stopped,omitempty"`
	Hz         float64            `json:"hz"` // 0: not known
	Span       float64            `json:"span"`
	Bins       int                `json:"bins"`
	Lanes      []reportLane       `json:"lanes"`
	Hist       map[string][][]any `json:"hist"`
	Messages   []reportMessage    `json:"messages"` // empty if there are too many
	Gaps       []reportGap        `json:"gaps"`
	MoreGaps   uint64             `json:"more_gaps,omitempty"`
	Chance     float64            `json:"chance"`
}

// thresholdData are the thresholds of a group.
type thresholdData struct {
	Group string `json:"group"`
	analyze.Threshold
}

// reportLane is a row of the timeline: pairs of a bin and its messages.
type reportLane struct {
	Name  string   `json:"name"`
	Count uint64   `json:"count"`
	Bins  []uint32 `json:"bins"`
}

// reportMessage is a message: time, lane, event id and text.
type reportMessage struct {
	At   float64 `json:"t"`
	Lane int     `json:"l"`
	ID   uint8   `json:"i"`
	Lost bool    `json:"x,omitempty"`
	Text string  `json:"m"`
}

// reportGap is where blocks are missing; −1 for a time that is not known.
type reportGap struct {
	From    float64 `json:"f"`
	To      float64 `json:"t"`
	Blocks  uint64  `json:"n"`
	AtLeast bool    `json:"least,omitempty"`
	Text    string  `json:"m"`
}

// otherLane is the name of the lane of all formats that have none of their own.
const otherLane = "(all others)"

// NewReport prepares the second pass. name gives the group of a message, as
// analyze.Stats has it.
func NewReport(i *Info, r *analyze.Result, name func(*trace.Message) string) *Report {
	x := &Report{i: i, res: r, name: name, span: float64(trace.Elapsed(r.Last, r.First)), lanes: map[string]int{}, gaps: []reportGap{}, messages: []reportMessage{}}
	x.span = max(x.span, 1)
	for n, f := range r.Formats {
		if n == reportLanes {
			break
		}
		x.lanes[f.Name] = n
	}
	x.bins = make([][]uint32, len(x.lanes)+1)
	return x
}

// at is a time as ticks since First.
func (r *Report) at(t uint64) float64 {
	return min(max(float64(signed(t, r.res.First)), 0), r.span)
}

// Message counts a message.
func (r *Report) Message(m *trace.Message) error {
	lane, ok := r.lanes[r.name(m)]
	if !ok {
		lane = len(r.lanes)
	}
	if r.bins[lane] == nil {
		r.bins[lane] = make([]uint32, reportBins)
	}
	at := r.at(m.Time)
	r.bins[lane][min(int(at/r.span*reportBins), reportBins-1)]++
	if r.res.Messages <= reportMessages && len(r.messages) < reportMessages {
		r.messages = append(r.messages, reportMessage{at, lane, m.EventID, m.Lost, m.Text()})
	}
	return nil
}

// Gap marks a gap.
func (r *Report) Gap(g *capture.Gap) error {
	if len(r.gaps) == reportGaps {
		r.moreGaps++
		return nil
	}
	x := reportGap{From: 0, To: r.span, Blocks: g.Blocks, AtLeast: g.AtLeast, Text: g.String()}
	if g.HaveFrom {
		x.From = r.at(g.From)
	}
	if g.HaveTo {
		x.To = r.at(g.To)
	}
	r.gaps = append(r.gaps, x)
	return nil
}

// Write writes the page.
func (r *Report) Write(w io.Writer, f *analyze.Findings, e *End) error {
	title := r.i.Device()
	if title == "" {
		title = r.i.Source
	}
	d := reportData{
		Title: title, Source: r.i.Source, Meta: r.i.Meta, Result: r.res, Findings: f, Counters: e.Counters, Stopped: e.Stopped,
		Span: r.span, Bins: reportBins, Hist: map[string][][]any{}, Messages: r.messages, Gaps: r.gaps, MoreGaps: r.moreGaps,
		Lanes: []reportLane{}, Thresholds: []thresholdData{}, Chance: analyze.Chance,
	}
	if r.res.Clock != nil {
		d.Hz = r.res.Clock.Hz
	}
	add := func(name string, count uint64, bins []uint32) {
		l := reportLane{Name: name, Count: count, Bins: []uint32{}}
		for b, n := range bins {
			if n > 0 {
				l.Bins = append(l.Bins, uint32(b), n)
			}
		}
		d.Lanes = append(d.Lanes, l)
	}
	rest := r.res.Messages
	for n := range len(r.lanes) {
		add(r.res.Formats[n].Name, r.res.Formats[n].Count, r.bins[n])
		rest -= min(r.res.Formats[n].Count, rest)
	}
	if rest > 0 {
		add(otherLane, rest, r.bins[len(r.lanes)])
	}
	for _, g := range append([]analyze.Group{r.res.All}, r.res.Formats...) {
		if t, ok := analyze.Thresholds(&g); ok {
			d.Thresholds = append(d.Thresholds, thresholdData{g.Name, t})
		}
		bars := [][]any{}
		for _, b := range g.Hist {
			bars = append(bars, []any{b.Lo, b.Hi, b.N})
		}
		d.Hist[g.Name] = bars
	}
	text, err := json.Marshal(&d) // <, > and & come out as \u003c and so on
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	head, after, ok := strings.Cut(reportPage, "{{TITLE}}")
	middle, tail, ok2 := strings.Cut(after, "{{DATA}}")
	if !ok || !ok2 {
		return fmt.Errorf("report: the page has no place for its data")
	}
	for _, s := range []string{head, html.EscapeString(title), middle, string(text), tail} {
		if _, err := io.WriteString(w, s); err != nil {
			return err
		}
	}
	return nil
}
