package mlxvfio_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio"
	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/queues"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// fewVectors is a function with so many MSI-X vectors.
type fewVectors struct {
	vfio.Transport
	n int
}

func (f fewVectors) IRQInfo(i int) (vfio.IRQInfo, error) {
	info, err := f.Transport.IRQInfo(i)
	if i == vfio.IRQMSIX {
		info.Count = min(info.Count, f.n)
	}
	return info, err
}

// A function with few interrupts shares them among the driver's event queues;
// one without any is polled. Everything works in each case.
func TestFewVectors(t *testing.T) {
	for n := range 4 {
		inBubble(t, func(t *testing.T) {
			c := chip(t, "sim:cx5")
			h, err := mlxvfio.Open(t.Context(), fewVectors{c.Function(0), n}, mlxvfio.Options{})
			require.NoError(t, err)
			require.Equal(t, n > 0, h.EventMode())
			require.Equal(t, n, h.Info().Vectors)
			for i, q := range h.Info().EQs {
				if n > 0 {
					require.Equal(t, min(i, n-1), int(q.Vector), q.Name)
				}
			}
			sub := h.Subscribe(8, queues.EventMask{})
			for range 3 {
				require.NoError(t, h.Conn().NOP(t.Context()))
				raise(t, h, eqnOf(t, h, "async"), event(prm.EventCQError, 0))
				<-sub.C()
			}
			require.True(t, c.RequestPages(0, 64))
			sleep(1)
			require.Zero(t, c.State(0).PagesWanted)
			require.Zero(t, h.Conn().Stats().Recovered)
			closed(t, h, c)
		})
	}
}

// Interrupts that get lost now and then cost time, not correctness: the next arm
// or the look before a time-out finds what is there.
func TestInterruptsGetLost(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h, c := opened(t, "sim:cx5", mlxvfio.Options{})
		require.NoError(t, c.SetFault("lost-irq", "0#1"))
		require.NoError(t, h.Conn().NOP(t.Context()))
		st := h.Conn().Stats()
		require.Equal(t, uint64(1), st.Recovered)
		require.Equal(t, uint64(1), st.LostInterrupts)
		require.NoError(t, h.Conn().NOP(t.Context()))
		require.Equal(t, uint64(1), h.Conn().Stats().Recovered, "one lost interrupt is one")
		closed(t, h, c)
	})
}
