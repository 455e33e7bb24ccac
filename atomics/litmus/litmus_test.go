package litmus

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/atomics"
)

func show(t *testing.T, c *Card) {
	t.Helper()
	for _, r := range c.Rows {
		t.Log(strings.Join(r.Columns(), " | "))
	}
}

// A good device gets a good card, whatever its byte order and however its
// completion queues are arranged.
func TestGoodDevice(t *testing.T) {
	for name, o := range map[string]fakeOptions{
		"little-endian":             {maxWrite: 32, late: true},
		"big-endian":                {maxWrite: 32, late: true, memory: atomics.BigEndian},
		"one CQ":                    {maxWrite: 32, shareCQ: true},
		"two queues":                {maxWrite: 32, late: true, queues: 2},
		"256 bytes":                 {maxWrite: 256, late: true, caps: atomics.Caps{Operations: 0xf, SizesQP: 0x1fc}},
		"host order, 8-byte writes": {maxWrite: 8, late: true, caps: atomics.Caps{Operations: 0xf, SizesQP: 0xc, Mode: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			_, rig := newFake(t, o)
			probe(t, rig)
			c, err := Run(context.Background(), rig, Options{Seed: 1, Scale: 0.3})
			show(t, c)
			require.NoError(t, err)
			require.NoError(t, c.Err())
			require.True(t, c.OK)
			require.Empty(t, c.Faults)
			for _, r := range c.Rows {
				require.NotEqual(t, NoTime, r.Verdict, r.Guarantee)
				if r.Required && r.Verdict != NotOffered {
					require.Equal(t, Holds, r.Verdict, r.Guarantee)
					require.Positive(t, r.Ops, r.Guarantee)
				}
			}
		})
	}
}

// Each planted fault is found and named.
func TestPlantedFaults(t *testing.T) {
	for _, f := range []atomics.Fault{
		atomics.FaultMaskOrder, atomics.FaultNoBoundary, atomics.FaultTornWrite, atomics.FaultLostUpdate,
		atomics.FaultLateWrite, atomics.FaultNoFence,
	} {
		for seed := range uint64(3) {
			t.Run(string(f), func(t *testing.T) {
				_, rig := newFake(t, fakeOptions{maxWrite: 32, late: true, fault: f, seed: seed})
				c, err := Run(context.Background(), rig, Options{Seed: seed, Scale: 0.3, Budget: 20 * time.Second})
				show(t, c)
				require.NoError(t, err)
				require.False(t, c.OK)
				require.Equal(t, []atomics.Fault{f}, c.Faults, "it and nothing else")
				require.ErrorContains(t, c.Err(), string(f))
				var fe *atomics.FaultError
				require.ErrorAs(t, c.Err(), &fe)
			})
		}
	}
}

func TestCardJSON(t *testing.T) {
	_, rig := newFake(t, fakeOptions{maxWrite: 32})
	c, err := Run(context.Background(), rig, Options{Scale: 0.05})
	require.NoError(t, err)
	b, err := json.Marshal(c)
	require.NoError(t, err)
	var back Card
	require.NoError(t, json.Unmarshal(b, &back))
	require.Equal(t, c.Rows, back.Rows)
	require.True(t, back.OK)
}
