package sim

import (
	"encoding/binary"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// TestEngineAllocatesNothing: once its pools are filled, for every kind of
// operation.
func TestEngineAllocatesNothing(t *testing.T) {
	if raceDetector {
		t.Skip("the race detector allocates too")
	}
	r := newFlow(t, Options{})
	a, b := r.pair()
	u, v := r.udPair()
	m := r.region(16384, nil)
	recv := func(e *end) {
		at := e.buf + uint64(e.ri&(1<<endLogRQ-1))<<endStride
		copy(r.mem.Bytes()[at-arenaIOVA:], m.ptr(8192, 1024))
		binary.BigEndian.PutUint64(r.mem.Bytes()[at-arenaIOVA+16:], terminateMKey)
		e.ri++
		r.mem.StoreBE32(int(e.dbr-arenaIOVA), uint32(e.ri))
	}
	var db [8]byte
	for name, c := range map[string]struct {
		e  *end
		op prm.WQEOpcode
		to *end
		s  []byte
	}{
		"atomic":   {a, prm.WQEAtomicFA, nil, append(append(m.remote(0), operands(8, 1, 0)...), m.ptr(64, 8)...)},
		"write":    {a, prm.WQERdmaWrite, nil, append(m.remote(256), m.ptr(512, 64)...)},
		"read":     {a, prm.WQERdmaRead, nil, append(m.remote(256), m.ptr(512, 64)...)},
		"send":     {a, prm.WQESend, b, m.ptr(512, 64)},
		"datagram": {u, prm.WQESend, v, u.av(v, 0x1111, false)},
	} {
		run := func() {
			if c.to != nil {
				recv(c.to)
			}
			w := r.mem.Bytes()[c.e.sqAt(c.e.pi)-arenaIOVA:][:64]
			copy(w[16:], c.s)
			binary.BigEndian.PutUint64(w, uint64(c.e.pi)<<40|uint64(c.op)<<32|uint64(c.e.n)<<8|uint64(1+len(c.s)/16))
			binary.BigEndian.PutUint32(w[8:], 8)
			c.e.pi++
			r.mem.StoreBE32(int(c.e.dbr-arenaIOVA)+4, uint32(c.e.pi))
			copy(db[:], w)
			if r.dev.WriteRegion(vfio.RegionBAR0, uint64(r.uar)*4096+blueFlame, db[:]) != nil {
				t.Fatal("doorbell")
			}
			for _, q := range []*rawCQ{c.e.send, b.recv, v.recv} {
				off := int(q.at-arenaIOVA) + int(q.ci&63)*64 + 0x3c
				if w := r.mem.LoadBE32(off); w>>4&0xf != 0xf && w&1 == q.ci>>6&1 {
					if w>>4&0xf > 5 {
						t.Fatal("an error")
					}
					q.ci++
					r.mem.StoreBE32(int(q.dbr-arenaIOVA), q.ci&counter24)
				}
			}
		}
		before := c.e.send.ci
		require.Zero(t, testing.AllocsPerRun(200, run), name)
		require.EqualValues(t, 201, c.e.send.ci-before, "each of them completed at once")
	}
}

// TestTwoFunctions: functions of one chip reach each other by LID, each in its own
// I/O address space.
func TestTwoFunctions(t *testing.T) {
	c := newChip(t, Options{Functions: 2})
	x := onChip(t, c)
	y := &raw{t: t, chip: c, mem: vfio.MemOf(make([]byte, arenaSize))}
	y.dev = c.Function(1)
	defer func() { require.NoError(t, y.dev.Close()) }()
	y.busMaster(true)
	require.NoError(t, y.dev.DMA().Map(vfio.Mapping{IOVA: arenaIOVA, Bytes: y.mem.Bytes(), FD: -1}))
	y.to(phaseInit)
	a, b := x.newEnd(prm.QPTypeRC, nil), y.newEnd(prm.QPTypeRC, nil)
	towards := func(lid uint16) func(prm.Opcode, *prm.QPC) {
		return func(_ prm.Opcode, q *prm.QPC) { q.PrimaryAddressPath().SetRlid(lid) }
	}
	a.tune, b.tune = towards(2), towards(1)
	connect(a, b)
	m, n := x.region(4096, nil), y.region(4096, nil)
	a.post(write(n.remote(0), inlineSeg([]byte("over there"))))
	a.send.goodSoon(prm.CQEReq)
	require.Equal(t, "over there", string(n.bytes()[:10]))
	require.Zero(t, m.bytes()[0])
	// One function's reset leaves the other alone, but for its peer.
	require.NoError(t, x.dev.Reset())
	require.Equal(t, prm.QPStateRts, c.funcs[1].qps.objs[b.n].state)
}

// TestForceLoopback: fl in the path leads to the function itself, whatever LID it
// names.
func TestForceLoopback(t *testing.T) {
	r := newFlow(t, Options{})
	a := r.newEnd(prm.QPTypeRC, nil)
	a.tune = func(_ prm.Opcode, x *prm.QPC) {
		x.PrimaryAddressPath().SetFl(true)
		x.PrimaryAddressPath().SetRlid(0x99)
	}
	connect(a, a)
	m := r.region(4096, nil)
	a.post(write(m.remote(0), inlineSeg([]byte("home"))))
	a.send.good(prm.CQEReq)
	require.Equal(t, "home", string(m.bytes()[:4]))
}

// TestLoad: under a load doorbells return before the work is done, and it is done
// soon.
func TestLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		load := func(r *raw, n float64) {
			r.chip.mu.Lock()
			defer r.chip.mu.Unlock()
			r.chip.opts.Load = n
		}
		r := newRaw(t, Options{Seed: 1})
		r.to(phaseInit)
		a, _ := r.pair()
		m := r.region(4096, nil)
		load(r, 1000)
		start := time.Now()
		early := 0
		for range 20 {
			a.post(wqe{op: prm.WQEAtomicFA, segs: [][]byte{m.remote(0), operands(8, 1, 0), m.ptr(64, 8)}})
			if a.send.next() != nil {
				early++
				continue
			}
			for a.send.next() == nil {
				time.Sleep(100 * time.Microsecond)
			}
		}
		require.Zero(t, early)
		require.EqualValues(t, 20, m.word(0))
		mean := time.Since(start) / 20
		require.Greater(t, mean, 200*time.Microsecond)
		require.Less(t, mean, 5*time.Millisecond)
		load(r, 0)
	})
}

// TestSameSeedSameRun: everything a run of overlapping operations does is decided
// by the seed.
func TestSameSeedSameRun(t *testing.T) {
	run := func(seed uint64) string {
		r := newFlow(t, Options{Seed: seed})
		a, _ := r.pair()
		m := r.region(16384, nil)
		s := ""
		for i := range 20 {
			m.set(0, 0)
			a.fill(wqe{op: prm.WQERdmaRead, segs: [][]byte{m.remote(0), m.ptr(64, 8)}})
			a.fill(wqe{op: prm.WQEAtomicFA, segs: [][]byte{m.remote(0), operands(8, 1, 0), m.ptr(128, 8)}})
			a.fill(wqe{op: prm.WQERdmaWrite, segs: [][]byte{m.remote(4096), m.ptr(8192, 1000+i)}})
			a.ring()
			s += fmt.Sprintf("%d %v;", m.word(64), a.send.ci)
			r.settle()
			for a.send.next() != nil {
			}
			a.send.consume()
		}
		return s
	}
	require.Equal(t, run(7), run(7))
	require.NotEqual(t, run(7), run(8))
}

// TestRoCEDatagrams: the header before the data is the network's, IPv6 or IPv4, and
// the completion says which.
func TestRoCEDatagrams(t *testing.T) {
	for _, v4 := range []bool{false, true} {
		r := newFlow(t, Options{Port: PortEth})
		f := r.chip.funcs[0]
		in := cmd(prm.OpSetRoceAddress, 0, prm.SetRoceAddressInSize)
		l := prm.AsSetRoceAddressIn(in).RoceAddress()
		var g gid
		putGID(&g, 0x1122334455667788)
		if v4 {
			g = gid{10: 0xff, 11: 0xff, 12: 192, 13: 0, 14: 2, 15: 1}
		}
		copy(l.SourceL3Address(), g[:])
		l.SetSourceMAC47_32(uint16(f.mac() >> 32))
		l.SetSourceMAC31_0(uint32(f.mac()))
		l.SetRoceVersion(2)
		if !v4 {
			l.SetRoceL3Type(1)
		}
		r.ok(in, 16)
		a, b := r.udPair()
		m := r.region(4096, nil)
		var v prm.Av
		v.Base().SetQkey(0x1111)
		v.Base().SetDqpDCT(b.n)
		v.Base().SetExt(true)
		v.SetGrh(true)
		v.SetHopLimit(33)
		v.SetTclass(5)
		copy(v.Rgid(), g[:])
		for i := range 6 {
			v.Rmac()[i] = byte(f.mac() >> (40 - 8*i))
		}
		b.postRecv(m.ptr(0, 100))
		a.post(wqe{op: prm.WQESend, segs: [][]byte{v[:], inlineSeg([]byte("hello"))}})
		a.send.good(prm.CQEReq)
		c := b.recv.good(prm.CQERespSend)
		require.EqualValues(t, 45, c.ByteCnt())
		require.NotZero(t, c.Grh())
		h := m.bytes()
		require.Equal(t, "hello", string(h[40:45]))
		if v4 {
			require.EqualValues(t, roceIPv4, c.Sl())
			require.EqualValues(t, 0x45, h[20])
			require.Equal(t, []byte{192, 0, 2, 1, 192, 0, 2, 1}, h[32:40])
			require.EqualValues(t, 33, h[28])
		} else {
			require.EqualValues(t, roceIPv6, c.Sl())
			require.EqualValues(t, 6, h[0]>>4)
			require.Equal(t, g[:], h[8:24])
			require.EqualValues(t, 33, h[7])
		}
		// Another MAC is nobody's.
		v.Rmac()[5] ^= 1
		b.postRecv(m.ptr(0, 100))
		a.post(wqe{op: prm.WQESend, segs: [][]byte{v[:]}})
		a.send.good(prm.CQEReq)
		b.recv.none()
	}
}
