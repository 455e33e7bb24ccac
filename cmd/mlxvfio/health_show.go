package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/mlxvfio/mlxvfio/health"
	"github.com/spf13/cobra"
)

func (a *app) healthShowVerb() *cobra.Command {
	var f healthFlags
	c := a.verb("show DEV", "one verdict: how the function is", 1, 1, func(ctx context.Context, args []string) error {
		return a.healthShow(ctx, args[0], f)
	})
	c.Long = `show watches a function until it is known how it is, at most up to the stall limit, and says so. It is quick for a
function that is well. The exit code is that of the verdict: 0 for healthy, 1 for everything else.`
	c.Example = examples(
		"mlxvfio health show sim", "a model that is well",
		"mlxvfio health show sim,fault=fatal", "one that is not; exit code 1",
		"mlxvfio health show sysfs:0000:3b:00.0", "beside mlx5_core, without touching anything")
	f.add(c, quickPeriod)
	takesSysfs(c)
	return c
}

func (a *app) healthShow(ctx context.Context, dev string, f healthFlags) error {
	p, err := a.attachPatient(ctx, dev, f)
	if err != nil {
		return err
	}
	err = p.begin(ctx, health.Options{})
	var r health.Report
	if err == nil {
		r, err = p.settled(ctx)
	}
	if err != nil {
		return errors.Join(err, p.close(ctx))
	}
	note, cerr := p.closeAfter(ctx, r.Verdict)
	return errors.Join(a.print("health/1", p.shown(r, note)), p.sick(r.Verdict), cerr)
}

// shownHealth is a report with how it was made.
type shownHealth struct {
	Device  string `json:"device"`
	Backend string `json:"backend"`
	attachment
	// GaveBack is why the function could not be given back in good order.
	GaveBack string `json:"gave_back,omitempty"`
	health.Report

	back  string // GaveBack beside the verdict
	width int    // of text
}

func (p *patient) shown(r health.Report, n closeNote) *shownHealth {
	r.Schema = "" // print says it
	return &shownHealth{Device: p.arg.text, Backend: p.info.Backend, attachment: p.attach, GaveBack: n.full, Report: r,
		back: n.brief, width: textWidth(p.a.out)}
}

func (s *shownHealth) text(w io.Writer) {
	rows := [][]string{}
	add := func(name, format string, args ...any) {
		rows = append(rows, []string{name + ":", fmt.Sprintf(format, args...)})
	}
	r := &s.Report
	add("function", "%s (%s)%s", s.Device, s.Backend, ifText(r.Now.Firmware != "", ", firmware "+r.Now.Firmware))
	if s.Attached == "open" {
		add("watched", "brought up in %.1f ms", s.MS)
	} else {
		add("watched", "registers only: %s", s.said(r.Verdict))
	}
	add("health", "%s (%s)", strings.ToUpper(r.Verdict.State.String()), r.Verdict.Condition)
	add("why", "%s", r.Verdict.Explanation)
	if r.Verdict.Remedy != "" {
		add("remedy", "%s", r.Verdict.Remedy)
		add("to be kept", "%s", r.Verdict.Condition.Info().Keeps)
	}
	rows = append(rows, readings(r)...)
	if s.back != "" {
		add("given back", "%s", s.back)
	}
	tableIn(w, rows, s.width)
}

// readings are the numbers of a report, a line each.
func readings(r *health.Report) [][]string {
	rows := [][]string{}
	add := func(name, format string, args ...any) {
		rows = append(rows, []string{name + ifText(name != "", ":"), fmt.Sprintf(format, args...)})
	}
	n := &r.Now
	const ones = "unknown: it reads all ones"
	none := func(dword uint32) bool { return r.Counts.Samples > 0 && dword == 0xffffffff }
	if none(r.Last.Health) {
		add("counter", "%s; %s", ones, r.Rate.Statement)
	} else {
		add("counter", "%d, %s", n.Counter, r.Rate.Statement)
	}
	add("looks", "%d, every %v; %d found the counter where it was, %d in a row; a stall is %v", r.Counts.Samples, r.Limits.Period, r.Counts.Missed, r.Counts.MissedRow, r.Limits.Stall)
	if none(r.Last.NIC) {
		add("interface", ones)
	} else {
		add("interface", "%s", n.NICName)
	}
	if b := r.Buffer; b == nil {
		add("health buffer", "%s", map[bool]string{true: ones, false: "no syndrome"}[none(r.Last.Synd)])
	} else {
		add("health buffer", "synd %#x %s%s, ext_synd %#04x%s, rfr %v, crr %v%s%s%s", b.Synd, b.SyndName, ifText(b.SyndText != "", " ("+b.SyndText+")"),
			b.ExtSynd, ifText(b.ExtSyndClaim != "", " ("+b.ExtSyndClaim+", unproven)"), b.RFR, b.CRR,
			ifText(b.Valid, ", severity "+b.SeverityName), ifText(b.Stale, ", stale"), ifText(b.Torn, ", torn"))
		add("", "assert %#x, exit %#x, callra %#x, time %d, hw_id %#x, irisc %d", b.AssertVar, b.AssertExitPtr, b.AssertCallRA, b.Time, b.HWID, b.IRISCIndex)
	}
	if c := r.Commands; c != nil {
		add("commands", "%d answered since the bring-up began, %d in flight, %d overdue; while watched %d late, %d found by polling%s",
			c.Answered, c.InFlight, c.Overdue, c.Late, c.Recovered, ifText(c.Ended != "", "; ended: "+c.Ended))
	}
	if e := r.Environment; e != nil {
		if t := e.Temperature; t != nil {
			add("temperature", "%.1f °C%s", t.Celsius, ifText(t.High != 0, fmt.Sprintf(" (threshold %.1f °C)", t.High)))
		}
		if l := e.PCIe; l != nil {
			add("PCIe", "%s x%d, slot power %s%s", l.SpeedActive, l.WidthActive, l.Power, ifText(l.PowerWatts > 0, fmt.Sprintf(" (%d W)", l.PowerWatts)))
		}
		if h := e.Host; h != nil {
			add("host", "%s x%d of %s x%d, %s", dash(h.Speed), h.Width, dash(h.MaxSpeed), h.MaxWidth, aerText(h.AER))
		}
		for _, note := range e.Notes {
			add("note", "%s", note)
		}
	}
	return rows
}

// aerText sums the error counters.
func aerText(a *health.AER) string {
	if a == nil {
		return "no AER counters"
	}
	sum := func(m map[string]uint64) (n uint64) {
		for name, v := range m {
			if !strings.HasPrefix(name, "TOTAL_ERR_") {
				n += v
			}
		}
		return n
	}
	return fmt.Sprintf("AER %d correctable, %d non-fatal, %d fatal", sum(a.Correctable), sum(a.NonFatal), sum(a.Fatal))
}

// stampWidth is the length of a stamp.
const stampWidth = len("2006-01-02T15:04:05.000Z")

// stamp is a moment for people.
func stamp(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }
