package queues

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// twin is a send queue with all that a device sees of it.
type twin struct {
	*SendQueue
	rec, bar []byte
}

func newTwin(t *testing.T, log uint8, qpn uint32, blue, traps bool) *twin {
	u, bar := uarOf(t, &memoryBAR{traps: traps})
	rec := make([]byte, RecordSize)
	q, err := NewSendQueue(SendQueueConfig{
		QPN: qpn, LogWQEBB: log, UAR: u, BlueFlame: blue,
		Ring: vfio.MemOf(make([]byte, WQEBB<<log)), Record: vfio.MemOf(rec),
	})
	require.NoError(t, err)
	return &twin{q, rec, bar}
}

// same compares everything but what is the queue's own memory.
func (a *twin) same(t *testing.T, b *twin, work []WorkRequest) {
	t.Helper()
	equal := a.pi == b.pi && a.ci == b.ci && a.rung == b.rung &&
		bytes.Equal(a.buf, b.buf) && bytes.Equal(a.rec, b.rec) && bytes.Equal(a.bar, b.bar)
	for i := range a.slots {
		equal = equal && a.slots[i].wrid == b.slots[i].wrid && a.slots[i].end == b.slots[i].end
	}
	if !equal {
		require.Equal(t, []uint64{b.pi, b.ci, uint64(b.rung)}, []uint64{a.pi, a.ci, uint64(a.rung)}, "%+v", work)
		require.Equal(t, b.buf, a.buf, "ring: %+v", work)
		require.Equal(t, b.rec, a.rec, "record: %+v", work)
		require.Equal(t, b.bar, a.bar, "registers: %+v", work)
		t.Fatalf("slots differ: %+v", work)
	}
}

// plainWork is a request of a form that the hot paths post, or one that differs from
// it in a thing or two.
func plainWork(r *rand.Rand, wrid uint64) WorkRequest {
	w := WorkRequest{
		WRID: wrid, Flags: Flags(r.Uint32()) & (Signalled | Solicited | Fence),
		Op: []prm.WQEOpcode{
			prm.WQERdmaWrite, prm.WQERdmaWrite, prm.WQERdmaRead, prm.WQEAtomicFA, prm.WQEAtomicMaskedCS, prm.WQEAtomicMaskedCS,
			prm.WQEAtomicCS, prm.WQENop, prm.WQESend, prm.WQERdmaWriteImm, prm.WQEAtomicMaskedFA,
		}[r.IntN(11)],
		Local:  SGE{Addr: r.Uint64(), Len: 4 << r.IntN(2), LKey: r.Uint32()},
		Remote: Remote{Addr: r.Uint64() &^ 7, RKey: r.Uint32()},
		Swap:   r.Uint64N(1 << 32), Compare: r.Uint64N(1 << 32), SwapMask: r.Uint64N(1 << 32), CompareMask: r.Uint64N(1 << 32),
	}
	if w.Op == prm.WQERdmaWrite && r.IntN(2) == 0 {
		w.Inline = make([]byte, 16)
		for i := range w.Inline {
			w.Inline[i] = byte(r.Uint32())
		}
	}
	for r.IntN(3) == 0 {
		switch r.IntN(12) {
		case 0:
			w.Local.Len = []uint32{0, 1, 2, 3, 5, 7, 8, 9, 16, 32, 1 << 20, 1<<31 - 1, 1 << 31, 1<<32 - 1}[r.IntN(14)]
		case 1:
			w.Remote.Addr |= r.Uint64N(8)
		case 2:
			w.Remote.Addr |= 4
		case 3:
			w.Swap = r.Uint64()
		case 4:
			w.Compare = r.Uint64()
		case 5:
			w.SwapMask = r.Uint64()
		case 6:
			w.CompareMask = r.Uint64()
		case 7:
			w.More = make([]SGE, r.IntN(4))
			for i := range w.More {
				w.More[i] = SGE{Addr: r.Uint64(), Len: r.Uint32N(3), LKey: r.Uint32()}
			}
		case 8:
			w.Inline = make([]byte, []int{0, 1, 4, 15, 16, 17, 100}[r.IntN(7)])
		case 9:
			w.Imm = r.Uint32()
		case 10:
			w.Flags = Flags(r.Uint32())
		case 11:
			w.Op = prm.WQEOpcode(r.Uint32())
		}
	}
	return w
}

// A list does what as many calls and one doorbell do: the same bytes in ring, record
// and registers, the same room, numbers and errors, whatever its length and wherever
// ring and counters end; with BlueFlame and without, with the write rule and without, and
// whether registers are mapped or trap.
func TestListsAreCalls(t *testing.T) {
	var posted, refused, full int
	for seed := range uint64(120) {
		r := rand.New(rand.NewPCG(seed, 23))
		log, blue, traps, qpn := uint8(seed%6), seed/6%4 == 2, seed/6%4 > 1 && seed%2 == 0, []uint32{0, 1, microQPN, 0xffffff}[seed/24%4]
		a, b := newTwin(t, log, qpn, blue, traps), newTwin(t, log, qpn, blue, false)
		start := []uint64{0, 1<<16 - 30, 1<<32 - 30, 1<<62 - 30}[r.IntN(4)]
		for _, q := range []*twin{a, b} {
			q.pi, q.ci, q.rung = start, start, uint32(start)
		}
		for range 150 {
			if r.IntN(20) == 0 {
				limit := []int{0, 0, 8, 64}[r.IntN(4)]
				a.SetPeerAtomic(limit)
				b.SetPeerAtomic(limit)
			}
			if r.IntN(4) == 0 { // something that was not rung for yet
				for range r.IntN(3) {
					require.Equal(t, b.Nop(1, 0), a.Nop(1, 0))
				}
			}
			work := make([]WorkRequest, []int{0, 1, 1, 1, 1, 2, 3, 8}[r.IntN(8)])
			for i := range work {
				work[i] = plainWork(r, r.Uint64())
				if i > 0 && r.IntN(3) > 0 { // neighbours alike, for the hot loops
					work[i].Op, work[i].Local.Len, work[i].Inline = work[i-1].Op, work[i-1].Local.Len, work[i-1].Inline
				}
			}
			n, err := a.Post(work)
			k, want := 0, error(nil)
			for ; k < len(work); k++ {
				if want = b.postOne(&work[k]); want != nil {
					break
				}
			}
			b.Ring()
			require.Equal(t, k, n, "%+v", work)
			require.Equal(t, want, err, "%+v", work)
			posted += n
			switch {
			case err == ErrQueueFull: //nolint:errorlint // the sentinel itself, for callers in a hurry
				full++
			case err != nil:
				refused++
			}
			a.same(t, b, work)
			require.Zero(t, a.Pending())
			for r.IntN(3) > 0 && a.Free() < a.Size() { // one completes
				at := a.ci
				for r.IntN(2) > 0 && a.slots[a.index(at)].end < a.pi {
					at = a.slots[a.index(at)].end
				}
				wrid, ok := a.retire(uint16(at))
				other, _ := b.retire(uint16(at))
				require.True(t, ok)
				require.Equal(t, other, wrid)
			}
			if r.IntN(40) == 0 {
				a.Reset()
				b.Reset()
			}
		}
		a.close()
		for range 20 {
			w := plainWork(r, 1)
			w.Op = []prm.WQEOpcode{prm.WQERdmaWrite, prm.WQERdmaRead, prm.WQEAtomicFA, prm.WQEAtomicMaskedCS, prm.WQENop}[r.IntN(5)]
			before, bar := bytes.Clone(a.rec), bytes.Clone(a.bar)
			n, err := a.Post([]WorkRequest{w})
			require.Zero(t, n)
			require.Error(t, err)
			require.Equal(t, before, a.rec)
			require.Equal(t, bar, a.bar)
		}
	}
	for _, n := range []int{posted, refused, full} {
		require.Greater(t, n, 1000)
	}
	t.Log(posted, refused, full)
}
