package health

import (
	"fmt"
	"time"

	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// Byte offsets in BAR 0 of the dwords of a sample. The tests compare them with
// the descriptor of initial_seg in internal/prm.
const (
	offNIC       = 0x0014 // nic_interface, bits 10:8
	offBuffer    = 0x0200 // health buffer, 64 bytes
	offFWVersion = 0x0230 // health buffer: fw_version
	offSynd      = 0x023c // health buffer: irisc_index, synd, ext_synd
	offCounter   = 0x1010 // health_syndrome, health_counter

	windowEnd = offCounter + 4

	allOnes = 0xffffffff
)

// CounterMask covers the counter in dword 0x1010 (mlx5_ifc health_counter, 24
// bits; rdma-core masks so). The byte above it is a copy of the syndrome: were it
// compared too, as Linux does, a syndrome that appears would look as if the counter
// had moved, and put the report of a stopped counter off.
const CounterMask = 0xffffff

// Sample is one look at the function: the four dwords in host order, as they were
// read.
type Sample struct {
	// At is the wall clock, for people. Elapsed is the monotonic time since the
	// monitor started: differences are taken of it.
	At      time.Time     `json:"at"`
	Elapsed time.Duration `json:"elapsed_ns"`
	Health  uint32        `json:"health"`     // 0x1010: syndrome copy 31:24, counter 23:0
	NIC     uint32        `json:"nic"`        // 0x14: nic_interface 10:8
	FW      uint32        `json:"fw_version"` // 0x230
	Synd    uint32        `json:"synd_dword"` // 0x23c: irisc_index 31:24, synd 23:16, ext_synd 15:0
}

// Counter is the health counter, 24 bits.
func (s *Sample) Counter() uint32 { return s.Health & CounterMask }

// CounterSyndrome is the copy of the syndrome beside the counter. Sources disagree
// on its place (mlx5_ifc: high byte, illumos: low byte), so no verdict is built on
// it.
func (s *Sample) CounterSyndrome() prm.HealthSyndrome { return prm.HealthSyndrome(s.Health >> 24) }

// NICInterface is nic_interface. All ones read as 7, software reset: ask Ones.
func (s *Sample) NICInterface() prm.NICInterface { return prm.NICInterface(s.NIC >> 8 & 7) }

// Syndrome is synd of the health buffer: 0 is no error.
func (s *Sample) Syndrome() prm.HealthSyndrome { return prm.HealthSyndrome(s.Synd >> 16) }

// Ones is how many of the four dwords read all ones.
func (s *Sample) Ones() int {
	n := 0
	for _, v := range [...]uint32{s.Health, s.NIC, s.FW, s.Synd} {
		if v == allOnes {
			n++
		}
	}
	return n
}

// moved is by how much the counter went on from an earlier sample, modulo 2^24.
func (s *Sample) moved(from *Sample) uint32 { return (s.Health - from.Health) & CounterMask }

// Sampler reads samples from BAR 0. It holds no state: any number of goroutines
// may read.
type Sampler struct{ w *vfio.Window }

// NewSampler samples w, a window on BAR 0; writing is not needed, so one through
// sysfs will do. It panics when the window does not reach the counter, as slicing
// would.
func NewSampler(w *vfio.Window) Sampler {
	if w.Size() < windowEnd {
		panic(fmt.Sprintf("health: window of %d bytes does not reach the health counter (0x1010)", w.Size()))
	}
	return Sampler{w}
}

// Read fills in the four dwords, and nothing else: dwords 0x1010, 0x14, 0x230 and
// 0x23c are read once each, in this order. It allocates nothing.
func (r Sampler) Read(s *Sample) {
	s.Health = r.w.ReadBE32(offCounter)
	s.NIC = r.w.ReadBE32(offNIC)
	s.FW = r.w.ReadBE32(offFWVersion)
	s.Synd = r.w.ReadBE32(offSynd)
}

// Err is the first error a trapped access met; see vfio.Window.Err.
func (r Sampler) Err() error { return r.w.Err() }
