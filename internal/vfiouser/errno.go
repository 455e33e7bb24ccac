package vfiouser

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/mlxvfio/mlxvfio/vfio"
)

// Sentinels of the client, found with errors.Is inside *vfio.Error. Both come
// with vfio.ErrGone: the function cannot be reached any more.
var (
	// ErrServerGone: the server closed the connection or died.
	ErrServerGone = errors.New("the vfio-user server closed the connection")
	// ErrLateReply: the server did not answer in time; the connection was given
	// up. It is an os.ErrDeadlineExceeded too.
	ErrLateReply = fmt.Errorf("the vfio-user server did not answer in time: %w", os.ErrDeadlineExceeded)
	// ErrProtocol: the peer sent what vfio-user does not allow.
	ErrProtocol = errors.New("not vfio-user")
)

// goneError marks the loss of the connection: errors.Is finds vfio.ErrGone and
// the cause, the text is the cause's alone.
type goneError struct{ cause error }

func (e *goneError) Error() string   { return e.cause.Error() }
func (e *goneError) Unwrap() []error { return []error{vfio.ErrGone, e.cause} }

// refusedError is an errno that the server answered, with the sentinel it stands
// for where there is one.
type refusedError struct {
	cmd      uint16
	errno    unix.Errno
	sentinel error
}

func (e *refusedError) Error() string {
	return fmt.Sprintf("the server refused %s: %s (errno %d)", cmdName(e.cmd), e.errno, int(e.errno))
}

func (e *refusedError) Unwrap() []error {
	if e.sentinel == nil {
		return []error{e.errno}
	}
	return []error{e.errno, e.sentinel}
}

// errnoTable pairs the sentinels of package vfio with what travels on the wire.
var errnoTable = []struct {
	sentinel error
	errno    unix.Errno
}{
	{vfio.ErrClosed, unix.EBADF},
	{vfio.ErrGone, unix.ENODEV},
	{vfio.ErrNotSupported, unix.EOPNOTSUPP},
	{vfio.ErrRange, unix.ERANGE},
	{vfio.ErrExists, unix.EEXIST},
	{vfio.ErrNotFound, unix.ENOENT},
	{vfio.ErrNoSpace, unix.ENOSPC},
}

// errnoOf is the errno with which the server answers err; never 0.
func errnoOf(err error) unix.Errno {
	if e := unix.Errno(0); errors.As(err, &e) && e != 0 {
		return e
	}
	for _, t := range errnoTable {
		if errors.Is(err, t.sentinel) {
			return t.errno
		}
	}
	if errors.Is(err, errShort) {
		return unix.EINVAL
	}
	return unix.EIO
}

// refused is the client's error for a reply with errno e.
func refused(cmd uint16, e uint32) error {
	r := &refusedError{cmd: cmd, errno: unix.Errno(e)}
	if e == 0 || e > 4095 { // an error without an errno, or with nonsense
		r.errno = unix.EIO
	}
	for _, t := range errnoTable {
		if r.errno == t.errno {
			r.sentinel = t.sentinel
		}
	}
	return r
}
