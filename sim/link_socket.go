package sim

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// A link over a UNIX socket, between two processes. The first to come listens and
// is end 0, the other connects and is end 1. When the peer goes away packets are
// lost, as on a cable that is cut; when it comes back the link works again.

// A greeting opens a connection in both directions: magic, version, end, port
// type, and zeros up to a newline. It is a header of vfio-user long and a line, so
// that servers of either kind answer or hang up, and do not wait for more of it.
const (
	linkMagic    = "mlxwire"
	linkVersion  = 2 // of the greeting and what follows
	linkHelloLen = 16
	linkShake    = 5 * time.Second // for it
	linkDialMin  = 20 * time.Millisecond
	linkDialMax  = time.Second
)

// LinkPort is a chip's end of a link over a socket. Its methods are safe for
// concurrent use.
type LinkPort struct {
	chip *Chip
	path string
	node uint8
	l    net.Listener // of end 0
	done chan struct{}
	wait sync.WaitGroup

	mu     sync.Mutex // after the chip's lock
	conn   net.Conn   // nil while there is no peer
	out    []byte     // frames to write
	held   bool       // the chip waits for room
	more   chan struct{}
	closed bool
	// trouble is why what was reached last at the other end is no peer.
	trouble *LinkError
	hangUps int // how often in a row it hung up without a greeting
}

// JoinLink makes the chip, which nobody has opened yet, one end of the link at a
// socket's path: the first process to come waits there for the second. It does
// not wait for the peer. The error is a *LinkError.
func (c *Chip) JoinLink(path string) (*LinkPort, error) {
	p := &LinkPort{chip: c, path: path, done: make(chan struct{}), more: make(chan struct{}, 1)}
	conn, err := p.first()
	if err != nil {
		return nil, err
	}
	if err := c.attach(p, p.node, path); err != nil {
		if conn != nil {
			_ = conn.Close()
		}
		if p.l != nil {
			_ = p.l.Close()
		}
		return nil, err
	}
	p.wait.Add(1)
	go p.run(conn)
	return p, nil
}

// linkPathMost is what a UNIX socket's name takes, with its NUL (Linux unix(7)).
const linkPathMost = 107

// first finds out which end this is: it connects where someone listens, and
// listens where nobody does.
func (p *LinkPort) first() (net.Conn, error) {
	if len(p.path) > linkPathMost {
		return nil, &LinkError{What: p.path, Why: fmt.Sprintf("a socket's path has at most %d bytes, this one %d", linkPathMost, len(p.path)), Err: syscall.ENAMETOOLONG, Remedy: "use a shorter path"}
	}
	for range 10 {
		conn, err := net.Dial("unix", p.path)
		if err == nil {
			p.node = 1
			return conn, nil
		}
		if errors.Is(err, syscall.ECONNREFUSED) {
			if i, err := os.Lstat(p.path); err == nil && i.Mode().Type() != os.ModeSocket {
				return nil, &LinkError{What: p.path, Why: "it is no socket", Remedy: "give the path of a socket, or of a file that does not exist yet"}
			}
			// The socket of a process that is gone.
			if err := os.Remove(p.path); err != nil && !errors.Is(err, os.ErrNotExist) {
				return nil, &LinkError{What: p.path, Why: "a socket nobody listens on cannot be removed", Err: err, Remedy: "remove it, or choose another path"}
			}
		} else if !errors.Is(err, os.ErrNotExist) {
			return nil, &LinkError{What: p.path, Why: "it cannot be connected to", Err: err, Remedy: "give the path of a socket, or of a file that does not exist yet"}
		}
		// The mode is given before the path: nobody but the user ever gets in.
		lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
			var mode error
			err := c.Control(func(fd uintptr) { mode = syscall.Fchmod(int(fd), 0o600) })
			return errors.Join(err, mode)
		}}
		l, err := lc.Listen(context.Background(), "unix", p.path)
		if err == nil {
			p.l = l
			return nil, nil
		}
		if !errors.Is(err, syscall.EADDRINUSE) {
			return nil, &LinkError{What: p.path, Why: "nothing can listen there", Err: err, Remedy: "choose a path in a folder that exists and is writable"}
		}
		time.Sleep(linkDialMin) // another process came first: connect to it
	}
	return nil, &LinkError{What: p.path, Why: "neither listening nor connecting works", Remedy: "remove the socket and try again"}
}

// Connected tells whether the peer is there.
func (p *LinkPort) Connected() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.conn != nil
}

// Err tells why the link is not up although the other end was reached: a
// *LinkError, Final where trying again cannot help. It is nil when the link is up
// and when there is nobody at the other end. The link goes on trying either way.
func (p *LinkPort) Err() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.trouble == nil {
		return nil
	}
	return p.trouble
}

// Node is which end this is: 0 listens, 1 connects.
func (p *LinkPort) Node() int { return int(p.node) }

// Close takes the chip off the link and waits for the goroutines of the link.
func (p *LinkPort) Close() error {
	p.chip.detach(p)
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil
	}
	p.closed = true
	close(p.done)
	if p.l != nil {
		_ = p.l.Close() // first: the peer that tries again finds nobody
	}
	if p.conn != nil {
		_ = p.conn.Close()
	}
	p.mu.Unlock()
	p.wait.Wait()
	return nil
}

// run keeps a connection as long as the link is open.
func (p *LinkPort) run(conn net.Conn) {
	defer p.wait.Done()
	pause := linkDialMin
	for {
		var err error
		switch {
		case conn != nil:
			if err = p.serve(conn); err == nil {
				pause = linkDialMin
			} else if !p.over() {
				p.chip.log.Warn("link", "path", p.path, "error", err)
			}
			conn = nil
		case p.l != nil:
			conn, err = p.l.Accept()
		default:
			if conn, err = net.Dial("unix", p.path); err != nil {
				p.blame(nil) // whom it would be about is gone
			}
		}
		if p.over() {
			if conn != nil {
				_ = conn.Close()
			}
			return
		}
		if err != nil {
			select {
			case <-p.done:
				return
			case <-time.After(pause):
			}
			pause = min(2*pause, linkDialMax)
		}
	}
}

func (p *LinkPort) over() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// serve carries packets over one connection until it breaks.
func (p *LinkPort) serve(conn net.Conn) error {
	defer func() { _ = conn.Close() }()
	if p.Err() == nil {
		p.blame(p.silent(nil)) // until it speaks
	}
	if err := p.shake(conn); err != nil {
		p.blame(err)
		return err
	}
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil
	}
	p.conn, p.out, p.trouble, p.hangUps = conn, p.out[:0], nil, 0
	p.mu.Unlock()
	p.chip.log.Info("link up", "path", p.path, "end", p.node)
	gone, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		p.write(conn, gone)
	}()
	err := p.read(conn)
	close(gone)
	_ = conn.Close()
	<-ended
	p.mu.Lock()
	p.conn, p.out = nil, nil
	p.mu.Unlock()
	p.chip.log.Info("link down", "path", p.path, "end", p.node)
	p.room() // what waited for room is lost, and goes on
	return err
}

// read takes frames until the connection breaks; a peer that closes it is no
// error.
func (p *LinkPort) read(conn net.Conn) error {
	r := bufio.NewReaderSize(conn, 64<<10)
	frame := make([]byte, maxFrame)
	c := p.chip
	for {
		var head [4]byte
		if _, err := io.ReadFull(r, head[:]); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		n := binary.BigEndian.Uint32(head[:])
		if n > maxFrame {
			return fmt.Errorf("a frame of %d bytes: there are none above %d", n, maxFrame)
		}
		if _, err := io.ReadFull(r, frame[:n]); err != nil {
			return err
		}
		c.mu.Lock()
		err := c.fabric.take(frame[:n])
		if r.Buffered() == 0 {
			c.fabric.kick()
		}
		c.mu.Unlock()
		if err != nil {
			return err
		}
	}
}

// write sends frames until the connection breaks.
func (p *LinkPort) write(conn net.Conn, gone chan struct{}) {
	var b []byte
	for {
		select {
		case <-gone:
			return
		case <-p.more:
		}
		p.mu.Lock()
		b, p.out = p.out, b[:0]
		p.mu.Unlock()
		if len(b) == 0 {
			continue
		}
		if _, err := conn.Write(b); err != nil {
			_ = conn.Close() // the reader ends the connection
			return
		}
		p.room()
	}
}

// room lets the chip go on when it waited.
func (p *LinkPort) room() {
	p.mu.Lock()
	held := p.held
	p.held = false
	p.mu.Unlock()
	if held {
		p.chip.mu.Lock()
		p.chip.fabric.kick()
		p.chip.mu.Unlock()
	}
}

func (p *LinkPort) send(k *packet) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.conn == nil {
		return // the cable leads nowhere
	}
	p.out = appendFrame(p.out, k)
	select {
	case p.more <- struct{}{}:
	default:
	}
}

func (p *LinkPort) full() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held = len(p.out) > linkRoom
	return p.held
}

func (p *LinkPort) flush() {}
