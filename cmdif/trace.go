package cmdif

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"sync"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// TraceEvent is a command on its way to the device or back. The bytes belong to
// the engine and are valid until the TraceFunc returns.
type TraceEvent struct {
	Slot      int
	Opcode    prm.Opcode
	Output    bool
	Len       int      // bytes of the message, the inline part included
	Entry     []byte   // the 64 bytes of the queue entry
	Mailboxes [][]byte // 576 bytes each, in chain order
}

// TraceFunc sees every command: just before the doorbell, and again after the
// device handed the entry back, before the reply is checked. Commands run in
// parallel, so it must be safe for concurrent use, and it should be quick.
type TraceFunc func(TraceEvent)

// SetTrace installs f, or stops tracing with nil.
func (c *Conn) SetTrace(f TraceFunc) {
	if f == nil {
		c.trace.Store(nil)
		return
	}
	c.trace.Store(&f)
}

//go:noinline
func (c *Conn) traceSlot(f TraceFunc, s *slot, output bool) {
	e := TraceEvent{Slot: s.index, Opcode: s.rec.Opcode, Output: output, Len: s.rec.InLen, Entry: s.mem.Bytes()}
	chain := s.in
	if output {
		chain, e.Len = s.out, s.rec.OutLen
	}
	for _, b := range chain {
		e.Mailboxes = append(e.Mailboxes, b.mem)
	}
	f(e)
}

// Hexdump writes commands as mlx5_core's debug output does (Linux cmd.c
// dump_command): rows of four big-endian words after a running offset.
type Hexdump struct {
	// Prefix goes before the lines that the kernel prints with the device's
	// name, such as "mlx5_core 0000:3b:00.0: "; rows have none.
	Prefix string
	// DataOnly prints only message bytes: 16 inline ones and each mailbox's
	// payload, without headers.
	DataOnly bool
}

// Append appends the lines of e to b.
func (h Hexdump) Append(b []byte, e TraceEvent) []byte {
	data, dir := "", "INPUT"
	if h.DataOnly {
		data = "data "
	}
	if e.Output {
		dir = "OUTPUT"
	}
	b = fmt.Appendf(b, "%scmd[%d]: start dump\n", h.Prefix, e.Slot)
	b = fmt.Appendf(b, "%scmd[%d]: dump command %s%s(0x%x) %s\n", h.Prefix, e.Slot, data, e.Opcode, uint16(e.Opcode), dir)
	off := 0
	if h.DataOnly {
		v := prm.AsCmdQueueEntry(e.Entry)
		inline := v.CommandInputInlineData()
		if e.Output {
			inline = v.CommandOutputInlineData()
		}
		b, off = h.rows(b, e.Slot, off, inline)
		for _, m := range e.Mailboxes {
			n := min(boxData, max(e.Len-off, 0))
			b, _ = h.rows(b, e.Slot, off, m[:(n+15)&^15])
			off += boxData
		}
	} else {
		b, off = h.rows(b, e.Slot, off, e.Entry)
		for _, m := range e.Mailboxes {
			b = fmt.Appendf(b, "%scmd[%d]: command block:\n", h.Prefix, e.Slot)
			b, off = h.rows(b, e.Slot, off, m)
		}
	}
	return fmt.Appendf(b, "%scmd[%d]: end dump\n", h.Prefix, e.Slot)
}

func (h Hexdump) rows(b []byte, slot, off int, p []byte) ([]byte, int) {
	for ; len(p) >= 16; p, off = p[16:], off+16 {
		b = fmt.Appendf(b, "cmd[%d]: %03x: %08x %08x %08x %08x\n", slot, off,
			binary.BigEndian.Uint32(p), binary.BigEndian.Uint32(p[4:]),
			binary.BigEndian.Uint32(p[8:]), binary.BigEndian.Uint32(p[12:]))
	}
	return b, off
}

// Tracer writes every command to w, one at a time. A failing w stops nothing;
// the first error ends the output.
func (h Hexdump) Tracer(w io.Writer) TraceFunc {
	var mu sync.Mutex
	var failed bool
	return func(e TraceEvent) {
		b := bytes.NewBuffer(h.Append(nil, e))
		mu.Lock()
		defer mu.Unlock()
		if !failed {
			_, err := b.WriteTo(w)
			failed = err != nil
		}
	}
}
