package sim

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// Fault describes a fault that can be raised with SetFault, a fault= word of the
// device name, or tell.
type Fault struct {
	Name    string `json:"name"`
	Arg     string `json:"arg"` // grammar of the argument; empty where there is none
	Meaning string `json:"meaning"`
}

// Selector of the command faults: which commands, and which of them.
const selector = "[OPCODE][#N|%P]"

// faultTable lists the faults. parse fills in the fault; now acts on a chip that
// is running.
var faultTable []faultKind

type faultKind struct {
	Fault
	parse func(x *fault, arg string) error
	now   func(c *Chip, x *fault)
	// command says that the fault acts on commands that its selector matches.
	command bool
}

func init() {
	kind := func(name, arg, meaning string, parse func(*fault, string) error, now func(*Chip, *fault)) faultKind {
		return faultKind{Fault: Fault{name, arg, meaning}, parse: parse, now: now}
	}
	command := func(name, arg, meaning string, parse func(*fault, string) error) faultKind {
		k := kind(name, arg, meaning, parse, nil)
		k.command = true
		return k
	}
	faultTable = []faultKind{
		command("late", selector+"=DURATION", "matching commands complete that much later", parseLate),
		command("lost", selector, "matching commands are taken and never complete", parseSelector),
		command("duplicate", selector, "the completion event of matching commands is written twice", parseSelector),
		command("lost-event", selector, "matching commands complete, but their event is never written", parseSelector),
		command("token", selector, "matching commands come back with another token in entry and mailboxes", parseSelector),
		command("signature", selector, "matching commands come back with a wrong signature", parseSelector),
		command("delivery", selector+"=STATUS", "matching commands are not executed and come back with a delivery status (name or number)", parseDelivery),
		command("status", selector+"=STATUS[/SYNDROME]", "matching commands are refused with a command status (name or number) and syndrome", parseStatus),
		kind("reorder", "", "slots handed over by one doorbell complete in random order", parseNothing, nil),
		kind("lost-irq", "[VECTOR][#N]", "interrupts of the vector (all without one) are not raised, or only the n-th", parseIRQ, nil),
		kind("init-never", "", "firmware never leaves initializing", parseNothing, nil),
		kind("init-slow", "DURATION", "firmware stays initializing that long after a reset and after the queue is published", parseDuration, nil),
		kind("cmdif-rev", "N", "the command interface has revision N", parseNumber(16), nil),
		kind("issi", "MASK", "QUERY_ISSI offers only the ISSIs of this bit mask (0 offers none)", parseNumber(32), nil),
		kind("page-starvation", "[N]", "firmware asks for N more init pages (default 64) however many it was given, and INIT_HCA is refused", parseOptNumber(64), nil),
		kind("pages-kept", "[N]", "firmware keeps N pages (default all) when pages are taken back", parseOptNumber(1<<31), nil),
		kind("pages-more", "N", "firmware asks for N more pages at run time: now, or as soon as an event queue listens", parseNumber(31), morePages(1)),
		kind("pages-negative", "N", "firmware offers N pages back at run time: now, or as soon as an event queue listens", parseNumber(31), morePages(-1)),
		kind("all-ones", "[N|DURATION][+heal=RUNG]", "every read gives all ones and writes vanish, at once or from the n-th BAR access or a time on, until the fault is cleared or a reset that reaches so far", parseAllOnes, startAllOnes),
		kind("rogue", "[deaf]", "once it should be silent (bus mastering off, reset, closed) the device keeps trying to write to every page it has used; deaf ignores the bus-master bit", parseRogue, startRogue),
	}
	faultTable = slices.Concat(faultTable, healthFaults(), resetFaults(), vscFaults(), environmentFaults(), dataFaults(), tracerFaults())
}

// Faults lists the faults by name.
func Faults() []Fault {
	var l []Fault
	for i := range faultTable {
		l = append(l, faultTable[i].Fault)
	}
	return l
}

// fault is one raised fault.
type fault struct {
	kind *faultKind
	arg  string

	op       prm.Opcode // of a selector; anyOp for all
	nth      int        // of a selector; 0 for each
	percent  float64    // of a selector: how many, by chance; 0 for each
	seen     int
	delay    time.Duration
	delivery prm.DeliveryStatus
	status   prm.CommandStatus
	syndrome uint32
	n        int
	hasN     bool
	vector   int
	from     uint64 // access count
	at       time.Duration
	done     map[*function]bool

	celsius float64
	mfrl    prm.MFRLResetState

	ill    illArgs
	begun  bool // its time runs
	struck bool
	healed bool
}

const anyOp = prm.Opcode(0xffff)

func faultNames() []string {
	var n []string
	for i := range faultTable {
		n = append(n, faultTable[i].Name)
	}
	return n
}

// parseFault checks a name and its argument.
func parseFault(name, arg string) (*fault, error) {
	i := slices.IndexFunc(faultTable, func(k faultKind) bool { return k.Name == name })
	if i < 0 {
		return nil, &UsageError{Word: name, What: "fault", Known: faultNames()}
	}
	k := &faultTable[i]
	x := &fault{kind: k, arg: arg, op: anyOp, vector: -1, done: map[*function]bool{}}
	if err := k.parse(x, arg); err != nil {
		why := err.Error() + ", want " + name
		if k.Arg != "" {
			why += "@" + k.Arg
		}
		u := &UsageError{Word: FaultSpec{name, arg}.String(), What: "fault", Why: why}
		if n := (*nameError)(nil); errors.As(err, &n) {
			u.Known = n.names()
		}
		return nil, u
	}
	return x, nil
}

// nameError is a word that is neither a number nor a name of an enumeration;
// value 0 of each is no error and not among the names.
type nameError struct {
	word, what string
	enum       *prm.Enum
}

func (e *nameError) Error() string { return fmt.Sprintf("%q is no %s", e.word, e.what) }

func (e *nameError) names() (l []string) {
	for _, v := range e.enum.Values {
		if v.Value != 0 {
			l = append(l, v.Name)
		}
	}
	return l
}

func parseNothing(_ *fault, arg string) error {
	if arg != "" {
		return fmt.Errorf("it takes no argument")
	}
	return nil
}

// parseSelector reads [OPCODE][#N|%P].
func parseSelector(x *fault, arg string) error {
	op, part, chance := strings.Cut(arg, "%")
	if chance {
		p, err := strconv.ParseFloat(part, 64)
		if err != nil || !(p > 0 && p <= 100) {
			return fmt.Errorf("%q is no percentage above 0 and up to 100", part)
		}
		x.percent = p
	}
	op, nth, ok := strings.Cut(op, "#")
	if ok {
		n, err := strconv.Atoi(nth)
		if err != nil || n < 1 {
			return fmt.Errorf("%q is no count", nth)
		}
		if chance {
			return fmt.Errorf("%q is a count and a percentage; give one of them", arg)
		}
		x.nth = n
	}
	if op == "" {
		return nil
	}
	if c := prm.CommandByName(op); c != nil {
		x.op = c.Opcode
		return nil
	}
	n, err := strconv.ParseUint(op, 0, 16)
	if err != nil {
		return fmt.Errorf("%q is no command (a name such as QUERY_PAGES, or a number)", op)
	}
	x.op = prm.Opcode(n)
	return nil
}

func parseLate(x *fault, arg string) error {
	sel, val, _ := strings.Cut(arg, "=")
	if !strings.Contains(arg, "=") {
		sel, val = "", arg
	}
	if err := parseDuration(x, val); err != nil {
		return err
	}
	return parseSelector(x, sel)
}

func parseDuration(x *fault, arg string) error {
	d, err := time.ParseDuration(arg)
	if err != nil || d <= 0 {
		return fmt.Errorf("%q is no duration", arg)
	}
	x.delay = d
	return nil
}

// parseNumber reads a number of so many bits.
func parseNumber(bits int) func(*fault, string) error {
	return func(x *fault, arg string) error {
		n, err := strconv.ParseUint(arg, 0, bits)
		if err != nil {
			return fmt.Errorf("%q is no number of %d bits", arg, bits)
		}
		x.n, x.hasN = int(n), true
		return nil
	}
}

func parseOptNumber(def int) func(*fault, string) error {
	return func(x *fault, arg string) error {
		x.n = def
		if arg == "" {
			return nil
		}
		return parseNumber(31)(x, arg)
	}
}

func parseIRQ(x *fault, arg string) error {
	v, nth, ok := strings.Cut(arg, "#")
	if ok {
		if err := parseSelector(x, "#"+nth); err != nil {
			return err
		}
	}
	if v == "" {
		return nil
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < 0 || n >= msixVectors {
		return fmt.Errorf("%q is no vector below %d", v, msixVectors)
	}
	x.vector = n
	return nil
}

func parseDelivery(x *fault, arg string) error {
	sel, val, _ := strings.Cut(arg, "=")
	if d, ok := prm.ParseDeliveryStatus(val); ok {
		x.delivery = d
	} else if n, err := strconv.ParseUint(val, 0, 7); err == nil {
		x.delivery = prm.DeliveryStatus(n)
	}
	if x.delivery == prm.DeliveryOK {
		return &nameError{val, "delivery status of an error", prm.DeliveryStatusEnum}
	}
	return parseSelector(x, sel)
}

func parseStatus(x *fault, arg string) error {
	sel, val, _ := strings.Cut(arg, "=")
	val, synd, hasSynd := strings.Cut(val, "/")
	if s, ok := prm.ParseCommandStatus(val); ok {
		x.status = s
	} else if n, err := strconv.ParseUint(val, 0, 8); err == nil {
		x.status = prm.CommandStatus(n)
	}
	if x.status == prm.StatusOK {
		return &nameError{val, "command status of an error", prm.CommandStatusEnum}
	}
	if hasSynd {
		n, err := strconv.ParseUint(synd, 0, 32)
		if err != nil {
			return fmt.Errorf("%q is no syndrome", synd)
		}
		x.syndrome = uint32(n)
	}
	return parseSelector(x, sel)
}

func parseAllOnes(x *fault, arg string) error {
	arg, heal, has := strings.Cut(arg, "heal=")
	if has {
		if err := x.ill.word("heal="+heal, illArgs{heal: rungFLR}); err != nil {
			return err
		}
		arg = strings.TrimSuffix(arg, "+")
	}
	if arg == "" {
		return nil
	}
	if parseDuration(x, arg) == nil {
		return nil
	}
	return parseNumber(31)(x, arg)
}
