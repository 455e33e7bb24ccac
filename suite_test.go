package mlxvfio_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/internal/drivertest"
	"github.com/mlxvfio/mlxvfio/sim"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// chip makes a model that ends with the test.
func chip(t testing.TB, words string) *sim.Chip {
	t.Helper()
	o, err := sim.Parse(words)
	require.NoError(t, err)
	c, err := sim.New(o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

// spotless reports what a function of the model still holds, and any touch of
// memory the driver had taken away.
func spotless(c *sim.Chip, i int) func(drivertest.Reporter) {
	return func(r drivertest.Reporter) {
		r.Helper()
		held(c, i)(r)
		if n := c.Counters(i); n.DMAFaults != 0 || n.PagesUnmapped != 0 {
			r.Errorf("the device was left with memory that was taken away: %+v", n)
		}
	}
}

// held reports what a function of the model still holds.
func held(c *sim.Chip, i int) func(drivertest.Reporter) {
	return func(r drivertest.Reporter) {
		r.Helper()
		if s := c.State(i); s.Handles != 0 || s.Mappings != 0 || s.Vectors != 0 {
			r.Errorf("the function is still held: %+v", s)
		}
	}
}

// profiles are the devices that the model can be, each followed by more.
func profiles(more ...string) []string {
	var words []string
	for _, p := range sim.Profiles() {
		words = append(words, "sim:"+p)
	}
	return append(words, more...)
}

// TestDriver runs the suite on the model in process, on each of its devices.
func TestDriver(t *testing.T) {
	const busy = "sim:cx5,load=20000,seed=7"
	for _, words := range profiles("sim:cx5,port=eth", busy) {
		t.Run(words, func(t *testing.T) {
			c := chip(t, words)
			drivertest.Run(t, func(testing.TB) vfio.Transport { return c.Function(0) },
				drivertest.Options{Sparse: words == busy, Clean: held(c, 0)})
		})
	}
}
