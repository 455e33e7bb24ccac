package vfiouser

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mlxvfio/mlxvfio/vfio"
)

// client is the far end of a Serve as a vfio.Transport.
//
// A request and its reply are one turn on the wire, like one access on a bus;
// mu is that bus. A turn is bounded by the timeout, and the server answers in
// order anyway, so there is no goroutine that reads replies and no queue.
type client struct {
	name    string // vfio-user:PATH
	timeout time.Duration
	posted  bool
	closed  atomic.Bool

	mu     sync.Mutex
	s      *sock
	dead   error  // why the connection is unusable, once it is
	nextID uint16 // of the next request
	out    []byte // the request under construction

	agreed  bool // on the protocol; of Dial's goroutine
	info    vfio.DeviceInfo
	regions [vfio.NumRegions]vfio.RegionInfo
	irqs    [vfio.NumIRQs]vfio.IRQInfo
	maxFDs  int
	maxData int
	dma     clientMapper
}

// Dial connects to the vfio-user server at path and opens its function. A
// server that is just starting gets a second to come up. One that serves
// another client answers when that client has left: within o.Timeout, or Dial
// fails with ErrLateReply.
//
// DMA memory must have a file (memfd): it is the file that travels. Interrupts
// are eventfds. Regions are never mapped; every access traps into a message.
// When the connection is lost, every call answers at once with an error that is
// vfio.ErrGone and names the cause, so a vfio.Window reads all ones.
func Dial(ctx context.Context, path string, o Options) (vfio.Transport, error) {
	c := &client{
		name: "vfio-user:" + path, timeout: o.timeout(defaultTimeout), posted: o.PostedWrites,
		out: make([]byte, maxMessage),
	}
	c.dma.c = c
	fd, err := connect(ctx, path, c.timeout)
	if err != nil {
		return nil, c.fail("connect", err)
	}
	if c.s, err = newSock(fd, false, c.timeout); err != nil {
		_ = unix.Close(fd)
		return nil, c.fail("connect", err)
	}
	stop := afterDone(ctx, c.s.shutdown)
	err = c.open()
	stop()
	if err != nil {
		c.s.close()
		if ctx.Err() != nil {
			err = c.interrupted(context.Cause(ctx))
		}
		return nil, err
	}
	return c, nil
}

// CheckPath is nil where a UNIX socket can have that path; the error wraps ENAMETOOLONG.
func CheckPath(path string) error {
	if path == "" || len(path) > 107 { // sun_path, with its NUL
		return fmt.Errorf("a socket's path has 1 to 107 bytes, this one %d: %w", len(path), unix.ENAMETOOLONG)
	}
	return nil
}

// errNoSocket: what is at the path is something else.
var errNoSocket = errors.New("it is no socket")

// connect opens the socket, patient with a server that is not there yet.
func connect(ctx context.Context, path string, timeout time.Duration) (int, error) {
	if err := CheckPath(path); err != nil {
		return -1, err
	}
	deadline := time.Now().Add(connectRetry)
	for {
		fd, err := connectOnce(path, min(timeout, connectRetry))
		if err == nil {
			return fd, nil
		}
		absent := errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR)
		if st, serr := os.Stat(path); serr == nil && st.Mode()&fs.ModeSocket == 0 {
			return -1, fmt.Errorf("%w: %w", errNoSocket, err) // and will not be one
		}
		if !absent || time.Now().After(deadline) {
			return -1, err
		}
		select {
		case <-ctx.Done():
			return -1, ctx.Err()
		case <-time.After(connectRetryPause):
		}
	}
}

func connectOnce(path string, timeout time.Duration) (int, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	tv := unix.NsecToTimeval(timeout.Nanoseconds())
	err = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &tv) // bounds connect too
	if err == nil {
		err = unix.Connect(fd, &unix.SockaddrUnix{Name: path})
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// fail makes the error of an operation, with what helps.
func (c *client) fail(op string, err error) error {
	e := &vfio.Error{Op: op, Target: c.name, Err: err}
	switch {
	case errors.Is(err, ErrLateReply):
		e.Remedy = busyRemedy
	case errors.Is(err, vfio.ErrGone):
		e.Remedy = "restart the server (mlxvfio serve) and open the function again"
	case errors.Is(err, errNoSocket):
		e.Remedy = "give the path of a socket; mlxvfio serve --socket PATH makes one where nothing is"
	case op == "connect" && (errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ECONNREFUSED)):
		e.Remedy = "start the server first: mlxvfio serve --socket PATH"
	case op == "connect" && errors.Is(err, unix.EACCES):
		e.Remedy = "run as the user who owns the socket"
	case errors.As(err, new(*refusedError)):
		e.Remedy = "the server's log says why: mlxvfio serve --log-level debug"
	case errors.Is(err, ErrProtocol):
		e.Remedy = "check that a vfio-user server of version 0.0 listens there"
	}
	return e
}

// interrupted is the error of a Dial whose ctx is over.
func (c *client) interrupted(cause error) error {
	if c.agreed {
		return c.fail("open", cause)
	}
	err := fmt.Errorf("no answer to VERSION: %w", cause)
	if errors.Is(cause, context.DeadlineExceeded) {
		err = &goneError{fmt.Errorf("%w (%w)", ErrLateReply, cause)}
	}
	return &vfio.Error{Op: "wait for the server", Target: c.name, Err: err, Remedy: busyRemedy}
}

// busyRemedy is for a server that accepts a connection and then says nothing.
const busyRemedy = "the server is stuck or serves another client; end that client or restart the server"

// open agrees on the version and asks for all that never changes.
func (c *client) open() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.agree(); err != nil {
		return c.fail("agree on the protocol", err)
	}
	if err := c.getInfo(); err != nil {
		return c.fail("get device info", err)
	}
	for i := range c.info.Regions {
		if err := c.getRegion(i); err != nil {
			return c.fail(fmt.Sprintf("get info of region %d", i), err)
		}
	}
	for i := range c.info.IRQs {
		if err := c.getIRQ(i); err != nil {
			return c.fail(fmt.Sprintf("get info of interrupt index %d", i), err)
		}
	}
	return nil
}

// notUs is the error for a reply that no vfio-user server gives.
func notUs(err error) error { return fmt.Errorf("%w: %w", ErrProtocol, err) }

func (c *client) agree() error {
	b, err := c.turn(cmdVersion, len(proposal().appendTo(c.out[:headerSize]))-headerSize, nil)
	if err != nil {
		return err
	}
	v, err := parseVersion(b)
	if err != nil {
		return notUs(err)
	}
	if v.major != 0 || v.minor != 0 {
		return fmt.Errorf("%w: the server answered 0.0 with version %d.%d", ErrProtocol, v.major, v.minor)
	}
	c.limits(v.caps)
	c.agreed = true
	return nil
}

func (c *client) getInfo() error {
	b, err := c.turn(cmdDeviceGetInfo, deviceInfo{argsz: deviceInfoSize}.put(c.out[headerSize:]), nil)
	if err != nil {
		return err
	}
	d, err := parseDeviceInfo(b)
	if err != nil {
		return notUs(err)
	}
	if d.flags&deviceFlagPCI == 0 || d.regions <= vfio.RegionConfig || d.irqs <= vfio.IRQMSIX {
		return fmt.Errorf("%w: no PCI function: flags %#x, %d regions, %d interrupt kinds", ErrProtocol, d.flags, d.regions, d.irqs)
	}
	c.info = vfio.DeviceInfo{
		Name: c.name, Backend: "vfio-user", CanReset: d.flags&deviceFlagReset != 0,
		Regions: int(min(d.regions, vfio.NumRegions)), IRQs: int(min(d.irqs, vfio.NumIRQs)),
	}
	return nil
}

func (c *client) getRegion(i int) error {
	b, err := c.turn(cmdGetRegionInfo, regionInfo{argsz: regionInfoSize, index: uint32(i)}.put(c.out[headerSize:]), nil)
	if err != nil {
		return err
	}
	r, err := parseRegionInfo(b)
	if err != nil {
		return notUs(err)
	}
	c.regions[i] = vfio.RegionInfo{Size: r.size, Read: r.flags&regionFlagRead != 0, Write: r.flags&regionFlagWrite != 0}
	return nil
}

func (c *client) getIRQ(i int) error {
	b, err := c.turn(cmdGetIRQInfo, irqInfo{argsz: irqInfoSize, index: uint32(i)}.put(c.out[headerSize:]), nil)
	if err != nil {
		return err
	}
	q, err := parseIRQInfo(b)
	if err != nil {
		return notUs(err)
	}
	if q.count > maxVectors {
		return fmt.Errorf("%w: %d vectors, at most %d exist", ErrProtocol, q.count, maxVectors)
	}
	c.irqs[i] = vfio.IRQInfo{Count: int(q.count), EventFD: q.flags&irqFlagEventFD != 0, NoResize: q.flags&irqFlagNoResize != 0}
	return nil
}

// maxVectors is what a PCI function can have at most (MSI-X table size).
const maxVectors = 2048

// limits applies the server's capabilities over the specification's defaults.
func (c *client) limits(caps capabilities) {
	c.maxFDs, c.maxData = 1, maxData
	c.dma.max, c.dma.pageSizes = defaultMaxMaps, pageSize
	if n := caps.MaxMsgFDs; n != nil {
		c.maxFDs = max(1, min(*n, maxFDs))
	}
	if n := caps.MaxData; n != nil && *n > 0 {
		c.maxData = min(*n, maxData)
	}
	if n := caps.MaxDMAMaps; n != nil && *n > 0 {
		c.dma.max = *n
	}
	if n := caps.PageSizes; n != nil && *n != 0 {
		c.dma.pageSizes = *n
	}
}

// usable says why no request can be made; c.mu is held.
func (c *client) usable() error {
	if c.closed.Load() {
		return vfio.ErrClosed
	}
	return c.dead
}

// give up marks the connection as lost. The server notices and cleans up, so
// nothing of ours is touched any more.
func (c *client) giveUp(cause error) error {
	c.dead = &goneError{cause}
	c.s.shutdown()
	if c.closed.Load() { // Close interrupted us
		return vfio.ErrClosed
	}
	return c.dead
}

// begin sends a request whose body of n bytes is in c.out behind the header.
func (c *client) begin(cmd uint16, n int, flags uint32, fds []int) (id uint16, err error) {
	if err := c.usable(); err != nil {
		return 0, err
	}
	c.nextID++
	h := header{id: c.nextID, cmd: cmd, size: uint32(headerSize + n), flags: flags}
	h.put(c.out)
	if err := c.s.send(c.out[:h.size], fds); err != nil {
		return 0, c.giveUp(lost(err))
	}
	return h.id, nil
}

// turn makes a request and waits for its reply; the body is valid until the next
// request. c.mu is held.
func (c *client) turn(cmd uint16, n int, fds []int) ([]byte, error) {
	deadline := time.Now().Add(c.timeout)
	id, err := c.begin(cmd, n, 0, fds)
	if err != nil {
		return nil, err
	}
	var m message
	for {
		if err := c.s.receive(&m, deadline); err != nil {
			return nil, c.giveUp(lost(err))
		}
		if m.isReply() {
			break
		}
		// A request of the server: nothing that this client can do.
		if m.flags&flagNoReply == 0 {
			r := header{id: m.id, cmd: m.cmd, size: headerSize, flags: flagReply | flagError, errno: uint32(unix.EOPNOTSUPP)}
			var b [headerSize]byte
			r.put(b[:])
			if err := c.s.send(b[:], nil); err != nil {
				return nil, c.giveUp(lost(err))
			}
		}
	}
	if m.id != id || m.cmd != cmd {
		return nil, c.giveUp(fmt.Errorf("%w: reply to %s (id %d) where %s (id %d) was asked", ErrProtocol, cmdName(m.cmd), m.id, cmdName(cmd), id))
	}
	if m.flags&flagError != 0 {
		return nil, refused(cmd, m.errno)
	}
	return m.body, nil
}

// lost names what a socket error means to a client.
func lost(err error) error {
	switch {
	case errors.Is(err, errIdle), errors.Is(err, errStalled):
		return ErrLateReply
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, unix.EPIPE), errors.Is(err, unix.ECONNRESET), errors.Is(err, unix.ENOTCONN):
		return ErrServerGone
	}
	return err
}

// Close implements vfio.Transport. It waits until the server has let go of the
// function, so that after it the memory is free of DMA and the next Dial finds
// a fresh function; with a server that is stuck, no longer than the timeout. A
// call that another goroutine is in the middle of is broken off with ErrClosed.
func (c *client) Close() error {
	if c.closed.Swap(true) {
		return nil
	}
	orderly := c.mu.TryLock()
	if !orderly {
		c.s.shutdown()
		c.mu.Lock()
	}
	defer c.mu.Unlock()
	if orderly && c.dead == nil {
		_ = unix.Shutdown(c.s.fd, unix.SHUT_WR)
		var m message
		deadline := time.Now().Add(c.timeout)
		for c.s.receive(&m, deadline) == nil { // the server closes last
		}
	}
	c.s.close()
	c.s = nil
	if c.dead == nil {
		c.dead = os.ErrClosed
	}
	return nil
}
