package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/mlxvfio/mlxvfio/health"
	"github.com/spf13/cobra"
)

// watchArgs are the flags of watch.
type watchArgs struct {
	healthFlags
	limit    time.Duration
	once     bool
	metrics  string
	public   bool
	blackbox string
}

func (a *app) healthWatchVerb() *cobra.Command {
	var w watchArgs
	c := a.verb("watch DEV", "watch a function: a view on a terminal, else a line for each event", 1, 1, func(ctx context.Context, args []string) error {
		return a.healthWatch(ctx, args[0], w)
	})
	c.Long = `watch watches a function until a signal comes, --for is over, or with --once until it is known how the function is.
On a terminal the view is updated in place; otherwise there is a line for each event, with --json an object a line.
The exit code is that of the worst verdict that was seen. A terminal or pipe that does not take the output does not
hold the watch up: lines are dropped then, and counted.`
	c.Example = examples(
		"mlxvfio health watch sim --for 1s --period 100ms", "a second of it",
		"mlxvfio health watch sim --once --json", "one verdict, as JSON",
		"mlxvfio health watch 0000:3b:00.0 --metrics 127.0.0.1:9750 --blackbox box", "for Prometheus, with a black box")
	w.add(c, health.DefaultPeriod)
	c.Flags().DurationVar(&w.limit, "for", 0, "end after this `TIME` (default: watch until a signal comes)")
	positive(c, "for")
	c.Flags().BoolVar(&w.once, "once", false, "end as soon as it is known how the function is")
	c.Flags().StringVar(&w.metrics, "metrics", "", "serve Prometheus metrics at http://`ADDR`/metrics, such as 127.0.0.1:9750")
	c.Flags().BoolVar(&w.public, "metrics-public", false, "allow --metrics an address that others can reach; nothing protects it")
	c.Flags().StringVar(&w.blackbox, "blackbox", "", "keep a black box up to date in this `FILE`, which outlives a SIGKILL")
	completes(c, "metrics", anything)
	completes(c, "blackbox", aFile)
	takesSysfs(c)
	return c
}

func (w *watchArgs) check() error {
	if w.limit < 0 {
		return usagef("--for %v is negative", w.limit)
	}
	if w.public && w.metrics == "" {
		return usagef("--metrics-public needs --metrics ADDR")
	}
	if w.metrics != "" {
		return checkMetricsAddress(w.metrics, w.public)
	}
	return nil
}

// watching is a watch that goes on.
type watching struct {
	p      *patient
	out    *lineWriter
	view   *view // nil without a terminal
	worst  health.Verdict
	events uint64
	began  time.Time
}

func (a *app) healthWatch(ctx context.Context, dev string, w watchArgs) (err error) {
	if err := w.check(); err != nil {
		return err
	}
	p, err := a.attachPatient(ctx, dev, w.healthFlags)
	if err != nil {
		return err
	}
	closed := false
	defer func() {
		if !closed { // it ended before it began
			err = errors.Join(err, p.close(ctx))
		}
	}()
	x := &watching{p: p, out: newLineWriter(a.out), began: time.Now()}
	if !a.json {
		x.view = newView(a.out)
	}
	defer x.out.end()
	o := health.Options{}
	var box *boxKeeper
	if w.blackbox != "" {
		if box, err = newBoxKeeper(w.blackbox, p); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, box.close()) }()
		o.OnSample = box.sample
	}
	begin := beginning{Device: dev, Backend: p.info.Backend, PeriodNS: w.period, BlackBox: w.blackbox}
	var srv *metricsServer
	if w.metrics != "" {
		if srv, err = serveMetrics(w.metrics, p); err != nil {
			return err
		}
		begin.Metrics = srv.url
	}
	if err := p.begin(ctx, o); err != nil {
		return errors.Join(err, srv.close())
	}
	box.begin()
	x.say("health-begin/1", &begin)
	ended := x.loop(ctx, w)
	r := p.report()
	box.end()
	err = srv.close() // it asks the function
	note, cerr := p.closeAfter(ctx, r.Verdict)
	closed = true
	x.finish(r, note)
	x.out.end()
	if signalled(ctx) {
		ended = nil // the way a watch ends
	}
	return errors.Join(ended, err, p.sick(x.worst), x.unknown(r), cerr, x.out.error())
}

// unknown is the error of a watch that was too short.
func (x *watching) unknown(r health.Report) error {
	if x.worst.Condition != "" || r.Verdict.State != health.Unknown {
		return nil
	}
	return ill(x.p.arg.text, r.Verdict)
}

// loop shows what happens. It waits for nobody but the end.
func (x *watching) loop(ctx context.Context, w watchArgs) error {
	var over <-chan time.Time
	if w.limit > 0 {
		t := time.NewTimer(w.limit - time.Since(x.began))
		defer t.Stop()
		over = t.C
	}
	refresh := time.NewTicker(max(w.period, viewPeriod))
	defer refresh.Stop()
	started, ready := x.p.started, x.p.ready
	var events <-chan health.Event
	var once chan health.Report
	if w.once {
		once = make(chan health.Report, 1)
		c, cancel := context.WithCancel(ctx)
		done := make(chan struct{})
		go func() {
			defer close(done)
			if r, err := x.p.settled(c); err == nil {
				once <- r
			}
		}()
		defer func() { cancel(); <-done }()
	}
	for {
		select {
		case <-ctx.Done():
			x.drain(events)
			return context.Cause(ctx)
		case <-over:
			x.drain(events)
			return nil
		case <-x.out.failed:
			return nil // its error comes later
		case <-started:
			started, events = nil, x.p.mon.Events()
		case <-ready:
			ready = nil
			x.attached()
		case e, ok := <-events:
			if !ok {
				events = nil
				continue
			}
			x.event(&e)
		case <-once:
			x.drain(events)
			return nil
		case <-refresh.C:
			x.refresh()
		}
	}
}

// drain shows the events that are there.
func (x *watching) drain(events <-chan health.Event) {
	for {
		select {
		case e, ok := <-events:
			if !ok {
				return
			}
			x.event(&e)
		default:
			return
		}
	}
}

// note keeps the worst verdict.
func (x *watching) note(v health.Verdict) {
	same := v.Condition == x.worst.Condition && v.Since.Equal(x.worst.Since) // what it says may be newer
	if v.State != health.Unknown && (same || x.worst.Condition == "" || v.State > x.worst.State) {
		x.worst = v
	}
}

func (x *watching) event(e *health.Event) {
	x.events++
	if e.Kind == health.EventVerdict {
		x.note(e.Verdict)
	}
	l := &eventLine{x.p.arg.text, *e}
	if l.known() && !x.p.a.json {
		return
	}
	x.say("health-event/1", l)
}

func (x *watching) attached() {
	x.say("health-attach/1", &attachLine{x.p.arg.text, x.p.attach, x.p.report().Verdict})
}

func (x *watching) refresh() {
	if x.view == nil {
		return
	}
	if x.out.idle() {
		x.out.put(x.view.frame(x.p, x.p.report()))
	}
}

// lineResult is what a line says as text.
type lineResult interface{ line() string }

// say puts a line out. The view has its own place for what happens.
func (x *watching) say(schema string, r lineResult) {
	switch {
	case x.p.a.json:
		x.out.json(schema, r)
	case x.view != nil:
		x.view.remember(r.line())
		x.refresh()
	default:
		var b bytes.Buffer
		paragraph(&b, r.line(), stampWidth+1, widthTable)
		x.out.put(b.Bytes())
	}
}

// finish is the last line: the report.
func (x *watching) finish(r health.Report, note closeNote) {
	x.note(r.Verdict)
	e := &ending{shownHealth: x.p.shown(r, note), Worst: x.worst, Events: x.events, Dropped: x.out.lost()}
	if x.view != nil {
		x.out.put(x.view.frame(x.p, r))
		return
	}
	x.say("health-end/1", e)
}

// beginning is the first line.
type beginning struct {
	Device   string        `json:"device"`
	Backend  string        `json:"backend"`
	PeriodNS time.Duration `json:"period_ns"`
	Metrics  string        `json:"metrics,omitempty"`
	BlackBox string        `json:"blackbox,omitempty"`
}

func (b *beginning) line() string {
	return fmt.Sprintf("%s watching %s (%s) every %v%s%s", stamp(time.Now()), b.Device, b.Backend, b.PeriodNS,
		ifText(b.Metrics != "", ", metrics at "+b.Metrics), ifText(b.BlackBox != "", ", black box in "+b.BlackBox))
}

// attachLine says what is watched.
type attachLine struct {
	Device string `json:"device"`
	attachment
	verdict health.Verdict // beside which it stands
}

func (l *attachLine) line() string {
	if l.Attached == "open" {
		return fmt.Sprintf("%s brought up in %.1f ms", stamp(time.Now()), l.MS)
	}
	return fmt.Sprintf("%s registers only: %s", stamp(time.Now()), l.said(l.verdict))
}

// eventLine is an event.
type eventLine struct {
	Device string `json:"device"`
	health.Event
}

// known tells whether the line of the verdict, of the same look, has said it.
func (l *eventLine) known() bool {
	return l.Kind == health.EventSyndrome && l.At.Equal(l.Verdict.Since) && strings.Contains(l.Verdict.Explanation, l.Detail)
}

func (l *eventLine) line() string {
	v := &l.Verdict
	if l.Kind != health.EventVerdict {
		return fmt.Sprintf("%s %s: %s", stamp(l.At), l.Kind, l.Detail)
	}
	return fmt.Sprintf("%s %v → %v (%s): %s%s", stamp(v.Since), l.Previous, v.State, v.Condition, v.Explanation, ifText(v.Remedy != "", "; "+v.Remedy))
}

// ending is the last line.
type ending struct {
	*shownHealth
	Worst   health.Verdict `json:"worst"`
	Events  uint64         `json:"events_shown"`
	Dropped uint64         `json:"lines_lost"`
}

func (e *ending) line() string {
	r := &e.Report
	return fmt.Sprintf("%s ended%s: %v (%s), worst %v (%s); %d looks, %s%s%s", stamp(r.At), ifText(e.Error != "", ", not brought up"),
		r.Verdict.State, r.Verdict.Condition, e.Worst.State, dash(string(e.Worst.Condition)),
		r.Counts.Samples, r.Rate.Statement, ifText(e.back != "", "; "+e.back), ifText(e.Dropped > 0, fmt.Sprintf("; %d lines were lost", e.Dropped)))
}
