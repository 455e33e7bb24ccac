//go:build hw

package queues_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/queues"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// TestHardware moves data on a real function that is bound to vfio-pci and named
// by MLXVFIO_TEST_BDF: every operation by loopback, waited for in both ways, and
// every error a user can cause. It resets the function.
func TestHardware(t *testing.T) {
	bdf := os.Getenv("MLXVFIO_TEST_BDF")
	if bdf == "" {
		t.Skip("MLXVFIO_TEST_BDF names no function, such as 0000:3b:00.0, bound to vfio-pci")
	}
	realFunction = func(t testing.TB) vfio.Transport {
		tr, err := vfio.OpenGroup(bdf, vfio.KernelOptions{})
		require.NoError(t, err)
		return tr
	}
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
