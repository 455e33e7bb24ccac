package vfio_test

import (
	"io"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/vfio"
	"github.com/mlxvfio/mlxvfio/vfio/vfiotest"
)

// ramOptions let the suite do everything to a RAM device below a decorator.
func ramOptions(ram *(*vfiotest.RAM)) vfiotest.Options {
	return vfiotest.Options{
		Scratch: []vfio.Span{{Offset: 0, Size: 64}, {Offset: 4088, Size: 64}, {Offset: 65472, Size: 64}},
		Raise:   func(t *testing.T, _ vfio.Transport, i int) { (*ram).Raise(i) },
		Access: func(_ vfio.Transport, iova uint64, p []byte, write bool) error {
			return (*ram).Memory().Access(iova, p, write)
		},
	}
}

func TestContract(t *testing.T) {
	var ram *vfiotest.RAM
	over := func(o vfiotest.RAMOptions, wrap func(vfio.Transport) vfio.Transport) func(t *testing.T) vfio.Transport {
		return func(t *testing.T) vfio.Transport {
			ram = vfiotest.NewRAM(o)
			return wrap(ram)
		}
	}
	same := func(t vfio.Transport) vfio.Transport { return t }
	t.Run("RAM", func(t *testing.T) { vfiotest.Run(t, over(vfiotest.RAMOptions{}, same), ramOptions(&ram)) })
	t.Run("MappedRAM", func(t *testing.T) {
		o := vfiotest.RAMOptions{Mapped: []vfio.Span{{Offset: 0, Size: 4096}, {Offset: 8192, Size: 57344}}}
		vfiotest.Run(t, over(o, same), ramOptions(&ram))
	})
	t.Run("SharedDMA", func(t *testing.T) {
		o := ramOptions(&ram)
		o.SharedDMA = true
		vfiotest.Run(t, over(vfiotest.RAMOptions{Mapper: vfiotest.NewMapper(vfio.DMALimits{})}, same), o)
	})
	t.Run("NeedsFile", func(t *testing.T) {
		open := func(t *testing.T) vfio.Transport {
			m := vfiotest.NewMapper(vfio.DMALimits{NeedsFile: true})
			ram = vfiotest.NewRAM(vfiotest.RAMOptions{Mapper: m})
			return ram
		}
		o := ramOptions(&ram)
		o.SharedDMA = true
		vfiotest.Run(t, open, o)
	})
	for _, backend := range []string{vfio.BackendType1, vfio.BackendIOMMUFD, vfio.BackendNoIOMMU} {
		t.Run("Kernel/"+backend, func(t *testing.T) {
			var raise func(int)
			open := func(t *testing.T) vfio.Transport {
				open, r, clean := vfio.FakeKernel(t, backend)
				raise = r
				t.Cleanup(clean) // runs after the suite has closed the transport
				tr, err := open()
				require.NoError(t, err)
				info, err := tr.Info()
				require.NoError(t, err)
				require.Equal(t, backend, info.Backend)
				return tr
			}
			vfiotest.Run(t, open, vfiotest.Options{
				Scratch: []vfio.Span{{Offset: 64, Size: 64}, {Offset: 0x4000, Size: 64}},
				Raise:   func(_ *testing.T, _ vfio.Transport, i int) { raise(i) },
			})
		})
	}
	t.Run("Recorder", func(t *testing.T) {
		wrap := func(x vfio.Transport) vfio.Transport { return vfio.NewRecorder(x, io.Discard) }
		vfiotest.Run(t, over(vfiotest.RAMOptions{}, wrap), ramOptions(&ram))
	})
	t.Run("Faulty", func(t *testing.T) {
		wrap := func(x vfio.Transport) vfio.Transport { return vfio.NewFaulty(x, nil) }
		vfiotest.Run(t, over(vfiotest.RAMOptions{}, wrap), ramOptions(&ram))
	})
}

// A suite that cannot fail proves nothing: each planted fault must be noticed. It
// runs in a process of its own, as what is to fail there must not fail here.
func TestContractNotices(t *testing.T) {
	planted := map[string]vfio.Fault{
		"lost unmap":       {Verb: vfio.VerbUnmapDMA, Drop: true, Times: -1},
		"lost map":         {Verb: vfio.VerbMapDMA, Drop: true, Times: -1},
		"lost writes":      {Verb: vfio.VerbWrite, Drop: true, Times: -1},
		"lost interrupts":  {Verb: vfio.VerbSetIRQs, Drop: true, Times: -1},
		"unplugged":        {Verb: vfio.VerbRead, AllOnes: true},
		"failing close":    {Verb: vfio.VerbClose, Err: io.EOF, Times: -1},
		"failing mappings": {Verb: vfio.VerbMapRegion, Err: io.EOF, Times: -1},
	}
	const env = "MLXVFIO_TEST_PLANTED"
	if name := os.Getenv(env); name != "" {
		var ram *vfiotest.RAM
		vfiotest.Run(t, func(*testing.T) vfio.Transport {
			ram = vfiotest.NewRAM(vfiotest.RAMOptions{Vectors: 2})
			return vfio.NewFaulty(ram, vfio.Plan{planted[name]})
		}, quick(ramOptions(&ram)))
		return
	}
	for name := range planted {
		cmd := exec.Command(os.Args[0], "-test.run=^TestContractNotices$", "-test.v")
		cmd.Env = append(os.Environ(), env+"="+name)
		out, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		require.ErrorAs(t, err, &exit, "%s was not noticed:\n%s", name, out)
		require.Contains(t, string(out), "--- FAIL", "%s", name)
		require.NotContains(t, string(out), "panic:", "%s:\n%s", name, out)
	}
}

// quick does not wait long for what will not come.
func quick(o vfiotest.Options) vfiotest.Options {
	o.Patience = 100 * time.Millisecond
	return o
}
