//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/mlxvfio/mlxvfio/health"
	"github.com/mlxvfio/mlxvfio/health/blackbox"
)

// record keeps a black box up to date. A line is printed when a sample is in it.
func record(ctx context.Context, bdf, box string) (err error) {
	r, err := open(bdf)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close(context.WithoutCancel(ctx))) }()
	if _, err := r.Open(ctx); err != nil {
		return err
	}
	rec, err := blackbox.NewRecorder(box, blackbox.RecorderOptions{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rec.Close()) }()
	failed := make(chan error, 1)
	fail := func(err error) {
		select {
		case failed <- err:
		default:
		}
	}
	m, err := r.Monitor(ctx, health.Options{
		Period: period / 5,
		OnSample: func(s health.Sample, v health.Verdict) {
			if err := rec.Append(health.AppendSample(nil, &s, v.State)); err != nil {
				fail(err)
				return
			}
			say("sample", sampleLine{s.Elapsed.Nanoseconds(), s.Counter(), uint8(s.Syndrome()), v.State.String()})
		},
	})
	if err != nil {
		return err
	}
	defer m.Stop()
	for {
		select {
		case <-m.Events():
			if err := rec.Update(r.Evidence(m, "recording").Collect(ctx)); err != nil {
				return err
			}
			say("image", m.Verdict())
		case err := <-failed:
			return err
		case <-ctx.Done():
			return nil
		}
	}
}

// sampleLine is a sample as it is compared.
type sampleLine struct {
	Elapsed int64  `json:"elapsed"`
	Counter uint32 `json:"counter"`
	Synd    uint8  `json:"synd"`
	State   string `json:"state"`
}

// rawJSON is a section as such, or as text if it is none.
func rawJSON(b []byte) any {
	if json.Valid(b) {
		return json.RawMessage(b)
	}
	return string(b)
}

func readBox(box string) error {
	b, err := blackbox.Read(box)
	if err != nil {
		return err
	}
	var samples []sampleLine
	for _, p := range b.Samples {
		s, st, ok := health.ParseSample(p)
		if !ok {
			return errors.New("a sample cannot be decoded")
		}
		samples = append(samples, sampleLine{s.Elapsed.Nanoseconds(), s.Counter(), uint8(s.Syndrome()), st.String()})
	}
	var sections []string
	for _, s := range b.Sections {
		sections = append(sections, s.Name)
	}
	var report, buffer, ledger any
	for name, to := range map[string]*any{health.SectionReport: &report, health.SectionBuffer: &buffer, health.SectionLedger: &ledger} {
		if s, ok := b.Section(name); ok {
			*to = rawJSON(s.Data)
		}
	}
	say("box", struct {
		Recorded    bool         `json:"recorded"`
		Damage      []string     `json:"damage"`
		Sections    []string     `json:"sections"`
		FirstSample uint64       `json:"first_sample"`
		Samples     []sampleLine `json:"samples"`
		Report      any          `json:"report"`
		Buffer      any          `json:"buffer"`
		Ledger      any          `json:"ledger"`
	}{b.Recorded, b.Damage, sections, b.FirstSample, samples, report, buffer, ledger})
	return nil
}
