package pci

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// No-IOMMU mode is a switch of the whole machine: while it is on, vfio-pci takes
// any function that no IOMMU guards (Linux vfio/group.c), and only while it is on
// can such a function be opened: the kernel asks again when the container gets its
// IOMMU (Linux vfio/container.c, vfio_noiommu_ioctl; with it off VFIO_SET_IOMMU
// answers ENODEV). So Bind turns it on, and the Unbind after which no function is
// in that mode turns it off; a mark on disk says that it was off before:
//
//	lock ──mark──▶ Y ──▶ probe, verified, unlocked … last unbind: N ──▶ mark removed
//
// The mark is written before the switch and removed after it, so a process that
// dies anywhere leaves either a switch that is off or a mark. Whether a function
// still needs the mode is read from the kernel, whose groups of that mode exist as
// long as vfio-pci has their function. A switch that was on before is somebody's
// decision and stays.

// markSchema names the format; a later one gets another number.
const markSchema = "mlxvfio.pci.noiommu/1"

// mark says that a bind turned no-IOMMU mode on, which was off.
type mark struct {
	Schema string `json:"schema"`
	// BDF is the function whose bind it was; others may need the mode by now.
	BDF  BDF       `json:"bdf"`
	Time time.Time `json:"time"`
	PID  int       `json:"pid"`
}

// noIOMMUParam is there on kernels with VFIO_NOIOMMU, once vfio is loaded.
func (o Options) noIOMMUParam() string {
	return filepath.Join(o.SysRoot, "module/vfio/parameters/enable_unsafe_noiommu_mode")
}
func (o Options) noIOMMUMark() string { return filepath.Join(o.JournalDir, "noiommu.json") }
func (o Options) noIOMMUTemp() string { return filepath.Join(o.JournalDir, ".noiommu.tmp") }
func (o Options) noIOMMULock() string { return filepath.Join(o.JournalDir, ".noiommu.lock") }

// readMark gives nil, nil when there is none. A file that cannot be understood is
// a mark of nobody: the switch goes off, which harms no open function.
func readMark(op string, b BDF, o Options) (*mark, error) {
	path := o.noIOMMUMark()
	data, err := o.FS.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		e := sysfsError(op, b, "read", path, err)
		e.Err = fmt.Errorf("%w: %w", ErrJournal, e.Err)
		return nil, e
	}
	m := new(mark)
	if json.NewDecoder(bytes.NewReader(data)).Decode(m) != nil || m.Schema != markSchema {
		m = new(mark)
	}
	return m, nil
}

// checkNoIOMMU: vfio-pci fails to probe a function without group unless the
// unsafe mode is on, and would leave it without any driver.
func (t *txn) checkNoIOMMU() error {
	const wild = "nothing would keep the device from writing anywhere in memory"
	param, again := t.o.noIOMMUParam(), "mlxvfio bind "+t.b.String()+" --unsafe-noiommu"
	if !t.o.UnsafeNoIOMMU {
		return failf(t.op, t.b, ErrNoIOMMU, "mlxvfio doctor "+t.b.String()+"  # says how to turn an IOMMU on; to do without: "+again, wild)
	}
	if err := t.o.FS.Access(param); errors.Is(err, fs.ErrNotExist) {
		return failf(t.op, t.b, ErrNoIOMMU, "grep VFIO_NOIOMMU \"/boot/config-$(uname -r)\"  # =y is needed: another kernel, or an IOMMU",
			"and the kernel is built without no-IOMMU mode (%s does not exist)", param)
	} else if err != nil {
		e := sysfsError(t.op, t.b, "write", param, err)
		if !errors.Is(err, syscall.EROFS) {
			e.Remedy = "sudo " + again
		}
		return e
	}
	t.unguarded = true
	t.res.Overrode = append(t.res.Overrode, "no IOMMU: the device can write anywhere in memory")
	t.res.Warnings = append(t.res.Warnings, fmt.Sprintf("unsafe: no IOMMU guards %s: a wrong address, of a bug or of the device's own making, "+
		"overwrites this machine's memory, any of it, and nobody is told; the kernel is tainted (U) until it boots, and its no-IOMMU mode is on until unbind", t.b))
	return nil
}

// switchWait bounds the wait for others at the switch. They hold it for the time
// of a probe.
const switchWait = 10 * time.Second

// lockSwitch excludes others that use the switch; it waits for them.
func (t *txn) lockSwitch(ctx context.Context, limit time.Duration) error {
	const step = 10 * time.Millisecond
	path := t.o.noIOMMULock()
	for end := time.Now().Add(limit); ; {
		lock, err := t.o.FS.Lock(path)
		if err == nil {
			t.swtch = lock
			return nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return sysfsError(t.op, t.b, "lock", path, err)
		}
		if time.Now().After(end) {
			return failf(t.op, t.b, ErrBusy, "fuser -v "+path, "another bind is at the switch of no-IOMMU mode since %v", limit)
		}
		timer := time.NewTimer(step)
		select {
		case <-ctx.Done():
			timer.Stop()
			return failf(t.op, t.b, ErrInterrupted, "", "while waiting for another bind: %w", context.Cause(ctx))
		case <-timer.C:
		}
	}
}

func (t *txn) unlockSwitch() {
	if t.swtch != nil {
		_ = t.swtch.Close() // at worst an empty file stays; the lock itself is gone
		t.swtch = nil
	}
}

// switchOn makes the next probe of vfio-pci accept the function, and opens of it
// work. The switch stays locked, until the function itself shows that it needs it.
func (t *txn) switchOn(ctx context.Context) error {
	if err := t.lockSwitch(ctx, switchWait); err != nil {
		return err
	}
	m, err := readMark(t.op, t.b, t.o)
	if err != nil {
		return err
	}
	on, err := t.switchIsOn()
	if err != nil {
		return err
	}
	if on && m == nil {
		t.note("%s was Y before: it stays, also after unbind", t.o.noIOMMUParam())
		return nil
	}
	// A mark that is there is of another bind, dead or alive: it says what to
	// restore, whoever is the last.
	if m == nil {
		m = &mark{Schema: markSchema, BDF: t.b, Time: time.Now().UTC().Truncate(time.Second), PID: os.Getpid()}
		if err := t.writeDurably("mark no-IOMMU mode", t.o.noIOMMUTemp(), t.o.noIOMMUMark(), m); err != nil {
			return err
		}
	}
	if on {
		return nil
	}
	return t.write(ctx, "turn no-IOMMU mode on", t.o.noIOMMUParam(), "Y")
}

// switchBack turns the switch off where a bind turned it on and no other function
// needs it; the function itself must have left vfio-pci. It does nothing where
// there is nothing to undo.
func (t *txn) switchBack(ctx context.Context) error {
	if t.swtch == nil {
		if !t.switchTraces() {
			return nil
		}
		err := t.lockSwitch(ctx, switchWait/5)
		if errors.Is(err, ErrBusy) {
			t.note("a bind of another function is at the switch of no-IOMMU mode: it stays on for that one")
			return nil
		}
		if err != nil {
			return err
		}
	}
	defer t.unlockSwitch()
	if _, err := t.o.FS.Stat(t.o.noIOMMUTemp()); err == nil {
		if err := t.o.FS.Remove(t.o.noIOMMUTemp()); err != nil {
			t.note("%s stays: %v", t.o.noIOMMUTemp(), err)
		}
	}
	m, err := readMark(t.op, t.b, t.o)
	if m == nil || err != nil {
		return err
	}
	if who := noIOMMUFunctions(t.o); len(who) > 0 {
		t.note("no-IOMMU mode stays on: %s needs it", who[0])
		return nil
	}
	on, err := t.switchIsOn()
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // without the module there is no mode
		return err
	}
	if on {
		if err := t.write(ctx, "turn no-IOMMU mode off", t.o.noIOMMUParam(), "N"); err != nil {
			return err
		}
	}
	return t.removeDurably("remove mark of no-IOMMU mode", t.o.noIOMMUMark(), "no-IOMMU mode is off")
}

// noIOMMUFunctions are the functions in no-IOMMU mode, of whatever vendor: those in
// the groups that VFIO made up.
func noIOMMUFunctions(o Options) []BDF {
	dir := filepath.Join(o.SysRoot, "kernel/iommu_groups")
	groups, err := o.FS.ReadDir(dir)
	if err != nil {
		return nil
	}
	var out []BDF
	for _, g := range groups {
		if name, err := readGroupName(o, g.Name()); err != nil || name != "vfio-noiommu" {
			continue
		}
		members, err := o.FS.ReadDir(filepath.Join(dir, g.Name(), "devices"))
		if err != nil {
			continue // went in the meantime
		}
		for _, m := range members {
			if b, err := ParseBDF(m.Name()); err == nil {
				out = append(out, b)
			}
		}
	}
	return out
}

// switchTraces: something of a switchOn is on disk.
func (t *txn) switchTraces() bool {
	for _, p := range []string{t.o.noIOMMUMark(), t.o.noIOMMUTemp(), t.o.noIOMMULock()} {
		if _, err := t.o.FS.Stat(p); err == nil {
			return true
		}
	}
	return false
}

func (t *txn) switchIsOn() (bool, error) {
	param := t.o.noIOMMUParam()
	data, err := t.o.FS.ReadFile(param)
	if err != nil {
		return false, sysfsError(t.op, t.b, "read", param, err)
	}
	return strings.TrimSpace(string(data)) == "Y", nil
}
