package pci

import (
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// FS is every file operation of this package, except that u-root's OnePCI reads
// its handful of attribute files itself. OS is the real one. A test or a tool
// wraps it to make sysfs writes take effect in a fake tree, to count them, to
// fail the n-th, or to kill the process there (package pcitest has such).
//
// Implementations must be safe for concurrent use. Names are absolute.
type FS interface {
	ReadFile(name string) ([]byte, error)
	ReadDir(name string) ([]fs.DirEntry, error)
	Readlink(name string) (string, error)
	// Stat follows symbolic links.
	Stat(name string) (fs.FileInfo, error)
	// Access asks whether this process could open name for reading and writing,
	// without opening it: nil, or the operating system's reason.
	Access(name string) error

	// WriteAttr hands data to an existing sysfs attribute in one write(2). It
	// never creates a file and may block as long as the kernel likes.
	WriteAttr(name string, data []byte) error

	// MkdirAll, WriteSync (create or truncate, write, fsync), Rename, Remove
	// and SyncDir (fsync of a folder) serve the journal.
	MkdirAll(name string, perm fs.FileMode) error
	WriteSync(name string, data []byte, perm fs.FileMode) error
	Rename(from, to string) error
	Remove(name string) error
	SyncDir(name string) error

	// Lock takes an exclusive lock on the file name, creating it, or fails with
	// an error that wraps syscall.EWOULDBLOCK when another holder has it. The
	// kernel drops the lock when the process dies. Close releases it and
	// removes the file.
	Lock(name string) (io.Closer, error)
}

// OS is the FS of the running system.
type OS struct{}

var _ FS = OS{}

func (OS) ReadFile(name string) ([]byte, error)         { return os.ReadFile(name) }
func (OS) ReadDir(name string) ([]fs.DirEntry, error)   { return os.ReadDir(name) }
func (OS) Readlink(name string) (string, error)         { return os.Readlink(name) }
func (OS) Stat(name string) (fs.FileInfo, error)        { return os.Stat(name) }
func (OS) MkdirAll(name string, perm fs.FileMode) error { return os.MkdirAll(name, perm) }
func (OS) Rename(from, to string) error                 { return os.Rename(from, to) }
func (OS) Remove(name string) error                     { return os.Remove(name) }

// Access is faccessat(2) with the effective ids; it knows capabilities, access
// control lists and read-only mounts, but not the device rules of a cgroup.
func (OS) Access(name string) error {
	err := unix.Faccessat(unix.AT_FDCWD, name, unix.R_OK|unix.W_OK, unix.AT_EACCESS)
	if err != nil {
		return &fs.PathError{Op: "access", Path: name, Err: err}
	}
	return nil
}

// WriteAttr opens without O_CREATE and O_TRUNC: an attribute exists or the
// write is an error, never a new file.
func (OS) WriteAttr(name string, data []byte) error {
	f, err := os.OpenFile(name, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}

// WriteSync leaves the data on stable storage, or an error. It follows no link in
// the place of the file.
func (OS) WriteSync(name string, data []byte, perm fs.FileMode) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW, perm)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}

// SyncDir makes renames and removals in the folder durable.
func (OS) SyncDir(name string) error {
	d, err := os.Open(name)
	if err != nil {
		return err
	}
	err = d.Sync()
	if cerr := d.Close(); err == nil {
		err = cerr
	}
	return err
}

// Lock uses flock(2), which knows open files and not processes: two binds of
// one process exclude each other too.
func (OS) Lock(name string) (io.Closer, error) {
	for {
		f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
		if err != nil {
			return nil, err
		}
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			_ = f.Close()
			return nil, &fs.PathError{Op: "flock", Path: name, Err: err}
		}
		// The previous holder removes the file while it still holds the lock;
		// a lock on a removed file protects nothing, so look again.
		held, err := f.Stat()
		if err == nil {
			var now fs.FileInfo
			if now, err = os.Stat(name); err == nil && os.SameFile(held, now) {
				return &fileLock{f}, nil
			}
		}
		_ = f.Close()
		if err != nil && !os.IsNotExist(err) {
			return nil, err
		}
	}
}

type fileLock struct{ f *os.File }

func (l *fileLock) Close() error {
	err := os.Remove(l.f.Name())
	if cerr := l.f.Close(); err == nil {
		err = cerr
	}
	return err
}

// linkBase gives the last element of a symbolic link's target, "" without link.
func linkBase(fsys FS, name string) string {
	target, err := fsys.Readlink(name)
	if err != nil {
		return ""
	}
	return printable(filepath.Base(target))
}
