package vfio

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Vector is one interrupt: an eventfd, or a channel for the in-process model.
// Signals that arrive while nobody waits are remembered as one. One goroutine
// waits at a time, any number signal.
type Vector struct {
	file   *os.File        // eventfd, or nil
	raw    syscall.RawConn // of file
	ch     chan struct{}   // channel, or nil
	done   chan struct{}   // closed by Close
	closed atomic.Bool
}

// NewChanVector makes a Vector without a file, for the in-process model: it
// works under testing/synctest.
func NewChanVector() *Vector {
	return &Vector{ch: make(chan struct{}, 1), done: make(chan struct{})}
}

// NewEventFDVector makes a Vector over a new eventfd.
func NewEventFDVector() (*Vector, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, &Error{Op: "create eventfd", Err: err, Remedy: "raise the limit of open files: ulimit -n"}
	}
	return VectorFromFD(fd), nil
}

// VectorFromFD makes a Vector over an eventfd received from elsewhere (a
// vfio-user client) and owns it. What is no open file is a closed Vector.
func VectorFromFD(fd int) *Vector {
	v := &Vector{done: make(chan struct{})}
	// Non-blocking before NewFile, which then lets the runtime poll it.
	err := unix.SetNonblock(fd, true)
	if err == nil {
		v.file = os.NewFile(uintptr(fd), "eventfd")
		v.raw, err = v.file.SyscallConn()
	}
	if err != nil {
		v.closed.Store(true)
		close(v.done)
	}
	return v
}

// FD is the eventfd, or −1 for a channel vector and for a closed one. It stays
// owned by the Vector.
func (v *Vector) FD() int {
	if v.file == nil || v.closed.Load() {
		return -1
	}
	n := -1
	if v.raw.Control(func(fd uintptr) { n = int(fd) }) != nil {
		return -1
	}
	return n
}

// Signal raises the interrupt. It never blocks.
func (v *Vector) Signal() {
	if v.closed.Load() {
		return
	}
	if v.ch != nil {
		select {
		case v.ch <- struct{}{}:
		default: // already pending
		}
		return
	}
	// Not File.Write: that would wait where 2^64−2 signals are pending already, a
	// state that a peer with the same eventfd can bring about. EAGAIN then says
	// that one more changes nothing, and a closed file has no waiter.
	// syscall.Write, as File.Read uses syscall.Read: the race detector then knows
	// that a signal happens before the wait it ends.
	_ = v.raw.Control(func(fd uintptr) { _, _ = syscall.Write(int(fd), one[:]) })
}

// one is what an eventfd counts a signal with, in host order.
var one = func() (b [8]byte) {
	binary.NativeEndian.PutUint64(b[:], 1)
	return b
}()

// Wait blocks until the interrupt was raised since the last Wait, ctx is done,
// or the Vector is closed (ErrClosed). An interrupt that is pending already wins
// over a context that is done.
func (v *Vector) Wait(ctx context.Context) error {
	if v.closed.Load() {
		return ErrClosed
	}
	if v.TryWait() {
		return nil
	}
	if v.ch != nil {
		select {
		case <-v.ch:
			return nil
		case <-v.done:
			return ErrClosed
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if ctx.Done() != nil {
		expired := make(chan struct{})
		stop := context.AfterFunc(ctx, func() {
			_ = v.file.SetReadDeadline(time.Unix(1, 0)) // fails on a closed file only, which wakes the reader by itself
			close(expired)
		})
		defer func() {
			if !stop() {
				// The function runs or has run: only after it can the deadline be
				// taken back, or the next Wait would find it.
				<-expired
				_ = v.file.SetReadDeadline(time.Time{})
			}
		}()
	}
	var n [8]byte
	_, err := v.file.Read(n[:])
	switch {
	case err == nil:
		return nil
	case v.closed.Load() || errors.Is(err, os.ErrClosed):
		return ErrClosed
	case errors.Is(err, os.ErrDeadlineExceeded) && ctx.Err() != nil:
		return ctx.Err()
	}
	return fmt.Errorf("wait for interrupt: %w", err)
}

// TryWait consumes a pending interrupt and tells whether there was one.
func (v *Vector) TryWait() bool {
	if v.closed.Load() {
		return false
	}
	if v.ch != nil {
		select {
		case <-v.ch:
			return true
		default:
			return false
		}
	}
	got := false
	_ = v.raw.Control(func(fd uintptr) {
		var n [8]byte
		m, err := syscall.Read(int(fd), n[:])
		got = m == 8 && err == nil
	})
	return got
}

// Close wakes a waiter with ErrClosed and frees the eventfd. Detach the vector
// from its transport first.
func (v *Vector) Close() error {
	if v.closed.Swap(true) {
		return nil
	}
	close(v.done)
	if v.file != nil {
		return v.file.Close()
	}
	return nil
}
