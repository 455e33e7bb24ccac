package sim

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// TestDataFaults: each fault of the data path does what its table says, and is over
// when it is cleared.
func TestDataFaults(t *testing.T) {
	require.Len(t, dataFaultTests, len(dataFaults()))
	for _, k := range dataFaults() {
		t.Run(k.Name, func(t *testing.T) {
			require.NotEmpty(t, k.Meaning)
			require.Contains(t, dataFaultTests, k.Name)
			r := newFlow(t, Options{Seed: 3})
			dataFaultTests[k.Name](t, r)
			require.NoError(t, r.chip.ClearFault(""))
			a, _ := r.pair()
			m := r.region(4096, nil)
			a.post(wqe{op: prm.WQEAtomicFA, segs: [][]byte{m.remote(0), operands(8, 1, 0), m.ptr(64, 8)}})
			a.send.good(prm.CQEReq)
			require.EqualValues(t, 1, m.word(0))
		})
	}
}

// masked4 is a masked atomic of 4 bytes on the word at 0 of m.
func masked4(op prm.WQEOpcode, m *region, args ...uint64) wqe {
	return wqe{op: op, mod: 8, segs: [][]byte{m.remote(0), operands(4, args...), m.ptr(64, 4)}}
}

func (m *region) half(off int) uint32 { return binary.LittleEndian.Uint32(m.bytes()[off:]) }

// dataFaultTests are the faults of the data path, each with what it breaks.
var dataFaultTests = map[string]func(t *testing.T, r *raw){
	"mask-order": func(t *testing.T, r *raw) {
		a, _ := r.pair()
		m := r.region(4096, nil)
		r.fault("mask-order", "")
		m.set(0, 0x44332211)
		a.post(masked4(prm.WQEAtomicMaskedCS, m, 0xaa, 0, 0xff, 0))
		a.send.good(prm.CQEReq)
		require.EqualValues(t, 0x00332211, m.half(0), "the mask of byte 0 hits byte 3")
		a.post(masked4(prm.WQEAtomicMaskedFA, m, 0x01, 0x80))
		a.send.good(prm.CQEReq)
		require.EqualValues(t, 0x00332212, m.half(0), "fetch-and-add is not hit")
	},
	"no-boundary": func(t *testing.T, r *raw) {
		a, _ := r.pair()
		m := r.region(4096, nil)
		m.set(0, 0x000000ff)
		a.post(masked4(prm.WQEAtomicMaskedFA, m, 1, 0x80))
		a.send.good(prm.CQEReq)
		require.EqualValues(t, 0, m.half(0))
		r.fault("no-boundary", "")
		m.set(0, 0x000000ff)
		a.post(masked4(prm.WQEAtomicMaskedFA, m, 1, 0x80))
		a.send.good(prm.CQEReq)
		require.EqualValues(t, 0x100, m.half(0))
	},
	"torn-write": func(t *testing.T, r *raw) {
		a, _ := r.pair()
		d, _ := r.pair()
		m := r.region(16384, nil)
		require.Zero(t, r.count(func() bool { return torn(a, d, m, 64, 8) }))
		r.fault("torn-write", "")
		require.Equal(t, seeds, r.count(func() bool { return torn(a, d, m, 64, 8) }), "always")
	},
	"late-write": func(t *testing.T, r *raw) {
		// TestTornThenMore has the order; here: the WRITE completes before it is whole.
		a, _ := r.pair()
		m := r.region(16384, nil)
		r.fault("late-write", "")
		pattern(m.bytes()[4096:8192], 3)
		early := r.count(func() bool {
			clear(m.bytes()[:1000])
			a.post(wqe{op: prm.WQERdmaWrite, segs: [][]byte{m.remote(0), m.ptr(4096, 1000)}})
			a.send.good(prm.CQEReq)
			whole := m.bytes()[999] == m.bytes()[4096+999]
			r.settle()
			same(t, m.bytes()[4096:5096], m.bytes()[:1000])
			return !whole
		})
		require.NotZero(t, early)
	},
	"lost-update": func(t *testing.T, r *raw) {
		a, _ := r.pair()
		b, _ := r.pair()
		m := r.region(4096, nil)
		add := func(e *end) {
			e.post(wqe{op: prm.WQEAtomicFA, segs: [][]byte{m.remote(0), operands(8, 1, 0), m.ptr(64, 8)}})
		}
		add(a)
		add(b)
		require.EqualValues(t, 2, m.word(0))
		r.fault("lost-update", "")
		add(a)
		add(b)
		require.EqualValues(t, 2, m.word(0), "both have read and not written")
		r.chip.Advance(time.Millisecond)
		require.EqualValues(t, 3, m.word(0), "one of two is lost")
		for _, e := range []*end{a, b} {
			e.send.good(prm.CQEReq)
			e.send.good(prm.CQEReq)
		}
		// A comparison that fails writes nothing.
		a.post(wqe{op: prm.WQEAtomicCS, segs: [][]byte{m.remote(0), operands(8, 9, 77), m.ptr(64, 8)}})
		a.send.good(prm.CQEReq)
		require.EqualValues(t, 3, m.word(0))
	},
	"memory-order": func(t *testing.T, r *raw) {
		a, _ := r.pair()
		m := r.region(4096, nil)
		r.fault("memory-order", "")
		binary.BigEndian.PutUint32(m.bytes(), 0xff)
		a.post(masked4(prm.WQEAtomicMaskedFA, m, 1, 0))
		a.send.good(prm.CQEReq)
		require.EqualValues(t, 0x100, binary.BigEndian.Uint32(m.bytes()))
		require.EqualValues(t, 0xff, binary.BigEndian.Uint32(m.bytes()[64:]))
		binary.BigEndian.PutUint64(m.bytes(), 1<<32-1)
		a.post(wqe{op: prm.WQEAtomicFA, segs: [][]byte{m.remote(0), operands(8, 1, 0), m.ptr(64, 8)}})
		a.send.good(prm.CQEReq)
		require.EqualValues(t, 1<<32, binary.BigEndian.Uint64(m.bytes()))
	},
	"no-fence": func(t *testing.T, r *raw) {
		a, _ := r.pair()
		m := r.region(4096, nil)
		require.Zero(t, r.count(func() bool { return stale(a, m, prm.FenceSmallAndReads) }))
		r.fault("no-fence", "")
		require.NotZero(t, r.count(func() bool { return stale(a, m, prm.FenceSmallAndReads) }))
	},
	"bad-response": func(t *testing.T, r *raw) {
		m := r.region(4096, nil)
		r.fault("bad-response", "")
		for _, w := range []wqe{
			{op: prm.WQEAtomicFA, segs: [][]byte{m.remote(0), operands(8, 1, 0), m.ptr(64, 8)}},
			{op: prm.WQERdmaRead, segs: [][]byte{m.remote(0), m.ptr(64, 8)}},
		} {
			a, _ := r.pair()
			a.post(w)
			a.send.bad(prm.CQEReqErr, sResp)
		}
	},
	"packet-drop": func(t *testing.T, r *raw) {
		a, b := r.newEnd(prm.QPTypeRC, nil), r.newEnd(prm.QPTypeRC, nil)
		a.retry = 0
		connect(a, b)
		m := r.region(4096, nil)
		r.fault("packet-drop", "request#2")
		w := write(m.remote(0), inlineSeg([]byte{1}))
		a.post(w)
		a.send.good(prm.CQEReq)
		a.post(w)
		r.chip.Advance(10 * time.Millisecond)
		a.send.bad(prm.CQEReqErr, sRetry)
	},
	"packet-loss": func(t *testing.T, r *raw) {
		m := r.region(4096, nil)
		a, _ := r.pair()
		r.fault("packet-loss", "4")
		before := r.chip.Counters(0).Packets
		for i := range 50 {
			a.post(wqe{op: prm.WQEAtomicFA, segs: [][]byte{m.remote(0), operands(8, 1, 0), m.ptr(64, 8)}})
			for k := 0; k < 8 && m.word(0) != uint64(i)+1; k++ {
				r.chip.Advance(1049 * time.Microsecond)
			}
			r.chip.Advance(20 * time.Millisecond)
			if c := a.send.take(); c.Opcode() == prm.CQEReqErr {
				break // eight in a row may happen
			}
		}
		require.Greater(t, r.chip.Counters(0).Packets-before, uint64(110), "more than two for each")
	},
	"packet-duplicate": func(t *testing.T, r *raw) {
		a, b := r.newEnd(prm.QPTypeRC, nil), r.newEnd(prm.QPTypeRC, nil)
		counted(r, a, b)
		connect(a, b)
		m := r.region(4096, nil)
		r.fault("packet-duplicate", "request")
		for range 5 {
			a.post(wqe{op: prm.WQEAtomicFA, segs: [][]byte{m.remote(0), operands(8, 1, 0), m.ptr(64, 8)}})
			a.send.good(prm.CQEReq)
		}
		require.EqualValues(t, 5, m.word(0))
		require.EqualValues(t, 5, b.counter(qDuplicateRequest))
		a.send.none()
	},
	"packet-delay": func(t *testing.T, r *raw) {
		a, _ := r.pair()
		m := r.region(4096, nil)
		r.fault("packet-delay", "100us")
		a.post(wqe{op: prm.WQEAtomicFA, segs: [][]byte{m.remote(0), operands(8, 1, 0), m.ptr(64, 8)}})
		r.chip.Advance(100*time.Microsecond - 1)
		require.Zero(t, m.word(0))
		r.chip.Advance(1)
		require.EqualValues(t, 1, m.word(0))
		a.send.none()
		r.chip.Advance(100 * time.Microsecond)
		a.send.good(prm.CQEReq)
	},
}

// TestDataFaultWords: arguments that are no arguments.
func TestDataFaultWords(t *testing.T) {
	for name, args := range map[string][]string{
		"packet-drop": {"both", "#0", "request#x"}, "packet-loss": {"", "1", "x"}, "packet-delay": {"", "-1s"}, "mask-order": {"1"},
	} {
		for _, arg := range args {
			_, err := New(Options{Faults: []FaultSpec{{name, arg}}})
			var u *UsageError
			require.ErrorAs(t, err, &u, "%s@%s", name, arg)
		}
	}
}
