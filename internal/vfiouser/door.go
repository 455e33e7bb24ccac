package vfiouser

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mlxvfio/mlxvfio/vfio"
)

// maxWaiting bounds the connections beside the one that is served. Beyond it
// whoever has said nothing for longest is sent away; where all have said
// something, the rest waits in the listener's queue.
const maxWaiting = 64

// door accepts connections and hands out those whose client has said something,
// in the order in which they did. A client that says nothing costs the others no
// time: it is sent away by itself after the timeout, or for a newer one.
type door struct {
	l       net.Listener
	log     *slog.Logger
	timeout time.Duration
	room    chan struct{} // one token a connection that waits
	ready   chan net.Conn // of maxWaiting: who has said something
	failed  chan error    // why accepting ended
	stop    context.CancelFunc
	wg      sync.WaitGroup

	mu     sync.Mutex
	silent []net.Conn // in the order of their arrival
}

func newDoor(ctx context.Context, l net.Listener, timeout time.Duration, log *slog.Logger) *door {
	ctx, stop := context.WithCancel(ctx)
	d := &door{
		l: l, log: log, timeout: timeout, stop: stop,
		room: make(chan struct{}, maxWaiting), ready: make(chan net.Conn, maxWaiting), failed: make(chan error, 1),
	}
	d.wg.Go(func() { d.failed <- d.accept(ctx) })
	return d
}

// next waits for a client that has said something; nil when ctx is done.
func (d *door) next(ctx context.Context) (net.Conn, error) {
	select {
	case <-ctx.Done(): // before anybody who waits
		return nil, nil
	default:
	}
	select {
	case c := <-d.ready:
		<-d.room
		return c, nil
	case err := <-d.failed:
		d.failed <- err
		if ctx.Err() != nil {
			err = nil
		}
		return nil, err
	case <-ctx.Done():
		return nil, nil
	}
}

// close sends everybody away and waits for the door's goroutines.
func (d *door) close() {
	d.stop()
	_ = d.l.Close()
	d.mu.Lock()
	for _, c := range d.silent {
		_ = c.Close()
	}
	d.mu.Unlock()
	d.wg.Wait()
	close(d.ready)
	for c := range d.ready {
		_ = c.Close()
	}
}

// accept takes connections in until ctx is done or the listener fails.
func (d *door) accept(ctx context.Context) error {
	for {
		if !d.makeRoom(ctx) {
			return nil
		}
		c, err := d.l.Accept()
		switch {
		case err == nil:
			d.mu.Lock()
			d.silent = append(d.silent, c)
			d.mu.Unlock()
			d.wg.Go(func() { d.wait(ctx, c) })
			continue
		case ctx.Err() != nil:
			return ctx.Err() // next makes it no error
		case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE), errors.Is(err, unix.ECONNABORTED):
			<-d.room
			d.log.Error("cannot accept a client", "err", err)
			select { // what is short may come back
			case <-ctx.Done():
			case <-time.After(100 * time.Millisecond):
			}
		default:
			return &vfio.Error{Op: "accept a client", Target: "vfio-user:" + d.l.Addr().String(), Err: err}
		}
	}
}

// makeRoom takes a place for one more connection; false when ctx is done.
func (d *door) makeRoom(ctx context.Context) bool {
	select {
	case d.room <- struct{}{}:
		return true
	default:
	}
	d.mu.Lock()
	if len(d.silent) > 0 {
		_ = d.silent[0].Close() // ends its wait
		d.silent = d.silent[1:]
	}
	d.mu.Unlock()
	select {
	case d.room <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

// wait is the stay of one connection until its client says something.
func (d *door) wait(ctx context.Context, c net.Conn) {
	err := ctx.Err() // close may have looked at silent before this one was in it
	if err == nil {
		err = awaitBytes(c, d.timeout)
	}
	d.mu.Lock()
	d.silent = slices.DeleteFunc(d.silent, func(o net.Conn) bool { return o == c })
	d.mu.Unlock()
	if err == nil && ctx.Err() == nil {
		d.ready <- c // has room: who waits holds a token
		return
	}
	_ = c.Close()
	<-d.room
	switch {
	case err == nil || ctx.Err() != nil:
	case errors.Is(err, io.EOF): // somebody looked whether a server is there
		d.log.Debug("client left without a word")
	default:
		d.log.Warn("client sent away", "err", err)
	}
}

// awaitBytes waits until c has something to read, and leaves it there.
func awaitBytes(c net.Conn, timeout time.Duration) error {
	sc, ok := c.(syscall.Conn)
	if !ok {
		return fmt.Errorf("%T is no socket", c)
	}
	rc, err := sc.SyscallConn()
	if err != nil {
		return err
	}
	if err := c.SetReadDeadline(time.Now().Add(timeout)); err != nil {
		return err
	}
	var n int
	var got error
	err = rc.Read(func(fd uintptr) bool {
		var b [1]byte
		n, _, got = unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		return !errors.Is(got, unix.EAGAIN) && !errors.Is(got, unix.EINTR)
	})
	switch {
	case err != nil:
		return fmt.Errorf("%w: no VERSION within %v: %w", ErrProtocol, timeout, err)
	case got != nil:
		return got
	case n == 0:
		return io.EOF
	}
	return nil
}
