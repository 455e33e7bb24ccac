package health

import (
	"context"
	"time"

	"github.com/mlxvfio/mlxvfio/initseg"
)

// ReportSchema names the JSON form of a Report and its version.
const ReportSchema = "mlxvfio.health/1"

// Report is a snapshot of a Monitor. Durations are in nanoseconds where the name
// of the field in JSON says so.
type Report struct {
	// Schema is ReportSchema.
	Schema  string    `json:"schema,omitempty"`
	Device  string    `json:"device,omitempty"`
	At      time.Time `json:"at"`
	Started time.Time `json:"started"`
	Verdict Verdict   `json:"verdict"`
	// Now is the last sample, decoded; Last the sample as it was read.
	Now  Reading `json:"now"`
	Last Sample  `json:"last"`
	// Buffer is the health buffer while it shows an error; nil otherwise. It is not
	// a diagnosis while it is stale after a reset (Verdict has the last word).
	Buffer *Buffer `json:"buffer,omitempty"`
	// Evidence is the buffer as it stood when the counter was found stopped without
	// a syndrome: kept raw, it explains nothing.
	Evidence *RawBuffer `json:"evidence,omitempty"`
	Limits   Limits     `json:"limits"`
	Counts   Counts     `json:"counts"`
	Rate     Rate       `json:"counter_rate"`
	// Commands is nil without a watchdog, Environment before the first reading.
	Commands    *CommandReport     `json:"commands,omitempty"`
	Environment *EnvironmentReport `json:"environment,omitempty"`
	Probe       *ProbeReport       `json:"probe,omitempty"`
	// Verdicts are the last changes, oldest first.
	Verdicts []Verdict `json:"verdicts"`
}

// Reading is a sample in words.
type Reading struct {
	Counter         uint32 `json:"counter"`
	CounterSyndrome uint8  `json:"counter_syndrome"` // beside the counter; see Sample.CounterSyndrome
	NICInterface    uint8  `json:"nic_interface"`
	NICName         string `json:"nic_interface_name"`
	FWVersion       uint32 `json:"fw_version"`
	// Firmware is the running version by the initialization segment when the
	// monitor started or a recovery ended, empty where that read all ones; FWPacking
	// the packing in which FWVersion gives the same, empty for none.
	Firmware  string `json:"firmware"`
	FWPacking string `json:"fw_version_packing"`
	Synd      uint8  `json:"synd"`
	SyndName  string `json:"synd_name"`
	AllOnes   bool   `json:"all_ones"`
}

// Limits are the times the monitor goes by.
type Limits struct {
	Period     time.Duration `json:"period_ns"`
	HealthPoll time.Duration `json:"health_poll_ns"`
	Stall      time.Duration `json:"stall_ns"` // max(three periods, health poll)
	Hold       time.Duration `json:"hold_ns"`  // for how long an event-like signal counts
}

// Counts are what the monitor counted since it started.
type Counts struct {
	Samples       uint64 `json:"samples"`
	Missed        uint64 `json:"missed"`      // samples that found the counter where it was
	MissedRow     int    `json:"missed_row"`  // of these, in a row now
	Gaps          uint64 `json:"gaps"`        // times nobody looked for a stall limit
	Glitches      uint64 `json:"glitches"`    // samples that read all ones once only
	Events        uint64 `json:"events"`      // events made
	EventsDropped uint64 `json:"events_lost"` // of these, found no room in the channel
}

// ProbeReport is how the reading of the environment goes.
type ProbeReport struct {
	Runs     uint64    `json:"runs"`
	Finished time.Time `json:"finished,omitzero"` // the last one
	Held     bool      `json:"held"`              // a command is unanswered: no other one is sent
	Problem  string    `json:"problem,omitempty"`
}

// Report takes a snapshot. It reads no register and may be called at any time, from
// any goroutine.
func (m *Monitor) Report() Report {
	m.mu.Lock()
	defer m.mu.Unlock()
	j := m.j
	r := Report{
		Schema: ReportSchema, Device: m.o.Device, At: m.wall(), Started: m.started,
		Verdict: m.v, Now: m.readingLocked(), Last: m.last,
		Limits: Limits{Period: m.o.Period, HealthPoll: m.o.HealthPoll, Stall: j.lim.stall, Hold: j.lim.hold},
		Counts: Counts{
			Samples: j.samples, Missed: j.missed, MissedRow: j.misses, Gaps: j.gaps, Glitches: j.glitches,
			Events: m.seq, EventsDropped: m.dropped,
		},
		Rate: j.rate.report(j.movedWall), Commands: j.cmds.report(), Environment: j.env.last.Clone(),
		Verdicts: m.verdicts.list(),
	}
	if j.hasBuffer {
		b := j.buffer
		r.Buffer = &b
	}
	if m.evidence != nil {
		raw := m.evidence.Raw
		r.Evidence = &raw
	}
	if m.o.Registers != nil || m.o.Host != nil {
		r.Probe = &ProbeReport{Runs: m.probe.runs, Finished: m.probe.finished, Held: m.probe.held, Problem: m.probe.problem}
	}
	return r
}

func (m *Monitor) readingLocked() Reading {
	s := &m.last
	r := Reading{
		Counter: s.Counter(), CounterSyndrome: uint8(s.CounterSyndrome()),
		NICInterface: uint8(s.NICInterface()), NICName: s.NICInterface().String(),
		FWVersion: s.FW,
		Synd:      uint8(s.Syndrome()), SyndName: s.Syndrome().String(), AllOnes: s.Ones() == 4,
	}
	if m.running != (initseg.Version{Major: 0xffff, Minor: 0xffff, Subminor: 0xffff}) {
		r.Firmware, r.FWPacking = m.running.String(), packingOf(s.FW, m.running)
	}
	return r
}

// History copies the last samples, oldest first.
func (m *Monitor) History() []Sample {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.history.list()
}

// Check watches until it is known how the function is (Monitor.Wait), and answers
// the report: within the stall limit for a dead device, as soon as the counter has
// moved for a healthy one. ctx bounds it.
func Check(ctx context.Context, o Options) (Report, error) {
	m, err := New(o)
	if err != nil {
		return Report{}, err
	}
	if err := m.Start(ctx); err != nil {
		return Report{}, err
	}
	_, err = m.Wait(ctx)
	m.Stop()
	return m.Report(), err
}
