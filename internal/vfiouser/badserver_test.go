package vfiouser

import (
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/mlxvfio/mlxvfio/vfio"
)

// badServer answers one client by hand: the opening like a good one, then each
// further request with answer. It ends when the client leaves or answer says so.
func badServer(t *testing.T, open func(m *message, reply []byte) []byte, answer func(s *sock, m *message) bool) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := Listen(path)
	require.NoError(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		c, err := l.Accept()
		if err != nil {
			return
		}
		s, err := takeOver(c, 5*time.Second)
		if err != nil {
			t.Error(err)
			return
		}
		defer s.close()
		var m message
		for {
			if s.receive(&m, time.Time{}) != nil {
				return
			}
			m.closeFDs()
			b := goodReply(&m)
			if b != nil && open != nil {
				b = open(&m, b)
			}
			if b == nil {
				if !answer(s, &m) {
					return
				}
				continue
			}
			if s.send(b, nil) != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		require.NoError(t, l.Close())
		<-done
	})
	return path
}

// goodReply answers what opening a function needs, and nothing else.
func goodReply(m *message) []byte {
	var b []byte
	switch m.cmd {
	case cmdVersion:
		v, err := parseVersion(m.body)
		if err != nil {
			return nil
		}
		b = v.answer(defaultMaxMaps).appendTo(nil)
	case cmdDeviceGetInfo:
		b = body(deviceInfo{16, deviceFlagPCI | deviceFlagReset, 9, 5})
	case cmdGetRegionInfo:
		q, _ := parseRegionInfo(m.body)
		b = body(regionInfo{argsz: 32, flags: 3, index: q.index, size: 4096})
	case cmdGetIRQInfo:
		q, _ := parseIRQInfo(m.body)
		b = body(irqInfo{16, irqFlagEventFD, q.index, 8})
	default:
		return nil
	}
	return replyTo(m, 0, b)
}

func replyTo(m *message, errno unix.Errno, b []byte) []byte {
	h := header{id: m.id, cmd: m.cmd, flags: flagReply, size: uint32(headerSize + len(b)), errno: uint32(errno)}
	if errno != 0 {
		h.flags |= flagError
	}
	out := make([]byte, headerSize, h.size)
	h.put(out)
	return append(out, b...)
}

// TestBadServers: whatever a server does in the place of an answer to a read, the
// client gives up in time with an error that says what happened.
func TestBadServers(t *testing.T) {
	noLeaks(t)
	const limit = 300 * time.Millisecond // where it must run out
	read := func(m *message, n int) []byte {
		return replyTo(m, 0, append(body(access{0, 0, uint32(n)}), make([]byte, n)...))
	}
	for name, c := range map[string]struct {
		answer func(s *sock, m *message) bool
		want   error
		gone   bool
	}{
		"refuses":      {func(s *sock, m *message) bool { return s.send(replyTo(m, unix.EPERM, nil), nil) == nil }, unix.EPERM, false},
		"says nothing": {func(*sock, *message) bool { return true }, ErrLateReply, true},
		"hangs up":     {func(*sock, *message) bool { return false }, ErrServerGone, true},
		"hangs up in the middle": {func(s *sock, m *message) bool {
			_ = s.send(read(m, 4)[:20], nil)
			return false
		}, ErrServerGone, true},
		"stops in the middle": {func(s *sock, m *message) bool { return s.send(read(m, 4)[:20], nil) == nil }, ErrLateReply, true},
		"too few bytes":       {func(s *sock, m *message) bool { return s.send(read(m, 2), nil) == nil }, ErrProtocol, true},
		"too many bytes":      {func(s *sock, m *message) bool { return s.send(read(m, 4000), nil) == nil }, ErrProtocol, true},
		"no body":             {func(s *sock, m *message) bool { return s.send(replyTo(m, 0, nil), nil) == nil }, ErrProtocol, true},
		"another command":     {func(s *sock, m *message) bool { m.cmd++; return s.send(read(m, 4), nil) == nil }, ErrProtocol, true},
		"another id":          {func(s *sock, m *message) bool { m.id++; return s.send(read(m, 4), nil) == nil }, ErrProtocol, true},
		"noise":               {func(s *sock, _ *message) bool { return s.send([]byte("HTTP/1.1 400 Bad Request\r\n"), nil) == nil }, ErrProtocol, true},
		"requests without end": {func(s *sock, m *message) bool {
			for {
				b := read(m, 4)
				header{cmd: cmdDMARead, size: uint32(len(b)), flags: flagNoReply}.put(b)
				if s.send(b, nil) != nil {
					return false
				}
				time.Sleep(limit / 20)
			}
		}, ErrLateReply, true},
		"a byte now and then": {func(s *sock, m *message) bool {
			for _, b := range read(m, 1000) {
				if s.send([]byte{b}, nil) != nil {
					return false
				}
				time.Sleep(limit / 20)
			}
			return true
		}, ErrLateReply, true},
	} {
		t.Run(name, func(t *testing.T) {
			noLeaks(t)
			o := Options{}
			if errors.Is(c.want, ErrLateReply) {
				o.Timeout = limit
			}
			tr, err := Dial(t.Context(), badServer(t, nil, c.answer), o)
			require.NoError(t, err)
			begin := time.Now()
			err = tr.ReadRegion(0, 0, make([]byte, 4))
			isError(t, err, c.want)
			require.Equal(t, c.gone, errors.Is(err, vfio.ErrGone))
			if c.gone { // and stays so, at once, with the cause
				isError(t, tr.Reset(), c.want)
				isError(t, tr.DMA().Unmap(0x1000, 0x1000), vfio.ErrGone)
			}
			require.NoError(t, tr.Close())
			require.Less(t, time.Since(begin), 5*time.Second, "less than the unset timeout")
		})
	}
}

// TestServerRequestsAreRefused: a server may ask for DMA by message; it is told
// that it cannot have it, and its own reply is still taken.
func TestServerRequestsAreRefused(t *testing.T) {
	told := make(chan header, 1)
	tr := dial(t, badServer(t, nil, func(s *sock, m *message) bool {
		ask := replyTo(m, 0, make([]byte, 16))
		header{id: 77, cmd: cmdDMARead, size: uint32(len(ask))}.put(ask)
		reset := replyTo(m, 0, nil)
		var r message
		if s.send(append(ask, reset...), nil) != nil || s.receive(&r, time.Time{}) != nil {
			return false
		}
		told <- r.header
		return true
	}), Options{})
	require.NoError(t, tr.Reset())
	require.Equal(t, header{77, cmdDMARead, headerSize, flagReply | flagError, uint32(unix.EOPNOTSUPP)}, <-told)
}

// TestBadOpenings: servers that are no PCI function of version 0.0.
func TestBadOpenings(t *testing.T) {
	noLeaks(t)
	for name, change := range map[string]func(m *message, b []byte) []byte{
		"major 1":       func(m *message, b []byte) []byte { b[headerSize] = 1; return b },
		"minor 1":       func(m *message, b []byte) []byte { b[headerSize+2] = 1; return b },
		"no version":    func(m *message, _ []byte) []byte { return replyTo(m, 0, nil) },
		"no JSON":       func(m *message, _ []byte) []byte { return replyTo(m, 0, []byte("\x00\x00\x00\x00?\x00")) },
		"refused":       func(m *message, _ []byte) []byte { return replyTo(m, unix.EOPNOTSUPP, nil) },
		"no PCI":        func(m *message, b []byte) []byte { b[headerSize+4] = 0; return b },
		"few regions":   func(m *message, b []byte) []byte { b[headerSize+8] = 3; return b },
		"device cut":    func(m *message, _ []byte) []byte { return replyTo(m, 0, make([]byte, 15)) },
		"region cut":    func(m *message, _ []byte) []byte { return replyTo(m, 0, make([]byte, 31)) },
		"interrupt cut": func(m *message, _ []byte) []byte { return replyTo(m, 0, make([]byte, 15)) },
		"many vectors":  func(m *message, b []byte) []byte { le.PutUint32(b[headerSize+12:], 1<<30); return b },
	} {
		cmd := map[string]uint16{
			"no PCI": cmdDeviceGetInfo, "few regions": cmdDeviceGetInfo, "device cut": cmdDeviceGetInfo, "region cut": cmdGetRegionInfo,
			"interrupt cut": cmdGetIRQInfo, "many vectors": cmdGetIRQInfo,
		}[name]
		if cmd == 0 {
			cmd = cmdVersion
		}
		t.Run(name, func(t *testing.T) {
			noLeaks(t)
			_, err := Dial(t.Context(), badServer(t, func(m *message, b []byte) []byte {
				if m.cmd == cmd {
					return change(m, b)
				}
				return b
			}, nil), Options{})
			if name == "refused" {
				isError(t, err, vfio.ErrNotSupported)
				return
			}
			isError(t, err, ErrProtocol)
		})
	}
}

// TestOldServer: one that names no capabilities takes one file a message.
func TestOldServer(t *testing.T) {
	var sets []irqSet
	tr := dial(t, badServer(t, func(m *message, b []byte) []byte {
		if m.cmd == cmdVersion {
			return replyTo(m, 0, make([]byte, 4))
		}
		return b
	}, func(s *sock, m *message) bool {
		q, err := parseIRQSet(m.body)
		if err != nil {
			return false
		}
		sets = append(sets, q)
		return s.send(replyTo(m, 0, nil), nil) == nil
	}), Options{})
	var vs []*vfio.Vector
	for range 3 {
		v, err := tr.NewVector()
		require.NoError(t, err)
		defer func() { require.NoError(t, v.Close()) }()
		vs = append(vs, v)
	}
	require.NoError(t, tr.SetIRQs(vfio.IRQMSIX, 2, vs))
	require.Equal(t, []irqSet{{20, attach, 2, 2, 1, nil}, {20, attach, 2, 3, 1, nil}, {20, attach, 2, 4, 1, nil}}, sets)
}

// TestCloseBreaksOffACall: a call that waits for a stuck server ends with
// ErrClosed, not with its timeout.
func TestCloseBreaksOffACall(t *testing.T) {
	noLeaks(t)
	asked := make(chan struct{})
	tr, err := Dial(t.Context(), badServer(t, nil, func(*sock, *message) bool { close(asked); return true }), Options{})
	require.NoError(t, err)
	got := make(chan error, 1)
	go func() { got <- tr.Reset() }()
	<-asked
	begin := time.Now()
	require.NoError(t, tr.Close())
	isError(t, <-got, vfio.ErrClosed)
	require.Less(t, time.Since(begin), 5*time.Second)
}
