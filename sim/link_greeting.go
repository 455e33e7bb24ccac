package sim

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"
)

// shake exchanges greetings. The version is looked at before the rest is read: the
// greetings of others may be of another length.
func (p *LinkPort) shake(conn net.Conn) *LinkError {
	if err := conn.SetDeadline(time.Now().Add(linkShake)); err != nil {
		return p.refuse("no deadline can be set", err, "")
	}
	var hello, got [linkHelloLen]byte
	n := copy(hello[:], linkMagic)
	hello[n], hello[n+1], hello[n+2], hello[linkHelloLen-1] = linkVersion, p.node, byte(p.chip.port), '\n'
	if _, err := conn.Write(hello[:]); err != nil {
		return p.unheard(err)
	}
	if _, err := io.ReadFull(conn, got[:n+1]); err != nil {
		return p.unheard(err)
	}
	final := func(why, remedy string) *LinkError {
		e := p.refuse(why, nil, remedy)
		e.Final = true
		return e
	}
	switch {
	case string(got[:n]) != linkMagic:
		return p.stranger(nil)
	case got[n] != linkVersion:
		return final(fmt.Sprintf("the other end speaks version %d, this one version %d", got[n], linkVersion), "serve both models with the same mlxvfio")
	}
	if _, err := io.ReadFull(conn, got[n+1:]); err != nil {
		return p.unheard(err)
	}
	switch {
	case got[n+1] == p.node:
		return p.refuse(fmt.Sprintf("both are end %d", p.node), nil, "let one of them go")
	case got[n+2] != byte(p.chip.port):
		return final(fmt.Sprintf("the other end has an %s port, this one an %s port", PortType(got[n+2]), p.chip.port), "give both the same port=")
	}
	if err := conn.SetDeadline(time.Time{}); err != nil {
		return p.unheard(err)
	}
	return nil
}

// unheard is a connection without a whole greeting. Who hangs up may be a peer that
// ends just now; who does so time after time is none.
func (p *LinkPort) unheard(err error) *LinkError {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return p.silent(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	e := p.stranger(err)
	e.Final = p.hangUps > 0
	p.hangUps++
	return e
}

// silent is a connection on which nothing has come so far.
func (p *LinkPort) silent(err error) *LinkError {
	return p.refuse("the other end was reached and says nothing: another model may have this end already", err,
		"a wire has two ends: give another path, or wait until one leaves")
}

// stranger is a connection to what does not greet as the end of a link does.
func (p *LinkPort) stranger(err error) *LinkError {
	e := p.refuse("what is at the other end is no link", err, "give the same path to the links of two models, and to nothing else")
	e.Final = true
	return e
}

func (p *LinkPort) refuse(why string, err error, remedy string) *LinkError {
	return &LinkError{What: p.path, Why: why, Err: err, Remedy: remedy}
}

// blame keeps why what was reached is no peer; nil when nobody was.
func (p *LinkPort) blame(e *LinkError) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if e == nil {
		p.hangUps = 0
	}
	p.trouble = e
}
