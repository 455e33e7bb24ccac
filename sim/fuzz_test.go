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
