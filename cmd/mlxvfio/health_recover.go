package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/mlxvfio/mlxvfio"
	"github.com/mlxvfio/mlxvfio/health"
	"github.com/mlxvfio/mlxvfio/vfio"
	"github.com/spf13/cobra"
)

// recoverArgs are the flags of recover.
type recoverArgs struct {
	healthFlags
	level    string
	blackbox string
	noBox    bool
	others   bool
	limit    time.Duration
}

func (a *app) healthRecoverVerb() *cobra.Command {
	var r recoverArgs
	c := a.verb("recover DEV", "bring a sick function back, as far as it is allowed", 1, 1, func(ctx context.Context, args []string) error {
		return a.healthRecover(ctx, args[0], r)
	})
	c.Example = examples(
		"mlxvfio health recover sim,fault=fatal --max-level sw-reset", "up to a software reset",
		"mlxvfio health recover sim --max-level none", "only say what would be done",
		"mlxvfio health recover 0000:3b:00.0 --max-level flr --blackbox box", "a real one, with its black box in box")
	var b strings.Builder
	b.WriteString(`recover looks at a function, saves a black box, and climbs the recovery ladder, lowest rung first and never above
--max-level, until the function is open and well. A function that is well is left alone. The exit code is 0 if it
ends healthy. The rungs:
`)
	rows := [][]string{}
	var rungs []string
	for _, x := range climbable() {
		rungs = append(rungs, x.Rung.String())
	}
	for _, x := range health.Rungs() {
		rows = append(rows, []string{"  " + x.Rung.String(), x.Doc}, []string{"", "hits: " + x.Hits})
		if x.Proof != "" {
			rows = append(rows, []string{"", "seen to work on: " + x.Proof})
		}
	}
	tableIn(&b, rows, widthAny)
	c.Long = strings.TrimRight(b.String(), "\n")
	r.add(c, quickPeriod)
	c.Flags().Lookup("passive").Hidden = true // it belongs to the verbs that look, and is refused here
	c.Flags().StringVar(&r.level, "max-level", health.RungReopen.String(), "the highest `RUNG` that may be climbed: "+strings.Join(rungs, ", "))
	completes(c, "max-level", completeRung)
	c.Flags().StringVar(&r.blackbox, "blackbox", "", "`FILE` for the black box (default: one in this folder named after device and time)")
	completes(c, "blackbox", aFile)
	c.Flags().BoolVar(&r.noBox, "no-blackbox", false, "save none")
	c.Flags().DurationVar(&r.limit, "rung-timeout", 0, "`TIME` that one rung may take (default: what the rung needs, 90s or 150s)")
	positive(c, "rung-timeout")
	c.Flags().BoolVar(&r.others, "others", false, "allow hot-reset and mfrl to reset the other functions of the slot, whoever uses them")
	return c
}

// climbable are the rungs that --max-level may name with a meaning: all but the one
// that nothing here can do.
func climbable() []health.RungInfo {
	return slices.DeleteFunc(health.Rungs(), func(r health.RungInfo) bool { return r.Rung == health.RungCold })
}

func (a *app) healthRecover(ctx context.Context, dev string, x recoverArgs) error {
	level, err := health.ParseRung(x.level)
	switch {
	case err != nil:
		return usagef("--max-level: %v", err)
	case x.noBox && x.blackbox != "":
		return usagef("--blackbox and --no-blackbox exclude each other")
	case x.limit < 0:
		return usagef("--rung-timeout %v is negative", x.limit)
	case x.passive:
		return usagef("recover is not passive: --max-level none touches nothing and says what would be done")
	}
	if arg, err := parseDev(dev); err == nil && arg.kind == devSysfs {
		return &vfio.Error{Op: "recover", Target: dev, Err: vfio.ErrNotSupported, Remedy: fmt.Sprintf("sysfs only reads: mlxvfio bind %v, then use %v", arg.bdf, arg.bdf)}
	}
	p, err := a.attachPatient(ctx, dev, x.healthFlags)
	if err != nil {
		return err
	}
	var r health.Report
	if err = p.begin(ctx, health.Options{}); err == nil {
		r, err = p.settled(ctx)
	}
	if err != nil {
		return errors.Join(err, p.close(ctx))
	}
	res := &recoverResult{Device: dev, Backend: p.info.Backend, attachment: p.attach, width: textWidth(p.a.out), Before: r.Verdict, After: r.Verdict, Ledgers: []mlxvfio.PageLedger{}}
	var rerr error
	if r.Verdict.State != health.Healthy || p.attach.Error != "" {
		rerr = p.recover(ctx, x, level, res)
	} else {
		res.Note = "the function is well: nothing was done"
	}
	note, cerr := p.closeAfter(ctx, res.After)
	res.GaveBack, res.back = note.full, note.brief
	res.Ledgers = append(res.Ledgers, p.rec.Ledgers()...)
	for _, l := range res.Ledgers {
		if l.Outstanding != 0 {
			cerr = errors.Join(cerr, &mlxvfio.LedgerError{Ledger: l})
		}
	}
	err = rerr
	if err == nil {
		err = ill(dev, res.After)
	}
	return errors.Join(a.print("health-recover/1", res), err, cerr)
}

// recover climbs the ladder and waits for a verdict on what came of it.
func (p *patient) recover(ctx context.Context, x recoverArgs, level health.Rung, res *recoverResult) error {
	o := health.RecoverOptions{MaxLevel: level, Verdict: res.Before}
	if x.limit > 0 {
		o.Limits = map[health.Rung]time.Duration{}
		for _, g := range health.Rungs() {
			o.Limits[g.Rung] = x.limit
		}
	}
	if x.others {
		o.Consent = func([]vfio.HotResetFunction) error { return nil }
	}
	if !x.noBox {
		path := x.blackbox
		if path == "" {
			path = boxName(p.arg.text)
		}
		o.BlackBox = func(ctx context.Context) (string, error) {
			return path, p.rec.SaveBlackBox(ctx, path, p.evidence(string(res.Before.Condition)))
		}
	}
	if level == health.RungNone {
		o.BlackBox = nil // nothing is going to be lost
	}
	rep, err := p.rec.Recover(ctx, o)
	rep.Device = p.arg.text
	res.Recovery = &rep
	if h := p.hca(); h != nil {
		p.mon.Adopt(health.Adoption{Owner: true, Commands: h.Conn(), HealthPoll: p.rec.Target().Timeouts.HealthPoll})
	}
	res.After = p.afterwards(ctx)
	if err == nil {
		return nil
	}
	return &illError{exitFailed, rep.Remedy, err, nil}
}

// afterwards is the verdict once it means something again.
func (p *patient) afterwards(ctx context.Context) health.Verdict {
	limit := p.mon.Report().Limits
	end := time.Now().Add(limit.Stall + 2*limit.Period)
	t := time.NewTicker(5 * time.Millisecond)
	defer t.Stop()
	done := ctx.Done()
	for {
		v := p.mon.Verdict()
		if v.State != health.Unknown && v.State != health.Recovering || time.Now().After(end) {
			return v
		}
		select {
		case <-t.C:
		case <-done:
			// What was stopped still tells what the next look finds.
			done, end = nil, time.Now().Add(2*limit.Period)
		}
	}
}

// boxName is a file in this folder.
func boxName(dev string) string {
	name := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '-' {
			return r
		}
		return '_'
	}, dev)
	if len(name) > 80 {
		name = name[:80]
	}
	return fmt.Sprintf("mlxvfio-%s-%s.blackbox", name, time.Now().UTC().Format("20060102T150405.000Z"))
}

// recoverResult is what was done.
type recoverResult struct {
	Device  string `json:"device"`
	Backend string `json:"backend"`
	attachment
	Before health.Verdict `json:"before"`
	After  health.Verdict `json:"after"`
	// Recovery is absent where nothing was to be done.
	Recovery *health.RecoveryReport `json:"recovery,omitempty"`
	// Ledgers are the accounts of pages of each life of the function.
	Ledgers  []mlxvfio.PageLedger `json:"ledgers"`
	Note     string               `json:"note,omitempty"`
	GaveBack string               `json:"gave_back,omitempty"`

	back  string // GaveBack beside the verdict
	width int    // of text
}

func (r *recoverResult) text(w io.Writer) {
	say := func(format string, args ...any) {
		paragraph(w, fmt.Sprintf(format, args...), 2, r.width)
	}
	say("%s: before: %v (%s): %s", r.Device, r.Before.State, r.Before.Condition, r.Before.Explanation)
	if r.Attached != "open" {
		say("%s", r.said(r.Before))
	}
	if x := r.Recovery; x != nil {
		if x.Bundle != "" {
			fmt.Fprintf(w, "black box: %s%s\n", x.Bundle, ifText(x.BundleError != "", ": "+x.BundleError))
		}
		rows := [][]string{{"RUNG", "OUTCOME", "MS"}}
		for _, g := range x.Rungs {
			rows = append(rows, []string{g.Rung.String(), string(g.Outcome), fmt.Sprintf("%.1f", milliseconds(g.Took)), g.Reason})
			for _, s := range g.Steps {
				what := s.Note
				if s.Err != nil {
					what = "FAILED"
					if why := oneLine(s.Err); !strings.Contains(g.Reason, why) {
						what += ": " + why
					}
				}
				rows = append(rows, []string{"  " + s.Step, "", fmt.Sprintf("%.1f", milliseconds(s.Took)), what})
			}
			for _, f := range g.Hits {
				rows = append(rows, []string{"  hits", "", "", f.Name + ifText(f.Self, " (itself)")})
			}
		}
		tableIn(w, rows, r.width)
		switch {
		case x.Recovered:
			say("recovered by %v in %v%s", x.By, x.Took.Round(time.Millisecond), ifText(r.After.State != health.Healthy, ", but not well"))
		case x.ColdReset:
			say("not recovered: a cold reset is needed")
		default:
			named := x.Next == health.RungNone || strings.Contains(x.Remedy, x.Next.String())
			say("not recovered: %s%s", ifText(!named, fmt.Sprintf("next would be %v; ", x.Next)), x.Remedy)
		}
	}
	if r.Note != "" {
		fmt.Fprintln(w, r.Note)
	}
	if r.After.Condition == r.Before.Condition && r.After.Explanation == r.Before.Explanation {
		say("after: %v (%s), as before", r.After.State, r.After.Condition)
	} else {
		say("after: %v (%s): %s", r.After.State, r.After.Condition, r.After.Explanation)
	}
	if r.back != "" {
		say("given back: %s", r.back)
	}
}
