package health

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/bits"
	"time"

	"github.com/mlxvfio/mlxvfio/cmdif"
	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// RegisterReader reads a device register by a command: *cmdif.Conn. image carries
// the index fields on the way in and the register on the way out.
type RegisterReader interface {
	ReadRegister(ctx context.Context, id prm.RegisterID, image []byte) error
}

var _ RegisterReader = (*cmdif.Conn)(nil)

// EnvironmentReport is what stands beside firmware health: temperature and PCIe as
// the device sees them, and as the host does. What the device does not have is nil,
// with a note.
type EnvironmentReport struct {
	At          time.Time    `json:"at"`
	Temperature *Temperature `json:"temperature,omitempty"`
	PCIe        *PCIeLink    `json:"pcie,omitempty"`
	Host        *HostPCI     `json:"host,omitempty"`
	Notes       []string     `json:"notes,omitempty"`
}

// Temperature is register MTMP of sensor 0, the ASIC, in °C.
type Temperature struct {
	Sensor  string  `json:"sensor,omitempty"`
	Celsius float64 `json:"celsius"`
	// Highest is the highest since the device was told to keep it (mte); nil where
	// it was not.
	Highest *float64 `json:"highest_celsius,omitempty"`
	// High and Low are thresholds; 0 is none.
	High float64 `json:"high_threshold_celsius"`
	Low  float64 `json:"low_threshold_celsius"`
}

// PCIeLink is register MPEIN. Speeds are generations ("Gen3"), empty for unknown.
type PCIeLink struct {
	SpeedActive  string `json:"speed_active"`
	WidthActive  int    `json:"width_active"`
	SpeedEnabled string `json:"speed_enabled"`
	WidthEnabled int    `json:"width_enabled"`
	MaxPayload   int    `json:"max_payload_bytes"`
	MaxRead      int    `json:"max_read_request_bytes"`
	// Power is "sufficient", "insufficient" or "unknown"; PowerWatts is what the
	// slot gives, 0 where the device does not know.
	Power      string `json:"power"`
	PowerWatts int    `json:"power_watts"`
}

// HostPCI is what the host knows of the function's PCIe link; package health is
// given it from above (Options.Host), since reading sysfs is not its business.
type HostPCI struct {
	Speed    string `json:"speed,omitempty"`
	Width    int    `json:"width,omitempty"`
	MaxSpeed string `json:"max_speed,omitempty"`
	MaxWidth int    `json:"max_width,omitempty"`
	AER      *AER   `json:"aer,omitempty"` // nil where the function has none
}

// AER are the counters of advanced error reporting, by the kernel's names of the
// errors (sysfs aer_dev_correctable, aer_dev_nonfatal, aer_dev_fatal).
type AER struct {
	Correctable map[string]uint64 `json:"correctable"`
	NonFatal    map[string]uint64 `json:"nonfatal"`
	Fatal       map[string]uint64 `json:"fatal"`
}

// uncorrectable is the sum of the errors that lose something.
func (a *AER) uncorrectable() (n uint64) {
	for _, m := range []map[string]uint64{a.NonFatal, a.Fatal} {
		for name, v := range m {
			// The kernel adds a line with the total.
			if name != "TOTAL_ERR_NONFATAL" && name != "TOTAL_ERR_FATAL" {
				n += v
			}
		}
	}
	return n
}

// Clone copies the report.
func (e *EnvironmentReport) Clone() *EnvironmentReport {
	if e == nil {
		return nil
	}
	c := *e
	c.Temperature, c.PCIe, c.Host = clonePtr(e.Temperature), clonePtr(e.PCIe), clonePtr(e.Host)
	c.Notes = append([]string(nil), e.Notes...)
	if c.Host != nil && c.Host.AER != nil {
		a := c.Host.AER
		c.Host.AER = &AER{maps.Clone(a.Correctable), maps.Clone(a.NonFatal), maps.Clone(a.Fatal)}
	}
	return &c
}

func clonePtr[T any](p *T) *T {
	if p == nil {
		return nil
	}
	v := *p
	return &v
}

// environment reads what stands beside firmware health. It belongs to the prober.
type environment struct {
	regs RegisterReader
	host func(context.Context) (HostPCI, error)
	// mcam is the mask of management registers 0x9000 to 0x907f; refused are
	// registers that firmware has refused: they are not asked for again.
	mcam    *prm.McamReg
	refused map[prm.RegisterID]string
}

// read asks for everything once, until host is over; ctx bounds a command that was
// sent. unanswered is the error of a command that the device did not answer: no
// other one should be sent before it has.
func (e *environment) read(host, ctx context.Context, wall time.Time) (r EnvironmentReport, unanswered error) {
	r.At = wall
	if e.host != nil {
		if h, err := e.host(host); err != nil {
			r.Notes = append(r.Notes, "host: "+err.Error())
		} else {
			r.Host = &h
		}
	}
	if e.regs == nil || host.Err() != nil {
		return r, nil
	}
	if e.mcam == nil {
		var m prm.McamReg
		if !e.ask(ctx, &r, prm.RegMcam, m[:], &unanswered) {
			return r, unanswered
		}
		e.mcam = &m
	}
	var t prm.MtmpReg
	if e.ask(ctx, &r, prm.RegMtmp, t[:], &unanswered) {
		r.Temperature = decodeTemperature(&t)
	}
	if unanswered != nil || host.Err() != nil {
		return r, unanswered
	}
	var p prm.MpeinReg
	if e.ask(ctx, &r, prm.RegMpein, p[:], &unanswered) {
		r.PCIe = decodeLink(&p)
	}
	return r, unanswered
}

// ask reads a register that the device has; what it does not have becomes a note.
func (e *environment) ask(ctx context.Context, r *EnvironmentReport, id prm.RegisterID, image []byte, unanswered *error) bool {
	if id != prm.RegMcam && !mcamHas(e.mcam, id) {
		r.Notes = append(r.Notes, fmt.Sprintf("%v: not supported (MCAM does not list it)", id))
		return false
	}
	if why, ok := e.refused[id]; ok {
		r.Notes = append(r.Notes, why)
		return false
	}
	err := e.regs.ReadRegister(ctx, id, image)
	if err == nil {
		return true
	}
	note := fmt.Sprintf("%v: %v", id, err)
	var ce *cmdif.CommandError
	if errors.As(err, &ce) && !ce.Temporary() {
		if e.refused == nil {
			e.refused = map[prm.RegisterID]string{}
		}
		e.refused[id] = note + " (not asked for again)"
	}
	if cmdif.Unanswered(err) {
		*unanswered = err
	}
	r.Notes = append(r.Notes, note)
	return false
}

// mcamHas tells whether the mask lists a register: group 0 has bit i for register
// 0x9000 + i (Linux MLX5_MCAM_REGS_FIRST_128; mlx5_ifc mcam_access_reg).
func mcamHas(m *prm.McamReg, id prm.RegisterID) bool {
	const first, group = 0x9000, 128
	if m == nil || id < first || id >= first+group {
		return false
	}
	i := int(id - first)
	mask := m.MngAccessRegCapMask()
	return mask[len(mask)-1-i/8]>>(i%8)&1 != 0
}

// degrees turns units of 0.125 °C, two's complement, into °C.
func degrees(v uint16) float64 { return float64(int16(v)) / 8 }

func decodeTemperature(m *prm.MtmpReg) *Temperature {
	t := &Temperature{Celsius: degrees(m.Temperature()), High: degrees(m.TempThresholdHi()), Low: degrees(m.TempThresholdLo())}
	if m.Mte() {
		h := degrees(m.MaxTemperature())
		t.Highest = &h
	}
	for _, w := range []uint32{m.SensorNameHi(), m.SensorNameLo()} {
		for s := 24; s >= 0; s -= 8 {
			if c := byte(w >> s); c > ' ' && c < 0x7f {
				t.Sensor += string(rune(c))
			}
		}
	}
	return t
}

// Values of MPEIN.pwr_status (mstflint's register database).
const (
	powerSufficient   = 1
	powerInsufficient = 2
)

func decodeLink(m *prm.MpeinReg) *PCIeLink {
	l := &PCIeLink{
		SpeedActive: generation(m.LinkSpeedActive()), WidthActive: int(m.LinkWidthActive()),
		SpeedEnabled: generation(m.LinkSpeedEnabled()), WidthEnabled: int(m.LinkWidthEnabled()),
		MaxPayload: 128 << m.MaxPayloadSize(), MaxRead: 128 << m.MaxReadRequestSize(),
		Power: "unknown", PowerWatts: int(m.PCIPower()),
	}
	switch m.PwrStatus() {
	case powerSufficient:
		l.Power = "sufficient"
	case powerInsufficient:
		l.Power = "insufficient"
	}
	return l
}

// generation is the highest bit of a mask of speeds: bit n is generation n+1.
func generation(mask uint16) string {
	if mask == 0 {
		return ""
	}
	return fmt.Sprintf("Gen%d", bits.Len16(mask))
}
