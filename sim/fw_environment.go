package sim

import (
	"encoding/binary"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// What a healthy board measures: choices.
const (
	boardCelsius  = 45.0
	boardHigh     = 105.0 // warning threshold
	boardWatts    = 75    // what a slot gives
	moduleSensors = 64    // sensor index of the first module (Linux hwmon.c)
	sensorName    = "asic"
)

// thermometer is what a function's driver set in register MTMP.
type thermometer struct {
	mte     bool
	highest uint16
	tee     uint8
	hi, lo  uint16
}

func (t *thermometer) reset() { *t = thermometer{hi: eighths(boardHigh), lo: eighths(boardHigh - 10)} }

// eighths is a temperature in the register's unit, 0.125 °C in two's complement.
func eighths(celsius float64) uint16 { return uint16(int16(math.Round(celsius * 8))) }

// temperature is the reading of the sensor.
func (f *function) temperature() uint16 {
	if x := f.chip.faults.find("temperature"); x != nil {
		return eighths(x.celsius)
	}
	return eighths(boardCelsius)
}

func readMTCAP(_ *function, img []byte) synd {
	m := prm.AsMtcapReg(img)
	*m = prm.MtcapReg{}
	m.SetSensorCount(1)
	m.SetSensorMap(1)
	return syndOK
}

func readMTMP(f *function, img []byte) synd {
	m := prm.AsMtmpReg(img)
	n := m.SensorIndex()
	*m = prm.MtmpReg{}
	m.SetSensorIndex(n)
	switch n {
	case 0:
	case moduleSensors:
		return syndOK // the cable has no sensor: no temperature, no name
	default:
		return syndRegisterIndex
	}
	now, t := f.temperature(), &f.regs.heat
	m.SetTemperature(now)
	m.SetMte(t.mte)
	if t.mte {
		if int16(now) > int16(t.highest) {
			t.highest = now
		}
		m.SetMaxTemperature(t.highest)
	}
	m.SetTee(t.tee)
	m.SetTempThresholdHi(t.hi)
	m.SetTempThresholdLo(t.lo)
	m.SetSensorNameHi(binary.BigEndian.Uint32([]byte(sensorName)))
	return syndOK
}

func writeMTMP(f *function, img []byte) synd {
	m := prm.AsMtmpReg(img)
	switch m.SensorIndex() {
	case 0:
	case moduleSensors:
		return syndOK
	default:
		return syndRegisterIndex
	}
	t := &f.regs.heat
	if m.Mte() && !t.mte || m.Mtr() {
		t.highest = f.temperature()
	}
	t.mte, t.tee = m.Mte(), m.Tee()
	if m.TempThresholdHi() != 0 {
		t.hi, t.lo = m.TempThresholdHi(), m.TempThresholdLo()
	}
	return syndOK
}

func readMPEIN(f *function, img []byte) synd {
	m := prm.AsMpeinReg(img)
	depth, index, node := m.Depth(), m.PCIEIndex(), m.Node()
	if depth != 0 || index != 0 || node != 0 {
		return syndRegisterIndex // the model has one endpoint
	}
	*m = prm.MpeinReg{}
	p := f.chip.prof
	status := binary.LittleEndian.Uint16(f.cfg.b[capPCIe+0x12:])
	m.SetLinkWidthEnabled(uint8(p.linkWidth))
	m.SetLinkSpeedEnabled(1<<p.linkSpeed - 1)
	m.SetLinkWidthActive(uint8(status >> 4 & 0x3f))
	m.SetLinkSpeedActive(1 << (status&0xf - 1))
	m.SetNumOfPfs(uint16(len(f.chip.funcs)))
	control := binary.LittleEndian.Uint16(f.cfg.b[capPCIe+0x08:])
	m.SetMaxReadRequestSize(uint8(control >> 12 & 7))
	m.SetMaxPayloadSize(uint8(control >> 5 & 7))
	m.SetPwrStatus(powerSufficient)
	m.SetPCIPower(boardWatts)
	if x := f.chip.faults.find("slot-power"); x != nil {
		m.SetPCIPower(uint16(x.n))
		if x.n < boardWatts {
			m.SetPwrStatus(powerInsufficient)
		}
	}
	return syndOK
}

// Values of pwr_status.
const (
	powerSufficient   = 1
	powerInsufficient = 2
)

// degradeLink shows the PCIe link that a fault trained down, in configuration
// space as in MPEIN.
func (f *function) degradeLink() {
	if x := f.chip.faults.find("pcie-link"); x != nil {
		f.cfg.put16(capPCIe+0x12, uint16(1<<12|x.n), 0)
	}
}

// environmentFaults are what a board suffers from that its firmware only reports.
func environmentFaults() []faultKind {
	kind := func(name, arg, meaning string, parse func(*fault, string) error, now func(*Chip, *fault)) faultKind {
		return faultKind{Fault: Fault{name, arg, meaning}, parse: parse, now: now}
	}
	return []faultKind{
		kind("temperature", "CELSIUS", "the sensor reads so many degrees; at its threshold (105) a warning event comes", parseCelsius, warnHeat),
		kind("pcie-link", "GENxLANES", "the PCIe link trained to another generation and width, such as 1x4", parseLink, trainLink),
		kind("slot-power", "WATTS", "the slot gives so many watts, insufficient below "+strconv.Itoa(boardWatts)+"; an event tells", parseNumber(12), changePower),
	}
}

func parseCelsius(x *fault, arg string) error {
	v, err := strconv.ParseFloat(arg, 64)
	if err != nil || !(v >= -273 && v <= 1000) {
		return fmt.Errorf("%q is no temperature", arg)
	}
	x.celsius = v
	return nil
}

func parseLink(x *fault, arg string) error {
	g, l, _ := strings.Cut(arg, "x")
	gen, err1 := strconv.ParseUint(g, 10, 4)
	lanes, err2 := strconv.ParseUint(l, 10, 6)
	if err1 != nil || err2 != nil || gen < 1 || gen > 6 || lanes < 1 || lanes > 32 || lanes&(lanes-1) != 0 {
		return fmt.Errorf("%q is no link", arg)
	}
	x.n = int(lanes<<4 | gen)
	return nil
}

func trainLink(c *Chip, _ *fault) {
	for _, f := range c.funcs {
		f.degradeLink()
	}
}

// warnHeat posts the event of a sensor at its threshold; bit 0 is the sensor.
func warnHeat(c *Chip, _ *fault) {
	for _, f := range c.funcs {
		eq := f.eventEQ(prm.EventTempWarn)
		if eq == nil || int16(f.temperature()) < int16(f.regs.heat.hi) {
			continue
		}
		var ev prm.EQE
		ev.SetEventType(prm.EventTempWarn)
		ev.EventData().TempWarningEvent().SetSensorWarningLsb(1)
		f.postEQE(eq, &ev)
	}
}

func changePower(c *Chip, _ *fault) {
	for _, f := range c.funcs {
		f.generalEvent(prm.GeneralEventPCIPowerChange, nil)
	}
}

// generalEvent posts a general notification to whoever listens.
func (f *function) generalEvent(sub prm.GeneralEventSubtype, fill func(*prm.EventAuto)) bool {
	eq := f.eventEQ(prm.EventGeneral)
	if eq == nil {
		return false
	}
	var ev prm.EQE
	ev.SetEventType(prm.EventGeneral)
	ev.SetEventSubType(uint8(sub))
	if fill != nil {
		fill(ev.EventData())
	}
	f.postEQE(eq, &ev)
	return true
}
