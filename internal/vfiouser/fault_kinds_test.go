package vfiouser

import (
	"bytes"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mlxvfio/mlxvfio/vfio"
)

// socketKind is a way in which a server, or the way to it, goes wrong.
type socketKind struct {
	name, variant string
	do            misbehavior
	// after is done behind the driver's back once the bring-up is over.
	after func(b *broker)
	// timeout of the client; 0 is more than the test takes.
	timeout time.Duration
	stages  []string // nil: wherever a message is sent
	want    []error  // in the error, if there is one; nil: whatever has a type
	passes  bool     // no error at all
}

// slow are the stages of kinds that cost a deadline each.
var slow = []string{dialing, "open", "command-queue", "init-hca", "vectors", "ready"}

// some are a stage of each sort: what a message is part of, and whether the driver
// waits for events by then.
var some = []string{dialing, "open", "reset", "command-queue", "enable-hca", "boot-pages", "dtor", "init-hca", "alloc-uar", "vectors", "command-eq", "ready", closing}

const (
	patience = 200 * time.Millisecond
	lateness = 50 * time.Millisecond
)

func socketKinds() []socketKind {
	gone := []error{vfio.ErrGone, ErrServerGone}
	odd := []error{vfio.ErrGone, ErrProtocol}
	// reply changes a good reply on its way.
	reply := func(change func(h *header, r []byte) []byte) misbehavior {
		return func(x *exchange) bool {
			r := x.ask(x.m.fds)
			if r == nil {
				return false
			}
			h, err := parseHeader(r)
			if err != nil {
				return false
			}
			out := change(&h, r)
			if len(out) >= headerSize {
				h.put(out)
			}
			return x.client.send(out, nil) == nil
		}
	}
	// cut sends so much of the reply and hangs up.
	cut := func(part func(r []byte) int) misbehavior {
		return func(x *exchange) bool {
			if r := x.ask(x.m.fds); r != nil {
				_ = x.client.send(r[:part(r)], nil)
			}
			return false
		}
	}
	kinds := []socketKind{
		{name: "hangs up instead of a reply", do: func(*exchange) bool { return false }, want: gone},
		{name: "does it and hangs up", stages: some, do: cut(func([]byte) int { return 0 }), want: gone},
		{name: "hangs up in the header", do: cut(func([]byte) int { return headerSize / 2 }), want: gone},
		{name: "hangs up a byte before the end", stages: some, do: cut(func(r []byte) int { return len(r) - 1 }), want: gone},
		{name: "dies and comes back", do: func(x *exchange) bool { x.b.kill(); return false }, after: (*broker).start, want: gone},
		{name: "says nothing", timeout: patience, stages: slow, want: []error{vfio.ErrGone, ErrLateReply}, do: (*exchange).hold},
		{name: "sends half a reply and stops", timeout: patience, stages: slow, want: []error{vfio.ErrGone, ErrLateReply}, do: func(x *exchange) bool {
			if r := x.ask(x.m.fds); r != nil {
				_ = x.client.send(r[:len(r)/2], nil)
			}
			return x.hold()
		}},
		{name: "answers after the deadline", timeout: patience, stages: slow, want: []error{vfio.ErrGone, ErrLateReply}, do: func(x *exchange) bool {
			r := x.ask(x.m.fds)
			x.hold()
			_ = x.client.send(r, nil)
			return false
		}},
		{name: "answers late, but in time", passes: true, do: func(x *exchange) bool { time.Sleep(lateness); return x.pass() }, stages: slow},
		{name: "answers a byte at a time", stages: some, passes: true, do: func(x *exchange) bool {
			r := x.ask(x.m.fds)
			for i := range r {
				if x.client.send(r[i:i+1], nil) != nil {
					return false
				}
			}
			return true
		}},
		{name: "asks for DMA before it answers", stages: some, passes: true, do: func(x *exchange) bool {
			ask := make([]byte, headerSize+16)
			header{id: 77, cmd: cmdDMARead, size: uint32(len(ask))}.put(ask)
			var r message
			return x.client.send(ask, nil) == nil && x.client.receive(&r, time.Time{}) == nil && x.pass()
		}},
		{name: "sends files along", stages: some, passes: true, do: func(x *exchange) bool {
			r := x.ask(x.m.fds)
			return r != nil && x.client.send(r, []int{x.client.fd, x.upstream.fd}) == nil
		}},
		{name: "id of another request", stages: some, do: reply(func(h *header, r []byte) []byte { h.id++; return r }), want: odd},
		{name: "reply to another command", stages: some, do: reply(func(h *header, r []byte) []byte { h.cmd++; return r }), want: odd},
		{name: "answers twice", stages: some, do: reply(func(h *header, r []byte) []byte { h.put(r); return append(r, r...) }), want: odd},
		{name: "claims a gigabyte", stages: some, do: reply(func(h *header, r []byte) []byte { h.size = 1 << 30; return r }), want: odd},
		{name: "claims less than a header", stages: some, do: reply(func(h *header, r []byte) []byte { h.size = headerSize - 1; return r }), want: odd},
		{name: "garbage", do: func(x *exchange) bool {
			return x.client.send(bytes.Repeat([]byte{0xa5}, 64), nil) == nil && x.hold()
		}, want: odd},
		{name: "leaves the body out", stages: some, do: reply(func(h *header, r []byte) []byte { h.size = headerSize; return r[:headerSize] }), want: []error{ErrProtocol}},
		{name: "body too long", stages: some, do: reply(func(h *header, r []byte) []byte { h.size += 8; return append(r, make([]byte, 8)...) }), want: odd},
		{name: "an error without an errno", stages: some, do: reply(func(h *header, r []byte) []byte {
			h.size, h.flags, h.errno = headerSize, flagReply|flagError, 0
			return r[:headerSize]
		}), want: []error{unix.EIO}},
		{name: "loses the files of a request", do: func(x *exchange) bool {
			r := x.ask(nil)
			return r != nil && x.client.send(r, nil) == nil
		}, stages: []string{"command-queue", "vectors"}},
		{name: "gets a file too many", do: func(x *exchange) bool {
			r := x.ask(append(append([]int(nil), x.m.fds...), x.client.fd))
			return r != nil && x.client.send(r, nil) == nil
		}, stages: []string{"open", "command-queue", "vectors"}},
		{name: "signals interrupt the wait (EINTR)", passes: true, do: func(x *exchange) bool {
			r := x.ask(x.m.fds)
			for range 20 { // the client waits for its reply by now
				signalThreads()
				time.Sleep(100 * time.Microsecond)
			}
			return r != nil && x.client.send(r, nil) == nil
		}, stages: slow},
	}
	for _, e := range []struct {
		name  string
		errno unix.Errno
	}{{"EIO", unix.EIO}, {"ENOMEM", unix.ENOMEM}, {"EPERM", unix.EPERM}, {"EINVAL", unix.EINVAL}, {"ENODEV", unix.ENODEV}, {"EBUSY", unix.EBUSY}} {
		stages := some
		if e.errno == unix.EIO {
			stages = nil
		}
		kinds = append(kinds, socketKind{name: "refuses", variant: e.name, stages: stages, want: []error{e.errno}, do: func(x *exchange) bool {
			return x.client.send(replyTo(x.m, e.errno, nil), nil) == nil
		}})
	}
	return kinds
}
