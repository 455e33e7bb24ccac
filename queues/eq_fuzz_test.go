package queues

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// FuzzEQ puts any bytes into an event ring, as a device that is broken or hostile
// may: the poll ends, hands over no more than a ring of entries in one look without
// telling the device, and an event channel takes CQ numbers and types as they come.
func FuzzEQ(f *testing.F) {
	entry := func(typ prm.EventType, owner byte, cqn uint32) []byte {
		e := make([]byte, prm.EQESize)
		prm.AsEQE(e).SetEventType(typ)
		prm.AsEQE(e).EventData().CompEvent().SetCQNumber(cqn)
		e[63] = owner
		return e
	}
	f.Add(entry(prm.EventCompletion, 0, 7), uint32(0))
	f.Add(append(entry(prm.EventCompletion, 0, 0xffffff), entry(prm.EventCQError, 0, 7)...), uint32(3))
	f.Add(append(entry(prm.EventCmd, 1, 0), entry(0xff, 0, 0)...), uint32(1<<24-1))
	f.Add(make([]byte, 16*64), uint32(1<<32-1))
	bar := make([]byte, 1<<16)
	d, err := vfio.NewDevice(doorbellBAR{bar: bar}, vfio.DeviceOptions{})
	require.NoError(f, err)
	f.Cleanup(func() { _ = d.Close() })
	w, err := d.Window(vfio.RegionBAR0)
	require.NoError(f, err)
	f.Fuzz(func(t *testing.T, raw []byte, start uint32) {
		r, _ := newRing(4)
		dev := &Dev{BAR: w}
		q := &EQ{ring: *r, uar: &UAR{dev: dev, index: 2, off: 0x2000}, eqn: 5}
		q.ci, q.told = start, start
		copy(q.mem.Bytes(), raw)
		c := &EventChannel{eq: q, dev: dev}
		seen := 0
		// What is there belongs to two passes of the ring at most: the ownership bit
		// turns with each, so a ring that does not change comes to its end.
		n, err := q.Poll(func(e *prm.EQE) {
			seen++
			c.take(e)
			require.NotEmpty(t, e.EventType().String())
			require.LessOrEqual(t, (q.ci-q.told)&ciMask, uint32(UpdateEvery))
		})
		require.Equal(t, n, seen)
		require.LessOrEqual(t, n, 16)
		require.Equal(t, uint64(n), c.stray, "no CQ of these numbers lives")
		if err != nil {
			var oe *OverrunError
			require.ErrorAs(t, err, &oe)
		}
		fired, _ := c.Ready()
		require.Empty(t, fired)
		require.Equal(t, q.ci, q.told)
	})
}
