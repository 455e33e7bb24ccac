package litmus_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio"
	"github.com/mlxvfio/mlxvfio/atomics"
	"github.com/mlxvfio/mlxvfio/atomics/litmus"
	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/sim"
)

// model brings a function of the model up.
func model(t testing.TB, words string) *mlxvfio.HCA {
	t.Helper()
	o, err := sim.Parse(words)
	require.NoError(t, err)
	c, err := sim.New(o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	h, err := mlxvfio.Open(context.Background(), c.Function(0), mlxvfio.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, h.Close(context.Background())) })
	return h
}

// host is the function as the suite wants it.
func host(t testing.TB, h *mlxvfio.HCA, name string) litmus.Host {
	t.Helper()
	general, ok := h.Cap(prm.CapGeneral)
	require.True(t, ok)
	atomic, ok := h.Cap(prm.CapAtomic)
	require.True(t, ok)
	caps, err := atomics.ParseCaps(atomic.Current, general.Current)
	require.NoError(t, err)
	return litmus.Host{Name: name, Dev: h.Queues(), Caps: caps}
}

func build(t testing.TB, o litmus.BuildOptions) *litmus.Bench {
	t.Helper()
	b, err := litmus.Build(context.Background(), o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close(context.Background())) })
	return b
}

func show(t *testing.T, c *litmus.Card) {
	t.Helper()
	for _, r := range c.Rows {
		t.Log(strings.Join(r.Columns(), " | "))
	}
}

// bounded is a context that ends before the test does.
func bounded(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func TestModelKeepsItsGuarantees(t *testing.T) {
	for _, words := range []string{"sim:cx5", "sim:cx4", "sim:cx5,port=eth", "sim:cx5,fault=memory-order"} {
		t.Run(words, func(t *testing.T) {
			b := build(t, litmus.BuildOptions{Name: words, Responder: host(t, model(t, words), "a")})
			c, err := litmus.Run(bounded(t), &b.Rig, litmus.Options{Seed: 1, Scale: 0.3})
			show(t, c)
			require.NoError(t, err)
			require.NoError(t, c.Err())
			require.True(t, c.Profile.Probed)
			want := atomics.LittleEndian
			if strings.Contains(words, "memory-order") {
				want = atomics.BigEndian
			}
			require.Equal(t, want, c.Profile.Order(), "the suite works in the order that was found")
		})
	}
}

// Each fault of the model's data path that breaks a guarantee is found and named.
func TestModelFaults(t *testing.T) {
	for _, f := range []atomics.Fault{
		atomics.FaultMaskOrder, atomics.FaultNoBoundary, atomics.FaultTornWrite, atomics.FaultLostUpdate,
		atomics.FaultLateWrite, atomics.FaultNoFence,
	} {
		for _, profile := range []string{"cx5", "cx4"} {
			words := "sim:" + profile + ",fault=" + string(f)
			t.Run(words, func(t *testing.T) {
				for seed := range uint64(3) {
					b := build(t, litmus.BuildOptions{Name: words, Responder: host(t, model(t, fmt.Sprintf("%s,seed=%d", words, seed)), "a")})
					c, err := litmus.Run(bounded(t), &b.Rig, litmus.Options{Seed: seed, Scale: 0.3})
					if seed == 0 {
						show(t, c)
					}
					require.NoError(t, err)
					require.False(t, c.OK)
					require.Contains(t, c.Faults, f)
				}
			})
		}
	}
}
