package vfiouser

import (
	"errors"
	"fmt"
	"io"
	"time"

	"golang.org/x/sys/unix"
)

// message is one received message. body is valid until the next receive; fds
// belong to whoever handles the message: it takes one by setting its entry to
// −1, the rest is closed.
type message struct {
	header
	body []byte
	fds  []int
}

// take gives file descriptor i away.
func (m *message) take(i int) int {
	fd := m.fds[i]
	m.fds[i] = -1
	return fd
}

func (m *message) closeFDs() {
	closeAll(m.fds)
	m.fds = nil
}

func closeAll(fds []int) {
	for _, fd := range fds {
		if fd >= 0 {
			_ = unix.Close(fd) // nothing was written through it
		}
	}
}

// Errors of a sock beside the kernel's.
var (
	errIdle    = errors.New("nothing arrived in time") // between messages
	errStalled = errors.New("the peer stopped in the middle of a message")
)

// sock is a connected, blocking UNIX stream socket with message framing. It is
// blocking on purpose: a request is answered in microseconds, and the runtime's
// poller would add its own latency to each one. One goroutine at a time uses
// it; shutdown may be called from any.
//
// Bytes are read ahead, as many as there are. The kernel ends a read after the
// piece that carried file descriptors, and a sender passes them with the first
// piece of their message: so they belong to the message in which the read that
// brought them ended.
type sock struct {
	fd      int
	timeout time.Duration // for each wait, and for a message as a whole
	takeFDs bool          // receive file descriptors; without, the kernel drops them
	buf     []byte        // maxMessage bytes
	r, w    int           // buf[r:w] is received and not consumed
	pending []fdSet
	oob     []byte
}

type fdSet struct {
	end int // index in buf after the read that brought them
	fds []int
}

// newSock owns fd, makes it blocking and bounds each wait for the peer.
func newSock(fd int, takeFDs bool, timeout time.Duration) (*sock, error) {
	tv := unix.NsecToTimeval(timeout.Nanoseconds())
	err := errors.Join(
		unix.SetNonblock(fd, false),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &tv),
	)
	if err != nil {
		return nil, err
	}
	s := &sock{fd: fd, timeout: timeout, takeFDs: takeFDs, buf: make([]byte, maxMessage)}
	if takeFDs {
		s.oob = make([]byte, unix.CmsgSpace(maxFDs*4))
	}
	return s, nil
}

// shutdown makes a blocked receive or send of this socket return.
func (s *sock) shutdown() { _ = unix.Shutdown(s.fd, unix.SHUT_RDWR) }

// close frees the socket and every file descriptor that nobody took.
func (s *sock) close() {
	for _, p := range s.pending {
		closeAll(p.fds)
	}
	s.pending = nil
	_ = unix.Close(s.fd)
}

// receive waits for one whole message. io.EOF: the peer left between messages;
// errIdle: nothing came within the timeout; any other error ends the stream. A
// peer that sends something else, or a byte now and then, is not waited for
// beyond deadline (zero: for ever) by more than one timeout, and a message that
// has begun must be whole after two.
func (s *sock) receive(m *message, deadline time.Time) error {
	for {
		if have := s.w - s.r; have >= headerSize {
			h, err := parseHeader(s.buf[s.r:s.w])
			if err != nil {
				return fmt.Errorf("%w: %w", ErrProtocol, err)
			}
			if have >= int(h.size) {
				end := s.r + int(h.size)
				m.header, m.body = h, s.buf[s.r+headerSize:end:end]
				m.fds = s.takePending(end)
				s.r = end
				return nil
			}
		}
		if deadline.IsZero() && s.w > s.r { // a part of it has come
			deadline = time.Now().Add(s.timeout)
		}
		if !deadline.IsZero() && time.Now().After(deadline) {
			return errStalled
		}
		if err := s.fill(); err != nil {
			return err
		}
	}
}

func (s *sock) takePending(end int) []int {
	var fds []int
	for len(s.pending) > 0 && s.pending[0].end <= end {
		fds = append(fds, s.pending[0].fds...)
		s.pending = s.pending[1:]
	}
	return fds
}

// fill waits for bytes and reads what there is.
func (s *sock) fill() error {
	if s.r > 0 {
		copy(s.buf, s.buf[s.r:s.w])
		for i := range s.pending {
			s.pending[i].end -= s.r
		}
		s.w -= s.r
		s.r = 0
	}
	var n, oobn, flags int
	var err error
	if s.takeFDs {
		n, oobn, flags, _, err = unix.Recvmsg(s.fd, s.buf[s.w:], s.oob, unix.MSG_CMSG_CLOEXEC)
	} else {
		n, err = unix.Read(s.fd, s.buf[s.w:])
	}
	switch {
	case errors.Is(err, unix.EINTR):
		return nil // the caller looks at its deadline and comes back
	case errors.Is(err, unix.EAGAIN) && s.w > 0:
		return errStalled
	case errors.Is(err, unix.EAGAIN):
		return errIdle
	case err != nil:
		return err
	case n == 0 && s.w > 0:
		return io.ErrUnexpectedEOF
	case n == 0:
		return io.EOF
	}
	s.w += n
	if oobn > 0 {
		return s.keepFDs(s.oob[:oobn], flags)
	}
	return nil
}

// keepFDs parses ancillary data. The kernel has opened the descriptors already:
// whatever happens, each is kept or closed.
func (s *sock) keepFDs(oob []byte, flags int) error {
	cmsgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return fmt.Errorf("%w: ancillary data: %w", ErrProtocol, err)
	}
	var fds []int
	for _, c := range cmsgs {
		if c.Header.Level == unix.SOL_SOCKET && c.Header.Type == unix.SCM_RIGHTS {
			if got, err := unix.ParseUnixRights(&c); err == nil {
				fds = append(fds, got...)
			}
		}
	}
	held := len(fds)
	for _, p := range s.pending {
		held += len(p.fds)
	}
	// Before a read at most the one incomplete message has descriptors, and the
	// read can end in the next.
	if flags&unix.MSG_CTRUNC != 0 || held > 2*maxFDs {
		closeAll(fds)
		return fmt.Errorf("%w: more than %d file descriptors in a message, or this process may open no more", ErrProtocol, maxFDs)
	}
	if len(fds) > 0 {
		s.pending = append(s.pending, fdSet{s.w, fds})
	}
	return nil
}

// send writes the message b, header included, with fds beside it. They stay the
// caller's. Without any it is a plain write, which the race detector knows to
// order what came before it with what follows the peer's read. A peer that takes
// a few bytes now and then is waited for as long as one that takes none: two
// timeouts at most.
func (s *sock) send(b []byte, fds []int) error {
	var deadline time.Time
	for len(b) > 0 {
		var n int
		var err error
		if len(fds) > 0 {
			n, err = unix.SendmsgN(s.fd, b, unix.UnixRights(fds...), nil, unix.MSG_NOSIGNAL)
		} else {
			n, err = unix.Write(s.fd, b)
		}
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			return errStalled
		case err != nil:
			return err
		}
		b, fds = b[n:], nil
		if len(b) > 0 {
			if now := time.Now(); deadline.IsZero() {
				deadline = now.Add(s.timeout)
			} else if now.After(deadline) {
				return errStalled
			}
		}
	}
	return nil
}
