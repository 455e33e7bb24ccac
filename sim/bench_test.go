package sim

import (
	"encoding/binary"
	"testing"

	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// BenchmarkNOP is one command through the model: the doorbell store, in which
// the model fetches, executes and completes it, and one look at the entry.
func BenchmarkNOP(b *testing.B) {
	r := newRaw(b, Options{}).to(phaseISSI)
	bench(b, r)
}

// BenchmarkNOPEvent has the completion event and an interrupt on top.
func BenchmarkNOPEvent(b *testing.B) {
	r := newRaw(b, Options{}).to(phaseInit)
	r.eventMode(8)
	bench(b, r)
}

func bench(b *testing.B, r *raw) {
	e := r.entry(0, nop, 16)
	sig := e.Signature()
	at := int(r.queue - arenaIOVA)
	var db, arm [4]byte
	binary.BigEndian.PutUint32(db[:], 1)
	own := binary.BigEndian.Uint32(e[0x3c:])
	b.ReportAllocs()
	for b.Loop() {
		e.SetSignature(sig)
		r.mem.StoreBE32(at+0x3c, own)
		if r.dev.WriteRegion(vfio.RegionBAR0, 0x18, db[:]) != nil || r.mem.LoadBE32(at+0x3c)&1 != 0 {
			b.Fatal("no answer")
		}
		if r.uar != 0 {
			r.ci++
			binary.BigEndian.PutUint32(arm[:], r.eqn<<24|r.ci&counter24)
			if r.dev.WriteRegion(vfio.RegionBAR0, uint64(r.uar)*4096+0x40, arm[:]) != nil {
				b.Fatal("doorbell")
			}
		}
	}
}

// BenchmarkQueryCap is a command with eight output mailboxes.
func BenchmarkQueryCap(b *testing.B) {
	r := newRaw(b, Options{}).to(phaseISSI)
	e := r.entry(0, cmd(prm.OpQueryHCACap, 0, 16), 0x1010)
	own := binary.BigEndian.Uint32(e[0x3c:])
	at := int(r.queue - arenaIOVA)
	var db [4]byte
	binary.BigEndian.PutUint32(db[:], 1)
	b.ReportAllocs()
	for b.Loop() {
		r.mem.StoreBE32(at+0x3c, own)
		if r.dev.WriteRegion(vfio.RegionBAR0, 0x18, db[:]) != nil || r.mem.LoadBE32(at+0x3c)&1 != 0 {
			b.Fatal("no answer")
		}
	}
}

// BenchmarkBringUp is the model's share of a bring-up: reset to INIT_HCA.
func BenchmarkBringUp(b *testing.B) {
	for _, p := range Profiles() {
		b.Run(p, func(b *testing.B) {
			r := newRaw(b, Options{Profile: p})
			for b.Loop() {
				r.pages, r.next, r.queue = r.pages[:0], 0, 0
				if r.dev.Reset() != nil {
					b.Fatal("reset")
				}
				r.to(phaseInit)
			}
		})
	}
}
