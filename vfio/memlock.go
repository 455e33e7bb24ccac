package vfio

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// memlock knows what this process may pin. type1 and iommufd count every mapped
// byte against RLIMIT_MEMLOCK unless the process has CAP_IPC_LOCK, and answer a
// bare ENOMEM: asking first gives an error that helps.
type memlock struct {
	limit  func() (uint64, error) // RLIMIT_MEMLOCK in bytes; ^0 is unlimited
	locked func() (uint64, error) // bytes of this process that count already
	exempt func() bool            // CAP_IPC_LOCK
}

var kernelMemlock = memlock{limit: rlimitMemlock, locked: vmLocked, exempt: hasIPCLock}

// check answers ErrNoSpace when size more bytes would exceed the limit. Where
// the kernel does not say what it counts, it lets the kernel decide.
func (l memlock) check(size uint64) error {
	if l.exempt() {
		return nil
	}
	limit, lerr := l.limit()
	locked, uerr := l.locked()
	if known := lerr == nil && uerr == nil && limit != ^uint64(0); known && locked+size > limit {
		return memlockError(size, locked, limit)
	}
	return nil
}

func memlockError(size, locked, limit uint64) error {
	need := locked + size
	return &Error{
		Op:  fmt.Sprintf("pin %d bytes of DMA memory", size),
		Err: fmt.Errorf("%w: %d bytes are pinned already and RLIMIT_MEMLOCK is %d bytes, %d bytes are needed", ErrNoSpace, locked, limit, need),
		Remedy: fmt.Sprintf("ulimit -l %d (KiB) in this shell, LimitMEMLOCK=%d in the systemd unit, or CAP_IPC_LOCK",
			roundUp(need, 1024)/1024, need),
	}
}

func rlimitMemlock() (uint64, error) {
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &r); err != nil {
		return 0, err
	}
	return r.Cur, nil
}

// vmLocked reads VmLck, which is what type1 adds its pinned pages to.
func vmLocked() (uint64, error) {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	return parseVmLck(string(b))
}

// vmPinned reads VmPin: what iommufd has pinned of this process. The kernel's own
// count is per user and cannot be read; this is the least it can be (Linux
// iommufd/pages.c).
func vmPinned() (uint64, error) {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	return parseStatus(string(b), "VmPin:")
}

func parseVmLck(status string) (uint64, error) { return parseStatus(status, "VmLck:") }

// parseStatus reads a line of a process status that counts kB.
func parseStatus(status, name string) (uint64, error) {
	for line := range strings.Lines(status) {
		rest, ok := strings.CutPrefix(line, name)
		if !ok {
			continue
		}
		kb, err := strconv.ParseUint(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64)
		return kb * 1024, err
	}
	return 0, fmt.Errorf("%s in process status: %w", strings.TrimSuffix(name, ":"), ErrNotFound)
}

func hasIPCLock() bool {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&hdr, &data[0]); err != nil {
		return false
	}
	return data[unix.CAP_IPC_LOCK/32].Effective&(1<<(unix.CAP_IPC_LOCK%32)) != 0
}
