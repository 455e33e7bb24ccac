package vfiouser

import (
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/mlxvfio/mlxvfio/vfio"
	"github.com/mlxvfio/mlxvfio/vfio/vfiotest"
)

// TestFlood: a client that speaks is served at once, however many silent
// connections came before it and keep coming, and the server holds few of them.
func TestFlood(t *testing.T) {
	noLeaks(t)
	path := serve(t, newDevice(vfiotest.RAMOptions{}), Options{Timeout: 8 * time.Second})
	first := rawDial(t, path, true)
	before := countFDs(t)
	const flood = 500
	var fds []int
	for range flood {
		fd, err := connect(t.Context(), path, time.Second)
		require.NoError(t, err)
		fds = append(fds, fd)
	}
	defer func() { closeAll(fds) }()
	require.LessOrEqual(t, countFDs(t)-before-flood, maxWaiting+2, "descriptors of the server")
	waiting := rawDial(t, path, false)
	waiting.send(waiting.message(cmdVersion, 0, version{}.appendTo(nil)))
	first.close()
	begin := time.Now()
	h, _ := waiting.reply()
	require.Zero(t, h.errno)
	require.Less(t, time.Since(begin), 4*time.Second, "silent clients cost no time")
	h, _ = waiting.ask(cmdDeviceReset, nil)
	require.Zero(t, h.errno)
}

// TestSilentClientWaitsForNobody: one is sent away, also while another one is served.
func TestSilentClientWaitsForNobody(t *testing.T) {
	noLeaks(t)
	const limit = 200 * time.Millisecond
	path := serve(t, newDevice(vfiotest.RAMOptions{}), Options{Timeout: limit})
	served := rawDial(t, path, true)
	silent := rawDial(t, path, false)
	silent.dropped()
	h, _ := served.ask(cmdDeviceReset, nil)
	require.Zero(t, h.errno)
}

// TestServedInTurn: clients that wait are served in the order in which they
// spoke, each with a fresh function, and one that left meanwhile is skipped.
func TestServedInTurn(t *testing.T) {
	noLeaks(t)
	d := newDevice(vfiotest.RAMOptions{})
	path := serve(t, d, Options{})
	now := rawDial(t, path, true)
	fd, _ := memfd(t, 1<<16)
	require.Zero(t, now.dmaMap(rw, 0, 0x10000, 1<<16, fd))
	var next []*raw
	for i := range 3 {
		r := rawDial(t, path, false)
		r.send(r.message(cmdVersion, 0, version{}.appendTo(nil)))
		if i == 1 {
			r.close()
		}
		next = append(next, r)
		time.Sleep(20 * time.Millisecond)
	}
	now.close()
	for _, i := range []int{0, 2} {
		h, _ := next[i].reply()
		require.Zero(t, h.errno)
		require.Empty(t, spans(d))
		require.Zero(t, next[i].dmaMap(rw, 0, 0x10000, 1<<16, fd))
		next[i].close()
	}
}

// TestDrip: bytes that come one by one, never a whole message, and a reader that
// takes one byte now and then, keep the server no longer than two timeouts.
func TestDrip(t *testing.T) {
	const limit = 200 * time.Millisecond
	t.Run("sender", func(t *testing.T) {
		path := serve(t, newDevice(vfiotest.RAMOptions{}), Options{Timeout: limit})
		r := rawDial(t, path, true)
		m := r.message(cmdRegionWrite, 0, append(body(access{0, vfio.RegionConfig, 4000}), make([]byte, 4000)...))
		begin := time.Now()
		for i := range m {
			if unix.Sendmsg(r.fd, m[i:i+1], nil, nil, unix.MSG_NOSIGNAL) != nil {
				break
			}
			require.Less(t, time.Since(begin), 4*limit, "still taken after %d bytes", i)
			time.Sleep(limit / 4)
		}
		alive(t, path)
	})
	t.Run("reader", func(t *testing.T) {
		path := serve(t, newDevice(vfiotest.RAMOptions{}), Options{Timeout: limit})
		r := rawDial(t, path, true)
		read := r.message(cmdRegionRead, 0, body(access{0, vfio.RegionConfig, 4096}))
		stop := make(chan struct{})
		go func() { // keeps both queues full, and takes a little
			defer close(stop)
			for begin := time.Now(); time.Since(begin) < 10*limit; time.Sleep(limit / 4) {
				for unix.Sendmsg(r.fd, read, nil, nil, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT) == nil { //nolint:revive // the work is in the condition
				}
				if _, err := readRetry(r.fd, make([]byte, 64)); err != nil {
					return
				}
			}
		}()
		begin := time.Now()
		alive(t, path)
		require.Less(t, time.Since(begin), 8*limit)
		<-stop
	})
}

// TestThousandFiles: more than a message may carry are dropped with the client,
// however they are spread.
func TestThousandFiles(t *testing.T) {
	noLeaks(t)
	path := serve(t, newDevice(vfiotest.RAMOptions{}), Options{})
	evs := eventfds(t, 250)
	r := rawDial(t, path, true)
	m := r.message(cmdRegionWrite, 0, append(body(access{0, vfio.RegionConfig, 64}), make([]byte, 64)...))
	for i := range 4 { // Linux passes up to 253 at once
		if unix.Sendmsg(r.fd, m[i:i+1], unix.UnixRights(evs...), nil, unix.MSG_NOSIGNAL) != nil {
			break
		}
	}
	r.dropped()
	alive(t, path)
	// Allowed numbers, message after message, are closed as they come.
	r = rawDial(t, path, true)
	before := countFDs(t)
	for range 1000 / maxFDs {
		h, _ := r.ask(cmdDeviceReset, nil, evs[:maxFDs]...)
		require.Zero(t, h.errno)
	}
	require.Equal(t, before, countFDs(t))
}

// TestTruncatedMemory: a client takes back memory that its file cannot be sealed
// against. The function's access fails, and neither the server nor its other
// memory notices; cleaning up works.
func TestTruncatedMemory(t *testing.T) {
	noLeaks(t)
	d := newDevice(vfiotest.RAMOptions{})
	path := serve(t, d, Options{})
	r := rawDial(t, path, true)
	fd, err := unix.MemfdCreate("unsealable", unix.MFD_CLOEXEC) // as QEMU's with seal=off, or a file in /dev/shm
	require.NoError(t, err)
	defer closeAll([]int{fd})
	require.NoError(t, unix.Ftruncate(fd, 1<<16))
	require.Zero(t, r.dmaMap(rw, 0, 0x10000, 1<<16, fd))
	other, mem := memfd(t, 1<<16)
	require.Zero(t, r.dmaMap(rw, 0, 0x40000, 1<<16, other))
	require.True(t, d.Memory().Mappings()[0].Lent)
	require.NoError(t, d.Memory().Access(0x1f000, []byte("here"), true))

	require.NoError(t, unix.Ftruncate(fd, 4096))
	for _, write := range []bool{false, true} {
		require.ErrorIs(t, d.Memory().Access(0x1f000, make([]byte, 4096), write), vfio.ErrGone)
		require.ErrorIs(t, d.Memory().Access(0x10800, make([]byte, 4096), write), vfio.ErrGone, "from what is there into what is not")
	}
	require.NoError(t, d.Memory().Access(0x10000, make([]byte, 4096), true))
	require.NoError(t, d.Memory().Access(0x40000, []byte("as ever"), true))
	require.Equal(t, "as ever", string(mem[:7]))
	require.Equal(t, unix.EINVAL, r.dmaMap(rw, 0x8000, 0x80000, 0x1000, fd), "what is not there any more")
	require.Zero(t, r.dmaUnmap(0, 0x10000, 1<<16))
	r.close()
	alive(t, path)
}

// TestMappedBytesAreBounded: the limit is on what is mapped now.
func TestMappedBytesAreBounded(t *testing.T) {
	noLeaks(t)
	d := newDevice(vfiotest.RAMOptions{})
	r := rawDial(t, serve(t, d, Options{MaxMapped: 3 << 16}), true)
	a, _ := memfd(t, 1<<17)
	b, _ := memfd(t, 1<<16)
	c, _ := memfd(t, 1<<16)
	require.Zero(t, r.dmaMap(rw, 0, 0x100000, 0x1000, a), "the file counts, not the piece")
	require.Zero(t, r.dmaMap(rw, 0, 0x200000, 1<<16, b))
	before := countFDs(t)
	require.Equal(t, unix.ENOSPC, r.dmaMap(rw, 0, 0x300000, 0x1000, c))
	require.Equal(t, before, countFDs(t))
	require.Zero(t, r.dmaMap(rw, 0x1000, 0x400000, 0x1000, a), "mapped already")
	require.Zero(t, r.dmaUnmap(0, 0x200000, 1<<16))
	require.Zero(t, r.dmaMap(rw, 0, 0x300000, 0x1000, c))
	huge, err := unix.MemfdCreate("huge", unix.MFD_CLOEXEC)
	require.NoError(t, err)
	defer closeAll([]int{huge})
	require.NoError(t, unix.Ftruncate(huge, 1<<62), "a file of holes")
	require.Equal(t, unix.ENOSPC, r.dmaMap(rw, 0, 0x800000, 0x1000, huge))
}

// TestFilesAreBounded: each memory file is a descriptor of the server.
func TestFilesAreBounded(t *testing.T) {
	m := vfiotest.NewMapper(vfio.DMALimits{})
	g := newGuestMemory(m, defaultMaxMaps, defaultMaxMapped, Options{}.logger())
	for i := range uint64(maxFiles + 1) {
		fd, err := unix.MemfdCreate("one of many", unix.MFD_CLOEXEC)
		require.NoError(t, err)
		require.NoError(t, unix.Ftruncate(fd, pageSize))
		err = g.add(dmaMap{32, rw, 0, i << 16, pageSize}, fd)
		require.NoError(t, unix.Close(fd))
		if i == maxFiles {
			require.ErrorIs(t, err, vfio.ErrNoSpace)
		} else {
			require.NoError(t, err)
		}
	}
	g.close()
	require.Zero(t, g.mapped)
}

// TestSocketPermissions: nobody but the user gets in, from the first moment on.
func TestSocketPermissions(t *testing.T) {
	old := unix.Umask(0) // the most that a user may have set
	defer unix.Umask(old)
	path := filepath.Join(t.TempDir(), "s")
	l, err := Listen(path)
	require.NoError(t, err)
	defer func() { require.NoError(t, l.Close()) }()
	st, err := os.Lstat(path)
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o600), st.Mode().Perm())
}

// TestListenLeavesAlone: what is no stale socket of ours is not removed.
func TestListenLeavesAlone(t *testing.T) {
	dir := t.TempDir()
	target := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(target, []byte("keep"), 0o600))
	link := filepath.Join(dir, "link")
	require.NoError(t, os.Symlink(target, link))
	dangling := filepath.Join(dir, "dangling")
	require.NoError(t, os.Symlink(filepath.Join(dir, "nothing"), dangling))
	for _, path := range []string{target, link, dangling, dir} {
		_, err := Listen(path)
		require.ErrorIs(t, err, fs.ErrExist, path)
		_, err = os.Lstat(path)
		require.NoError(t, err)
	}
	_, err := os.Lstat(filepath.Join(dir, "nothing"))
	require.ErrorIs(t, err, fs.ErrNotExist)

	// A stale one is replaced, a living one is not.
	stale := filepath.Join(dir, "stale")
	l, err := net.Listen("unix", stale)
	require.NoError(t, err)
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	require.NoError(t, l.Close())
	a, err := Listen(stale)
	require.NoError(t, err)
	_, err = Listen(stale)
	require.ErrorIs(t, err, unix.EADDRINUSE)
	require.NoError(t, a.Close())
	for _, n := range []int{0, 108, 4096} {
		_, err := Listen(strings.Repeat("x", n))
		require.ErrorIs(t, err, unix.ENAMETOOLONG, fmt.Sprint(n))
	}
}
