package vfio

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	abi "github.com/mlxvfio/mlxvfio/internal/vfioabi"
	"golang.org/x/sys/unix"
)

// newKernelDevice asks the function what it has. On failure fd stays open.
func newKernelDevice(s sys, fd int, info DeviceInfo, m Mapper, detach func() error) (*kernelDevice, error) {
	d := &kernelDevice{sys: s, fd: fd, info: info, mapper: m, detach: detach}
	buf, err := infoIoctl(s, fd, abi.VFIO_DEVICE_GET_INFO, abi.SizeDevice_info, nil)
	if err != nil {
		return nil, d.fail("query function (VFIO_DEVICE_GET_INFO)", err, "")
	}
	x := (*abi.Device_info)(unsafe.Pointer(&buf[0]))
	if x.Flags&abi.VFIO_DEVICE_FLAGS_PCI == 0 {
		return nil, d.fail("query function", fmt.Errorf("%w: it is no PCI function", ErrNotSupported), "")
	}
	d.info.CanReset = x.Flags&abi.VFIO_DEVICE_FLAGS_RESET != 0
	d.info.Regions = min(int(x.Num_regions), NumRegions)
	d.info.IRQs = min(int(x.Num_irqs), NumIRQs)
	for i := range d.info.IRQs {
		if d.irqs[i], err = d.queryIRQ(i); err != nil {
			return nil, err
		}
	}
	// Configuration space first: it tells where the MSI-X table is.
	var table Span
	bar := -1
	if d.info.Regions > RegionConfig {
		if d.regions[RegionConfig], _, err = d.queryRegion(RegionConfig); err != nil {
			return nil, err
		}
		d.regions[RegionConfig].Mappable = nil // always traps; the kernel offers nothing else
		if bar, table, err = d.findTable(); err != nil {
			return nil, err
		}
	}
	for i := range d.info.Regions {
		if i == RegionConfig {
			continue
		}
		r, tableOK, err := d.queryRegion(i)
		if err != nil {
			return nil, err
		}
		if i == bar && !tableOK {
			r.Mappable = without(r.Mappable, table)
		}
		r.Mappable = wholePages(r.Mappable)
		d.regions[i] = r
	}
	return d, nil
}

// queryIRQ asks for one interrupt index; one that does not exist has Count 0.
func (d *kernelDevice) queryIRQ(i int) (IRQInfo, error) {
	x := abi.Irq_info{Argsz: abi.SizeIrq_info, Index: uint32(i)}
	_, err := d.sys.ioctl(d.fd, abi.VFIO_DEVICE_GET_IRQ_INFO, unsafe.Pointer(&x))
	if errors.Is(err, unix.EINVAL) {
		return IRQInfo{}, nil
	}
	if err != nil {
		return IRQInfo{}, d.fail(fmt.Sprintf("query interrupt index %d (VFIO_DEVICE_GET_IRQ_INFO)", i), err, "")
	}
	return IRQInfo{
		Count:    int(x.Count),
		EventFD:  x.Flags&abi.VFIO_IRQ_INFO_EVENTFD != 0,
		NoResize: x.Flags&abi.VFIO_IRQ_INFO_NORESIZE != 0,
	}, nil
}

// queryRegion asks for one region; one that does not exist has Size 0. tableOK
// says that an MSI-X table inside may be mapped.
func (d *kernelDevice) queryRegion(i int) (r kernelRegion, tableOK bool, err error) {
	op := fmt.Sprintf("query region %d (VFIO_DEVICE_GET_REGION_INFO)", i)
	buf, err := infoIoctl(d.sys, d.fd, abi.VFIO_DEVICE_GET_REGION_INFO, abi.SizeRegion_info, func(buf []byte) {
		(*abi.Region_info)(unsafe.Pointer(&buf[0])).Index = uint32(i)
	})
	if errors.Is(err, unix.EINVAL) {
		return kernelRegion{}, false, nil
	}
	if err != nil {
		return kernelRegion{}, false, d.fail(op, err, "")
	}
	x := (*abi.Region_info)(unsafe.Pointer(&buf[0]))
	r = kernelRegion{at: int64(x.Offset), RegionInfo: RegionInfo{
		Size:  x.Size,
		Read:  x.Flags&abi.VFIO_REGION_INFO_FLAG_READ != 0,
		Write: x.Flags&abi.VFIO_REGION_INFO_FLAG_WRITE != 0,
	}}
	mappable := x.Flags&abi.VFIO_REGION_INFO_FLAG_MMAP != 0 && x.Size > 0
	if mappable {
		r.Mappable = []Span{{Size: x.Size}}
	}
	if x.Flags&abi.VFIO_REGION_INFO_FLAG_CAPS == 0 {
		return r, false, nil
	}
	caps, err := abi.Caps(buf, x.Cap_offset)
	if err != nil {
		return r, false, d.fail(op, err, "")
	}
	for _, c := range caps {
		switch c.ID {
		case abi.VFIO_REGION_INFO_CAP_MSIX_MAPPABLE:
			tableOK = true
		case abi.VFIO_REGION_INFO_CAP_SPARSE_MMAP:
			pairs, err := c.Pairs()
			if err != nil {
				return r, false, d.fail(op, err, "")
			}
			r.Mappable = nil
			for _, p := range pairs {
				if p[0] > x.Size || p[1] > x.Size-p[0] {
					return r, false, d.fail(op, fmt.Errorf("%w: mappable area %#x+%#x of a region of %#x bytes", ErrRange, p[0], p[1], x.Size), "")
				}
				if mappable {
					r.Mappable = append(r.Mappable, Span{Offset: p[0], Size: p[1]})
				}
			}
		}
	}
	return r, tableOK, nil
}

// infoIoctl makes an INFO call that answers a structure of size bytes and, when
// the kernel says that argsz was too small, makes it again with room for the
// chain. fill sets the request's own fields.
func infoIoctl(s sys, fd int, req uint, size uint32, fill func(buf []byte)) ([]byte, error) {
	const most = 1 << 20 // chains are a few hundred bytes
	for want := size; ; {
		words := make([]uint64, (want+7)/8) // aligned for the structures in it
		buf := unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), len(words)*8)[:want]
		argsz := (*uint32)(unsafe.Pointer(&buf[0]))
		*argsz = want
		if fill != nil {
			fill(buf)
		}
		if _, err := s.ioctl(fd, req, unsafe.Pointer(&buf[0])); err != nil {
			return nil, err
		}
		if *argsz <= want {
			return buf, nil
		}
		if *argsz > most {
			return nil, fmt.Errorf("%w: the kernel wants to answer %d bytes", abi.ErrChain, *argsz)
		}
		want = *argsz
	}
}

// pageSize is the unit of mmap.
var pageSize = uint64(os.Getpagesize())

// without cuts x, widened to whole pages, out of spans.
func without(spans []Span, x Span) []Span {
	first := x.Offset / pageSize * pageSize
	end := roundUp(x.Offset+x.Size, pageSize)
	var out []Span
	for _, s := range spans {
		sEnd := s.Offset + s.Size
		if sEnd <= first || s.Offset >= end {
			out = append(out, s)
			continue
		}
		if s.Offset < first {
			out = append(out, Span{s.Offset, first - s.Offset})
		}
		if sEnd > end {
			out = append(out, Span{end, sEnd - end})
		}
	}
	return out
}

// wholePages shrinks spans to whole pages, which is all that mmap can do.
func wholePages(spans []Span) []Span {
	var out []Span
	for _, s := range spans {
		first := roundUp(s.Offset, pageSize)
		end := (s.Offset + s.Size) / pageSize * pageSize
		if first < end {
			out = append(out, Span{first, end - first})
		}
	}
	return out
}
