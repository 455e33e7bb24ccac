package vfio

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Vector is one interrupt: an eventfd, or a channel for the in-process model.
// Signals that arrive while nobody waits are remembered as one. One goroutine
// waits, any number signal.
type Vector struct {
	file   *os.File      // eventfd, or nil
	ch     chan struct{} // channel, or nil
	done   chan struct{} // closed by Close
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
// vfio-user client) and owns it.
func VectorFromFD(fd int) *Vector {
	// A failing SetNonblock means fd is no file at all; the first use says so.
	_ = unix.SetNonblock(fd, true)
	return &Vector{file: os.NewFile(uintptr(fd), "eventfd"), done: make(chan struct{})}
}

// FD is the eventfd, or −1 for a channel vector. It stays owned by the Vector.
func (v *Vector) FD() int {
	if v.file == nil || v.closed.Load() {
		return -1
	}
	rc, err := v.file.SyscallConn()
	if err != nil {
		return -1
	}
	n := -1
	if rc.Control(func(fd uintptr) { n = int(fd) }) != nil {
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
	var one [8]byte
	binary.NativeEndian.PutUint64(one[:], 1)
	rc, err := v.file.SyscallConn()
	if err != nil {
		return
	}
	// EAGAIN means that 2^64−2 signals are pending: one more says nothing new.
	_ = rc.Control(func(fd uintptr) { _, _ = unix.Write(int(fd), one[:]) })
}

// Wait blocks until the interrupt was raised since the last Wait, ctx is done,
// or the Vector is closed (ErrClosed).
func (v *Vector) Wait(ctx context.Context) error {
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
		stop := context.AfterFunc(ctx, func() { _ = v.file.SetReadDeadline(time.Unix(1, 0)) })
		defer func() {
			if !stop() {
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
	rc, err := v.file.SyscallConn()
	if err != nil {
		return false
	}
	_ = rc.Control(func(fd uintptr) {
		var n [8]byte
		m, err := unix.Read(int(fd), n[:])
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
