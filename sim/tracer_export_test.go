package sim

import (
	"encoding/binary"
	"testing"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// Tracing is a function that traces, for the tests of package sim_test, which
// decode with the driver's rooms.
type Tracing struct{ t *rawTracer }

// NewTracing brings a chip on a manual clock up and starts to trace to a buffer of
// 4096 << log bytes.
func NewTracing(t testing.TB, o Options, log uint8) *Tracing {
	return &Tracing{newTracing(t, o, log)}
}

// Chip is the chip.
func (x *Tracing) Chip() *Chip { return x.t.chip }

// Caps reads MTRC_CAP.
func (x *Tracing) Caps() *prm.MtrcCap {
	b, _ := x.t.reg(prm.RegMtrcCap, nil, false)
	return prm.AsMtrcCap(b)
}

// Section reads a section of the string database as Linux does.
func (x *Tracing) Section(i int) []byte { return x.t.section(i) }

// NOP sends a command, with an op_mod that exists or one that does not.
func (x *Tracing) NOP(good bool) {
	mod := uint16(0)
	if !good {
		mod = 7
	}
	x.t.send(cmd(prm.OpNop, mod, 16), 16)
}

// Stop switches the tracer off, which writes the open block.
func (x *Tracing) Stop() { x.t.ctrl(0, false) }

// Drain reads the blocks that were written since the last time, all of them.
func (x *Tracing) Drain() (l [][]byte) {
	for _, b := range x.t.drain() {
		p := make([]byte, 0, traceBlock)
		for _, w := range b {
			p = binary.BigEndian.AppendUint64(p, w)
		}
		l = append(l, p)
	}
	return l
}

// Image is the whole buffer.
func (x *Tracing) Image() []byte { return append([]byte(nil), x.t.buf.bytes()...) }
