package tracer

import (
	"context"
	"fmt"
	"slices"

	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/tracer/trace"
)

// Port is access to registers; *cmdif.Conn is one. It must be safe for concurrent
// use.
type Port interface {
	AccessRegister(ctx context.Context, mode prm.AccessRegOpMod, id prm.RegisterID, argument uint32, in, out []byte) error
}

// capRoom is what is offered for MTRC_CAP: mstflint's database gives it four bytes
// more than Linux does.
const capRoom = 0x84

// Buffer sizes are powers of two in units of this.
const (
	unit    = 4096
	unitLog = 12
)

// SectionInfo is where a section of the string database lies, in the firmware's own
// addresses.
type SectionInfo struct{ Base, Size uint32 }

// Caps is register MTRC_CAP.
type Caps struct {
	Owner        bool // this function owns the tracer
	ToMemory     bool // the device can write traces to host memory
	Geometry     trace.Geometry
	LogMaxBuffer uint8 // log2 of the largest buffer in units of 4096 bytes
	Sections     []SectionInfo
}

// MaxBuffer is the largest buffer in bytes.
func (c *Caps) MaxBuffer() uint64 {
	return unit << min(c.LogMaxBuffer, 63-unitLog)
}

// sameStrings tells whether the string database still lies where it did. Its bytes
// may differ all the same.
func (c *Caps) sameStrings(o *Caps) bool {
	return c.Geometry == o.Geometry && slices.Equal(c.Sections, o.Sections)
}

// sectionsMax is the number of entries that MTRC_CAP has.
const sectionsMax = 8

func parseCaps(r *prm.MtrcCap) Caps {
	c := Caps{
		Owner: r.TraceOwner(), ToMemory: r.TraceToMemory(), LogMaxBuffer: r.LogMaxTraceBufferSize(),
		Geometry: trace.Geometry{TrcVer: r.TrcVer(), FirstString: r.FirstStringTrace(), NumString: r.NumStringTrace()},
	}
	for i := range min(int(r.NumStringDb()), sectionsMax) {
		p := r.StringDbParam(i)
		c.Sections = append(c.Sections, SectionInfo{Base: p.StringDbBaseAddress(), Size: p.StringDbSize()})
	}
	return c
}

// ReadCaps reads MTRC_CAP. That reading Owner true means this function, not another
// one, is mstflint's understanding.
func ReadCaps(ctx context.Context, p Port) (Caps, error) {
	var in [prm.MtrcCapSize]byte
	var out [capRoom]byte
	if err := p.AccessRegister(ctx, prm.AccessRegRead, prm.RegMtrcCap, 0, in[:], out[:]); err != nil {
		return Caps{}, fmt.Errorf("read the tracer's capabilities: %w", err)
	}
	return parseCaps(prm.AsMtrcCap(out[:])), nil
}

// writeOwner asks for the tracer, or gives it back, and answers whether it is ours
// now. All other bits are zero, as in Linux.
func writeOwner(ctx context.Context, p Port, own bool) (bool, error) {
	var in [prm.MtrcCapSize]byte
	var out [capRoom]byte
	prm.AsMtrcCap(in[:]).SetTraceOwner(own)
	if err := p.AccessRegister(ctx, prm.AccessRegWrite, prm.RegMtrcCap, 0, in[:], out[:]); err != nil {
		return false, err
	}
	return prm.AsMtrcCap(out[:]).TraceOwner(), nil
}

const traceToMemory = 1 // MTRC_CONF.trace_mode

// configure writes MTRC_CONF, reads it back and compares.
func configure(ctx context.Context, p Port, logSize uint8, key uint32) error {
	var in, out prm.MtrcConf
	in.SetTraceMode(traceToMemory)
	in.SetLogTraceBufferSize(logSize)
	in.SetTraceMKey(key)
	if err := p.AccessRegister(ctx, prm.AccessRegWrite, prm.RegMtrcConf, 0, in[:], out[:]); err != nil {
		return fmt.Errorf("configure the tracer (buffer of 2^%d bytes, key %#x): %w", logSize+unitLog, key, err)
	}
	in2, back := prm.MtrcConf{}, prm.MtrcConf{}
	if err := p.AccessRegister(ctx, prm.AccessRegRead, prm.RegMtrcConf, 0, in2[:], back[:]); err != nil {
		return fmt.Errorf("read the tracer's configuration back: %w", err)
	}
	for _, f := range []struct {
		name       string
		want, have uint64
	}{
		{"trace_mode", uint64(in.TraceMode()), uint64(back.TraceMode())},
		{"log_trace_buffer_size", uint64(logSize), uint64(back.LogTraceBufferSize())},
		{"trace_mkey", uint64(key), uint64(back.TraceMKey())},
	} {
		if f.want != f.have {
			return &MismatchError{Register: prm.RegMtrcConf, Field: f.name, Wrote: f.want, Read: f.have}
		}
	}
	return nil
}

// modifyStatus in MTRC_CTRL.modify_field_select says that trace_status is to change.
const modifyStatus = 1

// setStatus switches the tracer on or off, reads MTRC_CTRL back and compares. arm asks
// for one event with it.
func setStatus(ctx context.Context, p Port, on, arm bool) error {
	var in, out prm.MtrcCtrl
	var want uint8
	what := "switch the tracer off"
	if on {
		want, what = 1, "switch the tracer on"
	}
	in.SetTraceStatus(want)
	in.SetArmEvent(arm)
	in.SetModifyFieldSelect(modifyStatus)
	if err := p.AccessRegister(ctx, prm.AccessRegWrite, prm.RegMtrcCtrl, 0, in[:], out[:]); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	s, err := readCtrl(ctx, p)
	if err != nil {
		return err
	}
	if s.status != want {
		return &MismatchError{Register: prm.RegMtrcCtrl, Field: "trace_status", Wrote: uint64(want), Read: uint64(s.status)}
	}
	return nil
}

// arm asks for one event as soon as there are traces of which no event told.
func arm(ctx context.Context, p Port) error {
	var in, out prm.MtrcCtrl
	in.SetArmEvent(true)
	if err := p.AccessRegister(ctx, prm.AccessRegWrite, prm.RegMtrcCtrl, 0, in[:], out[:]); err != nil {
		return fmt.Errorf("arm the tracer's event: %w", err)
	}
	return nil
}

// ctrl is what MTRC_CTRL reads.
type ctrl struct {
	status uint8
	now    uint64 // the tracer's clock, 53 bits
}

func readCtrl(ctx context.Context, p Port) (ctrl, error) {
	var in, out prm.MtrcCtrl
	if err := p.AccessRegister(ctx, prm.AccessRegRead, prm.RegMtrcCtrl, 0, in[:], out[:]); err != nil {
		return ctrl{}, fmt.Errorf("read the tracer's state: %w", err)
	}
	return ctrl{status: out.TraceStatus(), now: uint64(out.CurrentTimestamp52_32())<<32 | uint64(out.CurrentTimestamp31_0())}, nil
}
