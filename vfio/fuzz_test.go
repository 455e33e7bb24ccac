package vfio

import (
	"encoding/binary"
	"errors"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	abi "github.com/mlxvfio/mlxvfio/internal/vfioabi"
)

// oddKernel answers the query calls with good structures into which a script
// writes: each answer takes a count, and so many offsets and dwords. Where the
// script is over the answers are good.
type oddKernel struct {
	sys    // what no query needs is not there
	script []byte
	config [256]byte
}

// patch lets the script write into p.
func (k *oddKernel) patch(p []byte) {
	if len(k.script) == 0 {
		return
	}
	n := int(k.script[0] & 7)
	k.script = k.script[1:]
	for ; n > 0 && len(k.script) >= 5; n-- {
		if at := int(k.script[0]) * 4; at+4 <= len(p) {
			copy(p[at:], k.script[1:5])
		}
		k.script = k.script[5:]
	}
}

func (k *oddKernel) ioctl(_ int, req uint, arg unsafe.Pointer) (int, error) {
	given := unsafe.Slice((*byte)(arg), *(*uint32)(arg))
	switch req {
	case abi.VFIO_DEVICE_GET_INFO:
		b := make([]byte, abi.SizeDevice_info)
		binary.NativeEndian.PutUint32(b[4:], abi.VFIO_DEVICE_FLAGS_PCI|abi.VFIO_DEVICE_FLAGS_RESET)
		binary.NativeEndian.PutUint32(b[8:], NumRegions)
		binary.NativeEndian.PutUint32(b[12:], NumIRQs)
		answer(arg, b, 16, 0, nil)
	case abi.VFIO_DEVICE_GET_REGION_INFO:
		i := binary.NativeEndian.Uint32(given[8:])
		b := make([]byte, abi.SizeRegion_info)
		binary.NativeEndian.PutUint32(b[4:], abi.VFIO_REGION_INFO_FLAG_READ|abi.VFIO_REGION_INFO_FLAG_WRITE|abi.VFIO_REGION_INFO_FLAG_MMAP)
		binary.NativeEndian.PutUint32(b[8:], i)
		binary.NativeEndian.PutUint64(b[16:], 32<<20)
		binary.NativeEndian.PutUint64(b[24:], uint64(i)<<40)
		var caps [][]byte
		if i == 0 {
			caps = [][]byte{chainCap(abi.VFIO_REGION_INFO_CAP_SPARSE_MMAP, append([]uint32{2, 0}, words(0, 0x2000, 0x4000, 0x10000)...)...)}
		}
		answer(arg, b, 12, abi.VFIO_REGION_INFO_FLAG_CAPS, caps)
	case abi.VFIO_DEVICE_GET_IRQ_INFO:
		x := (*abi.Irq_info)(arg)
		x.Flags, x.Count = abi.VFIO_IRQ_INFO_EVENTFD, 64
	case abi.VFIO_IOMMU_GET_INFO:
		b := make([]byte, abi.SizeIommu_type1_info)
		binary.NativeEndian.PutUint32(b[4:], abi.VFIO_IOMMU_INFO_PGSIZES)
		binary.NativeEndian.PutUint64(b[8:], 1<<12|1<<21)
		answer(arg, b, 16, abi.VFIO_IOMMU_INFO_CAPS, [][]byte{
			chainCap(abi.VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE, append([]uint32{2, 0}, words(0, msiFirst-1, msiLast+1, 1<<39-1)...)...),
			chainCap(abi.VFIO_IOMMU_TYPE1_INFO_DMA_AVAIL, 1000),
		})
	default:
		return 0, unix.ENOTTY
	}
	k.patch(given)
	return 0, nil
}

func (k *oddKernel) pread(_ int, p []byte, off int64) (int, error) {
	if off &= 1<<40 - 1; off >= 0 && off < int64(len(k.config)) {
		return copy(p, k.config[off:]), nil
	}
	return 0, unix.EINVAL
}

func (k *oddKernel) mmap(int, int64, int, int) ([]byte, error) { return nil, unix.ENOMEM }

// nowhere is a Mapper that takes everything inside its limits.
type nowhere struct{ DMALimits }

func (n nowhere) Map(Mapping) error          { return nil }
func (n nowhere) Unmap(uint64, uint64) error { return nil }
func (n nowhere) Limits() (DMALimits, error) { return n.DMALimits, nil }

// FuzzKernelInfo opens a function and an address space on what a kernel might
// answer: structures of any size, chains that loop, regions and ranges at the ends
// of the number space. What comes of it stays inside of what was answered.
func FuzzKernelInfo(f *testing.F) {
	word := func(at byte, v uint32) []byte {
		return append([]byte{at}, binary.NativeEndian.AppendUint32(nil, v)...)
	}
	one := func(at byte, v uint32) []byte { return append([]byte{1}, word(at, v)...) }
	msix := []byte{0x11, 0, 63, 0, 0, 0x20, 0, 0}
	for _, s := range [][]byte{
		nil, one(0, 0xffffffff), one(0, 4096), one(2, 0xffffffff), one(3, 0xffffffff), one(1, 0),
		append(make([]byte, 6), one(4, 0xffffffff)...),                                       // configuration space without end
		append(make([]byte, 6), append([]byte{2}, append(word(4, 64), word(5, 0)...)...)...), // a short one
		append(make([]byte, 7), append(one(0, 104), one(8, 0xff)...)...),                     // BAR 0: chain elsewhere
		append(make([]byte, 8), append([]byte{2}, append(word(4, 0xffffffff), word(5, 0xffffffff)...)...)...),
		append(make([]byte, 8), one(3, 33)...), append(make([]byte, 8), one(9, 32)...), append(make([]byte, 8), one(10, 0xffffffff)...),
		append(make([]byte, 17), append(one(2, 0), one(3, 0)...)...), append(make([]byte, 17), one(8, 0xffffffff)...),
	} {
		f.Add(s, msix)
	}
	f.Add([]byte{}, []byte{0x11, 0x40, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, script, caps []byte) {
		k := &oddKernel{script: script}
		k.config[6], k.config[0x34] = 0x10, 0x40
		copy(k.config[0x40:], caps)
		typed := func(err error) bool {
			if err == nil {
				return true
			}
			var e *Error
			require.ErrorAs(t, err, &e)
			return false
		}
		d, err := newKernelDevice(beneath(k), 3, DeviceInfo{Name: "odd"}, nil, func() error { return nil })
		if typed(err) {
			for i := range d.info.Regions {
				r := d.regions[i]
				for _, s := range r.Mappable {
					require.False(t, s.Size == 0 || s.Offset > r.Size || s.Size > r.Size-s.Offset, "region %d: %#x bytes, area %#x+%#x", i, r.Size, s.Offset, s.Size)
					require.Zero(t, (s.Offset|s.Size)%pageSize)
				}
				_, err := d.MapRegion(i)
				typed(err)
			}
		}
		buf, err := infoIoctl(k, 3, abi.VFIO_IOMMU_GET_INFO, abi.SizeIommu_type1_info, nil)
		if err != nil {
			require.ErrorIs(t, err, abi.ErrChain)
			return
		}
		l, err := parseIOMMU(buf)
		if err != nil {
			require.ErrorIs(t, err, abi.ErrChain)
			return
		}
		s, err := newSpace(nowhere{l}, l, SpaceOptions{Memory: MemoryHeap, SlabMin: 4096})
		if !typed(err) {
			return
		}
		for range 3 {
			b, err := s.Alloc(8192, BufferOptions{})
			if err != nil {
				require.True(t, typed(err) || errors.Is(err, ErrNoSpace))
				break
			}
			inside := false
			for _, r := range l.Ranges {
				inside = inside || b.IOVA() >= r.First && b.IOVA()+8191 <= r.Last
			}
			require.True(t, inside, "%#x is in none of %x", b.IOVA(), l.Ranges)
			require.False(t, b.IOVA() <= msiLast && b.IOVA()+8191 >= msiFirst || b.IOVA() == 0)
		}
		require.NotErrorIs(t, s.Close(), ErrNotFound)
	})
}
