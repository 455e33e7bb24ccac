package vfio

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/mlxvfio/mlxvfio/internal/hostmem"
)

// fakeMemory is what the fake kernel knows of physical memory: huge pages, which
// are Go memory, and the pagemap of this process.
type fakeMemory struct {
	noIOMMUMode  bool
	huge         map[uintptr]*fakeHuge // by address
	nextFrame    uint64                // physical address of the next piece
	noHuge       bool
	fragmented   bool // no two pages lie together
	hideFrames   bool // this process has no CAP_SYS_ADMIN
	notPresent   bool
	ordinaryPage bool // what the pagemap shows is no huge page
}

type fakeHuge struct {
	k *fakeKernel
	*hostmem.Arena
	at uint64
}

// Close implements Backing.
func (h *fakeHuge) Close() error {
	h.k.mu.Lock()
	defer h.k.mu.Unlock()
	delete(h.k.huge, uintptr(unsafe.Pointer(unsafe.SliceData(h.Bytes()))))
	for _, b := range h.k.unguarded() {
		_ = b.unmapDMA(h.at, uint64(len(h.Bytes()))) // unless the function was closed before
	}
	return h.Arena.Close()
}

// newFakeNoIOMMU has the function 0000:01:00.0 in no-IOMMU mode.
func newFakeNoIOMMU(t *testing.T) *fakeKernel {
	k := newFakeKernel(t)
	k.setNoIOMMU(t, "0000:01:00.0")
	return k
}

// setNoIOMMU puts a function into the kernel's no-IOMMU mode.
func (k *fakeKernel) setNoIOMMU(t *testing.T, bdf string) {
	t.Helper()
	k.noIOMMUMode, k.devs[bdf].noIOMMU = true, true
	require.NoError(t, os.WriteFile(filepath.Join(k.root, "sys/bus/pci/devices", bdf, "iommu_group/name"), []byte("vfio-noiommu\n"), 0o600))
}

func (k *fakeKernel) noIOMMUGroup(n int) bool {
	for _, d := range k.devs {
		if d.group == n && d.noIOMMU {
			return true
		}
	}
	return false
}

func (k *fakeKernel) dup(fd, least int) (int, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.enter("dup"); err != nil {
		return -1, err
	}
	if k.fds[fd] == nil {
		return -1, unix.EBADF
	}
	for k.fds[least] != nil {
		least++
	}
	k.fds[least] = k.fds[fd]
	return least, nil
}

func (k *fakeKernel) contiguous(size int, locate func(page []byte) (uint64, error)) (Backing, uint64, error) {
	k.mu.Lock()
	err := k.enter("contiguous")
	switch {
	case err != nil:
	case k.noHuge:
		err = fmt.Errorf("%w: %w", hostmem.ErrNoHuge, unix.ENOSPC)
	case k.fragmented && size > hugePage:
		err = hostmem.ErrFragmented
	}
	if err != nil {
		k.mu.Unlock()
		return nil, 0, err
	}
	a, err := hostmem.Heap(size)
	if err != nil {
		k.mu.Unlock()
		return nil, 0, err
	}
	k.nextFrame += 64 << 20
	h := &fakeHuge{k: k, Arena: a, at: k.nextFrame}
	if k.huge == nil {
		k.huge = map[uintptr]*fakeHuge{}
	}
	k.huge[uintptr(unsafe.Pointer(unsafe.SliceData(a.Bytes())))] = h
	for _, b := range k.unguarded() {
		if err := b.mapBytes(a.Bytes(), h.at, false); err != nil {
			k.broken = append(k.broken, "memory without an IOMMU: "+err.Error())
		}
	}
	k.mu.Unlock()
	for off := 0; off < size; off += hugePage {
		at, err := locate(a.Bytes()[off : off+hugePage])
		if err == nil && at != h.at+uint64(off) {
			err = fmt.Errorf("page at %#x was found at %#x", h.at+uint64(off), at)
		}
		if err != nil {
			_ = h.Close() // Go memory
			return nil, 0, err
		}
	}
	return h, h.at, nil
}

// unguarded are the models that reach memory by its physical address.
func (k *fakeKernel) unguarded() (all []*fakeBehind) {
	for _, d := range k.devs {
		if d.noIOMMU && d.behind != nil && d.behind.t != nil {
			all = append(all, d.behind)
		}
	}
	return all
}

// readPagemap is called with mu held.
func (k *fakeKernel) readPagemap(p []byte, off int64) (int, error) {
	if err := k.enter("pread pagemap"); err != nil {
		return -1, err
	}
	page := uintptr(off) / 8 * uintptr(pageSize)
	for at, h := range k.huge {
		if page < at || page >= at+uintptr(len(h.Bytes())) {
			continue
		}
		x := uint64(pagemapPresent) | (h.at+uint64(page-at))/pageSize
		switch {
		case k.hideFrames:
			x = pagemapPresent
		case k.notPresent:
			x = 0
		case k.ordinaryPage:
			x++
		}
		return copy(p, binary.NativeEndian.AppendUint64(nil, x)), nil
	}
	return copy(p, make([]byte, 8)), nil
}
