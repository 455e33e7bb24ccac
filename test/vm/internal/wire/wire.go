// Package wire is what the two halves of the real-kernel bench, vmrun on the host and /init in the guest, say to each
// other: the words of the kernel command line one way, lines of JSON on the second serial port the other way. On that
// port the host answers, and does so only when it is asked.
package wire

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Status of a check.
type Status string

// A check passed, failed, or could not be made because the thing it is about is legitimately not there.
const (
	Pass Status = "pass"
	Fail Status = "fail"
	Skip Status = "skip"
)

// Kind of a message.
type Kind string

// What the guest reports.
const (
	KindCheck Kind = "check" // Name, Status, Detail
	KindStep  Kind = "step"  // Name: what is being done, to blame when it never ends
	KindFile  Kind = "file"  // Name, Detail: text to keep beside the result
	KindAsk   Kind = "ask"   // Name: a model, by its ModelName; Detail: words for it, as "mlxvfio tell" takes them
	KindEnd   Kind = "end"   // every scenario was run
)

// KindAnswer is the host's answer to KindAsk: Name, Status; Detail is what the model said, or what went wrong.
const KindAnswer Kind = "answer"

// ModelName is the name of the model of a function, counted from 0.
func ModelName(i int) string { return fmt.Sprintf("model%d", i) }

// Message is one line on the report port.
type Message struct {
	Kind   Kind   `json:"kind"`
	Name   string `json:"name,omitempty"`
	Status Status `json:"status,omitempty"`
	Detail string `json:"detail,omitempty"`
}

// Marker begins every line of the bench on the guest's console, where the kernel's own lines stand too.
const Marker = "=== VM "

// Console renders m as one console line; files are named, not printed.
func (m Message) Console() string {
	detail := strings.ReplaceAll(strings.TrimSpace(m.Detail), "\n", `\n`)
	switch m.Kind {
	case KindCheck:
		return strings.TrimSpace(fmt.Sprintf("%scheck %s %s %s", Marker, m.Name, m.Status, detail))
	case KindAsk:
		return fmt.Sprintf("%sask %s %s", Marker, m.Name, detail)
	case KindFile:
		return fmt.Sprintf("%sfile %s %d bytes", Marker, m.Name, len(m.Detail))
	default:
		return strings.TrimSpace(fmt.Sprintf("%s%s %s", Marker, m.Kind, m.Name))
	}
}

// Line is m as the report port carries it.
func (m Message) Line() ([]byte, error) {
	b, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	return append(b, '\n'), nil
}

// Run tells the guest what to do.
type Run struct {
	Scenarios []string      // in order
	Models    []Model       // the ConnectX functions that must be there, in the order of their addresses
	Limit     time.Duration // the guest gives up, reports and powers off after this
	HugePages int           // 2 MiB pages to reserve
	Backend   string        // the way into VFIO that the program must take: type1, iommufd or noiommu
}

// Model is a function's device model, as the host knows it.
type Model struct {
	Words    string // that it was started with
	Firmware string // the version it says it has
}

const (
	prefix = "mlxvfio."
	// separators of models, and in front of the version, where the last one counts
	nextModel, nextWord = ";", "/"
)

// Words are the kernel command line words for r. The kernel takes a word with a dot for a parameter of a module and
// leaves it alone.
func (r Run) Words() string {
	var models []string
	for _, m := range r.Models {
		models = append(models, m.Words+nextWord+m.Firmware)
	}
	return fmt.Sprintf("%[1]sscenarios=%[2]s %[1]slimit=%[3]s %[1]shugepages=%[4]d %[1]smodels=%[5]s %[1]sbackend=%[6]s",
		prefix, strings.Join(r.Scenarios, ","), r.Limit, r.HugePages, strings.Join(models, nextModel), r.Backend)
}

// ParseRun finds the words of Run.Words in a kernel command line.
func ParseRun(cmdline string) (Run, error) {
	var r Run
	for _, w := range strings.Fields(cmdline) {
		key, value, ok := strings.Cut(strings.TrimPrefix(w, prefix), "=")
		if !ok || !strings.HasPrefix(w, prefix) {
			continue
		}
		var err error
		switch key {
		case "scenarios":
			r.Scenarios = strings.Split(value, ",")
		case "limit":
			r.Limit, err = time.ParseDuration(value)
		case "hugepages":
			r.HugePages, err = strconv.Atoi(value)
		case "models":
			r.Models, err = parseModels(value)
		case "backend":
			r.Backend = value
		default:
			err = fmt.Errorf("no such word")
		}
		if err != nil {
			return Run{}, fmt.Errorf("kernel command line word %q: %w", w, err)
		}
	}
	if len(r.Scenarios) == 0 || r.Limit <= 0 {
		return Run{}, fmt.Errorf("kernel command line %q names no scenarios or no limit", cmdline)
	}
	return r, nil
}

func parseModels(value string) (out []Model, err error) {
	if value == "" {
		return nil, nil
	}
	for _, m := range strings.Split(value, nextModel) {
		i := strings.LastIndex(m, nextWord)
		if i <= 0 || i == len(m)-len(nextWord) {
			return nil, fmt.Errorf("model %q: want WORDS%sFIRMWARE", m, nextWord)
		}
		out = append(out, Model{m[:i], m[i+len(nextWord):]})
	}
	return out, nil
}
