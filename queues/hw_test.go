//go:build hw

package queues_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/internal/hwtest"
	"github.com/mlxvfio/mlxvfio/queues"
)

// TestHardware moves data on a real function that is bound to vfio-pci (see
// internal/hwtest for how to name it): every operation by loopback, waited for in both ways, and
// every error a user can cause. It resets the function.
func TestHardware(t *testing.T) {
	bdf, _ := hwtest.Function(t)
	realFunction = hwtest.Open
	t.Cleanup(func() { realFunction = nil })
	for _, interrupts := range []bool{false, true} {
		t.Run(fmt.Sprintf("Loopback/interrupts=%t", interrupts), func(t *testing.T) {
			b := newBench(t, bdf)
			_, vectors := b.hca.CompletionVectors()
			require.NotEmpty(t, vectors, "an interrupt to wait for")
			l := newLink(b, queues.QPOptions{}, queues.ConnectOptions{MTU: 512})
			l.interrupts = interrupts
			for _, o := range loopbackOps {
				t.Run(o.name, func(t *testing.T) {
					step := *l
					step.bench = &bench{t: t, dev: l.dev, ch: l.ch}
					o.run(&step)
					step.quiet()
				})
			}
		})
		t.Run(fmt.Sprintf("Datagrams/interrupts=%t", interrupts), func(t *testing.T) { datagrams(t, newBench(t, bdf), interrupts) })
	}
	t.Run("LoopbackToItself", func(t *testing.T) { loopbackToItself(t, newBench(t, bdf)) })
	t.Run("SharedReceiveQueue", TestSharedReceiveQueue)
	t.Run("CrossChannel", TestCrossChannel)
	t.Run("ErrorCompletions", TestErrorCompletions)
	t.Run("FlushOfReceives", TestFlushOfReceives)
}
