package litmus

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/mlxvfio/mlxvfio/atomics"
)

// Verdict is the outcome of one row.
type Verdict string

// The verdicts.
const (
	// Holds: nothing contradicted the guarantee.
	Holds Verdict = "holds"
	// Broken: the device contradicted a guarantee it gives.
	Broken Verdict = "broken"
	// Seen and NotSeen are about behaviour that no guarantee excludes.
	Seen    Verdict = "seen"
	NotSeen Verdict = "not seen"
	// NotOffered: the device has no such operation, or the Rig no such part.
	NotOffered Verdict = "not offered"
	// NoTime: the budget ended before the test began.
	NoTime Verdict = "no time"
)

// The groups of tests, in their order.
const (
	testProbe      = "probe"
	testOperations = "operations"
	testAdds       = "adds"
	testMutex      = "mutex"
	testLinear     = "linear"
	testTorn       = "torn"
	testOrder      = "order"
)

// Row is one line of the card.
type Row struct {
	// Test is the group, Guarantee what is tried, Subject on what.
	Test      string `json:"test"`
	Guarantee string `json:"guarantee"`
	Subject   string `json:"subject"`
	// Required tells a guarantee from an observation.
	Required bool    `json:"required"`
	Verdict  Verdict `json:"verdict"`
	// Ops is the number of operations that took part.
	Ops int `json:"ops"`
	// Fault names what is broken, Detail shows it, or says what was seen.
	Fault  atomics.Fault `json:"fault,omitempty"`
	Detail string        `json:"detail,omitempty"`
}

// Card is what a run found out about a device.
type Card struct {
	Rig           string          `json:"rig"`
	Seed          uint64          `json:"seed"`
	Hosts         int             `json:"hosts"`
	Queues        int             `json:"queues"`
	MaxAtomicSize int             `json:"max_atomic_size"`
	MaxWrite      int             `json:"max_atomic_write"`
	Profile       atomics.Profile `json:"profile"`
	Rows          []Row           `json:"rows"`
	// OK: every required row held. Faults are those of broken rows.
	OK     bool            `json:"ok"`
	Faults []atomics.Fault `json:"faults,omitempty"`
	Ops    int             `json:"ops"`
}

// broken tells whether a row of a group is broken that keep accepts.
func (c *Card) broken(test string, keep func(Row) bool) bool {
	return slices.ContainsFunc(c.Rows, func(r Row) bool { return r.Test == test && r.Verdict == Broken && keep(r) })
}

// blame gives rows whose contradiction has several possible causes the one that
// simpler tests have shown: a single operation that is wrong explains all that
// follows; where atomics alone lose updates, no order can explain a history; where
// they do not, and writes are torn, semaphores released by WRITE and histories with
// WRITEs break by that.
func (c *Card) blame(sequential atomics.Fault) {
	every := func(Row) bool { return true }
	cause := sequential
	lost := c.broken(testAdds, every) || c.broken(testMutex, func(r Row) bool { return strings.Contains(r.Subject, byCAS) })
	switch {
	case cause != atomics.NoFault:
	case lost:
		cause = atomics.FaultLostUpdate
	case c.broken(testTorn, every):
		cause = atomics.FaultTornWrite
	default:
		return
	}
	for i := range c.Rows {
		r := &c.Rows[i]
		concurrent := r.Test == testMutex || r.Test == testLinear || sequential != atomics.NoFault && r.Test != testProbe && r.Test != testOperations
		if r.Verdict == Broken && concurrent && r.Fault != cause {
			r.Detail += fmt.Sprintf("; taken for %s, which other tests show", cause)
			r.Fault = cause
		}
	}
}

// finish sums the rows up.
func (c *Card) finish() {
	c.OK, c.Faults, c.Ops = len(c.Rows) > 0, nil, 0
	held := false
	for _, r := range c.Rows {
		c.Ops += r.Ops
		held = held || r.Verdict == Holds
		if r.Verdict != Broken {
			continue
		}
		c.OK = false
		if r.Fault != atomics.NoFault && !slices.Contains(c.Faults, r.Fault) {
			c.Faults = append(c.Faults, r.Fault)
		}
	}
	c.OK = c.OK && held
}

// Err is nil if the card is good, and else names what is broken.
func (c *Card) Err() error {
	if c.OK {
		return nil
	}
	var errs []error
	for _, r := range c.Rows {
		if r.Verdict == Broken {
			errs = append(errs, &atomics.FaultError{Fault: r.Fault, Where: r.Guarantee + ", " + r.Subject, Detail: r.Detail})
		}
	}
	if len(errs) == 0 {
		return errors.New("litmus: no guarantee could be tried; give it a device with atomics and more time")
	}
	return errors.Join(errs...)
}

// Columns is the row as text: test, guarantee, subject, verdict, operations, detail.
func (r Row) Columns() []string {
	v := string(r.Verdict)
	if r.Fault != atomics.NoFault {
		v += ": " + string(r.Fault)
	}
	return []string{r.Test, r.Guarantee, r.Subject, v, fmt.Sprint(r.Ops), r.Detail}
}
