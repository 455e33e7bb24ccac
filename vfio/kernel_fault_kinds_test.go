package vfio_test

import (
	"io"
	"slices"
	"syscall"
	"time"

	"github.com/mlxvfio/mlxvfio"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// kernelKind is a fault of the kernel that is more than one call that fails once.
type kernelKind struct {
	name, variant string
	stages        []string
	// set prepares the machine; here tells whether the fault is in force now, and
	// notes that it was met.
	set   func(m *machine, here func() bool)
	errno error // found in the error, if there is one
}

// throughout is the stage of a fault that is in force from beginning to end.
const throughout = "throughout"

// storm is how often a call is interrupted before it is done.
const storm = 3

func kernelKinds(backend string, all []place) (kinds []kernelKind) {
	always := []string{throughout}
	var bringUp []string
	for _, s := range mlxvfio.Stages() {
		bringUp = append(bringUp, s.Name)
	}
	var calls []string
	for _, p := range all {
		// Linux lets no signal interrupt an unmap or a dup, and huge pages are more than a call.
		if !slices.Contains(append(calls, "munmap", "blank", "dup", "contiguous"), p.call) {
			calls = append(calls, p.call)
		}
	}
	for _, call := range calls {
		kinds = append(kinds, kernelKind{name: "interrupted thrice (EINTR)", variant: call, stages: always, set: interrupt(call)})
	}
	kinds = append(kinds, kernelKind{name: "every call interrupted thrice (EINTR)", stages: always, set: interrupt("")})

	maps := map[string]string{vfio.BackendType1: "VFIO_IOMMU_MAP_DMA", vfio.BackendIOMMUFD: "IOMMU_IOAS_MAP", vfio.BackendNoIOMMU: "contiguous"}[backend]
	for _, x := range []struct {
		name  string
		errno syscall.Errno
	}{{"no memory can be had (ENOMEM)", syscall.ENOMEM}, {"no mapping can be had (ENOSPC)", syscall.ENOSPC}} {
		kinds = append(kinds, kernelKind{name: x.name, stages: []string{"command-queue", "init-pages"}, errno: x.errno, set: func(m *machine, here func() bool) {
			m.Hook(func(call string) syscall.Errno {
				if call == maps && here() {
					return x.errno
				}
				return 0
			})
		}})
	}
	if backend != vfio.BackendType1 {
		return kinds // what follows is the same code
	}

	short := func(call string, region int) func(*machine, func() bool) {
		return func(m *machine, here func() bool) {
			m.Short(func(name string, r, n int) int {
				if name == call && r == region && n > 1 && here() {
					return n / 2
				}
				return n
			})
		}
	}
	return append(kinds,
		kernelKind{name: "configuration space answers in pieces", stages: always, set: short("pread", vfio.RegionConfig)},
		kernelKind{name: "configuration space takes pieces", stages: always, set: short("pwrite", vfio.RegionConfig)},
		kernelKind{name: "BAR0 answers in pieces", stages: []string{"wait-firmware", "command-queue", "dtor"}, errno: io.ErrUnexpectedEOF,
			set: short("pread", vfio.RegionBAR0)},
		kernelKind{name: "BAR0 takes pieces", stages: []string{"command-queue", "enable-hca", "init-hca", "ready"}, errno: io.ErrUnexpectedEOF,
			set: short("pwrite", vfio.RegionBAR0)},
		// The link goes down: reads give all ones, writes vanish, a reset fails.
		kernelKind{name: "hot-unplugged", stages: bringUp, errno: vfio.ErrGone, set: func(m *machine, here func() bool) {
			m.limit = 100 * time.Millisecond // when it is over the device is looked at
			down := false
			m.Hook(func(call string) syscall.Errno {
				if !down && here() {
					down = true
					if m.chip.SetFault("all-ones", "") != nil {
						return syscall.EINVAL
					}
				}
				if down && call == "VFIO_DEVICE_RESET" {
					return syscall.ENODEV
				}
				return 0
			})
		}},
	)
}

// interrupt has every call of that name, or every call, answer EINTR before it is
// done; a close is done all the same, and must not be repeated.
func interrupt(call string) func(*machine, func() bool) {
	return func(m *machine, here func() bool) {
		n := map[string]int{}
		m.Hook(func(name string) syscall.Errno {
			if call != "" && name != call || name == "munmap" || name == "dup" || name == "contiguous" || !here() {
				return 0
			}
			if n[name]++; n[name]%(storm+1) == 0 {
				return 0
			}
			return syscall.EINTR
		})
	}
}
