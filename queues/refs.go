package queues

import (
	"errors"
	"fmt"
	"sync"

	"github.com/mlxvfio/mlxvfio/vfio"
)

// Why a command was not sent; found with errors.Is inside an *ObjectError.
var (
	// ErrInUse: other objects still use it.
	ErrInUse = vfio.ErrInUse
	// ErrForeign: it belongs to another device or another owner.
	ErrForeign = errors.New("belongs to something else")
	// ErrMissing: an object that is needed was not given.
	ErrMissing = errors.New("is missing")
	// ErrDestroyed: it was destroyed before. It is a vfio.ErrClosed.
	ErrDestroyed = fmt.Errorf("%w: it was destroyed before", vfio.ErrClosed)
)

// ObjectError says that something was refused before any command was sent: an
// option that cannot be, or an object that is gone or in use.
type ObjectError struct {
	Device string // whose object is still in use, as vfio.DeviceInfo names it; else empty
	Op     string // what was attempted: "create a memory key"
	Field  string // the option or object at fault
	Detail string // the numbers, and the remedy
	Err    error  // vfio.ErrRange, vfio.ErrClosed, vfio.ErrNotSupported, ErrInUse, ErrForeign, ErrMissing, ErrDestroyed
}

// Error is one line: device, operation, field, cause, numbers and remedy.
func (e *ObjectError) Error() string {
	s := e.Op + ": "
	if e.Device != "" {
		s = e.Device + ": " + s
	}
	if e.Field != "" {
		s += e.Field + ": "
	}
	s += e.Err.Error()
	if e.Detail != "" {
		s += "; " + e.Detail
	}
	return s
}

// Unwrap gives the sentinel.
func (e *ObjectError) Unwrap() error { return e.Err }

// refuse makes an ObjectError.
func refuse(op, field string, err error, format string, a ...any) error {
	return &ObjectError{Op: op, Field: field, Err: err, Detail: fmt.Sprintf(format, a...)}
}

// refs is the life of an object: how many others use it, and whether it is
// destroyed. It is safe for concurrent use; nothing waits under its lock.
type refs struct {
	mu     sync.Mutex
	users  int
	ending bool // its destruction was asked for and has no answer yet
	dead   bool
}

// use counts a user. It fails once the object is destroyed or about to be.
func (r *refs) use() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.dead || r.ending {
		return false
	}
	r.users++
	return true
}

func (r *refs) drop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.users--
}

// alive tells whether the object can be used.
func (r *refs) alive() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !r.dead
}

// destroy runs the command that ends the object, once at a time. An object that
// is gone answers ErrDestroyed, one with users ErrInUse; neither reaches the
// device.
func (r *refs) destroy(d *Dev, op string, command func() error) error {
	r.mu.Lock()
	switch {
	case r.dead:
		r.mu.Unlock()
		return refuse(op, "", ErrDestroyed, "")
	case r.ending:
		r.mu.Unlock()
		return refuse(op, "", vfio.ErrClosed, "another caller is destroying it")
	case r.users > 0:
		n := r.users
		r.mu.Unlock()
		return &ObjectError{Device: d.name(), Op: op, Err: ErrInUse, Detail: fmt.Sprintf("%d objects use it; destroy them first", n)}
	}
	r.ending = true
	r.mu.Unlock()
	err := command()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ending, r.dead = false, err == nil
	return err
}

// end marks the object as gone without a command. It tells whether it was not
// gone already.
func (r *refs) end() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	was := r.dead
	r.dead = true
	return !was
}
