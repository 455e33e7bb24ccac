package pcitest

import (
	"errors"
	"io"
	"io/fs"
	"sync"

	"github.com/mlxvfio/mlxvfio/pci"
)

// ErrKilled is what every operation answers after a simulated SIGKILL.
var ErrKilled = errors.New("process was killed")

// Mode is what Faults does at the chosen operation.
type Mode int

const (
	// Count does nothing: to learn how many operations there are.
	Count Mode = iota
	// Fail answers Err once, without effect; later operations work.
	Fail
	// KillBefore and KillAfter end the process before or after the operation
	// has taken effect.
	KillBefore
	KillAfter
	// KillTorn ends it in the middle: a WriteSync leaves half of its bytes in
	// the file, other operations have no effect.
	KillTorn
)

// Faults is a pci.FS that fails or dies at the N-th operation that changes
// anything, counted from 0. Reads do not count.
type Faults struct {
	pci.FS
	Mode Mode
	N    int
	// Err is the answer of mode Fail.
	Err error
	// Die, when set, really ends the process; when it is nil, every later
	// operation answers ErrKilled, so that the code under test can do no more
	// harm or good than a dead process could.
	Die func()

	mu   sync.Mutex
	n    int
	dead bool
	ops  []string
}

// Ops names the changing operations so far.
func (f *Faults) Ops() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]string(nil), f.ops...)
}

func (f *Faults) alive() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.dead {
		return ErrKilled
	}
	return nil
}

func (f *Faults) kill() error {
	f.mu.Lock()
	f.dead = true
	f.mu.Unlock()
	if f.Die != nil {
		f.Die()
	}
	return ErrKilled
}

// change runs a changing operation; torn is its half-way effect.
func (f *Faults) change(name string, do, torn func() error) error {
	f.mu.Lock()
	if f.dead {
		f.mu.Unlock()
		return ErrKilled
	}
	here := f.Mode != Count && f.n == f.N
	f.n++
	f.ops = append(f.ops, name)
	f.mu.Unlock()
	if !here {
		return do()
	}
	switch f.Mode {
	case Fail:
		return f.Err
	case KillAfter:
		if err := do(); err != nil {
			return err
		}
	case KillTorn:
		if torn != nil {
			if err := torn(); err != nil {
				return err
			}
		}
	}
	return f.kill()
}

// WriteAttr counts as a write to sysfs.
func (f *Faults) WriteAttr(name string, data []byte) error {
	return f.change("write "+name, func() error { return f.FS.WriteAttr(name, data) }, nil)
}

// MkdirAll counts as a change.
func (f *Faults) MkdirAll(name string, perm fs.FileMode) error {
	return f.change("mkdir "+name, func() error { return f.FS.MkdirAll(name, perm) }, nil)
}

// WriteSync counts as a change, the one that can be half done.
func (f *Faults) WriteSync(name string, data []byte, perm fs.FileMode) error {
	return f.change("create "+name, func() error { return f.FS.WriteSync(name, data, perm) },
		func() error { return f.FS.WriteSync(name, data[:len(data)/2], perm) })
}

// Rename counts as a change.
func (f *Faults) Rename(from, to string) error {
	return f.change("rename "+to, func() error { return f.FS.Rename(from, to) }, nil)
}

// Remove counts as a change.
func (f *Faults) Remove(name string) error {
	return f.change("remove "+name, func() error { return f.FS.Remove(name) }, nil)
}

// SyncDir counts as a change.
func (f *Faults) SyncDir(name string) error {
	return f.change("sync "+name, func() error { return f.FS.SyncDir(name) }, nil)
}

// Lock works until the process is dead.
func (f *Faults) Lock(name string) (io.Closer, error) {
	if err := f.alive(); err != nil {
		return nil, err
	}
	return f.FS.Lock(name)
}

// ReadFile works until the process is dead.
func (f *Faults) ReadFile(name string) ([]byte, error) {
	if err := f.alive(); err != nil {
		return nil, err
	}
	return f.FS.ReadFile(name)
}

// ReadDir works until the process is dead.
func (f *Faults) ReadDir(name string) ([]fs.DirEntry, error) {
	if err := f.alive(); err != nil {
		return nil, err
	}
	return f.FS.ReadDir(name)
}

// Readlink works until the process is dead.
func (f *Faults) Readlink(name string) (string, error) {
	if err := f.alive(); err != nil {
		return "", err
	}
	return f.FS.Readlink(name)
}

// Stat works until the process is dead.
func (f *Faults) Stat(name string) (fs.FileInfo, error) {
	if err := f.alive(); err != nil {
		return nil, err
	}
	return f.FS.Stat(name)
}

// Access works until the process is dead.
func (f *Faults) Access(name string) error {
	if err := f.alive(); err != nil {
		return err
	}
	return f.FS.Access(name)
}
