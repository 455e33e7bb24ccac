package pci

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"syscall"
	"time"
)

// Result tells everything Bind or Unbind found and did, also when they fail.
type Result struct {
	Op  string `json:"op"`
	BDF BDF    `json:"bdf"`
	// Name is the device's name, "ConnectX-5".
	Name string `json:"name,omitempty"`
	// Previous and Driver are the driver before and after, "" for none.
	Previous string `json:"previous_driver"`
	Driver   string `json:"driver"`
	// Override is driver_override after.
	Override string `json:"driver_override"`
	// Group is the IOMMU group, -1 for none; VFIONode and VFIOCdev are what
	// user space opens.
	Group    int    `json:"iommu_group"`
	VFIONode string `json:"vfio_node,omitempty"`
	VFIOCdev string `json:"vfio_cdev,omitempty"`
	// Already: the function was as asked, nothing was written.
	Already bool `json:"already,omitempty"`
	// RolledBack: Bind failed and the original state is back.
	RolledBack bool `json:"rolled_back,omitempty"`
	// Overrode lists what Force overrode.
	Overrode []string `json:"overrode,omitempty"`
	// Warnings say what can go wrong from here on; they belong on standard error.
	Warnings []string `json:"warnings,omitempty"`
	// Notes are facts a user should read.
	Notes []string `json:"notes,omitempty"`
	Steps []Step   `json:"steps"`
}

// Step is one thing done, in order.
type Step struct {
	Action string `json:"action"`
	Path   string `json:"path"`
	// Value is what was written; "" for a cleared driver_override too.
	Value string `json:"value,omitempty"`
	// Undo marks steps of a rollback.
	Undo bool   `json:"undo,omitempty"`
	Err  string `json:"error,omitempty"`
	// Elapsed is the time the kernel took, in nanoseconds in JSON.
	Elapsed time.Duration `json:"elapsed_ns"`

	start time.Time
}

// txn is one Bind or Unbind at work. It is used by one goroutine.
type txn struct {
	op   string
	b    BDF
	o    Options
	res  *Result
	lock io.Closer
	undo bool
	// unguarded: the probe needs no-IOMMU mode. swtch locks its switch while this
	// transaction has it on.
	unguarded bool
	swtch     io.Closer
}

// newTxn starts a result; nothing is touched yet.
func newTxn(op string, b BDF, o Options) *txn {
	return &txn{op: op, b: b, o: o, res: &Result{Op: op, BDF: b, Group: -1, Steps: []Step{}}}
}

// acquire creates the journal folder and locks the function in it.
func (t *txn) acquire() error {
	if err := t.o.FS.MkdirAll(t.o.JournalDir, 0o755); err != nil {
		return sysfsError(t.op, t.b, "create", t.o.JournalDir, err)
	}
	path := t.o.lockPath(t.b)
	lock, err := t.o.FS.Lock(path)
	if err != nil {
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return failf(t.op, t.b, ErrBusy, "fuser -v "+path, "another bind or unbind of this function is at work")
		}
		return sysfsError(t.op, t.b, "lock", path, err)
	}
	t.lock = lock
	return nil
}

// release ends the transaction. After an abandoned write the lock belongs to
// the goroutine that waits for the write.
func (t *txn) release() {
	t.unlockSwitch()
	if t.lock != nil {
		_ = t.lock.Close() // at worst an empty file stays; the lock itself is gone
		t.lock = nil
	}
}

func (t *txn) note(format string, args ...any) {
	t.res.Notes = append(t.res.Notes, fmt.Sprintf(format, args...))
}

// begin and end bracket a step; begin gives its index.
func (t *txn) begin(action, path, value string) int {
	t.res.Steps = append(t.res.Steps, Step{Action: action, Path: path, Value: value, Undo: t.undo, start: time.Now()})
	return len(t.res.Steps) - 1
}

func (t *txn) end(i int, err error) {
	s := &t.res.Steps[i]
	s.Elapsed = time.Since(s.start)
	if err != nil {
		s.Err = err.Error()
	}
	t.o.Logger.Debug("pci step", "bdf", t.b.String(), "op", t.op, "action", s.Action, "path", s.Path, "value", s.Value,
		"undo", s.Undo, "elapsed", s.Elapsed, "err", s.Err)
}

// write hands value to a sysfs attribute. The kernel may sit in it for seconds
// (an unbind waits for the driver, a probe for the firmware) and cannot be
// interrupted, so the write runs in a goroutine. When the context ends first,
// a *PendingError takes that goroutine over, together with the lock.
func (t *txn) write(ctx context.Context, action, path, value string) error {
	if err := ctx.Err(); err != nil {
		return failf(t.op, t.b, ErrInterrupted, "", "before %s: %w", action, context.Cause(ctx))
	}
	step := t.begin(action, path, value)
	data := []byte(value)
	if value == "" {
		data = []byte{'\n'} // a write of no bytes never reaches the attribute
	}
	p := &PendingError{Path: path, Value: value, done: make(chan struct{})}
	wrote := make(chan struct{})
	go func() {
		p.err = t.o.FS.WriteAttr(path, data)
		close(wrote)
	}()
	select {
	case <-wrote:
	case <-ctx.Done():
		select {
		case <-wrote: // both at once: the write counts
		default:
			locks := []io.Closer{t.swtch, t.lock}
			t.swtch, t.lock = nil, nil
			go func() { // owned by the holder of p, who waits on p.done
				<-wrote
				for _, lock := range locks {
					if lock != nil {
						_ = lock.Close() // as in release
					}
				}
				close(p.done)
			}()
			t.end(step, p)
			return &Error{Op: t.op, BDF: t.b.String(), Err: fmt.Errorf("%w (%w)", p, context.Cause(ctx)),
				Remedy: "mlxvfio unbind " + t.b.String() + " when the kernel has finished"}
		}
	}
	close(p.done)
	t.end(step, p.err)
	if p.err != nil {
		return sysfsError(t.op, t.b, action+" through", path, p.err)
	}
	return nil
}

// The writes there are, with those of no-IOMMU mode.

func (t *txn) setOverride(ctx context.Context, driver string) error {
	action := "set driver_override"
	if driver == "" {
		action = "clear driver_override"
	}
	return t.write(ctx, action, filepath.Join(t.o.deviceDir(t.b), "driver_override"), driver)
}

func (t *txn) unbindFrom(ctx context.Context, driver string) error {
	if !validName(driver) {
		return failf(t.op, t.b, ErrIO, "", "driver link ends in %q, which is no driver name", driver)
	}
	err := t.write(ctx, "unbind from "+driver, filepath.Join(t.o.driverDir(driver), "unbind"), t.b.String())
	if errors.Is(err, syscall.ENODEV) && t.driver() == "" {
		return nil // it went by itself in the meantime; that is what was wanted
	}
	return err
}

func (t *txn) bindTo(ctx context.Context, driver string) error {
	return t.write(ctx, "bind to "+driver, filepath.Join(t.o.driverDir(driver), "bind"), t.b.String())
}

func (t *txn) probe(ctx context.Context) error {
	return t.write(ctx, "probe drivers", filepath.Join(t.o.SysRoot, "bus/pci/drivers_probe"), t.b.String())
}

// driver reads the driver bound now.
func (t *txn) driver() string {
	return linkBase(t.o.FS, filepath.Join(t.o.deviceDir(t.b), "driver"))
}

// awaitDriver waits until good holds for the bound driver, at most
// VerifyTimeout, and returns the driver it saw last.
func (t *txn) awaitDriver(ctx context.Context, good func(string) bool) (string, bool) {
	const step = 10 * time.Millisecond
	deadline := time.Now().Add(t.o.VerifyTimeout)
	for {
		d := t.driver()
		if good(d) {
			return d, true
		}
		left := time.Until(deadline)
		if left <= 0 {
			return d, false
		}
		timer := time.NewTimer(min(step, left))
		select {
		case <-ctx.Done():
			timer.Stop()
			return d, false
		case <-timer.C:
		}
	}
}

// finish fills the result from the function as it is now.
func (t *txn) finish() {
	f, err := inspect(t.op, t.b, t.o)
	if err != nil {
		t.note("state afterwards unknown: %v", err)
		return
	}
	t.fill(f)
}

func (t *txn) fill(f *Function) {
	r := t.res
	r.Name, r.Driver, r.Override = f.ID.Name, f.Driver, f.DriverOverride
	r.Group, r.VFIONode, r.VFIOCdev = -1, f.VFIONode, f.VFIOCdev
	if f.IOMMU != nil {
		r.Group = f.IOMMU.Number
	}
}

// joinRemedies makes one command line of several.
func joinRemedies(uses []Use) (reasons, remedy string) {
	for i, u := range uses {
		if i > 0 {
			reasons += "; "
			remedy += " && "
		}
		reasons += u.Reason
		remedy += u.Remedy
	}
	return reasons, remedy
}

// refuse turns reasons into ErrBusy, or under Force into entries of Overrode.
func (t *txn) refuse(kind error, uses []Use) error {
	if len(uses) == 0 {
		return nil
	}
	if t.o.Force {
		for _, u := range uses {
			t.res.Overrode = append(t.res.Overrode, u.Reason)
		}
		return nil
	}
	reasons, remedy := joinRemedies(uses)
	return fail(t.op, t.b, kind, errors.New(reasons), remedy)
}
