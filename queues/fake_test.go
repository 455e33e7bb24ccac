package queues

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/vfio"
)

// memoryBAR is a function whose BAR0 is mapped memory: doorbells take the same
// path as on a card, and the test reads them back.
type memoryBAR struct {
	vfio.Transport
	bar []byte
}

func (m *memoryBAR) Info() (vfio.DeviceInfo, error) { return vfio.DeviceInfo{Name: "memory"}, nil }
func (m *memoryBAR) RegionInfo(int) (vfio.RegionInfo, error) {
	return vfio.RegionInfo{Size: uint64(len(m.bar)), Read: true, Write: true}, nil
}
func (m *memoryBAR) MapRegion(int) ([]vfio.Area, error) { return []vfio.Area{{Bytes: m.bar}}, nil }
func (m *memoryBAR) DMA() vfio.Mapper                   { return nowhere{} }

// Only the command word of the configuration space is asked for, at close.
func (m *memoryBAR) ReadRegion(int, uint64, []byte) error   { return nil }
func (m *memoryBAR) WriteRegion(int, uint64, []byte) error  { return nil }
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
func memoryUAR(tb testing.TB) (*UAR, []byte) {
	bar := make([]byte, 1<<16)
	d, err := vfio.NewDevice(&memoryBAR{bar: bar}, vfio.DeviceOptions{})
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, d.Close()) })
	w, err := d.Window(vfio.RegionBAR0)
	require.NoError(tb, err)
	require.True(tb, w.Mapped(0x2800), "doorbells must not trap")
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
