package queues

import (
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/vfio"
)

var (
	anSGE     = SGE{Addr: 0x1122334455667788, Len: 0x99, LKey: 0xaabbccdd}
	aRemote   = Remote{Addr: 0x0102030405060700, RKey: 0x0b0c0d0e}
	eightSGE  = SGE{Addr: 0x1122334455667788, Len: 8, LKey: 0xaabbccdd}
	fourSGE   = SGE{Addr: 0x1122334455667788, Len: 4, LKey: 0xaabbccdd}
	sampleUD  = AddressOptions{QPN: 0x00abcd, QKey: 0x11111111, LID: 0x2233, SL: 5, StatRate: 2, PathBits: 3}
	sampleEth = AddressOptions{Ethernet: true, QPN: 0x00abcd, QKey: 0x11111111, SL: 3, UDPSport: 0xc0de, MAC: [6]byte{2, 3, 4, 5, 6, 7}, GID: [16]byte{0xfe, 0x80, 15: 9}, SGIDIndex: 0x12, FlowLabel: 0x34567, HopLimit: 64, TClass: 0x42}
)

func address(tb testing.TB, o AddressOptions) *Address {
	a, err := NewAddress(o)
	require.NoError(tb, err)
	return a
}

// samples are one WQE of every kind, with the bytes that the segments
// of Linux qp.h (struct mlx5_wqe_…_seg) have. II is the WQE index, 01234567 the QPN
// and ds word.
var samples = []struct {
	name string
	post func(tb testing.TB, q *SendQueue) error
	want string
}{
	{"NOP", func(_ testing.TB, q *SendQueue) error { return q.Nop(7, 0) },
		"00IIII00 00123401 00000000 00000000"},
	{"NOP signalled, fenced", func(_ testing.TB, q *SendQueue) error { return q.Nop(7, Signalled|Fence) },
		"00IIII00 00123401 00000088 00000000"},
	{"SEND", func(_ testing.TB, q *SendQueue) error { return q.Send(7, Signalled|Solicited, anSGE) },
		"00IIII0a 00123402 0000000a 00000000 00000099 aabbccdd 11223344 55667788"},
	{"SEND_IMM", func(_ testing.TB, q *SendQueue) error { return q.SendImm(7, FenceReads, 0xdeadbeef, anSGE) },
		"00IIII0b 00123402 00000040 deadbeef 00000099 aabbccdd 11223344 55667788"},
	{"SEND_INVAL", func(_ testing.TB, q *SendQueue) error { return q.SendInvalidate(7, StrongOrder, 0xdeadbeef, anSGE) },
		"00IIII01 00123402 00000060 deadbeef 00000099 aabbccdd 11223344 55667788"},
	{"SEND of nothing", func(_ testing.TB, q *SendQueue) error { return q.Send(7, 0, SGE{Addr: 5, LKey: 6}) },
		"00IIII0a 00123401 00000000 00000000"},
	{"SEND inline", func(_ testing.TB, q *SendQueue) error { return q.SendInline(7, 0, []byte{1, 2, 3, 4, 5}) },
		"00IIII0a 00123402 00000000 00000000 80000005 01020304 05000000 00000000"},
	{"SEND_IMM inline of nothing", func(_ testing.TB, q *SendQueue) error { return q.SendImmInline(7, 0, 1, nil) },
		"00IIII0b 00123401 00000000 00000001"},
	{"SEND of three pieces, one empty", func(_ testing.TB, q *SendQueue) error {
		return q.SendV(7, 0, []SGE{anSGE, {}, fourSGE})
	}, "00IIII0a 00123403 00000000 00000000 00000099 aabbccdd 11223344 55667788 00000004 aabbccdd 11223344 55667788"},
	{"RDMA_WRITE", func(_ testing.TB, q *SendQueue) error { return q.Write(7, SignalledEvent, anSGE, aRemote) },
		"00IIII08 00123403 0000000c 00000000 01020304 05060700 0b0c0d0e 00000000 00000099 aabbccdd 11223344 55667788"},
	{"RDMA_WRITE of nothing", func(_ testing.TB, q *SendQueue) error { return q.Write(7, 0, SGE{}, aRemote) },
		"00IIII08 00123402 00000000 00000000 01020304 05060700 0b0c0d0e 00000000"},
	{"RDMA_WRITE_IMM", func(_ testing.TB, q *SendQueue) error { return q.WriteImm(7, FenceLocal, 0xcafe, anSGE, aRemote) },
		"00IIII09 00123403 00000020 0000cafe 01020304 05060700 0b0c0d0e 00000000 00000099 aabbccdd 11223344 55667788"},
	{"RDMA_WRITE inline", func(_ testing.TB, q *SendQueue) error { return q.WriteInline(7, 0, []byte{1, 2, 3}, aRemote) },
		"00IIII08 00123403 00000000 00000000 01020304 05060700 0b0c0d0e 00000000 80000003 01020300 00000000 00000000"},
	{"RDMA_WRITE inline of 28 bytes", func(_ testing.TB, q *SendQueue) error {
		return q.WriteInline(7, 0, []byte("abcdefghijklmnopqrstuvwxyzAB"), aRemote)
	}, "00IIII08 00123404 00000000 00000000 01020304 05060700 0b0c0d0e 00000000 8000001c" + hex.EncodeToString([]byte("abcdefghijklmnopqrstuvwxyzAB"))},
	{"RDMA_WRITE inline of 29 bytes", func(_ testing.TB, q *SendQueue) error {
		return q.WriteInline(7, 0, []byte("abcdefghijklmnopqrstuvwxyzABC"), aRemote)
	}, "00IIII08 00123405 00000000 00000000 01020304 05060700 0b0c0d0e 00000000 8000001d" + hex.EncodeToString([]byte("abcdefghijklmnopqrstuvwxyzABC")) + strings.Repeat("00", 15)},
	{"RDMA_WRITE_IMM inline", func(_ testing.TB, q *SendQueue) error { return q.WriteImmInline(7, 0, 9, []byte{1}, aRemote) },
		"00IIII09 00123403 00000000 00000009 01020304 05060700 0b0c0d0e 00000000 80000001 01000000 00000000 00000000"},
	{"RDMA_READ", func(_ testing.TB, q *SendQueue) error { return q.Read(7, 0, anSGE, aRemote) },
		"00IIII10 00123403 00000000 00000000 01020304 05060700 0b0c0d0e 00000000 00000099 aabbccdd 11223344 55667788"},
	{"RDMA_READ of three pieces", func(_ testing.TB, q *SendQueue) error {
		return q.ReadV(7, 0, []SGE{anSGE, fourSGE, eightSGE}, aRemote)
	}, "00IIII10 00123405 00000000 00000000 01020304 05060700 0b0c0d0e 00000000 00000099 aabbccdd 11223344 55667788" +
		"00000004 aabbccdd 11223344 55667788 00000008 aabbccdd 11223344 55667788"},
	{"ATOMIC_CS", func(_ testing.TB, q *SendQueue) error {
		return q.CompareSwap(7, 0, eightSGE, aRemote, 0xc1c2c3c4c5c6c7c8, 0x5152535455565758)
	}, "00IIII11 00123404 00000000 00000000 01020304 05060700 0b0c0d0e 00000000 51525354 55565758 c1c2c3c4 c5c6c7c8 00000008 aabbccdd 11223344 55667788"},
	{"ATOMIC_FA", func(_ testing.TB, q *SendQueue) error { return q.FetchAdd(7, 0, eightSGE, aRemote, 0xa1a2a3a4a5a6a7a8) },
		"00IIII12 00123404 00000000 00000000 01020304 05060700 0b0c0d0e 00000000 a1a2a3a4 a5a6a7a8 00000000 00000000 00000008 aabbccdd 11223344 55667788"},
	{"MASKED_CS 4", func(_ testing.TB, q *SendQueue) error {
		return q.MaskedCompareSwap(7, 0, fourSGE, aRemote, &MaskedCS{Swap: 0x51525354, Compare: 0xc1c2c3c4, SwapMask: 0xe1e2e3e4, CompareMask: 0xf1f2f3f4})
	}, "08IIII14 00123404 00000000 00000000 01020304 05060700 0b0c0d0e 00000000 51525354 c1c2c3c4 e1e2e3e4 f1f2f3f4 00000004 aabbccdd 11223344 55667788"},
	{"MASKED_CS 8", func(_ testing.TB, q *SendQueue) error {
		return q.MaskedCompareSwap(7, 0, eightSGE, aRemote, &MaskedCS{Swap: 0x51, Compare: 0xc1, SwapMask: 0xe1, CompareMask: 0xf1})
	}, "09IIII14 00123405 00000000 00000000 01020304 05060700 0b0c0d0e 00000000 00000000 00000051 00000000 000000c1 00000000 000000e1 00000000 000000f1 00000008 aabbccdd 11223344 55667788"},
	{"MASKED_FA 4", func(_ testing.TB, q *SendQueue) error {
		return q.MaskedFetchAdd(7, 0, fourSGE, aRemote, &MaskedFA{Add: 0xa1a2a3a4, Boundary: 0xb1b2b3b4})
	}, "08IIII15 00123404 00000000 00000000 01020304 05060700 0b0c0d0e 00000000 a1a2a3a4 b1b2b3b4 00000000 00000000 00000004 aabbccdd 11223344 55667788"},
	{"MASKED_FA 8", func(_ testing.TB, q *SendQueue) error {
		return q.MaskedFetchAdd(7, 0, eightSGE, aRemote, &MaskedFA{Add: 0xa1, Boundary: 0xb1})
	}, "09IIII15 00123404 00000000 00000000 01020304 05060700 0b0c0d0e 00000000 00000000 000000a1 00000000 000000b1 00000008 aabbccdd 11223344 55667788"},
	{"MASKED_CS 16", func(_ testing.TB, q *SendQueue) error {
		return q.MaskedCompareSwapWide(7, 0, SGE{Addr: 1, Len: 16, LKey: 2}, aRemote16,
			&MaskedCSWide{Swap: []uint64{1, 2}, Compare: []uint64{3, 4}, SwapMask: []uint64{5, 6}, CompareMask: []uint64{7, 8}})
	}, "0aIIII14 00123407 00000000 00000000 01020304 05060710 0b0c0d0e 00000000" + quads(1, 2, 3, 4, 5, 6, 7, 8) + "00000010 00000002 00000000 00000001"},
	{"MASKED_FA 16", func(_ testing.TB, q *SendQueue) error {
		return q.MaskedFetchAddWide(7, 0, SGE{Addr: 1, Len: 16, LKey: 2}, aRemote16, &MaskedFAWide{Add: []uint64{1, 2}, Boundary: []uint64{3, 4}})
	}, "0aIIII15 00123405 00000000 00000000 01020304 05060710 0b0c0d0e 00000000" + quads(1, 2, 3, 4) + "00000010 00000002 00000000 00000001"},
	{"MASKED_CS 8, wide", func(_ testing.TB, q *SendQueue) error {
		return q.MaskedCompareSwapWide(7, 0, eightSGE, aRemote, &MaskedCSWide{Swap: []uint64{1}, Compare: []uint64{2}, SwapMask: []uint64{3}, CompareMask: []uint64{4}})
	}, "09IIII14 00123405 00000000 00000000 01020304 05060700 0b0c0d0e 00000000" + quads(1, 2, 3, 4) + "00000008 aabbccdd 11223344 55667788"},
	{"WAIT", func(_ testing.TB, q *SendQueue) error { return q.Wait(7, 0, 0x4321, 0x11223344) },
		"00IIII0f 00123402 00000000 00000000 00000000 00000000 11223344 00004321"},
	{"SEND_EN", func(_ testing.TB, q *SendQueue) error { return q.SendEnable(7, 0, 0x4321, 0x55) },
		"00IIII17 00123402 00000000 00000000 00000000 00000000 00000055 00004321"},
	{"RECV_EN", func(_ testing.TB, q *SendQueue) error { return q.ReceiveEnable(7, 0, 0x4321, 0x55) },
		"00IIII16 00123402 00000000 00000000 00000000 00000000 00000055 00004321"},
	{"datagram, InfiniBand", func(tb testing.TB, q *SendQueue) error {
		return q.SendImmTo(7, 0, 0x77, address(tb, sampleUD), []SGE{anSGE})
	}, "00IIII0b 00123405 00000000 00000077 11111111 00000000 8000abcd 25032233 00000000 00000000 00000000 00000000" +
		strings.Repeat("0", 32) + "00000099 aabbccdd 11223344 55667788"},
	{"datagram, Ethernet, inline", func(tb testing.TB, q *SendQueue) error {
		return q.SendInlineTo(7, 0, address(tb, sampleEth), []byte{0xee})
	}, "00IIII0a 00123405 00000000 00000000 11111111 00000000 8000abcd 0600c0de 00000000 02030405 06074240 41234567" +
		"fe800000 00000000 00000000 00000009 80000001 ee000000 00000000 00000000"},
	{"raw", func(_ testing.TB, q *SendQueue) error {
		b, err := hex.DecodeString(strings.Repeat("ee", 16) + strings.Repeat("dd", 16))
		if err != nil {
			return err
		}
		return q.Raw(7, b)
	}, "eeIIIIee 001234ee eeeeeeee eeeeeeee" + strings.Repeat("dd", 16)},
}

var aRemote16 = Remote{Addr: 0x0102030405060710, RKey: 0x0b0c0d0e}

func quads(v ...uint64) string {
	s := ""
	for _, x := range v {
		s += fmt.Sprintf("%016x", x)
	}
	return s
}

// wanted is the hex of a sample at this WQE index.
func wanted(s string, index uint64) string {
	s = strings.ReplaceAll(s, " ", "")
	return strings.ReplaceAll(s, "IIII", fmt.Sprintf("%04x", index&0xffff))
}

// Every kind of WQE, at every place of a ring that it fits and around its end, at
// the end of the 16-bit counter too, in a ring that is full of other bytes.
func TestWQEBytes(t *testing.T) {
	for _, s := range samples {
		t.Run(s.name, func(t *testing.T) {
			for log := range uint8(6) {
				n := len(wanted(s.want, 0)) / 2
				blocks := (n + WQEBB - 1) / WQEBB
				if blocks > 1<<log {
					continue
				}
				for place := range uint64(1 << log) {
					for _, base := range []uint64{0, 1 << 16, 1<<32 - 1<<log} {
						q, _ := newSQ(t, log, nil)
						q.pi, q.ci, q.rung = base+place, base+place, uint32(base+place)
						for i := range q.buf {
							q.buf[i] = 0xa5
						}
						require.NoError(t, s.post(t, q))
						require.Equal(t, wanted(s.want, base+place), hex.EncodeToString(wqeAt(q, base+place, n)), "at block %d of %d", place, 1<<log)
						require.Equal(t, blocks, int(q.pi-(base+place)))
						require.Equal(t, uint64(blocks), q.slots[q.index(base+place)].end-(base+place))
						// Nothing beside the blocks was touched.
						for i := blocks; i < 1<<log; i++ {
							at := q.index(base+place+uint64(i)) * WQEBB
							require.Equal(t, strings.Repeat("a5", WQEBB), hex.EncodeToString(q.buf[at:at+WQEBB]))
						}
						wrid, ok := q.retire(uint16(base + place))
						require.True(t, ok)
						require.Equal(t, uint64(7), wrid)
						require.Equal(t, q.pi, q.ci)
					}
				}
			}
		})
	}
}

// A full queue refuses and changes nothing, at every size of ring and WQE.
func TestQueueFull(t *testing.T) {
	for log := range uint8(7) {
		for _, s := range samples {
			q, _ := newSQ(t, log, nil)
			blocks := (len(wanted(s.want, 0))/2 + WQEBB - 1) / WQEBB
			for posted := 0; ; posted++ {
				free, before := q.Free(), append([]byte(nil), q.buf...)
				err := s.post(t, q)
				if free >= blocks {
					require.NoError(t, err)
					require.Equal(t, free-blocks, q.Free())
					continue
				}
				require.ErrorIs(t, err, ErrQueueFull, "%s, ring of %d", s.name, q.Size())
				require.Equal(t, q.Size()/blocks, posted)
				require.Equal(t, before, q.buf, "a refused WQE leaves the ring alone")
				require.Equal(t, free, q.Free())
				break
			}
		}
	}
}

func TestQueueFullList(t *testing.T) {
	for _, op := range MicroOps() {
		m, err := NewMicrobench(nil)
		require.NoError(t, err)
		work, err := m.prepare(op, MicroMaxBatch, MicroMaxBatch)
		require.NoError(t, err)
		blocks := 1
		if op == MicroMaskedCS8 {
			blocks = 2
		}
		for _, log := range []uint8{0, 3, 5} {
			q, rec := newSQ(t, log, nil)
			n, err := q.Post(work)
			require.ErrorIs(t, err, ErrQueueFull)
			require.Equal(t, q.Size()/blocks, n, op)
			require.Equal(t, []byte{0, 0, 0, byte(n * blocks)}, rec[recordSend:], "what was posted is rung")
			before := append([]byte(nil), q.buf...)
			n, err = q.Post(work)
			require.ErrorIs(t, err, ErrQueueFull)
			require.Zero(t, n)
			require.Equal(t, before, q.buf)
		}
	}
}

// What must not be posted is refused with its numbers, and nothing moves.
func TestRefusals(t *testing.T) {
	long := make([]SGE, 100)
	for i := range long {
		long[i] = fourSGE
	}
	words := func(n int) []uint64 { return make([]uint64, n) }
	for _, c := range []struct {
		name string
		post func(q *SendQueue) error
		want error
		text string
	}{
		{"SGE too long", func(q *SendQueue) error { return q.Write(1, 0, SGE{Len: 1 << 31}, aRemote) }, ErrTooLong, "2147483648"},
		{"read too long", func(q *SendQueue) error { return q.Read(1, 0, SGE{Len: 1<<32 - 1}, aRemote) }, ErrTooLong, "4294967295"},
		{"send too long", func(q *SendQueue) error { return q.Send(1, 0, SGE{Len: 1 << 31}) }, ErrTooLong, "SEND"},
		{"too many pieces", func(q *SendQueue) error { return q.SendV(1, 0, long) }, ErrTooLong, "1616 bytes, the limit is 1008"},
		{"one piece too many", func(q *SendQueue) error { return q.WriteV(1, 0, long[:62], aRemote) }, ErrTooLong, "1024 bytes"},
		{"inline too long", func(q *SendQueue) error { return q.WriteInline(1, 0, make([]byte, 973), aRemote) }, ErrTooLong, "1024"},
		{"CS of 4 bytes", func(q *SendQueue) error { return q.CompareSwap(1, 0, fourSGE, aRemote, 0, 0) }, ErrOperand, "must have 8"},
		{"FA not aligned", func(q *SendQueue) error { return q.FetchAdd(1, 0, eightSGE, Remote{Addr: 4}, 0) }, ErrUnaligned, "8 bytes at 0x4"},
		{"masked CS of 6", func(q *SendQueue) error { return q.MaskedCompareSwap(1, 0, SGE{Len: 6}, aRemote, &MaskedCS{}) }, ErrOperand, "from 4 to 8"},
		{"masked CS 4 at 2", func(q *SendQueue) error { return q.MaskedCompareSwap(1, 0, fourSGE, Remote{Addr: 2}, &MaskedCS{}) }, ErrUnaligned, "0x2"},
		{"masked CS 8 at 4", func(q *SendQueue) error { return q.MaskedCompareSwap(1, 0, eightSGE, Remote{Addr: 4}, &MaskedCS{}) }, ErrUnaligned, "0x4"},
		{"masked CS 4, wide mask", func(q *SendQueue) error {
			return q.MaskedCompareSwap(1, 0, fourSGE, aRemote, &MaskedCS{CompareMask: 1 << 32})
		}, ErrOperand, "32 bits"},
		{"masked FA 4, wide add", func(q *SendQueue) error { return q.MaskedFetchAdd(1, 0, fourSGE, aRemote, &MaskedFA{Add: 1 << 40}) }, ErrOperand, "32 bits"},
		{"masked FA of 16", func(q *SendQueue) error { return q.MaskedFetchAdd(1, 0, SGE{Len: 16}, aRemote, &MaskedFA{}) }, ErrOperand, "16 bytes"},
		{"wide CS of 256", func(q *SendQueue) error {
			return q.MaskedCompareSwapWide(1, 0, SGE{Len: 256}, Remote{}, &MaskedCSWide{words(32), words(32), words(32), words(32)})
		}, ErrOperand, "8 to 128"},
		{"wide CS, missing words", func(q *SendQueue) error {
			return q.MaskedCompareSwapWide(1, 0, SGE{Len: 32}, Remote{}, &MaskedCSWide{words(4), words(4), words(3), words(4)})
		}, ErrOperand, "3 words"},
		{"wide FA of 512", func(q *SendQueue) error {
			return q.MaskedFetchAddWide(1, 0, SGE{Len: 512}, Remote{}, &MaskedFAWide{words(64), words(64)})
		}, ErrOperand, "8 to 256"},
		{"wide FA not aligned", func(q *SendQueue) error {
			return q.MaskedFetchAddWide(1, 0, SGE{Len: 32}, Remote{Addr: 16}, &MaskedFAWide{words(4), words(4)})
		}, ErrUnaligned, "32 bytes at 0x10"},
		{"WAIT on a wide number", func(q *SendQueue) error { return q.Wait(1, 0, 1<<24, 0) }, ErrOperand, "0x1000000"},
		{"raw of 17", func(q *SendQueue) error { return q.Raw(1, make([]byte, 17)) }, ErrOperand, "17 bytes"},
		{"raw of nothing", func(q *SendQueue) error { return q.Raw(1, nil) }, ErrOperand, "0 bytes"},
		{"raw of 1024", func(q *SendQueue) error { return q.Raw(1, make([]byte, 1024)) }, ErrTooLong, "1024 bytes"},
		{"list of UMR", func(q *SendQueue) error { return q.postOne(&WorkRequest{Op: prm.WQEUMR}) }, ErrOperand, "UMR"},
	} {
		t.Run(c.name, func(t *testing.T) {
			q, _ := newSQ(t, 6, nil)
			err := c.post(q)
			require.ErrorIs(t, err, c.want)
			var pe *PostError
			require.ErrorAs(t, err, &pe)
			require.Equal(t, uint32(microQPN), pe.QPN)
			require.ErrorContains(t, err, c.text)
			require.Zero(t, q.pi)
			require.Equal(t, make([]byte, len(q.buf)), q.buf)
		})
	}
}

// The limit of a device is kept: the largest WQE is posted, the next larger is
// not. The largest atomics are just possible (ruling W4).
func TestLargestWQEs(t *testing.T) {
	long := make([]SGE, 64)
	for i := range long {
		long[i] = SGE{Addr: uint64(i), Len: 1, LKey: uint32(i)}
	}
	for _, limit := range []int{MinWQEBytes, 512, 1008, 1024, 0} {
		q, err := NewSendQueue(SendQueueConfig{LogWQEBB: 6, MaxWQE: limit, Ring: vfio.MemOf(make([]byte, 4096)), Record: vfio.MemOf(make([]byte, 8))})
		require.NoError(t, err)
		units := 63
		if limit == MinWQEBytes || limit == 512 {
			units = limit / 16
		}
		require.NoError(t, q.SendV(1, 0, long[:units-1]))
		require.Equal(t, uint8(units), prm.AsWQECtrlSeg(q.buf).Ds())
		require.ErrorIs(t, q.SendV(1, 0, append(long[:units-1:units-1], fourSGE)), ErrTooLong)
		require.NoError(t, q.WriteInline(1, 0, make([]byte, units*16-36), aRemote))
		require.ErrorIs(t, q.WriteInline(1, 0, make([]byte, units*16-35), aRemote), ErrTooLong)
	}
	q, _ := newSQ(t, 6, nil)
	w := make([]uint64, 32)
	require.NoError(t, q.MaskedCompareSwapWide(1, 0, SGE{Len: 128}, Remote{}, &MaskedCSWide{w[:16], w[:16], w[:16], w[:16]}))
	require.Equal(t, uint8(35), prm.AsWQECtrlSeg(q.buf).Ds())
	require.Equal(t, uint8(0xd), q.buf[0], "opmod 8 + 7 − 2")
	at := q.pi
	require.NoError(t, q.MaskedFetchAddWide(1, 0, SGE{Len: 256}, Remote{}, &MaskedFAWide{w, w}))
	require.Equal(t, uint8(35), prm.AsWQECtrlSeg(wqeAt(q, at, 16)).Ds())
	require.Equal(t, uint8(0xe), wqeAt(q, at, 1)[0])
}

func TestAddressRefusals(t *testing.T) {
	for _, o := range []AddressOptions{{QPN: 1 << 24}, {FlowLabel: 1 << 20}, {SL: 16}, {StatRate: 16}, {PathBits: 128}} {
		_, err := NewAddress(o)
		require.ErrorIs(t, err, vfio.ErrRange)
	}
}

// randomWork is a random request of any operation a list takes.
func randomWork(r *rand.Rand) WorkRequest {
	ops := []prm.WQEOpcode{prm.WQENop, prm.WQESend, prm.WQESendImm, prm.WQESendInval, prm.WQERdmaWrite, prm.WQERdmaWriteImm,
		prm.WQERdmaRead, prm.WQEAtomicCS, prm.WQEAtomicFA, prm.WQEAtomicMaskedCS, prm.WQEAtomicMaskedFA}
	flags := []Flags{0, Signalled, SignalledEvent, Solicited, Fence, FenceReads, FenceLocal, StrongOrder, Signalled | Solicited | Fence}
	w := WorkRequest{
		WRID: r.Uint64(), Op: ops[r.IntN(len(ops))], Flags: flags[r.IntN(len(flags))], Imm: r.Uint32(),
		Local: SGE{Addr: r.Uint64(), Len: r.Uint32N(1 << 31), LKey: r.Uint32()}, Remote: Remote{Addr: r.Uint64(), RKey: r.Uint32()},
	}
	switch w.Op {
	case prm.WQEAtomicCS, prm.WQEAtomicFA, prm.WQEAtomicMaskedCS, prm.WQEAtomicMaskedFA:
		w.Local.Len = 8
		w.Remote.Addr &^= 7
		mask := ^uint64(0)
		if w.Op >= prm.WQEAtomicMaskedCS && r.IntN(2) == 0 {
			w.Local.Len, mask = 4, 1<<32-1
		}
		w.Swap, w.Compare, w.SwapMask, w.CompareMask = r.Uint64()&mask, r.Uint64()&mask, r.Uint64()&mask, r.Uint64()&mask
	case prm.WQENop:
	default:
		switch {
		case w.Op != prm.WQERdmaRead && r.IntN(3) == 0:
			w.Inline = make([]byte, 1+r.IntN(200))
			for i := range w.Inline {
				w.Inline[i] = byte(r.Uint32())
			}
		case r.IntN(2) == 0:
			for range r.IntN(20) {
				w.More = append(w.More, SGE{Addr: r.Uint64(), Len: r.Uint32N(3), LKey: r.Uint32()})
			}
		}
		if r.IntN(8) == 0 {
			w.Local.Len = 0
		}
	}
	return w
}

// check takes the WQE apart with the decoder, which knows the layouts from
// internal/prm alone, and compares every field.
func check(t *testing.T, w *WorkRequest, wqe []byte, index uint16) {
	segs := DecodeWQE(wqe)
	next := func(name string) prm.Decoded {
		require.NotEmpty(t, segs, "no %s segment in %v", name, DecodeWQE(wqe))
		require.Equal(t, name, segs[0].Name)
		f := segs[0].Fields
		segs = segs[1:]
		return f
	}
	eq := func(f prm.Decoded, path string, want uint64) {
		v, ok := f.Find(path)
		require.True(t, ok, path)
		require.Equal(t, want, v.Num, path)
	}
	c := next("ctrl")
	eq(c, "opcode", uint64(w.Op))
	eq(c, "wqe_index", uint64(index))
	eq(c, "qpn", microQPN)
	eq(c, "ds", uint64(len(wqe)/16))
	eq(c, "ce", uint64(w.Flags>>2&3))
	eq(c, "fm", uint64(w.Flags>>5&7))
	eq(c, "se", uint64(w.Flags>>1&1))
	eq(c, "signature", 0)
	imm := uint64(0)
	if w.Op == prm.WQESendImm || w.Op == prm.WQESendInval || w.Op == prm.WQERdmaWriteImm {
		imm = uint64(w.Imm)
	}
	eq(c, "imm", imm)
	if w.Op >= prm.WQERdmaWrite && w.Op != prm.WQESend && w.Op != prm.WQESendImm {
		f := next("raddr")
		eq(f, "raddr", w.Remote.Addr)
		eq(f, "rkey", uint64(w.Remote.RKey))
	}
	pieces := append([]SGE{w.Local}, w.More...)
	word := func(name string, v uint64) {
		require.Equal(t, name, segs[0].Name)
		require.Equal(t, fmt.Sprintf("%0*x", 2*w.Local.Len, v), hex.EncodeToString(segs[0].Bytes), name)
		segs = segs[1:]
	}
	switch w.Op {
	case prm.WQENop:
		pieces = nil
	case prm.WQEAtomicCS:
		f := next("atomic")
		eq(f, "swap_add", w.Swap)
		eq(f, "compare", w.Compare)
	case prm.WQEAtomicFA:
		f := next("atomic")
		eq(f, "swap_add", w.Swap)
		eq(f, "compare", 0)
	case prm.WQEAtomicMaskedCS:
		word("swap", w.Swap)
		word("compare", w.Compare)
		word("swap_mask", w.SwapMask)
		word("compare_mask", w.CompareMask)
	case prm.WQEAtomicMaskedFA:
		word("add", w.Swap)
		word("boundary", w.SwapMask)
	}
	if w.Inline != nil {
		require.Equal(t, "inline", segs[0].Name)
		require.Equal(t, w.Inline, segs[0].Bytes)
		segs, pieces = segs[1:], nil
	}
	for _, p := range pieces {
		if p.Len != 0 {
			f := next("data")
			eq(f, "byte_count", uint64(p.Len))
			eq(f, "lkey", uint64(p.LKey))
			eq(f, "addr", p.Addr)
		}
	}
	require.Empty(t, segs)
}

// Random lists, posted whole, come out of the decoder as they went in, and
// complete with their numbers, through many turns of the ring.
func TestRandomLists(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 1))
		q, _ := newSQ(t, 6, nil)
		q.pi = r.Uint64() >> 1
		q.ci, q.rung = q.pi, uint32(q.pi)
		for range 100 {
			work := make([]WorkRequest, 1+r.IntN(12))
			for i := range work {
				work[i] = randomWork(r)
				if i > 0 && r.IntN(2) == 0 { // neighbours alike, for the hot loops
					wrid := work[i].WRID
					work[i] = work[i-1]
					work[i].WRID = wrid
				}
			}
			pi := q.pi
			n, err := q.Post(work)
			if err != nil {
				require.ErrorIs(t, err, ErrQueueFull)
			} else {
				require.Len(t, work, n)
			}
			at := pi
			for i := range n {
				s := q.slots[q.index(at)]
				size := int(prm.AsWQECtrlSeg(wqeAt(q, at, 16)).Ds()) * 16
				check(t, &work[i], wqeAt(q, at, size), uint16(at))
				require.Equal(t, work[i].WRID, s.wrid)
				require.Equal(t, blocksOf(size/16), s.end-at)
				at = s.end
			}
			require.Equal(t, at, q.pi)
			require.Equal(t, uint32(q.pi), q.rung)
			q.RetireAll()
		}
	}
}

// The decoder shows any bytes without failing.
func FuzzDecodeWQE(f *testing.F) {
	for _, s := range samples {
		b, err := hex.DecodeString(wanted(s.want, 1))
		require.NoError(f, err)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		end := 0
		for _, s := range DecodeWQE(b) {
			require.GreaterOrEqual(t, s.Offset, end)
			require.LessOrEqual(t, s.Offset, len(b))
			end = s.Offset
			require.NotEmpty(t, s.String())
		}
		for _, s := range DecodeRecvWQE(b) {
			require.Equal(t, "data", s.Name)
		}
	})
}
