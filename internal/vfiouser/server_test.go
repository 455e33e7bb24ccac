package vfiouser

import (
	"context"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/mlxvfio/mlxvfio/vfio"
	"github.com/mlxvfio/mlxvfio/vfio/vfiotest"
)

// TestQEMUOpening plays the requests with which QEMU opens a function.
func TestQEMUOpening(t *testing.T) {
	noLeaks(t)
	d := newDevice(vfiotest.RAMOptions{BAR0: 1 << 20, Vectors: 64})
	r := rawDial(t, serve(t, d, Options{}), false)

	h, b := r.ask(cmdVersion, append([]byte("\x00\x00\x00\x00"+qemuHello), 0))
	require.Zero(t, h.flags&flagError)
	require.Equal(t, "\x00\x00\x00\x00", string(b[:4]))

	_, b = r.ask(cmdDeviceGetInfo, body(deviceInfo{argsz: 16}))
	di, err := parseDeviceInfo(b)
	require.NoError(t, err)
	require.Equal(t, deviceInfo{16, deviceFlagPCI | deviceFlagReset, 9, 5}, di)

	for i, size := range []uint64{1 << 20, 0, 0, 0, 0, 0, 0, 4096, 0} {
		// QEMU asks with the fixed size and would ask again for more.
		_, b := r.ask(cmdGetRegionInfo, body(regionInfo{argsz: 32, index: uint32(i)}))
		require.Len(t, b, 32, "never longer than asked")
		ri, err := parseRegionInfo(b)
		require.NoError(t, err)
		want := regionInfo{argsz: 32, index: uint32(i), size: size, offset: uint64(i) << 40}
		if size > 0 {
			want.flags = regionFlagRead | regionFlagWrite // and never mappable: posted writes depend on it
		}
		require.Equal(t, want, ri)
	}
	_, b = r.ask(cmdGetRegionInfo, body(regionInfo{argsz: 4096, index: 0}))
	require.Len(t, b, 32)

	for i, count := range []uint32{0, 0, 64, 0, 0} {
		_, b := r.ask(cmdGetIRQInfo, body(irqInfo{argsz: 16, index: uint32(i)}))
		qi, err := parseIRQInfo(b)
		require.NoError(t, err)
		want := irqInfo{argsz: 16, index: uint32(i), count: count}
		if count > 0 {
			want.flags = irqFlagEventFD | irqFlagNoResize
		}
		require.Equal(t, want, qi)
	}

	_, b = r.ask(cmdRegionRead, body(access{0, vfio.RegionConfig, 4}))
	require.Equal(t, "\xb3\x15\x17\x10", string(b[accessSize:]))
	h, b = r.ask(cmdDeviceReset, nil)
	require.Zero(t, h.flags&flagError)
	require.Empty(t, b)
	require.Equal(t, 1, d.Resets())
}

func TestRegionAccess(t *testing.T) {
	d := newDevice(vfiotest.RAMOptions{})
	r := rawDial(t, serve(t, d, Options{}), true)

	put := func(off uint64, region uint32, p string) header {
		h, b := r.ask(cmdRegionWrite, append(body(access{off, region, uint32(len(p))}), p...))
		if h.errno == 0 {
			require.Equal(t, body(access{off, region, uint32(len(p))}), b)
		}
		return h
	}
	require.Zero(t, put(0x10, 0, "8 bytes.").errno)
	require.Zero(t, put(0x21, 0, "odd").errno)
	require.Zero(t, put(0x100, vfio.RegionConfig, "config takes any").errno)
	require.Equal(t, []write{
		{0, 0x10, "8 bytes."},           // one bus access
		{0, 0x21, "o"}, {0, 0x22, "dd"}, // as aligned pieces
		{7, 0x100, "config takes any"}, // whole
	}, d.seen())
	_, b := r.ask(cmdRegionRead, body(access{0x0f, 0, 21}))
	require.Equal(t, "\x008 bytes.\x00\x00\x00\x00\x00\x00\x00\x00\x00odd", string(b[accessSize:]))

	reached := d.calls.Load()
	for name, a := range map[string]access{
		"past the end":   {64<<10 - 2, 0, 8},
		"far past":       {1 << 40, 0, 4},
		"overflow":       {1<<64 - 4, 0, 8},
		"absent region":  {0, 1, 4},
		"no such region": {0, 9, 4},
		"huge index":     {0, 1 << 31, 4},
		"too long":       {0, 0, maxData + 1},
		"count all ones": {0, 0, 0xffffffff},
	} {
		h, b := r.ask(cmdRegionRead, body(a))
		require.NotZero(t, h.flags&flagError, name)
		require.NotZero(t, h.errno, name)
		require.Empty(t, b, "an error reply is a header alone")
		require.Equal(t, reached, d.calls.Load(), "%s: the function is not asked", name)
	}
	for _, a := range []access{{64<<10 - 2, 0, 4}, {1<<64 - 2, 0, 4}, {0, 1, 4}, {0, 9, 4}} {
		h, _ := r.ask(cmdRegionWrite, append(body(a), "data"...))
		require.NotZero(t, h.errno)
		require.Equal(t, reached, d.calls.Load())
	}
	h, _ := r.ask(cmdRegionWrite, append(body(access{0, 0, 8}), "data"...))
	require.Equal(t, uint32(unix.EINVAL), h.errno, "count and data disagree")
	_, b = r.ask(cmdRegionRead, body(access{0, vfio.RegionConfig, 4096}))
	require.Len(t, b, accessSize+4096)
}

// TestPostedWritesKeepOrder mixes posted writes, WRITE_MULTI and reads without
// waiting for any reply.
func TestPostedWritesKeepOrder(t *testing.T) {
	d := newDevice(vfiotest.RAMOptions{})
	r := rawDial(t, serve(t, d, Options{}), true)
	const entries = 97 // the most that was seen from QEMU
	multi := func(flags uint32, bad int) []byte {
		b := le.AppendUint64(nil, entries)
		for i := range entries {
			a := access{uint64(i) * 8, 0, 8}
			if i == bad {
				a.offset = 1 << 40
			}
			b = append(b, body(a)...)
			b = le.AppendUint64(b, uint64(i)<<32|0xd0)
		}
		return r.message(cmdRegionWriteMulti, flags, b)
	}
	var stream []byte
	for i := range 3 {
		stream = append(stream, r.message(cmdRegionWrite, flagNoReply, append(body(access{0x1000, 0, 4}), byte(i), 0, 0, 0))...)
	}
	stream = append(stream, multi(flagNoReply, -1)...)
	stream = append(stream, r.message(cmdRegionRead, 0, body(access{0x1000, 0, 4}))...)
	r.send(stream)
	_, b := r.reply()
	require.Equal(t, []byte{2, 0, 0, 0}, b[accessSize:])
	w := d.seen()
	require.Len(t, w, 3+entries)
	for i := range entries {
		require.Equal(t, write{0, uint64(i) * 8, string(le.AppendUint64(nil, uint64(i)<<32|0xd0))}, w[3+i])
	}

	// With a reply wanted it counts the writes.
	r.send(multi(0, -1))
	_, b = r.reply()
	require.Equal(t, le.AppendUint64(nil, entries), b)
	require.Len(t, d.seen(), entries)

	// One that is refused keeps none of the others back.
	r.send(multi(0, 5))
	h, _ := r.reply()
	require.Equal(t, uint32(unix.ERANGE), h.errno)
	require.Len(t, d.seen(), entries-1)
}

// TestPostedFailureIsSilent: a posted request that fails sends nothing.
func TestPostedFailureIsSilent(t *testing.T) {
	r := rawDial(t, serve(t, newDevice(vfiotest.RAMOptions{}), Options{}), true)
	r.send(r.message(cmdRegionWrite, flagNoReply, append(body(access{1 << 40, 0, 4}), 1, 2, 3, 4)))
	r.send(r.message(77, flagNoReply, nil))
	h, _ := r.ask(cmdDeviceReset, nil)
	require.Zero(t, h.errno)
}

func TestUnsupportedCommands(t *testing.T) {
	r := rawDial(t, serve(t, newDevice(vfiotest.RAMOptions{}), Options{}), true)
	for _, cmd := range []uint16{0, cmdGetRegionIOFDs, cmdDMARead, cmdDMAWrite, 14, 16, 17, 18, 0xffff} {
		h, b := r.ask(cmd, make([]byte, 40))
		require.Equal(t, uint32(unix.EOPNOTSUPP), h.errno, "command %d", cmd)
		require.Empty(t, b)
	}
}

// TestNextClientFindsFreshFunction: leaving detaches, unmaps and resets, and the
// client that waited is served.
func TestNextClientFindsFreshFunction(t *testing.T) {
	noLeaks(t)
	d := newDevice(vfiotest.RAMOptions{})
	path := serve(t, d, Options{})
	fd, _ := memfd(t, 1<<20)
	evs := eventfds(t, 4)
	for i := range 3 {
		r := rawDial(t, path, true)
		require.False(t, d.Raise(0), "no interrupt of the client before")
		require.Empty(t, d.Memory().Mappings())
		require.Zero(t, d.BAR().Load32(0x40))
		require.Equal(t, i, d.Resets())
		h, _ := r.ask(cmdDMAMap, body(dmaMap{32, 3, 0, 0x10000, 1 << 20}), fd)
		require.Zero(t, h.errno)
		h, _ = r.ask(cmdSetIRQs, body(irqSet{argsz: 20, flags: irqSetDataEventFD | irqSetActionTrigger, index: vfio.IRQMSIX, count: 4}), evs...)
		require.Zero(t, h.errno)
		require.True(t, d.Raise(0))
		require.True(t, fired(evs[0]))
		h, _ = r.ask(cmdRegionWrite, append(body(access{0x40, 0, 4}), 1, 2, 3, 4))
		require.Zero(t, h.errno)
		r.close()
	}
}

// TestServeEndsWithClientConnected: cancelling ends the session too, cleaned up.
func TestServeEndsWithClientConnected(t *testing.T) {
	noLeaks(t)
	d := newDevice(vfiotest.RAMOptions{})
	path := filepath.Join(t.TempDir(), "s")
	l, err := Listen(path)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, l, d, Options{}) }()
	r := rawDial(t, path, true)
	fd, _ := memfd(t, 1<<16)
	h, _ := r.ask(cmdDMAMap, body(dmaMap{32, 3, 0, 0x10000, 1 << 16}), fd)
	require.Zero(t, h.errno)
	require.Len(t, d.Memory().Mappings(), 1)
	cancel()
	require.NoError(t, <-done)
	require.Empty(t, d.Memory().Mappings())
	require.Equal(t, 1, d.Resets())
	r.dropped()
	r.close()
}

func TestServeReportsAListenerThatFails(t *testing.T) {
	l, err := Listen(filepath.Join(t.TempDir(), "s"))
	require.NoError(t, err)
	require.NoError(t, l.Close())
	err = Serve(t.Context(), l, newDevice(vfiotest.RAMOptions{}), Options{})
	require.ErrorIs(t, err, net.ErrClosed)
	require.IsType(t, &vfio.Error{}, err)
}

func TestListen(t *testing.T) {
	noLeaks(t)
	dir := t.TempDir()
	path := filepath.Join(dir, "s")
	l, err := Listen(path)
	require.NoError(t, err)
	st, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, fs.ModeSocket|0o600, st.Mode())
	_, err = Listen(path)
	require.ErrorIs(t, err, unix.EADDRINUSE)
	require.ErrorContains(t, err, "another server listens there")
	require.FileExists(t, path, "the living server keeps its socket")

	l.(*net.UnixListener).SetUnlinkOnClose(false) // as if it had been killed
	require.NoError(t, l.Close())
	l, err = Listen(path)
	require.NoError(t, err, "a stale socket is replaced")
	require.NoError(t, l.Close())

	file := filepath.Join(dir, "precious")
	require.NoError(t, os.WriteFile(file, []byte("data"), 0o600))
	_, err = Listen(file)
	require.ErrorIs(t, err, fs.ErrExist)
	require.FileExists(t, file)
	_, err = Listen(filepath.Join(dir, string(make([]byte, 120))))
	require.ErrorIs(t, err, unix.ENAMETOOLONG)
	_, err = Listen(filepath.Join(dir, "absent", "s"))
	require.ErrorIs(t, err, unix.ENOENT)
}

// noReset is a function that cannot be reset.
type noReset struct{ *device }

func (d noReset) Info() (vfio.DeviceInfo, error) {
	i, err := d.device.Info()
	i.CanReset = false
	return i, err
}

// TestFunctionWithoutReset: at least its DMA is switched off between clients.
func TestFunctionWithoutReset(t *testing.T) {
	d := newDevice(vfiotest.RAMOptions{})
	path := serve(t, noReset{d}, Options{})
	r := rawDial(t, path, true)
	_, b := r.ask(cmdDeviceGetInfo, body(deviceInfo{argsz: 16}))
	require.Equal(t, uint32(deviceFlagPCI), le.Uint32(b[4:]))
	h, _ := r.ask(cmdRegionWrite, append(body(access{4, vfio.RegionConfig, 2}), 6, 0))
	require.Zero(t, h.errno)
	r.close()
	require.Eventually(t, func() bool { return d.Config().Load32(4) == commandMemory }, 5*time.Second, time.Millisecond)
	require.Zero(t, d.Resets())
}
