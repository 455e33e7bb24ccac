package vfiouser

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mlxvfio/mlxvfio/vfio"
)

// Listen makes the socket for Serve at path, for this user only. A socket that
// a dead server left behind is replaced; one that a living server listens on,
// and a file that is no socket, are refused.
func Listen(path string) (net.Listener, error) {
	fail := func(err error, remedy string) error {
		return &vfio.Error{Op: "listen", Target: path, Err: err, Remedy: remedy}
	}
	if err := CheckPath(path); err != nil {
		return nil, fail(err, "use a shorter path")
	}
	if st, err := os.Lstat(path); err == nil {
		if st.Mode()&fs.ModeSocket == 0 {
			what := "a file that is no socket"
			if st.IsDir() {
				what = "a folder"
			}
			return nil, fail(fmt.Errorf("%s is there: %w", what, fs.ErrExist), "use another path")
		}
		if c, err := net.DialTimeout("unix", path, time.Second); err == nil {
			_ = c.Close()
			return nil, fail(unix.EADDRINUSE, "another server listens there; stop it or use another path")
		} else if !errors.Is(err, unix.ECONNREFUSED) {
			return nil, fail(err, "remove the socket or use another path")
		}
		if err := os.Remove(path); err != nil {
			return nil, fail(err, "remove the stale socket")
		}
	}
	// The mode is given to the socket before it gets its path (Linux unix(7):
	// fchmod of a socket that is not bound), so there is no moment in which
	// others may connect.
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var mode error
		err := c.Control(func(fd uintptr) { mode = unix.Fchmod(int(fd), 0o600) })
		return errors.Join(err, mode)
	}}
	l, err := lc.Listen(context.Background(), "unix", path)
	if err != nil {
		var bare unix.Errno
		if errors.As(err, &bare) { // without the path a second time
			err = bare
		}
		remedy := "use a path in a folder that may be written to"
		if errors.Is(err, unix.ENOENT) {
			remedy = "make the folder first: mkdir -p " + filepath.Dir(path)
		}
		return nil, fail(err, remedy)
	}
	return l, nil
}

// Serve offers t to one client at a time until ctx is done, which is no error,
// or the listener fails. Further clients wait for their turn, in the order in
// which they began to speak; a client that does not say VERSION within
// Options.Timeout is dropped, and while it is silent it holds nobody up. When a
// client leaves, by itself or by breaking the protocol, its interrupts are
// detached, the function is reset, its DMA mappings are removed, and the next
// client finds a fresh function. docs/security.md has what a client can and
// cannot do to the server.
//
// Serve runs in the goroutine of its caller and calls t from there alone. It
// closes l (which removes the socket's path), never t. l must be a UNIX stream
// listener.
func Serve(ctx context.Context, l net.Listener, t vfio.Transport, o Options) error {
	defer func() { _ = l.Close() }()
	srv := &server{t: t, log: o.logger(), maxMaps: o.maxMappings(), maxMapped: o.maxMapped(), hello: o.timeout(serverIOTimeout)}
	if err := srv.describe(); err != nil {
		return err
	}
	d := newDoor(ctx, l, srv.hello, srv.log)
	defer d.close()
	for {
		c, err := d.next(ctx)
		if c == nil {
			return err
		}
		s, err := takeOver(c, srv.hello)
		if err != nil {
			srv.log.Error("cannot serve a client", "err", err)
			continue
		}
		srv.serve(ctx, s)
	}
}

// afterDone runs f when ctx is done, and returns what ends that: it waits for f
// when f has begun.
func afterDone(ctx context.Context, f func()) func() {
	ran := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ran)
		f()
	})
	return func() {
		if !stop() {
			<-ran
		}
	}
}

// takeOver turns an accepted connection into a blocking socket of our own.
func takeOver(c net.Conn, timeout time.Duration) (*sock, error) {
	defer func() { _ = c.Close() }()
	sc, ok := c.(syscall.Conn)
	if !ok {
		return nil, fmt.Errorf("%T is no socket", c)
	}
	rc, err := sc.SyscallConn()
	if err != nil {
		return nil, err
	}
	fd, dupErr := -1, error(nil)
	if err := rc.Control(func(f uintptr) { fd, dupErr = unix.FcntlInt(f, unix.F_DUPFD_CLOEXEC, 0) }); err != nil {
		return nil, err
	}
	if dupErr != nil {
		return nil, dupErr
	}
	s, err := newSock(fd, true, timeout)
	if err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	return s, nil
}

// server is one function on offer.
type server struct {
	t         vfio.Transport
	log       *slog.Logger
	maxMaps   int
	maxMapped uint64
	hello     time.Duration // for a client to say VERSION, and for the rest of a message
	info      vfio.DeviceInfo
	regions   []vfio.RegionInfo
	irqs      []vfio.IRQInfo
}

// describe asks the function once for what never changes.
func (srv *server) describe() error {
	info, err := srv.t.Info()
	if err != nil {
		return err
	}
	srv.info = info
	for i := range info.Regions {
		r, err := srv.t.RegionInfo(i)
		if err != nil {
			return err
		}
		srv.regions = append(srv.regions, r)
	}
	for i := range info.IRQs {
		q, err := srv.t.IRQInfo(i)
		if err != nil {
			return err
		}
		srv.irqs = append(srv.irqs, q)
	}
	return nil
}

// serve talks to one client until it leaves. A vCPU waits for each answer, so
// the goroutine keeps its thread.
func (srv *server) serve(ctx context.Context, s *sock) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	c := &session{server: srv, s: s, mem: newGuestMemory(srv.t.DMA(), srv.maxMaps, srv.maxMapped, srv.log), out: make([]byte, maxMessage)}
	srv.log.Info("client connected", "function", srv.info.Name)
	stop := afterDone(ctx, s.shutdown)
	err := c.run()
	stop()
	c.cleanUp()
	s.close() // last: a client that waits for the end of file sees a clean function
	if !errors.Is(err, io.EOF) && ctx.Err() == nil {
		srv.log.Warn("client dropped", "function", srv.info.Name, "err", err)
		return
	}
	srv.log.Info("client left", "function", srv.info.Name)
}
