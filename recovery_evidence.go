package mlxvfio

import (
	"context"
	"fmt"
	"time"

	"github.com/mlxvfio/mlxvfio/health"
	"github.com/mlxvfio/mlxvfio/health/blackbox"
)

// Evidence says where a black box of this function finds what it keeps. m may be
// nil. The caller may add to it.
func (r *Recoverable) Evidence(m *health.Monitor, reason string) *health.Evidence {
	e := &health.Evidence{Device: r.dev.Info().Name, Reason: reason, Window: r.bar, Monitor: m}
	r.mu.Lock()
	h := r.hca
	if h == nil {
		h = r.wreck
	}
	last := r.last
	r.mu.Unlock()
	if last != nil {
		e.Recovery = func() any { return last }
	}
	e.Events = func() any { return r.events.list() }
	if m != nil {
		e.Environment = func() any { return m.Report().Environment }
	}
	if h == nil {
		e.Notes = append(e.Notes, "the function was not open")
		return e
	}
	if h.conn != nil {
		e.Commands = h.conn
	}
	e.Ledger = func() any { return h.Ledger() }
	e.Capabilities = func() any { return capEvidence(h.Caps()) }
	e.Firmware = func() any { return firmwareEvidence(h, r.pci) }
	return e
}

// SaveBlackBox writes a black box to path, in one step.
func (r *Recoverable) SaveBlackBox(ctx context.Context, path string, e *health.Evidence) error {
	return blackbox.Write(path, e.Collect(ctx), blackbox.Options{})
}

// capRecord is a capability type for a black box.
type capRecord struct {
	Type    string `json:"type"`
	Number  uint16 `json:"number"`
	Current string `json:"current"` // hex
	Maximum string `json:"maximum"`
}

func capEvidence(caps []*Capability) []capRecord {
	out := make([]capRecord, 0, len(caps))
	for _, c := range caps {
		out = append(out, capRecord{c.Type.String(), uint16(c.Type), fmt.Sprintf("%x", c.Current), fmt.Sprintf("%x", c.Maximum)})
	}
	return out
}

func firmwareEvidence(h *HCA, id pciID) any {
	return struct {
		VendorID uint16          `json:"vendor_id"`
		DeviceID uint16          `json:"device_id"`
		Firmware string          `json:"firmware"`
		Board    Board           `json:"board"`
		ISSI     uint16          `json:"issi"`
		Stages   []string        `json:"stages"`
		Opened   []time.Duration `json:"stage_ns"`
	}{id.Vendor, id.Device, h.firmware, h.board, h.issi, stageNames(h.times), stageTimes(h.times)}
}

func stageNames(l []StageEvent) (names []string) {
	for _, e := range l {
		names = append(names, e.Stage)
	}
	return names
}

func stageTimes(l []StageEvent) (times []time.Duration) {
	for _, e := range l {
		times = append(times, e.Duration)
	}
	return times
}
