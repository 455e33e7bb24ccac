package sim

import (
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strconv"
	"strings"
)

// PortType is the link layer of the function's port.
type PortType uint8

// Port types; the zero value is the profile's own.
const (
	PortDefault PortType = iota
	PortIB
	PortEth
)

func (p PortType) String() string {
	switch p {
	case PortIB:
		return "ib"
	case PortEth:
		return "eth"
	}
	return "default"
}

// Version is a firmware version.
type Version struct{ Major, Minor, Sub uint16 }

func (v Version) String() string { return fmt.Sprintf("%d.%d.%d", v.Major, v.Minor, v.Sub) }

// FaultSpec is a fault to raise: its name and argument, see Faults.
type FaultSpec struct{ Name, Arg string }

func (f FaultSpec) String() string {
	if f.Arg == "" {
		return f.Name
	}
	return f.Name + "@" + f.Arg
}

// Options describe a chip. The zero value is a healthy cx5 with an InfiniBand
// port that answers at once.
type Options struct {
	// Profile names a device of Profiles; empty is DefaultProfile.
	Profile string
	// Port is the link layer; PortDefault is the profile's.
	Port PortType
	// Firmware replaces the profile's firmware version; zero keeps it.
	Firmware Version
	// Faults are raised from the start.
	Faults []FaultSpec
	// Load is how busy firmware is, in commands a second and in messages of its
	// trace a second: each command takes a random time of mean 1/Load, so that
	// commands complete out of order, and while a function traces, messages of
	// known content (LoadMessage) come at that rate. 0 answers on the doorbell and
	// traces only what firmware does.
	Load float64
	// Seed decides every random choice.
	Seed uint64
	// Functions of the chip; 0 is one.
	Functions int
	// SharedDomain attaches all functions to one I/O address space, as functions
	// in one VFIO container are; otherwise each has its own.
	SharedDomain bool
	// Clock is the time the chip lives in. nil is the wall clock, which works
	// under testing/synctest; a *ManualClock moves only by Chip.Advance. Any other
	// is looked at every millisecond.
	Clock Clock
	// Logger receives each command at debug level and faults at info level; nil
	// is silent.
	Logger *slog.Logger
}

// DefaultProfile is the device of the bare word "sim".
const DefaultProfile = "cx5"

// UsageError is a word of the SIM grammar that the model does not know. Known
// lists what could have stood there.
type UsageError struct {
	Word  string   // the offending word
	What  string   // what it was taken for: "profile", "fault", "word", "port"…
	Why   string   // why it is refused, when the name alone does not say
	Known []string // what exists
}

func (e *UsageError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "simulated device: unknown %s %q", e.What, e.Word)
	if e.Why != "" {
		b.Reset()
		fmt.Fprintf(&b, "simulated device: bad %s %q: %s", e.What, e.Word, e.Why)
	}
	if len(e.Known) > 0 {
		b.WriteString("; there are: ")
		b.WriteString(strings.Join(e.Known, ", "))
	}
	return b.String()
}

// Word is a word of the SIM grammar behind the profile, NAME=VALUE.
type Word struct {
	Name    string // what stands before the equals sign
	Value   string // what stands behind it: alternatives (ib|eth), or what to put there (X.Y.Z)
	Meaning string
	Repeat  bool // it may be given more than once
}

// String is the word as help texts show it, "port=ib|eth".
func (w Word) String() string { return w.Name + "=" + w.Value }

// words are those that Parse knows; their order is that of Options.String.
var words = []Word{
	{"port", "ib|eth", "link layer of the port", false},
	{"fw", "X.Y.Z", "firmware version", false},
	{"fault", "NAME[@ARG]", "raise a fault from the start; may be repeated", true},
	{"load", "RATE", "firmware is at work: it serves RATE commands a second, out of order, and writes RATE messages a second into its trace", false},
	{"seed", "N", "number that decides every random choice", false},
}

// Words lists the words of the SIM grammar; the profile, which has no name in
// it, is not among them. The slice is the caller's.
func Words() []Word { return slices.Clone(words) }

// grammar lists what may stand in a SIM word, for errors.
func grammar() []string {
	g := []string{"PROFILE"}
	for _, w := range words {
		g = append(g, w.String())
	}
	return g
}

// Parse reads a device of the command line's grammar,
// sim[:PROFILE][,port=ib|eth][,fw=X.Y.Z][,fault=NAME[@ARG]]…[,load=RATE][,seed=N].
// The leading "sim" may be missing. A word, profile or fault that does not exist
// is a *UsageError.
func Parse(s string) (Options, error) {
	var o Options
	rest := s
	switch {
	case rest == "sim" || rest == "":
		return o, nil
	case strings.HasPrefix(rest, "sim:"), strings.HasPrefix(rest, "sim,"):
		rest = rest[len("sim:"):]
	}
	for i, w := range strings.Split(rest, ",") {
		key, val, ok := strings.Cut(w, "=")
		if !ok {
			if i != 0 || w == "" {
				return Options{}, &UsageError{Word: w, What: "word", Known: grammar()}
			}
			o.Profile = w
			continue
		}
		if err := o.word(key, val); err != nil {
			return Options{}, err
		}
	}
	if err := o.check(); err != nil {
		return Options{}, err
	}
	return o, nil
}

func (o *Options) word(key, val string) error {
	bad := func(why string) error { return &UsageError{Word: key + "=" + val, What: "word", Why: why} }
	switch key {
	case "port":
		switch val {
		case "ib":
			o.Port = PortIB
		case "eth":
			o.Port = PortEth
		default:
			return &UsageError{Word: val, What: "port", Known: []string{"ib", "eth"}}
		}
	case "fw":
		v, err := ParseVersion(val)
		if err != nil {
			return bad("want three numbers up to 65535, X.Y.Z")
		}
		o.Firmware = v
	case "fault":
		name, arg, _ := strings.Cut(val, "@")
		o.Faults = append(o.Faults, FaultSpec{name, arg})
	case "load":
		r, err := strconv.ParseFloat(val, 64)
		if err != nil || !(r > 0) || math.IsInf(r, 0) {
			return bad("want a positive number of commands a second")
		}
		o.Load = r
	case "seed":
		n, err := strconv.ParseUint(val, 0, 64)
		if err != nil {
			return bad("want a number of 64 bits")
		}
		o.Seed = n
	default:
		return &UsageError{Word: key, What: "word", Known: grammar()}
	}
	return nil
}

// check refuses what New could not build.
func (o *Options) check() error {
	if _, err := profileByName(o.profileName()); err != nil {
		return err
	}
	for _, f := range o.Faults {
		if _, err := parseFault(f.Name, f.Arg); err != nil {
			return err
		}
	}
	if o.Functions < 0 || o.Functions > maxFunctions {
		return &UsageError{Word: strconv.Itoa(o.Functions), What: "number of functions",
			Why: fmt.Sprintf("a chip has 1 to %d", maxFunctions)}
	}
	return nil
}

func (o *Options) profileName() string {
	if o.Profile == "" {
		return DefaultProfile
	}
	return o.Profile
}

// ParseVersion reads X.Y.Z.
func ParseVersion(s string) (Version, error) {
	p := strings.Split(s, ".")
	if len(p) != 3 {
		return Version{}, fmt.Errorf("firmware version %q: want X.Y.Z", s)
	}
	var n [3]uint16
	for i := range p {
		v, err := strconv.ParseUint(p[i], 10, 16)
		if err != nil {
			return Version{}, fmt.Errorf("firmware version %q: %w", s, err)
		}
		n[i] = uint16(v)
	}
	return Version{n[0], n[1], n[2]}, nil
}

// String gives the options back in the grammar of Parse.
func (o Options) String() string {
	w := []string{"sim:" + o.profileName()}
	if o.Port != PortDefault {
		w = append(w, "port="+o.Port.String())
	}
	if o.Firmware != (Version{}) {
		w = append(w, "fw="+o.Firmware.String())
	}
	for _, f := range o.Faults {
		w = append(w, "fault="+f.String())
	}
	if o.Load > 0 {
		w = append(w, "load="+strconv.FormatFloat(o.Load, 'g', -1, 64))
	}
	if o.Seed != 0 {
		w = append(w, "seed="+strconv.FormatUint(o.Seed, 10))
	}
	return strings.Join(w, ",")
}

// Profiles names the devices that exist.
func Profiles() []string {
	var n []string
	for _, p := range profiles {
		n = append(n, p.name)
	}
	slices.Sort(n)
	return n
}

// ProfileDevice is the PCI device id that the functions of a profile show; ok is
// false where there is no such profile.
func ProfileDevice(name string) (id uint16, ok bool) {
	p, err := profileByName(name)
	if err != nil {
		return 0, false
	}
	return p.deviceID, true
}

func profileByName(name string) (*profile, error) {
	for _, p := range profiles {
		if p.name == name {
			return p, nil
		}
	}
	return nil, &UsageError{Word: name, What: "profile", Known: Profiles()}
}
