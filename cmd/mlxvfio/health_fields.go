package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/mlxvfio/mlxvfio/health"
	"github.com/mlxvfio/mlxvfio/initseg"
	"github.com/spf13/cobra"
)

func (a *app) healthFieldsVerb() *cobra.Command {
	c := a.verb("fields DEV", "every field of health: place, width, meaning, value", 1, 1, func(ctx context.Context, args []string) error {
		return a.healthFields(ctx, args[0])
	})
	c.Long = `fields reads every field that belongs to health, says where it is and what it means, and what sources disagree about.
It reads registers and nothing else: no command, no reset.`
	c.Example = examples(
		"mlxvfio health fields sim", "with the values of the model",
		"mlxvfio health fields sysfs:0000:3b:00.0", "of a function that its host driver keeps")
	takesSysfs(c)
	return c
}

func (a *app) healthFields(ctx context.Context, dev string) error {
	p, err := a.attachPatient(ctx, dev, healthFlags{period: quickPeriod, command: defaultCommand, passive: true})
	if err != nil {
		return err
	}
	seg := initseg.New(p.win)
	r := &fieldsResult{Device: p.arg.text, Backend: p.info.Backend, Firmware: seg.FirmwareVersion().String()}
	for _, f := range health.ReadFields(p.win) {
		r.Fields = append(r.Fields, fieldRow{f, f.Width()})
	}
	raw := uint32(0)
	for i := range r.Fields {
		if r.Fields[i].Name == "fw_version" {
			raw = r.Fields[i].Value
		}
	}
	for _, k := range health.DecodeFWVersion(raw, p.win.ReadBE32(4)) {
		r.Packings = append(r.Packings, packingRow{k.Packing, k.Version, k.Note})
	}
	var gone error
	if err := seg.Alive(); err != nil {
		gone = err
		r.Firmware, r.Note = "", "the device does not answer: these are no values"
	} else if err := p.win.Err(); err != nil {
		gone = err
	}
	return errors.Join(a.print("health-fields/1", r), gone, p.close(ctx))
}

type fieldsResult struct {
	Device   string       `json:"device"`
	Backend  string       `json:"backend"`
	Firmware string       `json:"firmware"`
	Note     string       `json:"note,omitempty"`
	Fields   []fieldRow   `json:"fields"`
	Packings []packingRow `json:"fw_version_packings"`
}

type fieldRow struct {
	health.Field
	Width int `json:"width"`
}

type packingRow struct {
	Packing string `json:"packing"`
	Version string `json:"version"`
	Note    string `json:"note"`
}

func (r *fieldsResult) text(w io.Writer) {
	fmt.Fprintf(w, "%s (%s)%s\n", r.Device, r.Backend, ifText(r.Firmware != "", ", firmware "+r.Firmware))
	if r.Note != "" {
		fmt.Fprintln(w, r.Note)
	}
	rows := [][]string{{"OFFSET", "BITS", "WIDTH", "FIELD", "VALUE", "", "MEANING"}}
	for _, f := range r.Fields {
		bits := fmt.Sprint(f.High)
		if f.Width > 1 {
			bits = fmt.Sprintf("%d:%d", f.High, f.Low)
		}
		text := f.Text
		if f.Name == "time" && f.Value != 0 {
			text = time.Unix(int64(f.Value), 0).UTC().Format(time.RFC3339) + " if these are seconds"
		}
		rows = append(rows, []string{fmt.Sprintf("0x%04x", f.Offset), bits, fmt.Sprint(f.Width), f.Name, fmt.Sprintf("%#x", f.Value), text,
			f.Meaning + ifText(f.Note != "", "; "+f.Note)})
	}
	table(w, rows)
	fmt.Fprintln(w)
	rows = [][]string{{"FW_VERSION AS", "VERSION", "PACKING"}}
	for _, k := range r.Packings {
		rows = append(rows, []string{k.Packing, k.Version, k.Note})
	}
	table(w, rows)
}
