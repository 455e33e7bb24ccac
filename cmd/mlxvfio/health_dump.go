package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/mlxvfio/mlxvfio/health"
	"github.com/mlxvfio/mlxvfio/health/blackbox"
	"github.com/mlxvfio/mlxvfio/vfio"
	"github.com/spf13/cobra"
)

// dumpArgs are the flags of dump.
type dumpArgs struct {
	healthFlags
	out     string
	section string
	cr      bool
}

func (a *app) healthDumpVerb() *cobra.Command {
	var d dumpArgs
	c := a.verb("dump DEV|FILE", "take a black box of a function, or print one", 1, 1, func(ctx context.Context, args []string) error {
		return a.healthDump(ctx, args[0], d)
	})
	c.Long = `dump DEV gathers what a function that is sick leaves behind: health history, health buffer, last commands, events,
capabilities, initialization segment, ledger of pages. It is printed, or written to --out FILE in one step.
dump FILE prints a black box, of dump, recover or watch; --section NAME writes the bytes of one section as they are.
docs/blackbox.md describes the format.`
	c.Example = examples(
		"mlxvfio health dump sim --out box", "into a file",
		"mlxvfio health dump box", "what is in it",
		"mlxvfio health dump box --section notes.txt", "one section as it is")
	d.add(c, quickPeriod)
	c.Flags().StringVar(&d.out, "out", "", "write a bundle to this `FILE`")
	c.Flags().StringVar(&d.section, "section", "", "write the bytes of the section `NAME` only")
	completes(c, "out", aFile)
	completes(c, "section", completeSection)
	takesSysfs(c)
	c.Flags().BoolVar(&d.cr, "cr-space", false, "add a dump of the configuration registers, through the vendor-specific capability; the software-reset semaphore is held meanwhile")
	return c
}

func (a *app) healthDump(ctx context.Context, what string, d dumpArgs) error {
	if st, err := os.Stat(what); err == nil && st.Mode().IsRegular() {
		if d.out != "" || d.cr || d.passive {
			return usagef("%s is a file: --out, --cr-space and --passive are for devices", what)
		}
		b, err := blackbox.Read(what)
		if err != nil {
			return err
		}
		return a.printBox(what, b, d.section)
	}
	if st, err := os.Stat(what); err == nil {
		return &unavailable{fmt.Errorf("%s: no regular file (%v), hence no black box", what, st.Mode())}
	}
	if strings.ContainsRune(what, '/') && !strings.Contains(what, ":") {
		return &unavailable{fmt.Errorf("%s: no such file", what)}
	}
	if _, err := parseDev(what); err != nil && !strings.ContainsAny(what, ":,") {
		return usagef("%q is no device (0000:3b:00.0, vfio-user:PATH, sysfs:BDF, sim[:PROFILE]) and no file", what)
	}
	if d.out != "" && d.section != "" {
		return usagef("--out writes a whole bundle: --section NAME is for printing")
	}
	p, err := a.attachPatient(ctx, what, d.healthFlags)
	if err != nil {
		return err
	}
	var r health.Report
	var sections []blackbox.Section
	err = p.begin(ctx, health.Options{})
	if err == nil {
		r, err = p.settled(ctx)
	}
	if err == nil {
		sections, err = p.collect(ctx, d.cr)
	}
	note, cerr := p.closeAfter(ctx, r.Verdict)
	if note.full != "" {
		a.logger().Warn("giving the function back", "op", "dump", "error", note.full)
	}
	if err != nil {
		return errors.Join(err, cerr)
	}
	if d.out == "" {
		return errors.Join(a.printBox(what, &blackbox.Bundle{Version: blackbox.Version, Began: time.Now(), Sections: sections}, d.section), cerr)
	}
	if err := blackbox.Write(d.out, sections, blackbox.Options{}); err != nil {
		if errors.Is(err, fs.ErrExist) { // something else is there
			err = &unavailable{err}
		}
		return errors.Join(err, cerr)
	}
	return errors.Join(a.print("health-dump/1", newDumped(p, d.out, r.Verdict, sections)), cerr)
}

// collect gathers the sections. A dump of the configuration registers that was asked
// for and cannot be had is an error; nothing else is.
func (p *patient) collect(ctx context.Context, cr bool) ([]blackbox.Section, error) {
	e := p.evidence("asked for")
	if cr {
		if p.rec == nil || p.flags.passive {
			return nil, &vfio.Error{Op: "dump the configuration registers", Target: p.arg.text, Err: vfio.ErrNotSupported, Remedy: "that needs writes to configuration space: use a function that is bound to vfio-pci"}
		}
		v, err := health.OpenVSC(p.dev)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p.arg.text, err)
		}
		e.VSC = v
	}
	sections := e.Collect(ctx)
	if cr && find(sections, health.SectionCRDump) == nil {
		why := "it is not there"
		for line := range strings.Lines(string(find(sections, health.SectionNotes).Data)) {
			if rest, ok := strings.CutPrefix(line, health.SectionCRDump+": not there: "); ok {
				why = strings.TrimSpace(rest)
			}
		}
		return nil, fmt.Errorf("%s: %s", p.arg.text, why)
	}
	return sections, nil
}

func find(l []blackbox.Section, name string) *blackbox.Section {
	for i := range l {
		if l[i].Name == name {
			return &l[i]
		}
	}
	return nil
}

// dumped says what a bundle holds.
type dumped struct {
	Device string `json:"device"`
	attachment
	File     string         `json:"file"`
	Verdict  health.Verdict `json:"verdict"`
	Sections []sectionRow   `json:"sections"`
}

type sectionRow struct {
	Name  string `json:"name"`
	Bytes int    `json:"bytes"`
}

func newDumped(p *patient, file string, v health.Verdict, l []blackbox.Section) *dumped {
	r := &dumped{Device: p.arg.text, attachment: p.attach, File: file, Verdict: v, Sections: []sectionRow{}}
	for i := range l {
		r.Sections = append(r.Sections, sectionRow{l[i].Name, len(l[i].Data)})
	}
	return r
}

func (r *dumped) text(w io.Writer) {
	fmt.Fprintf(w, "%s: %v (%s); %s has\n", r.Device, r.Verdict.State, r.Verdict.Condition, r.File)
	rows := [][]string{}
	for _, s := range r.Sections {
		rows = append(rows, []string{"  " + s.Name, fmt.Sprintf("%d bytes", s.Bytes)})
	}
	table(w, rows)
}

// printBox shows a black box.
func (a *app) printBox(name string, b *blackbox.Bundle, section string) error {
	if section != "" {
		s, ok := b.Section(section)
		if !ok {
			var names []string
			for i := range b.Sections {
				names = append(names, b.Sections[i].Name)
			}
			return usagef("%s has no section %q; it has %s", name, section, strings.Join(names, ", "))
		}
		_, err := a.out.Write(s.Data)
		return err
	}
	if !a.json {
		var w bytes.Buffer
		boxText(&w, name, b)
		_, err := a.out.Write(plain(w.Bytes()))
		return err
	}
	j, err := json.Marshal(b)
	if err != nil {
		return err
	}
	_, err = a.out.Write(append(plainJSON(j), '\n'))
	return err
}

// lastSamples is how many samples the text of a recorder shows.
const lastSamples = 16

func boxText(w io.Writer, name string, b *blackbox.Bundle) {
	kind := "bundle"
	if b.Recorded {
		kind = "recorder"
	}
	fmt.Fprintf(w, "%s: %s of %s, format %d.%d\n\n", name, kind, stamp(b.Began), b.Version>>8, b.Version&0xff)
	rows := [][]string{{"SECTION", "BYTES", "TAKEN"}}
	for i := range b.Sections {
		s := &b.Sections[i]
		rows = append(rows, []string{s.Name, fmt.Sprint(len(s.Data)), stamp(s.Time), ifText(s.Cut(), fmt.Sprintf("cut, there were %d bytes", s.Original))})
	}
	table(w, rows)
	for _, d := range b.Damage {
		fmt.Fprintf(w, "damage: %s\n", d)
	}
	for i := range b.Sections {
		s := &b.Sections[i]
		switch {
		case strings.HasSuffix(s.Name, ".txt"):
			fmt.Fprintf(w, "\n%s\n%s\n", s.Name, strings.TrimRight(string(s.Data), "\n"))
		case s.Name == health.SectionAbout, s.Name == health.SectionBuffer, s.Name == health.SectionReport, s.Name == health.SectionLedger,
			s.Name == health.SectionFirmware, s.Name == health.SectionEnv, s.Name == health.SectionRecovery:
			var p bytes.Buffer
			if json.Indent(&p, s.Data, "", "  ") == nil {
				fmt.Fprintf(w, "\n%s\n%s\n", s.Name, p.String())
			}
		}
	}
	if len(b.Samples) == 0 {
		return
	}
	fmt.Fprintf(w, "\nsamples %d to %d, the last ones:\n", b.FirstSample, b.FirstSample+uint64(len(b.Samples))-1)
	rows = [][]string{{"AT", "STATE", "COUNTER", "NIC", "SYND"}}
	for _, p := range b.Samples[max(len(b.Samples)-lastSamples, 0):] {
		s, st, ok := health.ParseSample(p)
		if !ok {
			rows = append(rows, []string{fmt.Sprintf("% x", p)})
			continue
		}
		rows = append(rows, []string{stamp(s.At), st.String(), fmt.Sprint(s.Counter()), s.NICInterface().String(), s.Syndrome().String()})
	}
	table(w, rows)
}
