package vfiouser

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/mlxvfio/mlxvfio/vfio"
)

// What a hostile server does with one request, by the first byte of a word of its
// script; the word is that byte, a length and as many bytes.
const (
	answerGood   = iota // as a good server would
	answerPatch         // the same, with bytes replaced: offset, then the bytes
	answerBody          // a reply with the bytes as its body
	answerRaw           // the bytes and nothing else
	answerErrno         // an error reply
	answerID            // a reply to another request
	answerAsk           // a request of the server's own first, then as answerGood
	answerTwice         // the good reply two times
	answerPieces        // the good reply byte by byte
	answerHangUp
	answers
)

// hostileServer answers on fd until its script ends, and hangs up.
func hostileServer(fd int, script []byte) {
	defer func() { _ = unix.Close(fd) }()
	s, err := newSock(fd, true, 5*time.Second)
	if err != nil {
		return
	}
	defer func() {
		for _, p := range s.pending {
			closeAll(p.fds)
		}
	}()
	send := func(b []byte) bool { return len(b) == 0 || s.send(b, nil) == nil }
	for len(script) >= 2 {
		how, n := script[0]%answers, min(int(script[1]), len(script)-2)
		p := script[2 : 2+n]
		script = script[2+n:]
		var m message
		if s.receive(&m, time.Time{}) != nil {
			return
		}
		m.closeFDs()
		if m.flags&flagNoReply != 0 {
			continue
		}
		good, ok := goodReply(&m), true
		if good == nil {
			good = goodAnswer(&m)
		}
		switch how {
		case answerPatch:
			if n > 1 {
				at := int(p[0]) % len(good)
				copy(good[at:], p[1:])
			}
			ok = send(good)
		case answerBody:
			ok = send(replyTo(&m, 0, p))
		case answerRaw:
			ok = send(p)
		case answerErrno:
			e := unix.Errno(0)
			for _, b := range p {
				e = e<<8 | unix.Errno(b)
			}
			r := replyTo(&m, unix.EIO, nil)
			le.PutUint32(r[12:], uint32(e))
			ok = send(r)
		case answerID:
			m.id++
			ok = send(replyTo(&m, 0, p))
		case answerAsk:
			b := make([]byte, headerSize+n)
			header{id: 7, cmd: cmdDMARead, size: uint32(headerSize + n)}.put(b)
			copy(b[headerSize:], p)
			ok = send(b) && send(good)
		case answerTwice:
			ok = send(slices.Concat(good, good))
		case answerPieces:
			for i := 0; ok && i < len(good); i++ {
				ok = send(good[i : i+1])
			}
		case answerHangUp:
			return
		default:
			ok = send(good)
		}
		if !ok {
			return
		}
	}
}

// goodAnswer answers what comes after the opening.
func goodAnswer(m *message) []byte {
	switch m.cmd {
	case cmdRegionRead:
		a, err := parseAccess(m.body)
		if err != nil || a.count > maxData {
			return replyTo(m, unix.EINVAL, nil)
		}
		return replyTo(m, 0, append(body(a), make([]byte, a.count)...))
	case cmdRegionWrite:
		return replyTo(m, 0, m.body[:min(accessSize, len(m.body))])
	case cmdDMAUnmap:
		return replyTo(m, 0, m.body)
	}
	return replyTo(m, 0, nil)
}

// FuzzClient opens a function on a server that answers by a script, and uses all
// of it. Whatever comes back, the client neither dies nor waits for ever, says
// vfio.ErrGone from the first loss of the connection on, and reads nothing but
// what a read asked for.
func FuzzClient(f *testing.F) {
	good := func(n int) (s []byte) {
		for range n {
			s = append(s, answerGood, 0)
		}
		return s
	}
	opening := 2 + vfio.NumRegions + vfio.NumIRQs
	for _, s := range [][]byte{
		good(opening + 30),
		good(1),
		append([]byte{answerBody, 3, 0, 0, 0}, good(opening)...),
		append([]byte{answerBody, 7, 0, 0, 0, 0, '{', '}', 0}, good(opening+20)...),
		append([]byte{answerRaw, 4, 1, 2, 3, 4}, good(opening)...),
		append(good(1), append([]byte{answerPatch, 9, headerSize + 8, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, good(opening+20)...)...),
		append(good(2), append([]byte{answerPatch, 9, headerSize + 16, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f}, good(opening+20)...)...),
		append(good(2+vfio.NumRegions+2), append([]byte{answerPatch, 5, headerSize + 12, 0, 8, 0, 0}, good(20)...)...),
		append(good(opening), append([]byte{answerErrno, 1, 22, answerErrno, 4, 1, 2, 3, 4}, good(20)...)...),
		append(good(opening), append([]byte{answerID, 0}, good(20)...)...),
		append(good(opening), append([]byte{answerAsk, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0}, good(20)...)...),
		append(good(opening), append([]byte{answerTwice, 0}, good(20)...)...),
		append(good(opening), append([]byte{answerPieces, 0, answerPieces, 0}, good(20)...)...),
		append(good(opening+4), answerHangUp, 0),
	} {
		f.Add(s, false)
		f.Add(s, true)
	}
	v, err := vfio.NewEventFDVector()
	require.NoError(f, err)
	vs := []*vfio.Vector{v, v, nil, v}
	fd, err := unix.MemfdCreate("fuzz", unix.MFD_CLOEXEC)
	require.NoError(f, err)
	require.NoError(f, unix.Ftruncate(fd, 1<<16))
	mem := make([]byte, 1<<16) // only its length matters
	f.Fuzz(func(t *testing.T, script []byte, posted bool) {
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		require.NoError(t, err)
		done := make(chan struct{})
		go func() { defer close(done); hostileServer(pair[1], script) }()
		c := &client{name: "vfio-user:fuzz", timeout: 20 * time.Millisecond, posted: posted, out: make([]byte, maxMessage)}
		c.dma.c = c
		c.s, err = newSock(pair[0], false, c.timeout)
		require.NoError(t, err)
		if err := c.open(); err != nil {
			isTyped(t, err)
			c.s.close()
			<-done
			return
		}
		use(t, c, vs, vfio.Mapping{IOVA: 1 << 20, Bytes: mem, FD: fd})
		require.NoError(t, c.Close())
		<-done
	})
}

func isTyped(t *testing.T, err error) {
	var e *vfio.Error
	require.ErrorAs(t, err, &e)
	require.NotEmpty(t, e.Error())
}

// use calls every verb of an opened client.
func use(t *testing.T, c *client, vs []*vfio.Vector, m vfio.Mapping) {
	gone := false
	check := func(what string, err error) {
		switch {
		case err == nil:
			// A posted write says nothing of the connection.
			require.False(t, gone && !c.posted, "%s after the connection was lost", what)
			return
		case gone && !errors.Is(err, vfio.ErrClosed):
			require.ErrorIs(t, err, vfio.ErrGone, what)
		}
		isTyped(t, err)
		gone = gone || errors.Is(err, vfio.ErrGone)
	}
	for i := range vfio.NumRegions {
		r, err := c.RegionInfo(i)
		require.NoError(t, err)
		if r.Size < 8 {
			continue
		}
		guard := [16]byte{8: 0xa5, 9: 0xa5, 10: 0xa5, 11: 0xa5, 12: 0xa5, 13: 0xa5, 14: 0xa5, 15: 0xa5}
		if r.Read {
			check("read", c.ReadRegion(i, 0, guard[:8]))
			for _, b := range guard[8:] {
				require.Equal(t, byte(0xa5), b)
			}
			if i == vfio.RegionConfig && r.Size < 1<<20 {
				check("read all", c.ReadRegion(i, 0, make([]byte, r.Size)))
			}
		}
		if r.Write {
			check("write", c.WriteRegion(i, (r.Size-8)&^7, guard[:8]))
		}
	}
	for i := range vfio.NumIRQs {
		q, err := c.IRQInfo(i)
		require.NoError(t, err)
		require.LessOrEqual(t, q.Count, maxVectors)
		if q.Count >= len(vs) {
			check("attach", c.SetIRQs(i, 0, vs))
			check("detach", c.SetIRQs(i, 0, nil))
		}
	}
	if l, err := c.DMA().Limits(); err == nil {
		require.NotZero(t, l.MaxMappings)
	} else {
		check("limits", err)
	}
	if err := c.DMA().Map(m); err == nil {
		check("unmap", c.DMA().Unmap(m.IOVA, uint64(len(m.Bytes))))
	} else {
		check("map", err)
	}
	if c.info.CanReset {
		check("reset", c.Reset())
	}
}
