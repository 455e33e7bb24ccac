package queues

import (
	"bytes"
	"encoding/binary"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// One doorbell for a batch: the record has the 16-bit count of blocks, the
// register the first 8 bytes of the last WQE. Without BlueFlame it is always the
// same register (Linux en/txrx.h, mlx5e_notify_hw).
func TestDoorbell(t *testing.T) {
	u, bar := memoryUAR(t)
	q, rec := newSQ(t, 4, u)
	q.Ring()
	require.Zero(t, binary.BigEndian.Uint64(rec), "nothing to ring for")
	require.Zero(t, binary.BigEndian.Uint64(bar[0x800:]))

	require.NoError(t, q.Write(1, 0, anSGE, aRemote))
	require.NoError(t, q.MaskedCompareSwap(2, Signalled, eightSGE, aRemote, &MaskedCS{}))
	require.Equal(t, 3, q.Pending())
	require.Zero(t, binary.BigEndian.Uint64(rec), "not before Ring")
	q.Ring()
	require.Zero(t, q.Pending())
	require.Equal(t, uint32(3), binary.BigEndian.Uint32(rec[4:]))
	require.Zero(t, binary.BigEndian.Uint32(rec), "the receive count is not ours")
	require.Equal(t, wqeAt(q, 1, 8), bar[0x800:0x808])
	require.Zero(t, binary.BigEndian.Uint64(bar[0x900:]))

	require.NoError(t, q.Nop(3, 0))
	q.Ring()
	require.Equal(t, wqeAt(q, 3, 8), bar[0x800:0x808])
	require.Zero(t, binary.BigEndian.Uint64(bar[0x900:]))
	clear(bar)
	q.Ring()
	require.Zero(t, binary.BigEndian.Uint64(bar[0x800:]), "rung only once")

	q.RetireAll()
	q.pi, q.ci, q.rung = 0xffff, 0xffff, 0xffff
	require.NoError(t, q.Nop(4, 0))
	q.Ring()
	require.Zero(t, binary.BigEndian.Uint32(rec[4:]), "16 bits")
	require.Equal(t, uint16(0), q.Index())
}

// BlueFlame writes a WQE that is alone, fits and does not wrap, whole; else it is
// a plain doorbell.
func TestBlueFlame(t *testing.T) {
	u, bar := memoryUAR(t)
	rec := make([]byte, RecordSize)
	q, err := NewSendQueue(SendQueueConfig{
		QPN: microQPN, LogWQEBB: 3, UAR: u, BlueFlame: true, BlueFlameSize: 128,
		Ring: vfio.MemOf(make([]byte, 8*WQEBB)), Record: vfio.MemOf(rec),
	})
	require.NoError(t, err)
	require.NoError(t, q.FetchAdd(1, 0, eightSGE, aRemote, 5))
	q.Ring()
	require.Equal(t, q.buf[:64], bar[0x800:0x840], "the whole WQE")
	require.Equal(t, uint32(1), binary.BigEndian.Uint32(rec[4:]))

	require.NoError(t, q.MaskedCompareSwap(2, 0, eightSGE, aRemote, &MaskedCS{Swap: 9}))
	q.Ring()
	require.Equal(t, wqeAt(q, 1, 128), bar[0x880:0x900], "two blocks fit a buffer of 128 bytes")
	clear(bar)

	request := WorkRequest{Op: prm.WQEAtomicFA, Local: eightSGE, Remote: aRemote, Swap: 7}
	for i := range 2 { // twice, for the other buffer and back
		n, err := q.Post([]WorkRequest{request})
		require.NoError(t, err)
		require.Equal(t, 1, n)
		require.Equal(t, wqeAt(q, 3+uint64(i), 64), bar[0x800+0x80*i:][:64], "a list of one is a WQE that is alone")
	}
	q.RetireAll()
	q.pi, q.ci, q.rung = 3, 3, 3
	clear(bar)

	// plain requires that only the first 8 bytes of the newest WQE were rung, at byte at.
	plain := func(pi uint64, at int, why string) {
		t.Helper()
		require.Equal(t, wqeAt(q, pi, 8), bar[at:at+8], why)
		clear(bar[at : at+8])
		require.Equal(t, make([]byte, len(bar)), bar, why)
	}
	require.NoError(t, q.Nop(3, Signalled))
	require.NoError(t, q.Nop(4, Signalled))
	q.Ring()
	plain(4, 0x800, "two WQEs: a plain doorbell")

	require.NoError(t, q.WriteInline(5, Signalled, make([]byte, 100), aRemote)) // three blocks
	q.RetireAll()
	q.Ring()
	plain(5, 0x880, "too large: a plain doorbell")
	q.pi, q.ci, q.rung = 7, 7, 7
	require.NoError(t, q.MaskedCompareSwap(6, Signalled, eightSGE, aRemote, &MaskedCS{Swap: 9}))
	q.Ring()
	plain(7, 0x800, "around the end of the ring: a plain doorbell")
	q.pi, q.ci, q.rung = 14, 14, 14
	require.NoError(t, q.MaskedCompareSwap(6, Signalled, eightSGE, aRemote, &MaskedCS{Swap: 9}))
	q.Ring()
	require.Equal(t, wqeAt(q, 14, 128), bar[0x880:0x900], "up to the end of the ring")
	for _, pi := range []uint64{0xffff, 0x1fffe, 0xffff_ffff} { // up to the end of the counters
		q.pi, q.ci, q.rung = pi, pi, uint32(pi)
		require.NoError(t, q.Nop(7, Signalled))
		q.Ring()
		require.Equal(t, uint32(uint16(pi+1)), binary.BigEndian.Uint32(rec[4:]), "16 bits")
	}
}

// Buffers must fit the page; without BlueFlame their size does not matter.
func TestBlueFlameSize(t *testing.T) {
	u, bar := memoryUAR(t)
	for _, size := range []int{32, 96, 2048, 1 << 30} {
		c := SendQueueConfig{
			QPN: microQPN, LogWQEBB: 3, UAR: u, BlueFlame: true, BlueFlameSize: size,
			Ring: vfio.MemOf(make([]byte, 8*WQEBB)), Record: vfio.MemOf(make([]byte, RecordSize)),
		}
		_, err := NewSendQueue(c)
		require.ErrorIs(t, err, vfio.ErrRange)
		c.BlueFlame = false
		q, err := NewSendQueue(c)
		require.NoError(t, err)
		clear(bar)
		for range 2 {
			require.NoError(t, q.Nop(1, Signalled))
			q.Ring()
		}
		require.Equal(t, wqeAt(q, 1, 8), bar[0x800:0x808])
		require.Zero(t, binary.BigEndian.Uint64(bar[0x808:]))
	}
}

// The write rule: (address mod max) + length must not exceed max.
func TestWriteRule(t *testing.T) {
	q, _ := newSQ(t, 8, nil)
	posts := map[string]func(f Flags, n uint32, at uint64) error{
		"write": func(f Flags, n uint32, at uint64) error { return q.Write(1, f, SGE{Len: n}, Remote{Addr: at}) },
		"imm":   func(f Flags, n uint32, at uint64) error { return q.WriteImm(1, f, 2, SGE{Len: n}, Remote{Addr: at}) },
		"inline": func(f Flags, n uint32, at uint64) error {
			return q.WriteInline(1, f, make([]byte, n), Remote{Addr: at})
		},
		"imm inline": func(f Flags, n uint32, at uint64) error {
			return q.WriteImmInline(1, f, 2, make([]byte, n), Remote{Addr: at})
		},
		"pieces": func(f Flags, n uint32, at uint64) error {
			return q.WriteV(1, f, []SGE{{Len: n / 2}, {Len: n - n/2}}, Remote{Addr: at})
		},
		"imm pieces": func(f Flags, n uint32, at uint64) error {
			return q.WriteImmV(1, f, 2, []SGE{{Len: n / 2}, {}, {Len: n - n/2}}, Remote{Addr: at})
		},
		"list": func(f Flags, n uint32, at uint64) error {
			_, err := q.Post([]WorkRequest{{Op: prm.WQERdmaWrite, Flags: f, Local: SGE{Len: n}, Remote: Remote{Addr: at}}})
			return err
		},
		"inline list": func(f Flags, n uint32, at uint64) error {
			_, err := q.Post([]WorkRequest{{Op: prm.WQERdmaWrite, Flags: f, Inline: make([]byte, n), Remote: Remote{Addr: at}}})
			return err
		},
	}
	for name, post := range posts {
		for _, most := range []int{8, 32, 256} {
			for at := uint64(0x1000); at < 0x1000+uint64(most); at++ {
				for _, n := range []uint32{1, 7, 8, 9, 16, 32, 33, 256, 300} {
					q.SetPeerAtomic(most)
					err := post(0, n, at)
					if at%uint64(most)+uint64(n) <= uint64(most) {
						require.NoError(t, err, "%s: %d bytes at %#x, limit %d", name, n, at, most)
					} else {
						require.ErrorIs(t, err, ErrNotAtomicWrite, "%s: %d bytes at %#x, limit %d", name, n, at, most)
						require.ErrorContains(t, err, "NonAtomic", "the remedy")
					}
					q.RetireAll()
					require.NoError(t, post(NonAtomic, n, at))
					q.SetPeerAtomic(0)
					require.NoError(t, post(0, n, at))
					q.RetireAll()
				}
			}
		}
	}
	q.SetPeerAtomic(64)
	require.Equal(t, 64, q.PeerAtomic())
	require.NoError(t, q.Write(1, 0, SGE{}, Remote{Addr: 63}), "nothing is atomic")
	require.NoError(t, q.Read(1, 0, SGE{Len: 65}, Remote{Addr: 63}), "reads have no such rule")
	at := q.pi
	require.NoError(t, q.Write(1, NonAtomic|Signalled, anSGE, aRemote))
	require.Equal(t, byte(8), wqeAt(q, at, 16)[11], "NonAtomic is not a bit of the WQE")
	require.Panics(t, func() { q.SetPeerAtomic(48) })
}

// Unsignalled WQEs are retired by the next signalled one, and give their blocks
// back with it.
func TestRetire(t *testing.T) {
	q, _ := newSQ(t, 3, nil)
	require.NoError(t, q.Nop(1, 0))
	require.NoError(t, q.MaskedCompareSwap(2, 0, eightSGE, aRemote, &MaskedCS{}))
	require.NoError(t, q.WriteInline(3, Signalled, make([]byte, 100), aRemote)) // blocks 3 to 5
	require.NoError(t, q.Nop(4, Signalled))
	require.Equal(t, 1, q.Free())
	for _, index := range []uint16{2, 4, 5, 7, 8, 9, 3 + 8, 3 + 1<<15, 0xffff} {
		_, ok := q.retire(index)
		require.False(t, ok, "no WQE begins at %d", index)
		require.Nil(t, q.snapshot(index))
	}
	require.Equal(t, 1, q.Free())
	wrid, ok := q.retire(3)
	require.True(t, ok)
	require.Equal(t, uint64(3), wrid)
	require.Equal(t, 7, q.Free())
	_, ok = q.retire(3)
	require.False(t, ok, "twice")
	_, ok = q.retire(0)
	require.False(t, ok, "it was retired with the third")
	wrid, ok = q.retire(6)
	require.True(t, ok)
	require.Equal(t, uint64(4), wrid)
	require.Equal(t, 8, q.Free())
}

// Memory whose words cannot be accessed whole is refused by every queue.
func TestUnalignedMemory(t *testing.T) {
	mem := func(n, off int) vfio.Mem { return vfio.MemOf(make([]byte, n+8)[off : off+n]) }
	for _, off := range [][2]int{{1, 0}, {4, 0}, {0, 1}, {0, 4}} {
		ring, rec := mem(256, off[0]), mem(RecordSize, off[1])
		for what, create := range map[string]func() error{
			"send queue": func() error {
				_, err := NewSendQueue(SendQueueConfig{LogWQEBB: 2, Ring: ring, Record: rec})
				return err
			},
			"CQ mine": func() error {
				_, err := NewCQRing(CQRingConfig{Name: "mine", LogSize: 2, Ring: ring, Record: rec})
				return err
			},
			"receive queue": func() error {
				_, err := NewRecvQueue(RecvQueueConfig{LogSize: 4, LogStride: 4, Ring: ring, Record: rec})
				return err
			},
			"shared receive queue": func() error {
				_, err := NewSRQRing(SRQRingConfig{LogSize: 3, LogStride: 5, Ring: ring, Record: rec})
				return err
			},
		} {
			err := create()
			require.ErrorIs(t, err, vfio.ErrRange, "%s at %v", what, off)
			require.ErrorContains(t, err, what)
			require.ErrorContains(t, err, "multiples of 8")
		}
	}
}

// Of all indexes only those at which a WQE that is under way begins are such, however
// full the queue is and wherever its counters are.
func TestOutstanding(t *testing.T) {
	for _, start := range []uint64{0, 5, 1<<16 - 3, 1<<32 - 3} {
		for _, blocks := range [][]int{{}, {1}, {1, 2, 3, 1}, {1, 2, 3, 1, 1}, {3, 3, 2}, {2, 2, 2, 2}, {1, 1, 1, 1, 1, 1, 1, 1}} {
			q, _ := newSQ(t, 3, nil)
			q.pi, q.ci, q.rung = start, start, uint32(start)
			for range 8 { // the pass before, which leaves its ends behind
				require.NoError(t, q.Nop(1, 0))
			}
			q.RetireAll()
			begins := map[uint16]bool{}
			for _, n := range blocks {
				begins[q.Index()] = true
				switch n {
				case 1:
					require.NoError(t, q.Nop(1, 0))
				case 2:
					require.NoError(t, q.MaskedCompareSwap(2, 0, eightSGE, aRemote, &MaskedCS{}))
				case 3:
					require.NoError(t, q.WriteInline(3, 0, make([]byte, 100), aRemote))
				}
			}
			for i := range 1 << 16 {
				if _, ok := q.outstanding(uint16(i)); ok != begins[uint16(i)] {
					t.Fatalf("WQEs of %v blocks from %#x on: index %#x is outstanding: %v", blocks, start, i, ok)
				}
			}
		}
	}
}

func TestSendQueueConfig(t *testing.T) {
	ring, rec := vfio.MemOf(make([]byte, 1024)), vfio.MemOf(make([]byte, 8))
	for _, c := range []SendQueueConfig{
		{LogWQEBB: 16, Ring: ring, Record: rec},
		{LogWQEBB: 3, Ring: ring, Record: rec},
		{LogWQEBB: 4, Ring: ring, Record: vfio.MemOf(make([]byte, 4))},
		{LogWQEBB: 4, Ring: ring, Record: rec, QPN: 1 << 24},
		{LogWQEBB: 4, Ring: ring, Record: rec, MaxWQE: MinWQEBytes - 1},
		{LogWQEBB: 4, Ring: ring, Record: rec, MaxWQE: -1},
	} {
		_, err := NewSendQueue(c)
		require.ErrorIs(t, err, vfio.ErrRange)
	}
	q, err := NewSendQueue(SendQueueConfig{QPN: 0xabcdef, LogWQEBB: 4, Ring: ring, Record: rec})
	require.NoError(t, err)
	require.Equal(t, uint32(0xabcdef), q.QPN())
	require.Equal(t, 16, q.Size())
	require.NoError(t, q.Nop(1, 0))
	q.Ring()
	q.Reset()
	require.Zero(t, rec.LoadBE32(4))
	require.Equal(t, 16, q.Free())
	require.Zero(t, q.Index())
}

// A closed queue refuses everything, and its memory may be gone.
func TestSendQueueClosed(t *testing.T) {
	for _, s := range samples {
		q, _ := newSQ(t, 4, nil)
		require.NoError(t, q.Nop(1, 0))
		q.close()
		require.ErrorIs(t, s.post(t, q), vfio.ErrClosed, s.name)
		q.Ring()
		_, ok := q.retire(0)
		require.False(t, ok)
	}
	// Nor does it write there: the record may be another queue's.
	q, rec := newSQ(t, 4, nil)
	require.NoError(t, q.Nop(1, 0))
	q.Ring()
	was := bytes.Clone(rec)
	q.close()
	q.Reset()
	q.Ring()
	require.Equal(t, was, rec)
	for _, op := range MicroOps() {
		q, _ := newSQ(t, 4, nil)
		q.close()
		n, err := q.Post([]WorkRequest{{Op: microOpcodes[op], Local: eightSGE, Remote: aRemote}})
		require.ErrorIs(t, err, vfio.ErrClosed)
		require.Zero(t, n)
	}
}

// Posting allocates nothing, whatever is posted.
func TestPostAllocs(t *testing.T) {
	u, _ := memoryUAR(t)
	q, _ := newSQ(t, 6, u)
	to, sges, words := address(t, sampleUD), []SGE{anSGE, fourSGE}, make([]uint64, 4)
	data := make([]byte, 200)
	list := make([]WorkRequest, 0, 64)
	for _, op := range []prm.WQEOpcode{prm.WQENop, prm.WQESend, prm.WQERdmaWrite, prm.WQERdmaWriteImm, prm.WQERdmaRead, prm.WQEAtomicCS, prm.WQEAtomicFA, prm.WQEAtomicMaskedCS, prm.WQEAtomicMaskedFA} {
		list = append(list, WorkRequest{Op: op, Local: eightSGE, Remote: aRemote})
	}
	list = append(list, WorkRequest{Op: prm.WQERdmaWrite, Inline: data, Remote: aRemote}, WorkRequest{Op: prm.WQESend, Local: anSGE, More: sges})
	raw := make([]byte, 48)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		must := func(err error) {
			if err != nil {
				t.Error(err)
			}
		}
		must(q.Nop(1, 0))
		must(q.Send(1, 0, anSGE))
		must(q.Send(1, 0, SGE{}))
		must(q.SendV(1, 0, sges))
		must(q.SendInline(1, 0, data))
		must(q.SendTo(1, 0, to, sges))
		must(q.Write(1, 0, anSGE, aRemote))
		must(q.Write(1, 0, SGE{}, aRemote))
		must(q.WriteImm(1, 0, 1, anSGE, aRemote))
		must(q.WriteV(1, 0, sges, aRemote))
		must(q.WriteInline(1, 0, data[:16], aRemote))
		must(q.WriteInline(1, 0, data[:9], aRemote))
		must(q.WriteInline(1, 0, data, aRemote))
		must(q.Read(1, 0, anSGE, aRemote))
		must(q.ReadV(1, 0, sges, aRemote))
		must(q.CompareSwap(1, 0, eightSGE, aRemote, 1, 2))
		must(q.FetchAdd(1, 0, eightSGE, aRemote, 1))
		must(q.MaskedCompareSwap(1, 0, fourSGE, aRemote, &MaskedCS{Swap: 1}))
		must(q.MaskedCompareSwap(1, 0, eightSGE, aRemote, &MaskedCS{Swap: 1}))
		must(q.MaskedFetchAdd(1, 0, fourSGE, aRemote, &MaskedFA{Add: 1}))
		must(q.MaskedFetchAddWide(1, 0, SGE{Len: 32}, Remote{}, &MaskedFAWide{words, words}))
		must(q.MaskedCompareSwapWide(1, 0, SGE{Len: 32}, Remote{}, &MaskedCSWide{words, words, words, words}))
		must(q.Wait(1, 0, 1, 1))
		must(q.Raw(1, raw))
		q.Ring()
		q.RetireAll()
		if n, err := q.Post(list); err != nil || n != len(list) {
			t.Error(n, err)
		}
		q.RetireAll()
	}))
	full, _ := newSQ(t, 0, u)
	require.NoError(t, full.Nop(1, 0))
	require.Zero(t, testing.AllocsPerRun(100, func() {
		if full.Nop(1, 0) != ErrQueueFull { //nolint:errorlint // the sentinel itself, for callers in a hurry
			t.Error("not full")
		}
	}), "a full queue is no reason to allocate")
}

// A doorbell record is written in one store: another core never sees a half of
// it. Both bytes of every value stored here are equal.
func TestRecordIsOneStore(t *testing.T) {
	mem := vfio.MemOf(make([]byte, RecordSize))
	r := newRecord(mem)
	var stop atomic.Bool
	started, done := make(chan struct{}), make(chan int)
	go func() {
		close(started)
		n := 0
		for {
			v := mem.LoadBE32(recordSend)
			if v>>8 != v&0xff {
				t.Errorf("half a store: %#x", v)
				break
			}
			n++
			if stop.Load() {
				break
			}
			if n%1024 == 0 {
				runtime.Gosched()
			}
		}
		done <- n
	}()
	<-started
	for i := range uint32(2_000_000) {
		r.store(recordSend, i&0xff*0x101)
	}
	stop.Store(true)
	require.Positive(t, <-done)
}

// An empty list rings for what was written before it, and with nothing new does
// nothing.
func TestPostNothing(t *testing.T) {
	u, bar := memoryUAR(t)
	q, record := newSQ(t, 2, u)
	n, err := q.Post(nil)
	require.NoError(t, err)
	require.Zero(t, n)
	require.Zero(t, record[recordSend+3])
	require.Equal(t, make([]byte, len(bar)), bar)

	require.NoError(t, q.Nop(1, 0))
	n, err = q.Post([]WorkRequest{})
	require.NoError(t, err)
	require.Zero(t, n)
	require.EqualValues(t, 1, record[recordSend+3])
	require.Equal(t, q.buf[:8], bar[UARBlueFlame:][:8])
	clear(bar)
	_, err = q.Post(nil)
	require.NoError(t, err)
	require.Equal(t, make([]byte, len(bar)), bar, "rung already")
	require.Zero(t, q.Pending())
}
