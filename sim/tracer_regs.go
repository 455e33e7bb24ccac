package sim

import (
	"github.com/mlxvfio/mlxvfio/internal/prm"
)

const (
	traceToMemory = 1 // MTRC_CONF.trace_mode, and bit 1 of tracer_capabilities

	// String events have the ids traceFirst to traceFirst+traceIDs−1.
	traceFirst = 0x10
	traceIDs   = 8

	stringGrain = 64 // MTRC_STDB offsets and sizes are multiples of it
)

func tracerRegister(id prm.RegisterID) bool { return id >= prm.RegMtrcCap && id <= prm.RegMtrcCtrl }

func readMtrcCap(f *function, img []byte) synd {
	t, r := &f.chip.tracer, prm.AsMtrcCap(img)
	*r = prm.MtrcCap{}
	r.SetTraceOwner(t.owner == f)
	if !f.chip.faults.has("trace-no-memory") {
		r.SetTraceToMemory(true)
		r.SetTracerCapabilities(1 << traceToMemory)
	}
	r.SetTrcVer(t.version())
	r.SetFirstStringTrace(traceFirst)
	r.SetNumStringTrace(traceIDs)
	r.SetLogMaxTraceBufferSize(f.chip.prof.traceLogMax)
	r.SetNumStringDb(uint8(len(t.strings.sections)))
	for i := range t.strings.sections {
		s := &t.strings.sections[i]
		r.StringDbParam(i).SetStringDbBaseAddress(s.base)
		r.StringDbParam(i).SetStringDbSize(uint32(len(s.data)))
	}
	return syndOK
}

// writeMtrcCap takes trace_owner; the rest is read-only. The answer is what a
// read would give: trace_owner tells whether the tracer is the function's now.
func writeMtrcCap(f *function, img []byte) synd {
	t := &f.chip.tracer
	if prm.AsMtrcCap(img).TraceOwner() {
		t.acquire(f)
	} else {
		t.release(f)
	}
	return readMtrcCap(f, img)
}

func readMtrcConf(f *function, img []byte) synd {
	clear(img)
	if t := &f.chip.tracer; t.owner == f {
		copy(img, t.conf[:])
	}
	return syndOK
}

// writeMtrcConf takes the buffer's size and key. The key is looked at when a
// block is written, not here. The next block goes to the start of the buffer.
func writeMtrcConf(f *function, img []byte) synd {
	t, r := &f.chip.tracer, prm.AsMtrcConf(img)
	switch {
	case r.TraceMode() != traceToMemory || f.chip.faults.has("trace-no-memory"),
		r.LogTraceBufferSize() > f.chip.prof.traceLogMax:
		return syndTraceConf
	case t.owner != f:
		return readMtrcConf(f, img)
	}
	var c prm.MtrcConf
	c.SetTraceMode(r.TraceMode())
	c.SetLogTraceBufferSize(r.LogTraceBufferSize())
	c.SetTraceMKey(r.TraceMKey())
	if x := f.chip.faults.find("trace-mkey"); x != nil && x.n == keyRefused {
		if _, ok := t.keyOf(f, &c); !ok {
			return syndTraceKey
		}
	}
	t.conf = c
	t.stream.drop()
	t.log.drop()
	t.stream.pos, t.stream.blocks = 0, 0
	return readMtrcConf(f, img)
}

func readMtrcCtrl(f *function, img []byte) synd {
	t, r := &f.chip.tracer, prm.AsMtrcCtrl(img)
	*r = prm.MtrcCtrl{}
	if t.owner == f && t.on {
		r.SetTraceStatus(1)
	}
	now := t.ticks()
	r.SetCurrentTimestamp52_32(uint32(now>>32) & (1<<21 - 1))
	r.SetCurrentTimestamp31_0(uint32(now))
	return syndOK
}

func writeMtrcCtrl(f *function, img []byte) synd {
	t, r := &f.chip.tracer, prm.AsMtrcCtrl(img)
	status, set, arm := r.TraceStatus(), r.ModifyFieldSelect()&1 != 0, r.ArmEvent()
	if set && status > 1 {
		return syndTraceStatus
	}
	if t.owner == f {
		switch {
		case set && status == 1:
			t.enable()
		case set:
			t.disable(true)
		}
		if arm && t.on {
			f.later = append(f.later, t.arm)
		}
	}
	return readMtrcCtrl(f, img)
}

// stringRegister is MTRC_STDB. Both methods read: Linux uses the write method,
// mstflint the read method.
func stringRegister(f *function, c *call) synd {
	in := prm.AsMtrcStdb(c.in[prm.AccessRegisterInSize:])
	n, from := uint64(in.ReadSize()), uint64(in.StartOffset())
	t := &f.chip.tracer
	i := int(in.StringDbIndex())
	if i >= len(t.strings.sections) || n == 0 || n%stringGrain != 0 || from%stringGrain != 0 ||
		from+n > uint64(len(t.strings.sections[i].data)) {
		return syndTraceSection
	}
	size := prm.AccessRegisterOutSize + prm.MtrcStdbSize + int(n)
	if c.room < size {
		return syndOutputShort
	}
	img := c.out[prm.AccessRegisterOutSize:]
	copy(img, in[:])
	data := img[prm.MtrcStdbStringDbDataOffset:][:n]
	copy(data, t.strings.sections[i].data[from:])
	t.damage(i, from, data)
	c.n = size
	return syndOK
}
