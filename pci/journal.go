package pci

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// journalSchema names the format; a later one gets another number.
const journalSchema = "mlxvfio.pci.journal/1"

// Journal is what a function was before Bind touched it. The file
// JournalDir/BDF.json holds one as JSON.
type Journal struct {
	Schema string `json:"schema"`
	BDF    BDF    `json:"bdf"`
	// Vendor and Device tell another card in the same slot from this one.
	Vendor uint16 `json:"vendor"`
	Device uint16 `json:"device"`
	// Driver and Override are the original ones, "" for none.
	Driver   string `json:"driver"`
	Override string `json:"driver_override"`
	// Unknown: someone else had bound the function to vfio-pci, its original
	// driver is not known, and the kernel chooses one.
	Unknown bool `json:"unknown,omitempty"`
	// Target is the driver the function is being moved to.
	Target string    `json:"target"`
	Time   time.Time `json:"time"`
	PID    int       `json:"pid"`
}

// JournalState compares a journal with the function as it is now.
type JournalState string

const (
	// JournalBound: the bind is complete; Unbind will restore from the journal.
	JournalBound JournalState = "bound"
	// JournalInterrupted: a bind or unbind was cut off in between; Unbind
	// restores the original state, Bind completes the bind.
	JournalInterrupted JournalState = "interrupted"
	// JournalRestored: the function is as it was; only the file was left over.
	JournalRestored JournalState = "restored"
	// JournalStale: the function is gone or is another device now.
	JournalStale JournalState = "stale"
	// JournalUnreadable: the file is no journal.
	JournalUnreadable JournalState = "unreadable"
)

// JournalEntry is a journal found on disk.
type JournalEntry struct {
	Journal
	Path  string       `json:"path"`
	State JournalState `json:"state"`
	// Detail is the reason for stale and unreadable.
	Detail string `json:"detail,omitempty"`
}

// Interrupted reports whether the function was left between two states.
func (e JournalEntry) Interrupted() bool { return e.State == JournalInterrupted }

// Journals lists the journals in the journal folder with the state each is in,
// ordered by address. No folder means no journals. One that cannot be read is
// listed as such.
func Journals(opt Options) ([]JournalEntry, error) {
	o := opt.withDefaults()
	entries, err := o.FS.ReadDir(o.JournalDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, &Error{Op: "list journals", Err: fmt.Errorf("%w: %w", classify(err), err), Remedy: "run as root"}
	}
	var out []JournalEntry
	for _, d := range entries {
		name, ok := strings.CutSuffix(d.Name(), ".json")
		if !ok {
			continue
		}
		b, err := ParseBDF(name)
		if err != nil {
			continue
		}
		e := JournalEntry{Path: o.journalPath(b), State: JournalUnreadable, Journal: Journal{BDF: b}}
		j, err := readJournal("list journals", b, o)
		switch {
		case err != nil:
			e.Detail = err.Error()
		case j == nil:
			continue // removed since the folder was read
		default:
			e.Journal = *j
			e.State, e.Detail = journalState(j, o)
		}
		out = append(out, e)
	}
	slices.SortFunc(out, func(x, y JournalEntry) int { return x.BDF.Compare(y.BDF) })
	return out, nil
}

func journalState(j *Journal, o Options) (JournalState, string) {
	f, err := inspect("list journals", j.BDF, o)
	if err != nil {
		return JournalStale, err.Error()
	}
	if why := j.mismatch(f); why != "" {
		return JournalStale, why
	}
	switch {
	case f.Driver == j.Target && f.DriverOverride == j.Target:
		return JournalBound, ""
	case f.DriverOverride != j.Override:
		return JournalInterrupted, ""
	case j.Unknown && f.Driver != "" && !IsVFIO(f.Driver), !j.Unknown && f.Driver == j.Driver:
		return JournalRestored, ""
	}
	return JournalInterrupted, ""
}

// mismatch says why a journal does not belong to the function, "" if it does.
func (j *Journal) mismatch(f *Function) string {
	if j.Vendor == f.Vendor && j.Device == f.Device {
		return ""
	}
	return fmt.Sprintf("the journal is for a device %04x:%04x, here is %04x:%04x", j.Vendor, j.Device, f.Vendor, f.Device)
}

func (o Options) journalPath(b BDF) string { return filepath.Join(o.JournalDir, b.String()+".json") }
func (o Options) journalTemp(b BDF) string { return filepath.Join(o.JournalDir, "."+b.String()+".tmp") }
func (o Options) lockPath(b BDF) string    { return filepath.Join(o.JournalDir, "."+b.String()+".lock") }

// readJournal gives nil, nil when there is none. What it returns is safe to
// use: names are plain names, whatever stands in the file.
func readJournal(op string, b BDF, o Options) (*Journal, error) {
	path := o.journalPath(b)
	data, err := o.FS.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		e := sysfsError(op, b, "read", path, err)
		e.Err = fmt.Errorf("%w: %w", ErrJournal, e.Err)
		return nil, e
	}
	bad := func(format string, args ...any) (*Journal, error) {
		return nil, failf(op, b, ErrJournal, "rm "+path, "%s: "+format, append([]any{path}, args...)...)
	}
	var j Journal
	dec := json.NewDecoder(bytes.NewReader(data))
	if err := dec.Decode(&j); err != nil {
		return bad("not a journal: %w", err)
	}
	switch {
	case j.Schema != journalSchema:
		return bad("schema %q, want %q", j.Schema, journalSchema)
	case j.BDF != b:
		return bad("is about %s", j.BDF)
	case j.Driver != "" && (!validName(j.Driver) || IsVFIO(j.Driver)):
		return bad("%q cannot be the original driver", j.Driver)
	case j.Target != vfioDriver:
		return bad("target %q is not %s", j.Target, vfioDriver)
	case strings.ContainsAny(j.Override, "\n\x00") || len(j.Override) > 4000:
		return bad("driver_override %q cannot be written", j.Override)
	}
	return &j, nil
}

// writeJournal makes the journal durable before anything is changed: a reader
// sees either no journal or a whole one, and a crash keeps it.
func (t *txn) writeJournal(j *Journal) error {
	return t.writeDurably("write journal", t.o.journalTemp(t.b), t.o.journalPath(t.b), j)
}

// writeDurably puts a file in place as JSON, whole or not at all.
func (t *txn) writeDurably(action, tmp, path string, v any) error {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return failf(t.op, t.b, ErrJournal, "", "encode: %w", err)
	}
	step := t.begin(action, path, "")
	err = t.o.FS.WriteSync(tmp, append(data, '\n'), 0o644)
	if err == nil {
		err = t.o.FS.Rename(tmp, path)
	}
	if err == nil {
		err = t.o.FS.SyncDir(t.o.JournalDir)
	}
	t.end(step, err)
	if err != nil {
		e := sysfsError(t.op, t.b, "write", path, err)
		e.Err = fmt.Errorf("%w: %w", ErrJournal, e.Err)
		if e.Remedy == "" || errors.Is(e, ErrNotFound) || errors.Is(e, ErrIO) {
			e.Remedy = "df " + t.o.JournalDir
		}
		return e
	}
	return nil
}

// removeJournal is the last step of a restore.
func (t *txn) removeJournal() error {
	return t.removeDurably("remove journal", t.o.journalPath(t.b), "the function is restored")
}

// removeDurably removes a file for good; done is what that file was to ensure.
func (t *txn) removeDurably(action, path, done string) error {
	step := t.begin(action, path, "")
	err := t.o.FS.Remove(path)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err == nil {
		err = t.o.FS.SyncDir(t.o.JournalDir)
	}
	t.end(step, err)
	if err != nil {
		return failf(t.op, t.b, ErrJournal, "rm "+path, "%s, but %s stays: %w", done, path, err)
	}
	return nil
}
