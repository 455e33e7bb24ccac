package health

import (
	"fmt"
	"time"
)

// environmentWatch turns what the prober brought into conditions.
type environmentWatch struct {
	last   *EnvironmentReport // never changed once it is here
	errors seenAt             // AER counters have grown
	grown  uint64
}

// take enters a report.
func (e *environmentWatch) take(r *EnvironmentReport, now time.Duration) {
	if was, is := e.aer(), (&environmentWatch{last: r}).aer(); was != nil && is != nil {
		if a, b := was.uncorrectable(), is.uncorrectable(); b > a {
			e.errors.mark(now)
			e.grown += b - a
		}
	}
	e.last = r
}

func (e *environmentWatch) aer() *AER {
	if e.last == nil || e.last.Host == nil {
		return nil
	}
	return e.last.Host.AER
}

// hot tells whether the ASIC is at its high threshold; one of 0 is none.
func (t *Temperature) hot() bool { return t != nil && t.High > 0 && t.Celsius >= t.High }

// condition is what the environment says, OK for nothing.
func (e *environmentWatch) condition(now, hold time.Duration) Condition {
	switch {
	case e.errors.holds(now, hold):
		return PCIeErrors
	case e.last == nil:
		return OK
	case e.last.Temperature.hot():
		return HighTemperature
	case e.last.PCIe != nil && e.last.PCIe.Power == "insufficient":
		return InsufficientPower
	}
	return OK
}

func (e *environmentWatch) explain(c Condition) string {
	switch c {
	case PCIeErrors:
		return fmt.Sprintf("%d uncorrectable PCIe errors were counted while watching", e.grown)
	case HighTemperature:
		t := e.last.Temperature
		return fmt.Sprintf("the ASIC is at %.1f °C, its high threshold is %.1f °C", t.Celsius, t.High)
	}
	return fmt.Sprintf("the PCIe slot gives %d W, which is less than the adapter wants", e.last.PCIe.PowerWatts)
}
