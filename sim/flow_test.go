package sim

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/vfio"
)

func TestSmoke(t *testing.T) {
	r := newRaw(t, Options{Clock: NewManualClock()}).to(phaseInit)
	a, b := r.pair()
	m := r.region(65536, nil)
	for i := range 8192 {
		m.bytes()[i] = byte(i * 7)
	}
	a.post(wqe{op: prm.WQERdmaWrite, segs: [][]byte{m.remote(16384), m.ptr(0, 8192)}})
	r.chip.Advance(1e6)
	a.send.good(prm.CQEReq)
	require.Equal(t, m.bytes()[:8192], m.bytes()[16384:16384+8192])
	a.post(wqe{op: prm.WQERdmaRead, segs: [][]byte{m.remote(16384), m.ptr(40000, 5000)}})
	c := a.send.good(prm.CQEReq)
	require.Equal(t, uint32(5000), c.ByteCnt())
	require.Equal(t, m.bytes()[:5000], m.bytes()[40000:45000])
	b.postRecv(m.ptr(50000, 300))
	a.post(wqe{op: prm.WQESendImm, imm: 0xcafe, segs: [][]byte{m.ptr(0, 256)}})
	a.send.good(prm.CQEReq)
	c = b.recv.good(prm.CQERespSendImm)
	require.Equal(t, uint32(256), c.ByteCnt())
	require.Equal(t, uint32(0xcafe), c.Immediate())
	m.set(1024, 5)
	a.post(wqe{op: prm.WQEAtomicFA, segs: [][]byte{m.remote(1024), operands(8, 7, 0), m.ptr(2048, 8)}})
	a.send.good(prm.CQEReq)
	require.Equal(t, uint64(12), m.word(1024))
	require.Equal(t, uint64(5), binary.BigEndian.Uint64(m.bytes()[2048:]))
	a.post(wqe{op: prm.WQERdmaWrite, segs: [][]byte{m.remote(0x1000000), m.ptr(0, 64)}})
	a.send.bad(prm.CQEReqErr, prm.CQESyndRemoteAccessErr)
	require.Equal(t, prm.QPStateErr, a.state())
	require.Equal(t, prm.QPStateErr, b.state())
}

// BenchmarkAtomic is one FETCH_ADD of 8 bytes through a loopback pair: entry,
// doorbell, both sides, completion.
func BenchmarkAtomic(b *testing.B) {
	r := newRaw(b, Options{}).to(phaseInit)
	x, _ := r.pair()
	m := r.region(4096, nil)
	seg := append(append(m.remote(0), operands(8, 1, 0)...), m.ptr(64, 8)...)
	at := func() []byte { return r.bytes(x.sqAt(x.pi), 64) }
	for range 64 {
		copy(at()[16:], seg)
		x.pi++
	}
	x.pi = 0
	var db [8]byte
	var ci uint32
	b.ReportAllocs()
	for b.Loop() {
		w := at()
		binary.BigEndian.PutUint64(w, uint64(x.pi)<<40|uint64(prm.WQEAtomicFA)<<32|uint64(x.n)<<8|4)
		binary.BigEndian.PutUint32(w[8:], 8)
		x.pi++
		r.mem.StoreBE32(int(x.dbr-arenaIOVA)+4, uint32(x.pi))
		copy(db[:], w)
		if r.dev.WriteRegion(vfio.RegionBAR0, uint64(r.uar)*4096+blueFlame, db[:]) != nil {
			b.Fatal("doorbell")
		}
		off := int(x.send.at-arenaIOVA) + int(ci&63)*64
		if r.mem.LoadBE32(off+0x3c)>>4&0xf != 0 {
			b.Fatal("no completion")
		}
		ci++
		r.mem.StoreBE32(int(x.send.dbr-arenaIOVA), ci&counter24)
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "ops/s")
}
