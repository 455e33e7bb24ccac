package queues

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// memoryBAR is a function whose BAR0 is mapped memory: doorbells take the same
// path as on a card, and the test reads them back.
type memoryBAR struct {
	vfio.Transport
	bar   []byte
	traps bool // nothing is mapped
}

func (m *memoryBAR) Info() (vfio.DeviceInfo, error) { return vfio.DeviceInfo{Name: "memory"}, nil }
func (m *memoryBAR) RegionInfo(int) (vfio.RegionInfo, error) {
	return vfio.RegionInfo{Size: uint64(len(m.bar)), Read: true, Write: true}, nil
}
func (m *memoryBAR) MapRegion(int) ([]vfio.Area, error) {
	if m.traps {
		return nil, nil
	}
	return []vfio.Area{{Bytes: m.bar}}, nil
}
func (m *memoryBAR) DMA() vfio.Mapper { return nowhere{} }

// Of the configuration space only the command word is asked for, at close.
func (m *memoryBAR) ReadRegion(int, uint64, []byte) error { return nil }
func (m *memoryBAR) WriteRegion(region int, off uint64, p []byte) error {
	if region == vfio.RegionBAR0 {
		copy(m.bar[off:], p)
	}
	return nil
}
func (m *memoryBAR) SetIRQs(int, int, []*vfio.Vector) error { return nil }
func (m *memoryBAR) Close() error                           { return nil }

// nowhere is an address space for nothing.
type nowhere struct{}

func (nowhere) Map(vfio.Mapping) error     { return nil }
func (nowhere) Unmap(uint64, uint64) error { return nil }
func (nowhere) Limits() (vfio.DMALimits, error) {
	return vfio.DMALimits{Ranges: []vfio.IOVARange{{First: 0x1000, Last: 1<<40 - 1}}, PageSizes: 0x1000}, nil
}

// memoryUAR is a doorbell page in mapped memory, and that memory.
func memoryUAR(tb testing.TB) (*UAR, []byte) { return uarOf(tb, &memoryBAR{}) }

// uarOf is a doorbell page of a function.
func uarOf(tb testing.TB, m *memoryBAR) (*UAR, []byte) {
	bar := make([]byte, 1<<16)
	m.bar = bar
	d, err := vfio.NewDevice(m, vfio.DeviceOptions{})
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, d.Close()) })
	w, err := d.Window(vfio.RegionBAR0)
	require.NoError(tb, err)
	require.Equal(tb, !m.traps, w.Mapped(0x2800))
	return &UAR{dev: &Dev{BAR: w}, index: 2, off: 0x2000}, bar[0x2000:0x3000]
}

// newSQ is a send queue in ordinary memory, and its doorbell record.
func newSQ(tb testing.TB, log uint8, u *UAR) (*SendQueue, []byte) {
	rec := make([]byte, RecordSize)
	q, err := NewSendQueue(SendQueueConfig{
		QPN: microQPN, LogWQEBB: log, UAR: u, Ring: vfio.MemOf(make([]byte, WQEBB<<log)), Record: vfio.MemOf(rec),
	})
	require.NoError(tb, err)
	return q, rec
}

// wqeAt is the WQE of n bytes that begins at running block pi, taken out of the
// ring around its end.
func wqeAt(q *SendQueue, pi uint64, n int) []byte {
	var b []byte
	for len(b) < n {
		at := int(pi) % q.Size() * WQEBB
		b = append(b, q.buf[at:at+WQEBB]...)
		pi++
	}
	return b[:n]
}

// device is the hardware side of a CQ: it writes CQEs as Linux
// device.h has them (struct mlx5_cqe64), through the views of internal/prm.
type device struct {
	mem vfio.Mem
	log uint8
	pi  uint32
	cqe prm.CQE64 // being written
}

// newCQ is a CQ in ordinary memory, its record, and the device that feeds it.
func newCQ(tb testing.TB, log uint8, u *UAR) (*CQRing, *device, []byte) {
	rec := make([]byte, RecordSize)
	mem := vfio.MemOf(make([]byte, cqeSize<<log))
	r, err := NewCQRing(CQRingConfig{Name: "test", CQN: 0x4321, LogSize: log, UAR: u, Ring: mem, Record: vfio.MemOf(rec)})
	require.NoError(tb, err)
	return r, &device{mem: mem, log: log}, rec
}

// write completes one entry; fill sets all but the owner bit.
func (d *device) write(fill func(e *prm.CQE64)) {
	e := &d.cqe
	clear(e[:])
	fill(e)
	e.SetOwner(d.pi>>d.log&1 != 0)
	at := int(d.pi) % (1 << d.log) * cqeSize
	d.mem.CopyIn(at, e[:cqeOwn])
	d.mem.StoreBE32(at+cqeOwn, binary.BigEndian.Uint32(e[cqeOwn:]))
	d.pi++
}

// sent completes the send WQE with this index.
func (d *device) sent(qpn uint32, index uint16, op prm.WQEOpcode) {
	d.write(func(e *prm.CQE64) {
		e.SetOpcode(prm.CQEReq)
		e.SetQPN(qpn)
		e.SetWQECounter(index)
		e.SetSWQEOpcode(op)
		e.SetByteCnt(0xb0 + uint32(index))
	})
}

// failed completes a WQE with an error.
func (d *device) failed(cqe prm.CQEOpcode, qpn uint32, index uint16, op prm.WQEOpcode, s prm.CQESyndrome) {
	d.write(func(e *prm.CQE64) {
		x := prm.AsErrCQE(e[:])
		x.SetOpcode(cqe)
		x.SetQPN(qpn)
		x.SetWQECounter(index)
		x.SetSWQEOpcode(op)
		x.SetSyndrome(s)
		x.SetVendorErrSynd(0x81)
	})
}
