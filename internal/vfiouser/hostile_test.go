package vfiouser

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/mlxvfio/mlxvfio/vfio"
	"github.com/mlxvfio/mlxvfio/vfio/vfiotest"
)

// alive asserts that the server serves the next client.
func alive(t *testing.T, path string) {
	t.Helper()
	r := rawDial(t, path, true)
	h, _ := r.ask(cmdDeviceReset, nil)
	require.Zero(t, h.errno)
	r.close()
}

// TestHostileClients: each breaks the protocol in its own way, is dropped
// without a descriptor left behind, and the server goes on.
func TestHostileClients(t *testing.T) {
	noLeaks(t)
	d := newDevice(vfiotest.RAMOptions{})
	path := serve(t, d, Options{})
	evs := eventfds(t, 40)
	hdr := func(h header) []byte {
		b := make([]byte, headerSize)
		h.put(b)
		return b
	}
	for name, c := range map[string]struct {
		hello bool
		do    func(r *raw)
	}{
		"size below header":   {true, func(r *raw) { r.send(hdr(header{cmd: cmdDMAMap, size: 15})) }},
		"size above limit":    {true, func(r *raw) { r.send(hdr(header{cmd: cmdDMAMap, size: maxMessage + 1})) }},
		"size all ones":       {true, func(r *raw) { r.send(hdr(header{cmd: cmdDMAMap, size: 0xffffffff})) }},
		"unknown type":        {true, func(r *raw) { r.send(hdr(header{cmd: cmdDMAMap, size: 16, flags: 5})) }},
		"reply to nothing":    {true, func(r *raw) { r.send(hdr(header{cmd: cmdDMAMap, size: 16, flags: flagReply})) }},
		"no version":          {false, func(r *raw) { r.send(r.message(cmdDeviceGetInfo, 0, body(deviceInfo{argsz: 16}))) }},
		"no version, posted":  {false, func(r *raw) { r.send(r.message(cmdDeviceReset, flagNoReply, nil)) }},
		"version twice":       {true, func(r *raw) { r.send(r.message(cmdVersion, 0, version{}.appendTo(nil))) }},
		"version 1.0":         {false, func(r *raw) { r.send(r.message(cmdVersion, 0, version{major: 1}.appendTo(nil))) }},
		"version without NUL": {false, func(r *raw) { r.send(r.message(cmdVersion, 0, []byte("\x00\x00\x00\x00{}"))) }},
		"version cut off":     {false, func(r *raw) { r.send(r.message(cmdVersion, 0, []byte{0})) }},
		"version is no JSON":  {false, func(r *raw) { r.send(r.message(cmdVersion, 0, []byte("\x00\x00\x00\x00<xml/>\x00"))) }},
		"too many files":      {true, func(r *raw) { r.send(r.message(cmdSetIRQs, 0, body(irqSet{20, attach, 2, 0, 40, nil})), evs...) }},
		"files piecemeal": {true, func(r *raw) {
			m := r.message(cmdSetIRQs, 0, make([]byte, 64))
			for i := range 10 { // each byte brings 16 files
				if unix.Sendmsg(r.fd, m[i:i+1], unix.UnixRights(evs[:16]...), nil, unix.MSG_NOSIGNAL) != nil {
					return // dropped already
				}
			}
		}},
		"noise": {true, func(r *raw) {
			b := make([]byte, 4096)
			for i := range b {
				b[i] = byte(rand.Uint32() | 0x80) // no size below 0x80808080
			}
			r.send(b)
		}},
	} {
		r := rawDial(t, path, c.hello)
		c.do(r)
		r.dropped()
		r.close()
		alive(t, path)
		for _, w := range d.seen() {
			// The server's own: bus mastering off, and decoding on behind the reset.
			require.Contains(t, []write{{vfio.RegionConfig, 4, "\x00\x00"}, {vfio.RegionConfig, 4, "\x02\x00"}}, w, name)
		}
	}
	require.Eventually(t, func() bool { return countFDs(t) > 0 && len(d.Memory().Mappings()) == 0 }, time.Second, time.Millisecond)
}

// TestFilesNobodyAskedFor are closed.
func TestFilesNobodyAskedFor(t *testing.T) {
	noLeaks(t)
	r := rawDial(t, serve(t, newDevice(vfiotest.RAMOptions{}), Options{}), true)
	evs := eventfds(t, 16)
	before := countFDs(t)
	for _, cmd := range []uint16{cmdDeviceGetInfo, cmdRegionRead, cmdDMAUnmap, cmdDeviceReset, 99} {
		_, _ = r.ask(cmd, make([]byte, 40), evs...)
		require.Equal(t, before, countFDs(t), "command %d", cmd)
	}
	// Two messages in one piece: the files belong to the last.
	two := append(r.message(cmdDeviceReset, 0, nil), r.message(cmdSetIRQs, 0, body(irqSet{20, attach, vfio.IRQMSIX, 0, 1, nil}))...)
	r.send(two, evs[0])
	for range 2 {
		h, _ := r.reply()
		require.Zero(t, h.errno)
	}
	require.Equal(t, before+1, countFDs(t))
}

// TestClientLeavesMidMessage: with files on their way, too.
func TestClientLeavesMidMessage(t *testing.T) {
	noLeaks(t)
	d := newDevice(vfiotest.RAMOptions{})
	path := serve(t, d, Options{})
	fd, _ := memfd(t, 1<<16)
	for _, n := range []int{1, 8, 15, 16, 17, 47} {
		r := rawDial(t, path, true)
		require.Zero(t, r.dmaMap(rw, 0, 0x10000, 1<<16, fd))
		m := r.message(cmdDMAMap, 0, body(dmaMap{32, rw, 0, 0x40000, 1 << 16}))
		r.send(m[:n], fd)
		r.close()
		alive(t, path)
		require.Empty(t, spans(d))
	}
}

// TestMessageInPieces: bytes may come one by one; files with any of them.
func TestMessageInPieces(t *testing.T) {
	noLeaks(t)
	d := newDevice(vfiotest.RAMOptions{})
	r := rawDial(t, serve(t, d, Options{}), true)
	fd, _ := memfd(t, 1<<16)
	m := r.message(cmdDMAMap, 0, body(dmaMap{32, rw, 0, 0x10000, 1 << 16}))
	for i := range m {
		if i == 20 {
			r.send(m[i:i+1], fd)
		} else {
			r.send(m[i : i+1])
		}
	}
	h, _ := r.reply()
	require.Zero(t, h.errno)
	require.Equal(t, []span{{0x10000, 1 << 16, 0}}, spans(d))
}

// TestFilesOfAMessageReadInPart: the read that brings the files ends in the
// middle of their message, behind another one.
func TestFilesOfAMessageReadInPart(t *testing.T) {
	noLeaks(t)
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	s, err := newSock(pair[0], true, time.Second)
	require.NoError(t, err)
	defer s.close()
	r := &raw{t: t, fd: pair[1]}
	defer r.close()
	evs := eventfds(t, 3)
	a, b, c := r.message(1, 0, make([]byte, 100)), r.message(2, 0, make([]byte, 9)), r.message(3, 0, nil)
	r.send(append(a, b[:5]...), evs[0], evs[1])
	r.send(append(b[5:], c...), evs[2])
	var m message
	for i, files := range []int{0, 2, 1} {
		require.NoError(t, s.receive(&m, time.Time{}))
		require.Equal(t, uint16(i+1), m.cmd)
		require.Len(t, m.fds, files, "message %d", i+1)
		m.closeFDs()
	}
}

// TestManyMessagesAtOnce: more than the receive buffer holds, with files among
// them, in one stream.
func TestManyMessagesAtOnce(t *testing.T) {
	noLeaks(t)
	d := newDevice(vfiotest.RAMOptions{})
	r := rawDial(t, serve(t, d, Options{}), true)
	fd, _ := memfd(t, 1<<20)
	const rounds = 64
	go func() { // the replies are read below, so nobody blocks for good
		for i := range uint64(rounds) {
			r.send(r.message(cmdDMAMap, flagNoReply, body(dmaMap{32, rw, i << 12, 0x100000 + i<<13, 0x1000})), fd)
			r.send(r.message(cmdRegionWrite, flagNoReply, append(body(access{0, vfio.RegionConfig, 2048}), make([]byte, 2048)...)))
			r.send(r.message(cmdRegionRead, 0, body(access{0, vfio.RegionConfig, 4096})))
		}
	}()
	for range rounds {
		h, b := r.reply()
		require.Zero(t, h.errno)
		require.Len(t, b, accessSize+4096)
	}
	require.Len(t, spans(d), rounds)
}

// TestClientThatStopsMidMessage is dropped in the end, and one that is idle is
// not.
func TestClientThatStopsMidMessage(t *testing.T) {
	const limit = 200 * time.Millisecond
	path := serve(t, newDevice(vfiotest.RAMOptions{}), Options{Timeout: limit})
	r := rawDial(t, path, true)
	time.Sleep(2 * limit)
	h, _ := r.ask(cmdDeviceReset, nil)
	require.Zero(t, h.errno, "being idle is allowed")
	m := r.message(cmdDeviceReset, 0, nil)
	r.send(m[:7])
	begin := time.Now()
	r.dropped()
	require.GreaterOrEqual(t, time.Since(begin), limit/2)
	r.close()
	alive(t, path)
}

// TestClientThatDoesNotRead cannot hold the server up for ever.
func TestClientThatDoesNotRead(t *testing.T) {
	const limit = 200 * time.Millisecond
	path := serve(t, newDevice(vfiotest.RAMOptions{}), Options{Timeout: limit})
	r := rawDial(t, path, true)
	tv := unix.NsecToTimeval(int64(100 * time.Millisecond))
	require.NoError(t, unix.SetsockoptTimeval(r.fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &tv))
	read := r.message(cmdRegionRead, 0, body(access{0, vfio.RegionConfig, 4096}))
	sent := 0
	for unix.Sendmsg(r.fd, read, nil, nil, unix.MSG_NOSIGNAL) == nil {
		sent++ // until the server blocks and our own queue is full
	}
	require.NotZero(t, sent)
	alive(t, path) // waits until the server has given r up
}

// TestTwoServers do not disturb each other.
func TestTwoServers(t *testing.T) {
	noLeaks(t)
	a, b := newDevice(vfiotest.RAMOptions{}), newDevice(vfiotest.RAMOptions{})
	ra := rawDial(t, serve(t, a, Options{}), true)
	rb := rawDial(t, serve(t, b, Options{}), true)
	fd, _ := memfd(t, 1<<16)
	require.Zero(t, ra.dmaMap(rw, 0, 0x10000, 0x1000, fd))
	require.Zero(t, rb.dmaMap(rw, 0x1000, 0x10000, 0x1000, fd))
	require.NoError(t, a.Memory().Access(0x10000, []byte("from a"), true))
	got := make([]byte, 6)
	require.NoError(t, b.Memory().Access(0x10000, got, false))
	require.Equal(t, make([]byte, 6), got)
	ra.send([]byte("not vfio-user at all"))
	ra.dropped()
	h, _ := rb.ask(cmdDeviceReset, nil)
	require.Zero(t, h.errno)
	require.Len(t, spans(b), 1)
	require.Empty(t, spans(a))
}

// TestNextClientFindsBusMasterOff: a client that dies with bus mastering on leaves
// it off, as vfio-pci's last close does.
func TestNextClientFindsBusMasterOff(t *testing.T) {
	d := newDevice(vfiotest.RAMOptions{})
	path := serve(t, d, Options{})
	r := rawDial(t, path, true)
	h, _ := r.ask(cmdRegionWrite, append(body(access{4, vfio.RegionConfig, 2}), 6, 0))
	require.Zero(t, h.errno)
	r.close()
	r = rawDial(t, path, true)
	_, b := r.ask(cmdRegionRead, body(access{4, vfio.RegionConfig, 2}))
	require.Zero(t, b[accessSize]&4, "bus mastering is off")
	require.Equal(t, byte(2), b[accessSize]&2, "its registers can be looked at, as after an open")
}
