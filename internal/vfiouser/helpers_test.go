package vfiouser

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/mlxvfio/mlxvfio/vfio"
	"github.com/mlxvfio/mlxvfio/vfio/vfiotest"
)

// TestMain makes the runtime open its poller before any test counts descriptors.
func TestMain(m *testing.M) {
	l, err := net.Listen("unix", filepath.Join(os.TempDir(), "vfiouser-warm-up-"+time.Now().Format("150405.000000000")))
	if err != nil {
		panic(err)
	}
	_ = l.Close()
	os.Exit(m.Run())
}

func countFDs(t *testing.T) int {
	t.Helper()
	d, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(d)
}

// noLeaks asserts at the end of the test that descriptors and goroutines are
// back to what they were when it was called.
func noLeaks(t *testing.T) {
	t.Helper()
	fds, gs := countFDs(t), runtime.NumGoroutine()
	t.Cleanup(func() {
		require.Eventually(t, func() bool { return countFDs(t) == fds && runtime.NumGoroutine() <= gs+1 }, // +1: Eventually's own
			5*time.Second, 5*time.Millisecond, "descriptors %d → %d, goroutines %d → %d", fds, countFDs(t), gs, runtime.NumGoroutine())
	})
}

// write is one BAR or config write as the function saw it.
type write struct {
	region int
	off    uint64
	data   string
}

// device is a RAM device that remembers what was written.
type device struct {
	*vfiotest.RAM
	calls   atomic.Int64               // accesses that reached it, refused ones included
	onWrite func(region int, p []byte) // beside remembering
	mu      sync.Mutex
	writes  []write
}

func (d *device) ReadRegion(index int, off uint64, p []byte) error {
	d.calls.Add(1)
	return d.RAM.ReadRegion(index, off, p)
}

func (d *device) WriteRegion(index int, off uint64, p []byte) error {
	d.calls.Add(1)
	return d.RAM.WriteRegion(index, off, p)
}

func newDevice(o vfiotest.RAMOptions) *device {
	d := &device{}
	o.OnWrite = func(region int, off uint64, p []byte) {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.writes = append(d.writes, write{region, off, string(p)})
		if d.onWrite != nil {
			d.onWrite(region, p)
		}
	}
	d.RAM = vfiotest.NewRAM(o)
	return d
}

func (d *device) seen() []write {
	d.mu.Lock()
	defer d.mu.Unlock()
	w := d.writes
	d.writes = nil
	return w
}

// serve serves tr until the test ends and gives the socket's path.
func serve(t *testing.T, tr vfio.Transport, o Options) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := Listen(path)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, l, tr, o) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-done:
			require.NoError(t, err)
		case <-time.After(10 * time.Second):
			t.Error("Serve did not end")
		}
		require.NoFileExists(t, path)
	})
	return path
}

func dial(t *testing.T, path string, o Options) vfio.Transport {
	t.Helper()
	c, err := Dial(t.Context(), path, o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

// raw is a client that can send whatever it likes.
type raw struct {
	t  *testing.T
	fd int
	id uint16
}

// rawDial connects; with hello it agrees on the version as QEMU does.
func rawDial(t *testing.T, path string, hello bool) *raw {
	t.Helper()
	fd, err := connect(t.Context(), path, time.Second)
	require.NoError(t, err)
	tv := unix.NsecToTimeval(int64(8 * time.Second))
	require.NoError(t, unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv))
	r := &raw{t: t, fd: fd}
	t.Cleanup(r.close)
	if hello {
		h, _ := r.ask(cmdVersion, version{}.appendTo(nil))
		require.Zero(t, h.errno)
	}
	return r
}

func (r *raw) close() {
	if r.fd >= 0 {
		_ = unix.Close(r.fd)
		r.fd = -1
	}
}

// message makes a whole request.
func (r *raw) message(cmd uint16, flags uint32, body []byte) []byte {
	r.id++
	b := make([]byte, headerSize, headerSize+len(body))
	header{id: r.id, cmd: cmd, size: uint32(headerSize + len(body)), flags: flags}.put(b)
	return append(b, body...)
}

func (r *raw) send(b []byte, fds ...int) {
	r.t.Helper()
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	require.NoError(r.t, unix.Sendmsg(r.fd, b, oob, nil, unix.MSG_NOSIGNAL))
}

// reply reads one reply.
func (r *raw) reply() (header, []byte) {
	r.t.Helper()
	b := make([]byte, maxMessage)
	r.readFull(b[:headerSize])
	h, err := parseHeader(b[:headerSize])
	require.NoError(r.t, err)
	r.readFull(b[headerSize:h.size])
	require.True(r.t, h.isReply())
	return h, b[headerSize:h.size]
}

func (r *raw) readFull(b []byte) {
	r.t.Helper()
	for len(b) > 0 {
		n, err := readRetry(r.fd, b)
		require.NoError(r.t, err)
		require.NotZero(r.t, n, "the server hung up")
		b = b[n:]
	}
}

// readRetry reads in spite of the runtime's signals.
func readRetry(fd int, b []byte) (n int, err error) {
	for {
		if n, err = unix.Read(fd, b); !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

// ask makes a request and reads the reply to it.
func (r *raw) ask(cmd uint16, body []byte, fds ...int) (header, []byte) {
	r.t.Helper()
	r.send(r.message(cmd, 0, body), fds...)
	h, b := r.reply()
	require.Equal(r.t, r.id, h.id)
	require.Equal(r.t, cmd, h.cmd)
	return h, b
}

// dropped asserts that the server ends the connection, after error replies at
// most.
func (r *raw) dropped() {
	r.t.Helper()
	b := make([]byte, 4096)
	for {
		n, err := readRetry(r.fd, b)
		if errors.Is(err, unix.ECONNRESET) || err == nil && n == 0 {
			return
		}
		require.NoError(r.t, err)
		for p := b[:n]; len(p) > 0; {
			h, err := parseHeader(p)
			require.NoError(r.t, err)
			require.NotZero(r.t, h.flags&flagError)
			p = p[h.size:]
		}
	}
}

// body encodes one of the message structs.
func body(m interface{ put([]byte) int }) []byte {
	b := make([]byte, maxMessage)
	return b[:m.put(b)]
}

// memfd makes a memory file of n bytes, mapped into the test.
func memfd(t *testing.T, n int) (fd int, mem []byte) {
	t.Helper()
	fd, err := unix.MemfdCreate("vfiouser-test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	require.NoError(t, err)
	require.NoError(t, unix.Ftruncate(fd, int64(n)))
	mem, err = unix.Mmap(fd, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, unix.Munmap(mem))
		require.NoError(t, unix.Close(fd))
	})
	return fd, mem
}

// eventfds makes n eventfds.
func eventfds(t *testing.T, n int) []int {
	t.Helper()
	fds := make([]int, n)
	for i := range fds {
		var err error
		fds[i], err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
		require.NoError(t, err)
		t.Cleanup(func() { _ = unix.Close(fds[i]) })
	}
	return fds
}

// fired tells whether eventfd fd was signalled, and clears it.
func fired(fd int) bool {
	var b [8]byte
	n, err := unix.Read(fd, b[:])
	return err == nil && n == 8
}
