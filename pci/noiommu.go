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
// any function that no IOMMU guards (Linux vfio/group.c). It is asked only when
// vfio-pci probes; a function that was taken stays. So Bind turns it on for its
// probe and off again, and a mark on disk says so in between:
//
//	lock ──mark──▶ Y ──▶ probe, verified ──▶ N ──▶ mark removed, unlocked
//
// The mark is written before the switch and removed after it. Whoever finds one
// whose lock is free found a bind that died: Unbind puts the switch back and
// removes the mark. A switch that was on before is somebody's decision and stays.

// markSchema names the format; a later one gets another number.
const markSchema = "mlxvfio.pci.noiommu/1"

// mark says that a bind turned no-IOMMU mode on.
type mark struct {
	Schema string `json:"schema"`
	// BDF is the function whose bind it was.
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
		"overwrites this machine's memory, any of it, and nobody is told; the kernel is tainted (U) until it boots", t.b))
	return nil
}

// lockSwitch excludes other binds that use the switch. They hold it for the time
// of a probe, so it is waited for.
func (t *txn) lockSwitch(ctx context.Context) error {
	const step, limit = 10 * time.Millisecond, 10 * time.Second
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
			return failf(t.op, t.b, ErrBusy, "fuser -v "+path, "another bind has no-IOMMU mode on since %v", limit)
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

// switchOn makes the next probe of vfio-pci accept the function.
func (t *txn) switchOn(ctx context.Context) error {
	if err := t.lockSwitch(ctx); err != nil {
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
		t.note("%s was Y before: it stays", t.o.noIOMMUParam())
		t.unlockSwitch()
		return nil
	}
	// A mark that is there is of a bind that died: it says all the same what to
	// restore.
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

// switchBack undoes switchOn, of this bind or of one that died, and does nothing
// where there is nothing to undo. A bind that is at work elsewhere keeps its mark.
func (t *txn) switchBack(ctx context.Context) error {
	if t.swtch == nil {
		if !t.switchTraces() {
			return nil
		}
		lock, err := t.o.FS.Lock(t.o.noIOMMULock())
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil // whoever has it turns the switch back
		}
		if err != nil {
			return sysfsError(t.op, t.b, "lock", t.o.noIOMMULock(), err)
		}
		t.swtch = lock
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
