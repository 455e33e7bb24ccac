//go:build linux

package main

import "strings"

// A device with a fault, on this kernel's VFIO: what the program must make of it, by a word of the model.
var faults = map[string]struct {
	stage  string // the bring-up must fail here
	says   string // with this in its line
	polled bool   // and succeed without interrupts
	counts string // or: the run must succeed, and the page ledger must have counted these
}{
	"lost-irq":        {stage: "event-mode", says: "/proc/interrupts", polled: true},
	"page-starvation": {stage: "init-hca", says: "NO_RES_ERR"},
	"token":           {stage: "enable-hca", says: "does not belong to this command"},
	"pages-more":      {counts: "requests"},
	"pages-negative":  {counts: "reclaims"},
}

// faulty: a failing bring-up names its stage and gives everything back; what firmware may do at run time is no failure.
// It also shows that the checks of a selftest can fail.
func faulty(b *bench) {
	for _, bdf := range b.bdfs {
		_, name, _ := strings.Cut(b.models[bdf], "fault=")
		name, _, _ = strings.Cut(name, "@")
		want, ok := faults[name]
		if !b.check(name+"/known", ok, "%s is %s", bdf, b.models[bdf]) || !b.onVFIO(bdf) {
			continue
		}
		if want.counts != "" {
			if o, ok := b.works(name+"/selftest", "selftest", bdf, "--json"); ok {
				n, _ := at(o, "pages", want.counts).(float64)
				b.check(name+"/"+want.counts, n > 0, "%v in the page ledger: %s", n, jsonText(o))
			}
			b.released(name+"/released", bdf)
			b.selftest(name+"/again", bdf)
			continue
		}
		o := b.cli(name+"/selftest", "selftest", bdf, "--json")
		report, err := decode(o.stdout)
		b.check(name+"/report", err == nil && o.code == 1 && at(report, "verdict") == "fail", "status %d, %v; %v", o.code, errText(err), o)
		line, err := decode(o.stderr)
		text, _ := at(line, "error").(string)
		b.check(name+"/stage", err == nil && at(line, "stage") == want.stage && strings.Contains(text, want.says), "want stage %s and %q; %v", want.stage, want.says, o)
		b.check(name+"/pages", at(line, "pages", "outstanding") == 0.0 && at(line, "pages", "given") == at(line, "pages", "returned"), "%v", at(line, "pages"))
		b.released(name+"/released", bdf)
		if want.polled {
			b.polledSelftest(name+"/polled", bdf)
		}
	}
}
