package sim

import (
	"encoding/binary"
	"testing"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// FuzzCommand sends any input through the command queue: the model, which may
// serve a virtual machine, must answer and not fall over.
func FuzzCommand(f *testing.F) {
	for op := range handlers {
		f.Add(byte(phaseInit), valid(op), uint16(0x110))
		f.Add(byte(phaseISSI), valid(op), uint16(0x1010))
	}
	f.Add(byte(0), []byte{}, uint16(0))
	r := newRaw(f, Options{Clock: NewManualClock()})
	f.Fuzz(func(t *testing.T, where byte, in []byte, room uint16) {
		p := phase(where) % phases
		r.t = t
		if r.chip.State(0).Phase != p.String() || r.chip.State(0).PDs > 1000 {
			if err := r.dev.Reset(); err != nil {
				t.Fatal(err)
			}
			r.next, r.queue, r.pages = 0, 0, nil
			r.to(p)
		}
		keep := r.next
		e := r.entry(0, in, int(room))
		r.ring(0)
		if !r.done(0) {
			t.Fatal("no answer")
		}
		if e.Status() == prm.DeliveryOK {
			out := e.CommandOutputInlineData()
			if s := prm.CommandStatus(out[0]); s != prm.StatusOK && SyndromeText(binary.BigEndian.Uint32(out[4:])) == "" {
				t.Fatalf("refused with status %s and no syndrome", s)
			}
		}
		r.next = keep
	})
}

// FuzzBAR writes anything anywhere in BAR 0 and configuration space.
func FuzzBAR(f *testing.F) {
	f.Add(uint32(0x14), uint64(0x700), byte(4), false)
	f.Add(uint32(0x18), uint64(0xffffffff), byte(4), false)
	f.Add(uint32(0x10040), uint64(0x10000000), byte(4), false)
	f.Add(uint32(capPCIe+8), uint64(0x8000), byte(2), true)
	r := newRaw(f, Options{Clock: NewManualClock()}).to(phaseInit)
	r.eventMode(4)
	f.Fuzz(func(t *testing.T, off uint32, v uint64, n byte, config bool) {
		p := binary.BigEndian.AppendUint64(nil, v)[:n%9]
		region, size := 0, uint32(barSize)
		if config {
			region, size = 7, configSize
		}
		_ = r.dev.WriteRegion(region, uint64(off%(size+8)), p)
		_ = r.dev.ReadRegion(region, uint64(off%(size+8)), p)
		if s := r.chip.State(0); s.InFlight != 0 {
			t.Fatalf("%+v", s)
		}
	})
}

// FuzzQueues patches commands of the data path that are otherwise right, with
// live objects around them, and rings the doorbells of what comes of it.
func FuzzQueues(f *testing.F) {
	ops := []prm.Opcode{prm.OpCreateCQ, prm.OpModifyCQ, prm.OpCreateQP, prm.OpCreateSRQ, prm.OpCreateXRCSRQ, prm.OpCreateRMP,
		prm.OpCreateSQ, prm.OpCreateMKey, prm.OpRst2InitQP, prm.OpInit2RtrQP, prm.OpRtr2RtsQP, prm.OpModifySQ, prm.OpModifyRMP,
		prm.OpQueryQP, prm.OpQueryCQ, prm.OpDestroyQP, prm.OpDestroyCQ, prm.OpSetRoceAddress, prm.OpMADIfc}
	for i := range ops {
		f.Add(byte(i), uint16(0x18), []byte{}, uint16(16))
		f.Add(byte(i), uint16(0x20), []byte{0x1f, 0, 0, 0, 0xff}, uint16(0x400))
	}
	r := newRaw(f, Options{Clock: NewManualClock(), Port: PortEth})
	fresh := func() {
		if err := r.dev.Reset(); err != nil {
			r.t.Fatal(err)
		}
		r.next, r.queue, r.pages, r.eqn, r.pd, r.cq, r.xrcd, r.ci, r.vectors = 0, 0, nil, 0, 0, nil, 0, 0, nil
		r.to(phaseInit)
		r.createQP(prm.QPTypeRC, nil)
	}
	f.Fuzz(func(t *testing.T, which byte, at uint16, patch []byte, room uint16) {
		r.t = t
		if s := r.chip.State(0); s.Phase != "init" || s.QPs != 1 || s.CQs > 50 || s.SRQs > 50 || s.MKeys > 1000 || r.next > arenaSize/2 {
			fresh()
		}
		n := uint32(firstQPN)
		for n = range r.chip.funcs[0].qps.objs {
			break
		}
		var in []byte
		switch op := ops[int(which)%len(ops)]; op {
		case prm.OpCreateCQ:
			in, _, _ = r.cqInput(3)
		case prm.OpCreateQP:
			in = r.qpInput(prm.QPTypeRC)
		case prm.OpCreateSRQ, prm.OpCreateXRCSRQ, prm.OpCreateRMP:
			in = r.srqInput(op, 3)
		case prm.OpCreateSQ:
			in = r.sqInput()
		case prm.OpModifyCQ, prm.OpQueryCQ, prm.OpDestroyCQ:
			in = number(op, r.cq.n)
		case prm.OpCreateMKey:
			in = append(valid(op), make([]byte, 32)...)
			x := prm.AsCreateMKeyIn(in)
			x.SetTranslationsOctwordActualSize(2)
			x.MemoryKeyMKeyEntry().SetTranslationsOctwordSize(2)
			x.MemoryKeyMKeyEntry().SetPD(r.pd)
			x.MemoryKeyMKeyEntry().SetAccessMode1_0(modeMTT)
			x.MemoryKeyMKeyEntry().SetLogPageSize(12)
			x.MemoryKeyMKeyEntry().SetLen(4096)
		default:
			in = r.qpStep(op, n)
		}
		if len(in) > 8 {
			copy(in[8+int(at)%(len(in)-8):], patch)
		}
		r.send(in, 16+int(room)%0x1000)
		r.write64(uint64(r.uar)*4096+0x800, 1<<40|uint64(n)<<8|1)
		r.write64(uint64(r.uar)*4096+0x20, uint64(r.cq.n))
		for r.event() != nil {
		}
	})
}
