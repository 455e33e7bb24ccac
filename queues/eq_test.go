package queues

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// doorbellBAR is a function whose BAR0 is plain memory.
type doorbellBAR struct {
	vfio.Transport
	bar []byte
}

func (b doorbellBAR) Info() (vfio.DeviceInfo, error) { return vfio.DeviceInfo{Name: "memory"}, nil }
func (b doorbellBAR) RegionInfo(int) (vfio.RegionInfo, error) {
	return vfio.RegionInfo{Size: uint64(len(b.bar)), Read: true, Write: true}, nil
}
func (b doorbellBAR) MapRegion(int) ([]vfio.Area, error)     { return []vfio.Area{{Bytes: b.bar}}, nil }
func (b doorbellBAR) DMA() vfio.Mapper                       { return noDMA{} }
func (b doorbellBAR) ReadRegion(int, uint64, []byte) error   { return nil }
func (b doorbellBAR) WriteRegion(int, uint64, []byte) error  { return nil }
func (b doorbellBAR) SetIRQs(int, int, []*vfio.Vector) error { return nil }
func (b doorbellBAR) Close() error                           { return nil }

type noDMA struct{}

func (noDMA) Map(vfio.Mapping) error     { return nil }
func (noDMA) Unmap(uint64, uint64) error { return nil }
func (noDMA) Limits() (vfio.DMALimits, error) {
	return vfio.DMALimits{Ranges: []vfio.IOVARange{{First: 0x1000, Last: 1<<40 - 1}}, PageSizes: 0x1000}, nil
}

// Within one long batch the device is told the consumer index every UpdateEvery
// entries, so that a device that goes on writing does not overrun the ring; at
// the end Arm or Update tell it the rest.
func TestPollTellsTheConsumerIndex(t *testing.T) {
	bar := make([]byte, 1<<16)
	d, err := vfio.NewDevice(doorbellBAR{bar: bar}, vfio.DeviceOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	w, err := d.Window(vfio.RegionBAR0)
	require.NoError(t, err)
	r, p := newRing(8)
	q := &EQ{ring: *r, uar: &UAR{dev: &Dev{BAR: w}, index: 2, off: 0x2000}, eqn: 5}
	word := func(off int) uint32 { return binary.BigEndian.Uint32(bar[0x2000+off:]) }

	const entries = 1000 // nearly four times the ring
	written := 0
	feed := func() {
		told := q.told
		for written < entries && p.pi-told < 256 {
			p.write(p.pi)
			written++
		}
	}
	feed()
	seen := uint32(0)
	n, err := q.Poll(func(e *prm.EQE) {
		require.Equal(t, seen, tag(e))
		seen++
		told := word(UAREQUpdate) & ciMask
		require.LessOrEqual(t, seen-told, uint32(UpdateEvery), "after %d entries the device knows of %d", seen, told)
		feed() // as far as a device that goes by the doorbell would
	})
	require.NoError(t, err)
	require.Equal(t, entries, n)
	require.Equal(t, uint32(5), word(UAREQUpdate)>>24, "the EQN is beside the index")
	require.Zero(t, word(UAREQArm), "nothing was armed")
	q.Update()
	require.Equal(t, uint32(entries), word(UAREQUpdate)&ciMask)
	q.Arm()
	require.Equal(t, uint32(5<<24|entries), word(UAREQArm))
}
