package vfiouser

import (
	"encoding/binary"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/mlxvfio/mlxvfio/vfio"
	"github.com/mlxvfio/mlxvfio/vfio/vfiotest"
)

// FuzzServer throws a byte stream at a session. What it must not do is die, keep
// descriptors, or leave anything mapped.
func FuzzServer(f *testing.F) {
	r := &raw{}
	hello := r.message(cmdVersion, 0, version{}.appendTo(nil))
	for _, m := range [][]byte{
		r.message(cmdDeviceGetInfo, 0, body(deviceInfo{argsz: 16})),
		r.message(cmdGetRegionInfo, 0, body(regionInfo{argsz: 32, index: 7})),
		r.message(cmdSetIRQs, 0, body(irqSet{20, attach, 2, 0, 1, nil})),
		r.message(cmdSetIRQs, 0, body(irqSet{20, irqSetDataBool | irqSetActionTrigger, 2, 0, 2, []byte{1, 1}})),
		r.message(cmdDMAMap, 0, body(dmaMap{32, rw, 0, 0x10000, 0x1000})),
		r.message(cmdDMAUnmap, 0, body(dmaUnmap{24, 0, 0x10000, 0x800})),
		r.message(cmdRegionRead, 0, body(access{3, 0, 9})),
		r.message(cmdRegionWriteMulti, 0, append([]byte{1, 0, 0, 0, 0, 0, 0, 0}, make([]byte, 24)...)),
	} {
		f.Add(append(append([]byte{}, hello...), m...), true)
	}
	f.Add(hello[:9], false)
	d := newDevice(vfiotest.RAMOptions{BAR0: 4096})
	f.Fuzz(func(t *testing.T, stream []byte, withFile bool) {
		fuzzSession(t, d, func(fd int) {
			m, err := unix.MemfdCreate("fuzz", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
			require.NoError(t, err)
			require.NoError(t, unix.Ftruncate(m, 8192))
			var oob []byte
			if withFile {
				oob = unix.UnixRights(m)
			}
			if len(stream) > 64<<10 {
				stream = stream[:64<<10] // what the socket takes without a reader
			}
			if len(stream) > 0 {
				half := len(stream) / 2
				_ = unix.Sendmsg(fd, stream[:half+1], oob, nil, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
				_ = unix.Sendmsg(fd, stream[half+1:], oob, nil, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
			}
			require.NoError(t, unix.Close(m))
		})
	})
}

// fuzzSession serves one client, who is what talk does to its end of the socket,
// and checks what the client left.
func fuzzSession(t *testing.T, d *device, talk func(fd int)) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	s, err := newSock(pair[0], true, time.Second)
	require.NoError(t, err)
	talk(pair[1])
	require.NoError(t, unix.Shutdown(pair[1], unix.SHUT_WR)) // not closed: the server would stop at its first reply
	var wg sync.WaitGroup
	wg.Go(func() {
		for b := make([]byte, 64<<10); ; {
			if n, err := readRetry(pair[1], b); n == 0 || err != nil {
				return
			}
		}
	})
	srv := &server{t: d, log: Options{}.logger(), maxMaps: 100, maxMapped: 1 << 30, hello: time.Second}
	require.NoError(t, srv.describe())
	srv.serve(t.Context(), s)
	wg.Wait()
	require.NoError(t, unix.Close(pair[1]))
	require.Empty(t, d.Memory().Mappings())
	d.seen()
}

// The words of a FuzzSession script. Each is a command, then what modifies it,
// the length of the body in two bytes, and the body.
const (
	scriptPosted   = 1 << 4 // no reply wanted
	scriptReply    = 1 << 5 // it claims to be a reply
	scriptSize     = 1 << 6 // the header's size is that of the body's first word
	scriptSplit    = 1 << 7 // sent in two pieces, the files with the second
	scriptFiles    = 0xf
	scriptTruncate = 0xf0 // as a command: the client truncates all it has
)

// clientFiles are what a client may pass, by number.
type clientFiles struct{ fds [][]int }

// newClientFiles opens them; they are the same for all inputs but for their sizes.
func newClientFiles(f *testing.F) *clientFiles {
	open := func(fd int, err error) int {
		require.NoError(f, err)
		return fd
	}
	memory := open(unix.MemfdCreate("fuzz", unix.MFD_CLOEXEC))
	sealable := open(unix.MemfdCreate("fuzz", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING))
	require.NoError(f, unix.Ftruncate(sealable, 64<<10))
	short := open(unix.MemfdCreate("fuzz", unix.MFD_CLOEXEC))
	require.NoError(f, unix.Ftruncate(short, 100))
	event := open(unix.Eventfd(0, unix.EFD_CLOEXEC))
	full := open(unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK))
	_, err := unix.Write(full, binary.NativeEndian.AppendUint64(nil, 1<<64-2))
	require.NoError(f, err)
	var pipe [2]int
	require.NoError(f, unix.Pipe2(pipe[:], unix.O_CLOEXEC))
	dir := open(unix.Open(f.TempDir(), unix.O_DIRECTORY|unix.O_CLOEXEC, 0))
	zero := open(unix.Open("/dev/zero", unix.O_RDWR|unix.O_CLOEXEC, 0))
	name := f.TempDir() + "/f"
	require.NoError(f, os.WriteFile(name, make([]byte, 8192), 0o600))
	readOnly := open(unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC, 0))
	path := open(unix.Open(name, unix.O_PATH|unix.O_CLOEXEC, 0))
	many := make([]int, maxFDs)
	tooMany := make([]int, maxFDs+1)
	for i := range many {
		many[i], tooMany[i] = event, event
	}
	tooMany[maxFDs] = memory
	return &clientFiles{[][]int{
		nil, {memory}, {sealable}, {short}, {event}, {full}, {pipe[1]}, {dir}, {zero}, {readOnly}, {path},
		{event, event}, {memory, sealable}, many, tooMany, {event, pipe[0], memory},
	}}
}

// say sends the words of the script until one is refused by the socket.
func (c *clientFiles) say(fd int, script []byte) {
	_ = unix.Ftruncate(c.fds[1][0], 64<<10)
	id := uint16(0)
	for len(script) >= 4 {
		cmd, how, n := script[0], script[1], min(int(le.Uint16(script[2:])), len(script)-4)
		b := script[4 : 4+n]
		script = script[4+n:]
		if cmd == scriptTruncate {
			_ = unix.Ftruncate(c.fds[1][0], int64(how)<<8)
			continue
		}
		id++
		h := header{id: id, cmd: uint16(cmd), size: uint32(headerSize + n)}
		if how&scriptPosted != 0 {
			h.flags |= flagNoReply
		}
		if how&scriptReply != 0 && how&scriptSplit == 0 {
			h.flags |= flagReply
		}
		if how&scriptSize != 0 && n >= 4 {
			h.size = le.Uint32(b)
		}
		m := make([]byte, headerSize, headerSize+n)
		h.put(m)
		m = append(m, b...)
		var oob []byte
		if fds := c.fds[how&scriptFiles]; fds != nil {
			oob = unix.UnixRights(fds...)
		}
		const flags = unix.MSG_NOSIGNAL | unix.MSG_DONTWAIT
		if how&scriptSplit != 0 {
			if unix.Sendmsg(fd, m[:n/2+1], nil, nil, flags) != nil {
				return
			}
			m = m[n/2+1:]
		}
		if unix.Sendmsg(fd, m, oob, nil, flags) != nil {
			return
		}
	}
}

// word is one word of a script.
func word(cmd uint16, how byte, body []byte) []byte {
	return append([]byte{byte(cmd), how, byte(len(body)), byte(len(body) >> 8)}, body...)
}

// words puts a script together; the hello comes first.
func words(w ...[]byte) []byte {
	s := word(cmdVersion, 0, []byte("\x00\x00\x00\x00"+qemuHello+"\x00"))
	for _, x := range w {
		s = append(s, x...)
	}
	return s
}

// FuzzSession plays scripts of whole messages with files of every kind to a
// session whose function reads and writes the client's memory, which the client
// truncates meanwhile. Nothing may be left of it: no descriptor, no mapping, no
// goroutine.
func FuzzSession(f *testing.F) {
	ring := word(cmdRegionWrite, 0, append(body(access{0, 0, 8}), 0, 0, 1, 0, 0, 0, 0, 0)) // DMA at 0x10000
	mapIt := word(cmdDMAMap, 1, body(dmaMap{32, rw, 0, 0x10000, 0x10000}))
	for _, s := range [][]byte{
		words(mapIt, ring, word(cmdDMAUnmap, 0, body(dmaUnmap{24, 0, 0x14000, 0x1000})), ring),
		words(mapIt, []byte{scriptTruncate, 0, 0, 0}, ring, ring, word(cmdDMAUnmap, 0, body(dmaUnmap{24, unmapFlagAll, 0, 0}))),
		words(word(cmdDMAMap, 2, body(dmaMap{32, dmaFlagRead, 0x1000, 0x10000, 0x1000})), mapIt, ring),
		words(word(cmdDMAMap, 0, body(dmaMap{32, rw, 0, 0, 1 << 40})), word(cmdDMAUnmap, scriptPosted, body(dmaUnmap{24, 0, 0x1000, 5}))),
		words(word(cmdSetIRQs, 13, body(irqSet{20, attach, 2, 0, 16, nil})), word(cmdSetIRQs, 5, body(irqSet{20, attach, 2, 3, 1, nil})),
			word(cmdSetIRQs, 0, body(irqSet{20, irqSetDataNone | irqSetActionTrigger, 2, 0, 4, nil})), word(cmdDeviceReset, 0, nil)),
		words(word(cmdSetIRQs, 0, body(irqSet{20, irqSetDataBool | irqSetActionTrigger, 2, 0, 2, []byte{1, 1}})),
			word(cmdGetIRQInfo, 0, body(irqInfo{argsz: 16, index: 2})), word(cmdSetIRQs, 0, body(irqSet{20, irqSetDataNone | irqSetActionTrigger, 2, 0, 0, nil}))),
		words(word(cmdDeviceGetInfo, 0, body(deviceInfo{argsz: 16})), word(cmdGetRegionInfo, scriptSplit|14, body(regionInfo{argsz: 32, index: 7}))),
		words(word(cmdRegionRead, 0, body(access{3, 0, 9})), word(cmdRegionRead, 0, body(access{0, 7, 4096})), word(cmdRegionWrite, 0, append(body(access{4, 7, 2}), 6, 0))),
		words(word(cmdRegionWriteMulti, scriptPosted, append([]byte{1, 0, 0, 0, 0, 0, 0, 0}, append(body(access{0, 0, 8}), 0, 0, 1, 0, 0, 0, 0, 0)...))),
		words(word(cmdRegionRead, scriptSize, []byte{0xff, 0xff, 0xff, 0xff}), word(99, scriptReply, nil)),
		word(cmdVersion, 0, version{major: 1}.appendTo(nil)),
	} {
		f.Add(s)
	}
	files := newClientFiles(f)
	d := newDevice(vfiotest.RAMOptions{BAR0: 4096, Vectors: 16})
	d.onWrite = func(region int, p []byte) {
		if region == vfio.RegionBAR0 && len(p) == 8 {
			buf := make([]byte, 4096)
			_ = d.Memory().Access(le.Uint64(p), buf, false)
			_ = d.Memory().Access(le.Uint64(p)+0x800, buf, true)
			d.Raise(int(p[0]) % 16)
		}
	}
	fds, gs, runs := 0, 0, 0
	f.Fuzz(func(t *testing.T, script []byte) {
		if len(script) > 32<<10 {
			return
		}
		fuzzSession(t, d, func(fd int) { files.say(fd, script) })
		// Counting descriptors costs more than a session.
		if runs++; runs%64 == 1 {
			if fds == 0 {
				fds, gs = countFDs(t), runtime.NumGoroutine()
			}
			require.LessOrEqual(t, countFDs(t), fds+2)
			require.LessOrEqual(t, runtime.NumGoroutine(), gs+2)
		}
	})
}
