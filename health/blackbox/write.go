package blackbox

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/mlxvfio/mlxvfio/internal/tempfile"
)

// Options tune Write.
type Options struct {
	// Limit bounds the file in bytes; 0 is DefaultLimit. What does not fit is cut:
	// the first sections keep most.
	Limit int
}

// file is what Write and Recorder need of a file; tests stand in for the disk.
type file interface {
	Write([]byte) (int, error)
	WriteAt([]byte, int64) (int, error)
	Sync() error
	Close() error
	Name() string
	Fd() uintptr
}

// disk are the calls that make a file appear.
type disk struct {
	create func(dir, pattern string) (file, error)
	rename func(from, to string) error
	link   func(from, to string) error
	remove func(path string) error
	sync   func(dir string) error
}

var realDisk = disk{
	create: func(dir, pattern string) (file, error) { return os.CreateTemp(dir, pattern) },
	rename: os.Rename,
	link:   os.Link,
	remove: os.Remove,
	sync: func(dir string) error {
		d, err := os.Open(dir)
		if err != nil {
			return err
		}
		return errors.Join(d.Sync(), d.Close())
	},
}

// Write makes path a bundle of the sections in one step: a temporary file beside
// it is written, synced, renamed over path, and its folder synced. Whatever fails
// or is killed in between, path is either the old file or the whole new one, and
// no temporary file stays after an error. The order of the sections is kept. A file
// that a Recorder keeps up to date is not replaced: the error is a *BusyError then.
func Write(path string, sections []Section, o Options) error {
	return realDisk.write(path, sections, o)
}

func (d disk) write(path string, sections []Section, o Options) error {
	if o.Limit <= 0 {
		o.Limit = DefaultLimit
	}
	if err := replaceable(path); err != nil {
		return fmt.Errorf("write black box %s: %w", path, err)
	}
	now := time.Now()
	img, err := image(1, sections, o.Limit-fileHeaderSize, now)
	if err != nil {
		return fmt.Errorf("write black box %s: %w", path, err)
	}
	b := fileHeader{version: Version, kind: kindBundle, began: now}.append(nil)
	_, err = d.install(path, func(f file) error {
		_, err := f.Write(append(b, img...))
		return err
	}, d.replace, false)
	if err != nil {
		return fmt.Errorf("write black box %s: %w", path, err)
	}
	return nil
}

// replaceable refuses what a rename would take away though it is no file: a device
// such as /dev/null, or a folder.
func replaceable(path string) error {
	fi, err := os.Stat(path)
	if err == nil && !fi.Mode().IsRegular() {
		return fmt.Errorf("%w: it is there and no regular file (%v); give the path of a file", os.ErrExist, fi.Mode())
	}
	return nil // what else is wrong with it, the calls to come say
}

// install fills a temporary file and puts it at path. With keep it stays open.
func (d disk) install(path string, fill func(file) error, put func(tmp, path string) error, keep bool) (file, error) {
	dir := filepath.Dir(path)
	tempfile.Clean(dir, "."+filepath.Base(path)+".", ".tmp", time.Now())
	f, err := d.create(dir, "."+filepath.Base(path)+".*.tmp")
	if err != nil {
		return nil, err
	}
	err = fill(f)
	if err == nil {
		err = f.Sync()
	}
	if err != nil || !keep {
		err = errors.Join(err, f.Close())
	}
	if err == nil {
		err = put(f.Name(), path)
		if err != nil && keep {
			err = errors.Join(err, f.Close())
		}
	}
	if err != nil {
		if e := d.remove(f.Name()); e != nil && !errors.Is(e, os.ErrNotExist) {
			err = errors.Join(err, e)
		}
		return nil, err
	}
	// The file is there now, and is not taken away again.
	if err := d.sync(dir); err != nil {
		if keep {
			err = errors.Join(err, f.Close())
		}
		return nil, fmt.Errorf("the file is in place, but may not outlive a power failure: %w", err)
	}
	return f, nil
}
