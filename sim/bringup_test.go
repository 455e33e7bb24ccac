package sim

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// TestBringUp walks a function from reset to event queues and back, as drivers do.
func TestBringUp(t *testing.T) {
	for _, p := range Profiles() {
		t.Run(p, func(t *testing.T) {
			r := newRaw(t, Options{Profile: p})
			r.to(phaseInit)
			require.Len(t, r.pages, r.chip.prof.bootPages+r.chip.prof.initPages)
			r.eventMode(5)
			require.EqualValues(t, firstUAR, r.uar)
			require.EqualValues(t, firstEQN, r.eqn)
			require.Nil(t, r.event(), "CREATE_EQ of the command EQ does not post its own completion")

			// Event mode: completion as event, interrupt only when armed.
			r.ok(cmd(prm.OpNop, 0, 16), 16)
			require.False(t, r.vectors[1].TryWait(), "not armed yet")
			r.arm() // behind the producer: at once
			require.True(t, r.vectors[1].TryWait())
			ev := r.event()
			require.NotNil(t, ev)
			require.Equal(t, prm.EventCmd, ev.EventType())
			require.EqualValues(t, 1, ev.EventData().CmdInterCompEvent().CommandCompletionVector())
			r.arm()
			require.False(t, r.vectors[1].TryWait())
			r.ok(cmd(prm.OpNop, 0, 16), 16)
			require.True(t, r.vectors[1].TryWait())
			require.NotNil(t, r.event())

			// The queue goes round: 100 events through 32 entries.
			for range 100 {
				r.ok(cmd(prm.OpNop, 0, 16), 16)
				require.NotNil(t, r.event())
				r.arm()
			}

			in := cmd(prm.OpDestroyEQ, 0, 16)
			prm.AsDestroyEQIn(in).SetEQNumber(uint8(r.eqn))
			r.ok(in, 16)
			require.Nil(t, r.event())
			in = cmd(prm.OpDeallocUAR, 0, 16)
			prm.AsDeallocUARIn(in).SetUAR(r.uar)
			r.ok(in, 16)
			r.ok(cmd(prm.OpTeardownHCA, 0, 16), 16)
			back := r.take(len(r.pages) + 10)
			slices.Sort(back)
			require.Equal(t, r.pages, back, "every page comes back, once")
			r.ok(cmd(prm.OpDisableHCA, 0, 16), 16)
			require.Equal(t, State{Phase: "off", NICInterface: "FULL_DRIVER", Mappings: 1, MapCalls: 1, Vectors: 4, Handles: 1, Faults: []string{}}, r.chip.State(0))

			// Second life without a reset.
			r.pages, r.next = nil, 1<<20
			r.to(phaseInit)
			require.NoError(t, r.dev.SetIRQs(vfio.IRQMSIX, 0, nil))
		})
	}
}
