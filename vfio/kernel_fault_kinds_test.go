package vfio_test

import (
	"io"
	"slices"
	"syscall"
	"time"

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

func kernelKinds(all []place) (kinds []kernelKind) {
	always := []string{throughout}
	var calls []string
	for _, p := range all {
		// Linux lets no signal interrupt an unmap.
		if !slices.Contains(calls, p.call) && p.call != "munmap" && p.call != "blank" {
			calls = append(calls, p.call)
		}
	}
	for _, call := range calls {
		kinds = append(kinds, kernelKind{name: "interrupted thrice (EINTR)", variant: call, stages: always, set: interrupt(call)})
	}
	kinds = append(kinds, kernelKind{name: "every call interrupted thrice (EINTR)", stages: always, set: interrupt("")})

	for name, errno := range map[string]syscall.Errno{"no memory can be pinned (ENOMEM)": syscall.ENOMEM, "the IOMMU is full (ENOSPC)": syscall.ENOSPC} {
		kinds = append(kinds, kernelKind{name: name, stages: []string{"command-queue", "init-pages"}, errno: errno, set: func(m *machine, here func() bool) {
			m.Hook(func(call string) syscall.Errno {
				if call == "VFIO_IOMMU_MAP_DMA" && here() {
					return errno
				}
				return 0
			})
		}})
	}
	slices.SortFunc(kinds[len(kinds)-2:], func(a, b kernelKind) int { return len(a.name) - len(b.name) })

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
		kernelKind{name: "hot-unplugged", stages: []string{"open", "reset", "command-queue", "enable-hca", "init-hca", "event-mode", "ready"}, errno: vfio.ErrGone, set: func(m *machine, here func() bool) {
			m.limit = 1500 * time.Millisecond // more than the pulse at which the device is looked at
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
			if call != "" && name != call || name == "munmap" || !here() {
				return 0
			}
			if n[name]++; n[name]%(storm+1) == 0 {
				return 0
			}
			return syscall.EINTR
		})
	}
}
