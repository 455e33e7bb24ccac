package vfiouser

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/mlxvfio/mlxvfio/sim"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// broker stands between a driver and a server of the model and passes messages on,
// until a misbehavior is put in the place of one: what a bad server, a dying one or
// a bad connection does to a client.
type broker struct {
	t    *testing.T
	path string // where clients come
	chip *sim.Chip

	mu    sync.Mutex
	next  misbehavior // in the place of the next message
	met   bool
	heard func(cmd uint16) // of each request
	srv   *served          // nil while the server is dead
	wg    sync.WaitGroup
}

// misbehavior answers a request in a way of its own; it ends with whether the
// connection goes on.
type misbehavior func(x *exchange) bool

// exchange is one request on its way.
type exchange struct {
	b        *broker
	client   *sock
	upstream *sock
	m        *message
}

// served is a server that runs.
type served struct {
	path string
	stop context.CancelFunc
	done chan error
	tr   vfio.Transport
}

func newBroker(t *testing.T) *broker {
	t.Helper()
	o, err := sim.Parse("sim:cx5")
	require.NoError(t, err)
	c, err := sim.New(o)
	require.NoError(t, err)
	b := &broker{t: t, chip: c, path: filepath.Join(t.TempDir(), "b")}
	b.start()
	l, err := Listen(b.path)
	require.NoError(t, err)
	b.wg.Go(func() { b.accept(l) })
	t.Cleanup(func() {
		require.NoError(t, l.Close())
		b.wg.Wait()
		b.kill()
		require.NoError(t, c.Close())
	})
	return b
}

// start runs a server, unless one runs.
func (b *broker) start() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.srv != nil {
		return
	}
	dir, err := os.MkdirTemp("", "vfiouser-broker")
	require.NoError(b.t, err)
	s := &served{path: filepath.Join(dir, "s"), done: make(chan error, 1), tr: b.chip.Function(0)}
	l, err := Listen(s.path)
	require.NoError(b.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	s.stop = cancel
	go func() { s.done <- Serve(ctx, l, s.tr, Options{}) }()
	b.srv = s
}

// kill ends the server as a kill of its process does, as far as the kernel would
// clean up after it.
func (b *broker) kill() {
	b.mu.Lock()
	s := b.srv
	b.srv = nil
	b.mu.Unlock()
	if s == nil {
		return
	}
	s.stop()
	if err := <-s.done; err != nil {
		b.t.Errorf("serve: %v", err)
	}
	if err := s.tr.Close(); err != nil {
		b.t.Errorf("close the function: %v", err)
	}
	_ = os.RemoveAll(filepath.Dir(s.path))
}

// arm puts a misbehavior in the place of the next message.
func (b *broker) arm(x misbehavior) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.next, b.met = x, false
}

// wasMet tells whether a message met the misbehavior that was armed last.
func (b *broker) wasMet() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.met
}

// take is the misbehavior for this message, if there is one.
func (b *broker) take(m *message) misbehavior {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.heard != nil {
		b.heard(m.cmd)
	}
	x := b.next
	b.next = nil
	b.met = b.met || x != nil
	return x
}

func (b *broker) accept(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		s, err := takeOver(c, 10*time.Second)
		if err != nil {
			b.t.Error(err)
			return
		}
		b.wg.Go(func() { b.serve(s) })
	}
}

// serve carries one connection. When it ends here it ends upstream, and the server
// has let go of the function before the client may know.
func (b *broker) serve(client *sock) {
	defer client.close()
	b.mu.Lock()
	srv := b.srv
	b.mu.Unlock()
	if srv == nil {
		return
	}
	fd, err := connect(context.Background(), srv.path, 5*time.Second)
	if err != nil {
		return
	}
	up, err := newSock(fd, true, 10*time.Second)
	if err != nil {
		b.t.Error(err)
		return
	}
	defer func() {
		_ = unix.Shutdown(up.fd, unix.SHUT_WR)
		var m message
		for up.receive(&m, time.Now().Add(5*time.Second)) == nil { // the server closes last
		}
		up.close()
	}()
	var m message
	for client.receive(&m, time.Time{}) == nil {
		x := &exchange{b, client, up, &m}
		answer := b.take(&m)
		if answer == nil {
			answer = (*exchange).pass
		}
		goOn := answer(x)
		m.closeFDs()
		if !goOn {
			return
		}
	}
}

// request is the message as it came.
func (x *exchange) request() []byte {
	b := make([]byte, headerSize, x.m.size)
	x.m.put(b)
	return append(b, x.m.body...)
}

// ask has the server do what was asked, and is its reply; nil when it hung up or
// owes none.
func (x *exchange) ask(fds []int) []byte {
	if x.upstream.send(x.request(), fds) != nil || x.m.flags&flagNoReply != 0 {
		return nil
	}
	var r message
	if x.upstream.receive(&r, time.Now().Add(5*time.Second)) != nil {
		return nil
	}
	b := make([]byte, headerSize, r.size)
	r.put(b)
	return append(b, r.body...)
}

// pass is what a good connection does.
func (x *exchange) pass() bool {
	r := x.ask(x.m.fds)
	if x.m.flags&flagNoReply != 0 {
		return true
	}
	return r != nil && x.client.send(r, nil) == nil
}

// hold waits for the client to give up.
func (x *exchange) hold() bool {
	var m message
	for x.client.receive(&m, time.Time{}) == nil {
		m.closeFDs()
	}
	return false
}
