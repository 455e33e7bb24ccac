package trace

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
)

// FtraceLine is one message of the kernel's mlx5_fw tracepoint, as found in pasted
// text, or of a line that AppendLine has written.
type FtraceLine struct {
	Line    int          `json:"line"`              // of the text, from 1
	Host    uint64       `json:"host_ns,omitempty"` // time of the kernel in ns, 0 if the line has none
	Device  string       `json:"device,omitempty"`
	Time    uint64       `json:"timestamp"` // as printed
	Lost    bool         `json:"lost"`
	EventID uint8        `json:"event_id"`
	Text    string       `json:"text"` // as printed; the kernel escapes nothing
	Epoch   EpochVerdict `json:"epoch"`
	// Corrected is the time with the kernel's mistake undone: 128 ticks before Time
	// where Epoch is EpochWrong, Time otherwise.
	Corrected uint64 `json:"corrected"`
}

// EpochVerdict says whether a printed time can be believed. Linux gives a message the epoch
// of its timestamp event when it should be the one before (the stamp is not smaller
// than the timestamp's low bits); the text does not hold the timestamp event, but the
// mistake shows when a line of the same epoch and a smaller stamp follows.
type EpochVerdict uint8

const (
	EpochUnproven  EpochVerdict = iota // nothing in the text speaks against the time
	EpochSuspect                       // a step back of up to 64 ticks follows: the epoch is wrong, or messages were completed in another order
	EpochWrong                         // a step back of more follows: 128 ticks late
	EpochStampLost                     // lines in a row with the same time and all low bits set: a kernel before 6.1, which loses the stamp
)

var epochNames = [...]string{"unproven", "suspect", "wrong", "stamp_lost"}

// String is unproven, suspect, wrong or stamp_lost.
func (e EpochVerdict) String() string {
	if int(e) < len(epochNames) {
		return epochNames[e]
	}
	return "invalid"
}

// MarshalText is String, for JSON.
func (e EpochVerdict) MarshalText() ([]byte, error) { return []byte(e.String()), nil }

// FtraceStats say what the text held.
type FtraceStats struct {
	Lines     int `json:"lines"`
	Messages  int `json:"messages"`
	Malformed int `json:"malformed"` // lines of the tracepoint that are not as it prints them
	Other     int `json:"other"`     // lines of something else
	Suspect   int `json:"suspect_epochs"`
	Wrong     int `json:"wrong_epochs"`
	StampLost int `json:"lost_stamps"`
}

// FtraceError says where reading stopped; what was read before is good.
type FtraceError struct {
	Line int // that could not be read
	Err  error
}

func (e *FtraceError) Error() string { return fmt.Sprintf("trace: line %d: %v", e.Line, e.Err) }
func (e *FtraceError) Unwrap() error { return e.Err }

// ftraceMaxLine is the longest line: the kernel prints at most 512 bytes of a message.
const ftraceMaxLine = 1 << 20

var (
	ftraceTag  = regexp.MustCompile(`(?:^|\s)(?:mlx5_fw|fw_tracer): `)
	ftraceBody = regexp.MustCompile(`^(?:([!-~]+) )?\[0x([0-9a-fA-F]{1,16})\] ([01]) \[0x([0-9a-fA-F]{1,2})\](?: (.*))?$`)
	ftraceHost = regexp.MustCompile(`(?:^|\s)(\d{1,9})\.(\d{1,9}):\s*$`)
)

// ReadFtrace reads pasted output of the kernel's tracer, or lines of AppendLine, to
// the end. Lines of other tracepoints and comments are counted and passed over. The
// error is an FtraceError; lines and counts before it are returned with it.
func ReadFtrace(r io.Reader) ([]FtraceLine, FtraceStats, error) {
	var lines []FtraceLine
	var st FtraceStats
	s := bufio.NewScanner(r)
	s.Buffer(nil, ftraceMaxLine)
	for s.Scan() {
		st.Lines++
		l, ok, ours := parseFtrace(strings.TrimSuffix(s.Text(), "\r"))
		switch {
		case ok:
			l.Line = st.Lines
			lines = append(lines, l)
			st.Messages++
		case ours:
			st.Malformed++
		default:
			st.Other++
		}
	}
	judgeEpochs(lines)
	for i := range lines {
		switch lines[i].Epoch {
		case EpochSuspect:
			st.Suspect++
		case EpochWrong:
			st.Wrong++
		case EpochStampLost:
			st.StampLost++
		}
	}
	if err := s.Err(); err != nil {
		if errors.Is(err, bufio.ErrTooLong) {
			err = fmt.Errorf("longer than %d bytes: not what the tracer prints", ftraceMaxLine)
		}
		return lines, st, &FtraceError{Line: st.Lines + 1, Err: err}
	}
	return lines, st, nil
}

// parseFtrace reads one line; ours says that it is one of the tracepoint's.
func parseFtrace(text string) (l FtraceLine, ok, ours bool) {
	body := text
	if at := ftraceTag.FindStringIndex(text); at != nil {
		ours, body = true, text[at[1]:]
		if h := ftraceHost.FindStringSubmatch(text[:at[0]]); h != nil {
			sec, _ := strconv.ParseUint(h[1], 10, 64) // both are digits, and few
			ns, _ := strconv.ParseUint((h[2] + "000000000")[:9], 10, 64)
			l.Host = sec*1e9 + ns
		}
	}
	f := ftraceBody.FindStringSubmatch(body)
	if f == nil {
		return l, false, ours
	}
	t, err := strconv.ParseUint(f[2], 16, TimeBits)
	if err != nil {
		return l, false, true
	}
	id, _ := strconv.ParseUint(f[4], 16, 8) // two hex digits
	l.Device, l.Time, l.Lost, l.EventID, l.Text = f[1], t, f[3] == "1", uint8(id), f[5]
	l.Corrected = t
	return l, true, true
}

// epochStep is the step back from which on the epoch is wrong: the smaller of the
// two explanations, an order of completion that is off by the step or an epoch that
// is off by 128 ticks less the step, is taken.
const epochStep = epochTicks / 2

// judgeEpochs goes through the lines of each device from the end, in runs of one
// epoch, with the smallest stamp that follows in the run.
func judgeEpochs(lines []FtraceLine) {
	type run struct {
		next     int // the line after this one
		smallest uint64
	}
	runs := map[string]*run{}
	for i := len(lines) - 1; i >= 0; i-- {
		l := &lines[i]
		r := runs[l.Device]
		if r == nil || lines[r.next].Time>>StampBits != l.Time>>StampBits {
			runs[l.Device] = &run{next: i, smallest: l.Time}
			continue
		}
		if next := &lines[r.next]; next.Time == l.Time && l.Time&stampMask == stampMask {
			l.Epoch, next.Epoch = EpochStampLost, EpochStampLost
		} else if step := l.Time - min(r.smallest, l.Time); step > epochStep {
			l.Epoch = EpochWrong
			l.Corrected = (l.Time - epochTicks) & TimeMask
		} else if step > 0 {
			l.Epoch = EpochSuspect
		}
		r.next, r.smallest = i, min(r.smallest, l.Time)
	}
}
