package blackbox

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// ErrBusy: a Recorder keeps the file up to date; inside a *BusyError.
var ErrBusy = errors.New("in use by another recorder")

// BusyError says that the file at Path belongs to a Recorder that is open, of this
// process or another. Nothing was changed.
type BusyError struct{ Path string }

// Error says what to do about it.
func (e *BusyError) Error() string {
	return fmt.Sprintf("%s is the black box of a watch that goes on (it is locked): end that watch, or name another file", e.Path)
}

// Unwrap gives ErrBusy.
func (e *BusyError) Unwrap() error { return ErrBusy }

// A Recorder holds a lock of flock(2) on its file. It belongs to the open file: it
// moves with it, a second Recorder of the same process meets it too, and the kernel
// drops it when the process is gone, however it went.

// lock takes the lock of an open file, or fails at once with EWOULDBLOCK. On a file
// system that has no such locks there is none, and that is no error: a black box
// without one is better than none.
func lock(f interface{ Fd() uintptr }) error {
	for {
		switch err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); {
		case errors.Is(err, syscall.EINTR):
		case errors.Is(err, syscall.ENOSYS), errors.Is(err, syscall.ENOTSUP), errors.Is(err, syscall.ENOLCK),
			errors.Is(err, syscall.EBADF): // NFS, of a file that may only be read
			return nil
		default:
			return err
		}
	}
}

// unused opens and locks the file at path, so that it can be moved or replaced until
// the answer is closed: nil if there is no file. A Recorder that keeps it is a
// *BusyError.
func unused(path string) (*os.File, error) {
	for {
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS) {
			f, err = os.Open(path)
		}
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil, nil // nobody's, which is what was asked
		case err != nil:
			return nil, err
		}
		if err := lock(f); err != nil {
			if errors.Is(err, syscall.EWOULDBLOCK) {
				err = &BusyError{path}
			}
			return nil, errors.Join(err, f.Close())
		}
		// Who had the lock until now may have put another file at path.
		held, err := f.Stat()
		if err == nil {
			var now fs.FileInfo
			if now, err = os.Stat(path); err == nil && os.SameFile(held, now) {
				return f, nil
			}
		}
		if cerr := f.Close(); err == nil || errors.Is(err, fs.ErrNotExist) {
			err = cerr
		}
		if err != nil {
			return nil, err
		}
	}
}

// replace puts the file tmp at path, over one that no Recorder keeps.
func (d disk) replace(tmp, path string) error {
	old, err := unused(path)
	if err != nil {
		return err
	}
	defer release(old)
	return d.rename(tmp, path)
}

// claim puts the file tmp, which is locked, at path, where nothing must appear in
// between: what is there and nobody's moves to path.previous, and of several that
// claim the same path one succeeds.
func (d disk) claim(tmp, path string) error {
	for {
		old, err := unused(path)
		if err != nil {
			return err
		}
		if old != nil {
			if err = d.replace(path, path+".previous"); errors.Is(err, fs.ErrNotExist) {
				err = nil
			}
		}
		if err == nil {
			err = d.appear(tmp, path)
		}
		release(old)
		if !errors.Is(err, fs.ErrExist) {
			return err
		}
		if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
			if st, err := os.Lstat(path); err == nil && st.Mode()&fs.ModeSymlink != 0 {
				return fmt.Errorf("%s is a symbolic link to nothing; remove it, or name the file it should be", path)
			}
		}
		// Another Recorder was faster: its lock says so, unless it is over again.
	}
}

// appear is a rename that takes nothing away: what is at path fails it with
// fs.ErrExist. A file system without hard links has no such thing, and gets the look
// before.
func (d disk) appear(tmp, path string) error {
	err := d.link(tmp, path)
	if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.ENOTSUP) || errors.Is(err, syscall.ENOSYS) {
		if _, err := os.Lstat(path); err == nil {
			return fs.ErrExist
		}
		return d.rename(tmp, path)
	}
	if err == nil {
		_ = d.remove(tmp) // a second name of a file that is in place: Clean finds it
	}
	return err
}

// release gives up what unused answered.
func release(f *os.File) {
	if f != nil {
		_ = f.Close() // nothing was written to it
	}
}
