package sim

import (
	"encoding/binary"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// A FuzzFlow script is words of one byte for what, one for how, one for the length
// of the bytes that follow, and those bytes.
const (
	flowKey     = iota // CREATE_MKEY: how is added to the kind, bytes patch it from byte how×4 on
	flowWQE            // a good entry of kind how, the bytes over its segments
	flowRaw            // bytes as an entry, how blocks of it counted
	flowRecv           // a receive entry of the bytes
	flowRecord         // the doorbell records of the QP, from the bytes
	flowSettle         // time passes: 2^how ns
	flowConnect        // a transition of the QP, patched
	flowCommand        // the command number how, the bytes over its input
	flowUAR            // a doorbell at offset how×8
	flowTracer         // MTRC_CONF of a live key, patched, and blocks written
	flowUnmap          // a page of the arena is unmapped, or mapped again
	flowMaster         // bus mastering off, time, and on
	flowAtomic         // an atomic entry, the bytes over it
	flowKinds
)

func flowWord(what, how byte, b ...byte) []byte { return append([]byte{what, how, byte(len(b))}, b...) }

// flow is what a script works with: two connected QPs of one function, a shared
// region, a tracer.
type flow struct {
	*raw
	a, b   *end
	m      *region
	keys   []uint32
	extra  *region // pages that come and go
	mapped bool
	trace  *rawTracer
}

const flowExtra = arenaIOVA + 1<<36

func newFuzzFlow(r *raw) *flow {
	fl := &flow{raw: r, mapped: true}
	r.to(phaseInit)
	fl.a, fl.b = r.newEnd(prm.QPTypeRC, nil), r.newEnd(prm.QPTypeRC, nil)
	fl.a.rnr, fl.b.rnr = 3, 3 // not for ever
	connect(fl.a, fl.b)
	fl.m = r.region(16384, nil)
	fl.keys = []uint32{fl.m.key, reservedLKey}
	fl.trace = newTracer(r, 1, nil)
	fl.trace.acquire()
	fl.trace.start()
	// A key over pages that are unmapped while it lives.
	in := r.keyInput(fl.m.at, 8192, func(m *prm.MKC) { m.SetStartAddr(1 << 40) })
	binary.BigEndian.PutUint64(in[prm.CreateMKeyInSize:], flowExtra)
	fl.extra = &region{r, 1 << 40, 8192, r.createKey(in)}
	fl.keys = append(fl.keys, fl.extra.key)
	return fl
}

// seg are the segments of a good entry of each kind; how chooses memory, too.
func (fl *flow) entry(how byte) wqe {
	ops := []prm.WQEOpcode{prm.WQERdmaWrite, prm.WQERdmaWriteImm, prm.WQESend, prm.WQESendImm, prm.WQESendInval, prm.WQERdmaRead, prm.WQENop}
	w := wqe{op: ops[int(how)%len(ops)], fm: prm.FenceMode(how >> 3 & 7)}
	m := fl.m
	if how&0x40 != 0 {
		m = fl.extra
	}
	switch w.op {
	case prm.WQERdmaWrite, prm.WQERdmaWriteImm, prm.WQERdmaRead:
		w.segs = [][]byte{m.remote(0x100), fl.m.ptr(0x2000, 300)}
	case prm.WQENop:
	default:
		w.segs = [][]byte{m.ptr(0, 40), inlineSeg([]byte("inline")), m.ptr(64, 100)}
	}
	if how&0x80 != 0 && len(w.segs) > 0 {
		w.segs = [][]byte{m.remote(0), inlineSeg(make([]byte, 60))}
	}
	return w
}

// over copies p over the segments of w, as if they were one.
func over(w *wqe, p []byte) {
	for _, s := range w.segs {
		p = p[copy(s, p):]
	}
}

// step carries one word out.
func (fl *flow) step(what, how byte, p []byte) {
	e := fl.a
	if how&1 != 0 {
		e = fl.b
	}
	switch what % flowKinds {
	case flowKey:
		in := fl.keyInput(fl.m.at, 12288, func(m *prm.MKC) { m.SetAccessMode1_0(m.AccessMode1_0() + how&3) })
		at := 16 + int(how>>2)*4
		copy(in[at:], p)
		if d, out := fl.send(in, 16); d == prm.DeliveryOK && out[0] == 0 {
			fl.keys = append(fl.keys, prm.AsCreateMKeyOut(out).MKeyIndex()<<8|uint32(prm.AsCreateMKeyIn(in).MemoryKeyMKeyEntry().MKey7_0()))
		}
	case flowWQE:
		w := fl.entry(how)
		over(&w, p)
		e.post(w)
	case flowAtomic:
		ops := []prm.WQEOpcode{prm.WQEAtomicCS, prm.WQEAtomicFA, prm.WQEAtomicMaskedCS, prm.WQEAtomicMaskedFA}
		size := 4 << (how >> 4 & 7)
		w := wqe{op: ops[how>>2&3], mod: 8 + how>>4&7, segs: [][]byte{fl.m.remote(0), make([]byte, min(4*size, 256)), fl.m.ptr(0x1000, size)}}
		over(&w, p)
		e.post(w)
	case flowRaw:
		for i := 0; i < len(p); i += wqeBlock {
			copy(fl.bytes(e.sqAt(e.pi+uint16(i/wqeBlock)), wqeBlock), p[i:])
		}
		e.pi += uint16(how)
		if len(p) >= 8 {
			e.last = binary.BigEndian.Uint64(p)
		}
		e.ring()
	case flowRecv:
		e.postRecv(p[:min(len(p), 1<<endStride)&^15])
	case flowRecord:
		copy(fl.bytes(e.dbr, 8), p)
		e.ring()
	case flowSettle:
		fl.chip.Advance(time.Duration(1) << (how % 27))
	case flowConnect:
		ops := []prm.Opcode{prm.OpRst2InitQP, prm.OpInit2RtrQP, prm.OpRtr2RtsQP, prm.OpRts2RtsQP, prm.Op2ErrQP, prm.Op2RstQP}
		in := fl.qpStep(ops[int(how>>1)%len(ops)], e.n)
		if len(in) > 24 && len(p) > 1 {
			copy(in[16+int(p[0])*4%(len(in)-16):], p[1:])
		}
		fl.send(in, 16)
	case flowCommand:
		ops := fuzzOps()
		in := valid(ops[int(how)%len(ops)])
		binary.BigEndian.PutUint32(in[8:], e.n) // a number that lives: of the QP
		copy(in[8:], p)
		if ops[int(how)%len(ops)] != prm.OpTeardownHCA && ops[int(how)%len(ops)] != prm.OpDisableHCA {
			fl.send(in, 16+int(how)*16)
		}
	case flowUAR:
		var b [8]byte
		copy(b[:], p)
		_ = fl.dev.WriteRegion(vfio.RegionBAR0, uint64(fl.uar)*4096+uint64(how)*8, b[:])
	case flowTracer:
		fl.reg(prm.RegMtrcConf, func(img []byte) {
			c := prm.AsMtrcConf(img)
			c.SetTraceMode(traceToMemory)
			c.SetLogTraceBufferSize(how & 0x1f)
			c.SetTraceMKey(fl.keys[int(how>>5)%len(fl.keys)])
			copy(img, p)
		}, true)
		fl.reg(prm.RegMtrcCtrl, func(img []byte) {
			c := prm.AsMtrcCtrl(img)
			c.SetModifyFieldSelect(1)
			c.SetTraceStatus(how & 1)
			c.SetArmEvent(true)
		}, true)
		_, _ = fl.chip.EmitTrace(40, TraceEdge)
	case flowUnmap:
		if fl.mapped {
			require.NoError(fl.t, fl.dev.DMA().Unmap(flowExtra, 4096))
		} else {
			require.NoError(fl.t, fl.dev.DMA().Map(vfio.Mapping{IOVA: flowExtra, Bytes: extraPage, FD: -1}))
		}
		fl.mapped = !fl.mapped
	case flowMaster:
		fl.busMaster(false)
		e.ring()
		fl.chip.Advance(time.Duration(1) << (how % 24))
		fl.busMaster(true)
	}
}

var extraPage = make([]byte, 4096)

// fuzzOps are all commands, in a fixed order.
var fuzzOps = sync.OnceValue(func() []prm.Opcode { return slices.Sorted(maps.Keys(handlers)) })

// FuzzFlow plays scripts of keys, entries, doorbells, commands, time, trace
// settings and vanishing memory on a function with live queues. Afterwards the
// reset must leave nothing of it, and the function must work again.
func FuzzFlow(f *testing.F) {
	all := []byte{}
	for how := range byte(14) {
		for _, what := range []byte{flowRecv, flowWQE} {
			all = append(all, flowWord(what, how)...)
		}
		all = append(all, flowWord(flowSettle, 20)...)
	}
	f.Add(all)
	for _, w := range [][]byte{
		flowWord(flowWQE, 0x40), flowWord(flowWQE, 0x80), flowWord(flowWQE, 0x45),
		flowWord(flowWQE, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xf8), // the top of the address space
		flowWord(flowAtomic, 0x14), flowWord(flowAtomic, 0x28), flowWord(flowAtomic, 0x7c),
		flowWord(flowAtomic, 0x10, 0, 0, 0, 0, 0x40, 0, 0, 4), flowWord(flowRaw, 1, make([]byte, 64)...),
		flowWord(flowRaw, 2, append([]byte{0, 0, 0, 8, 0, 0, 0, 0x3f}, make([]byte, 120)...)...),
		flowWord(flowRecord, 0, 0, 0, 0, 9, 0, 0, 0xff, 0xff), flowWord(flowConnect, 8), flowWord(flowConnect, 0, 3, 0xff),
		flowWord(flowUAR, 8, 1, 2, 3, 4, 5, 6, 7, 8), flowWord(flowTracer, 1), flowWord(flowTracer, 0x43), flowWord(flowMaster, 20),
		flowWord(flowKey, 1, 0xff, 0xff), flowWord(flowKey, 2), flowWord(flowKey, 3, 0, 0, 0, 0, 0xff),
	} {
		f.Add(append(append(append([]byte{}, w...), flowWord(flowUnmap, 0)...), append(flowWord(flowSettle, 22), w...)...))
	}
	for i := range fuzzOps() {
		f.Add(append(flowWord(flowCommand, byte(i)), flowWord(flowWQE, 5)...))
	}
	r := newRaw(f, Options{Clock: NewManualClock()})
	f.Fuzz(func(t *testing.T, script []byte) {
		if len(script) > 4096 {
			return
		}
		r.t = t
		require.NoError(t, r.dev.Reset()) // an input that failed left what it left
		r.busMaster(true)
		_ = r.dev.DMA().Map(vfio.Mapping{IOVA: flowExtra, Bytes: extraPage, FD: -1})
		r.next, r.queue, r.pages, r.eqn, r.pd, r.cq, r.xrcd, r.ci, r.vectors = 0, 0, nil, 0, 0, nil, 0, 0, nil
		fl := newFuzzFlow(r)
		for len(script) >= 3 {
			n := min(int(script[2]), len(script)-3)
			fl.step(script[0], script[1], script[3:3+n])
			script = script[3+n:]
		}
		fl.chip.Advance(time.Second) // whatever is still to come
		if !fl.mapped {
			fl.step(flowUnmap, 0, nil)
		}
		require.NoError(t, r.dev.Reset())
		s := r.chip.State(0)
		require.Zero(t, s.QPs+s.CQs+s.MKeys+s.PDs+s.InFlight+s.EQs, "%+v", s)
		require.Equal(t, "off", s.Phase)
	})
}
