package vfio

import (
	"errors"
	"fmt"
	"strings"
	"unsafe"

	abi "github.com/mlxvfio/mlxvfio/internal/vfioabi"
	"golang.org/x/sys/unix"
)

// HotResetInfo implements HotResetter.
func (d *kernelDevice) HotResetInfo() ([]HotResetFunction, error) {
	const op = "list the functions of a hot reset (VFIO_DEVICE_GET_PCI_HOT_RESET_INFO)"
	if !d.enter() {
		return nil, d.fail(op, ErrClosed, "")
	}
	defer d.leave()
	return d.hotResetInfo(op)
}

// hotResetInfo is called inside enter. The kernel counts the functions where
// there is no room for them, with ENOSPC (Linux vfio_pci_core.c).
func (d *kernelDevice) hotResetInfo(op string) ([]HotResetFunction, error) {
	const most = 4096 // a bus has 256 functions, each bridge behind it more
	for room := 8; room <= most; {
		words := make([]uint32, (abi.SizePci_hot_reset_info+abi.SizePci_dependent_device*room)/4)
		x := (*abi.Pci_hot_reset_info)(unsafe.Pointer(&words[0]))
		x.Argsz = uint32(4 * len(words))
		_, err := d.sys.ioctl(d.fd, abi.VFIO_DEVICE_GET_PCI_HOT_RESET_INFO, unsafe.Pointer(x))
		n := int(x.Count)
		switch {
		case errors.Is(err, unix.ENOSPC) && n > room:
			room = n
			continue
		case errors.Is(err, unix.ENODEV):
			return nil, &Error{Op: op, Target: d.info.Name, Err: fmt.Errorf("%w: neither slot nor bus can be reset: %w", ErrNotSupported, err)}
		case err != nil:
			return nil, d.fail(op, err, "")
		case n > room:
			return nil, d.fail(op, fmt.Errorf("%w: the kernel counts %d functions in room for %d", ErrRange, n, room), "")
		}
		devs := unsafe.Slice((*abi.Pci_dependent_device)(unsafe.Add(unsafe.Pointer(x), abi.SizePci_hot_reset_info)), n)
		owned := d.ownedGroups()
		list := make([]HotResetFunction, n)
		for i, y := range devs {
			f := HotResetFunction{Group: int(y.Group_id), Name: fmt.Sprintf("%04x:%02x:%02x.%d", y.Segment, y.Bus, y.Devfn>>3, y.Devfn&7)}
			f.Self = f.Name == d.info.Name
			_, f.Owned = owned[f.Group]
			if x.Flags&abi.VFIO_PCI_HOT_RESET_FLAG_DEV_ID != 0 {
				// What stands there is a device id of an iommufd, not a group.
				f.Group, f.Owned = -1, int32(y.Group_id) != abi.VFIO_PCI_DEVID_NOT_OWNED
			}
			list[i] = f
		}
		return list, nil
	}
	return nil, d.fail(op, fmt.Errorf("%w: the number of functions does not settle", ErrRange), "")
}

// ownedGroups are the groups whose files this process has open beside the
// function's own, by number.
func (d *kernelDevice) ownedGroups() map[int]int {
	if d.groups == nil {
		return nil
	}
	return d.groups()
}

// HotReset implements HotResetter. The kernel wants the file of each group as the
// proof that its owner agrees; all functions must be bound to vfio-pci.
func (d *kernelDevice) HotReset() error {
	const op = "hot reset (VFIO_DEVICE_PCI_HOT_RESET)"
	if !d.enter() {
		return d.fail(op, ErrClosed, "")
	}
	defer d.leave()
	list, err := d.hotResetInfo(op)
	if err != nil {
		return err
	}
	owned := d.ownedGroups()
	var fds []int32
	var foreign []string
	seen := map[int]bool{}
	for _, f := range list {
		fd, mine := owned[f.Group]
		switch {
		case !f.Owned:
			foreign = append(foreign, f.Name)
		case mine && !seen[f.Group]:
			seen[f.Group] = true
			fds = append(fds, int32(fd))
		}
	}
	words := make([]uint32, abi.SizePci_hot_reset/4+len(fds))
	x := (*abi.Pci_hot_reset)(unsafe.Pointer(&words[0]))
	*x = abi.Pci_hot_reset{Argsz: uint32(4 * len(words)), Count: uint32(len(fds))}
	for i, fd := range fds {
		words[abi.SizePci_hot_reset/4+i] = uint32(fd)
	}
	if _, err := d.sys.ioctl(d.fd, abi.VFIO_DEVICE_PCI_HOT_RESET, unsafe.Pointer(x)); err != nil {
		remedy := ""
		if len(foreign) > 0 && (errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.EBUSY)) {
			err = fmt.Errorf("%w: it would also reset %s, which this process does not have: %w", ErrBusy, strings.Join(foreign, ", "), err)
			remedy = "bind them to vfio-pci and close them everywhere, or open them in the same Container or IOAS"
		} else if len(list) > 1 && errors.Is(err, unix.EINVAL) {
			remedy = "each function of the slot must be bound to vfio-pci, also one without a driver (" + names(list) + ")"
		} else if errors.Is(err, unix.ENOTTY) {
			// Linux pci.c: what a reset of the slot answers too when the link or the device does not come back after it.
			remedy = "either the port cannot reset the slot, or the link or the device did not come back after it: dmesg says which"
		}
		return d.fail(op, err, remedy)
	}
	return nil
}

func names(list []HotResetFunction) string {
	var l []string
	for _, f := range list {
		l = append(l, f.Name)
	}
	return strings.Join(l, ", ")
}

// groupFiles are the open groups of the container, by number.
func (c *Container) groupFiles() map[int]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := make(map[int]int, len(c.groups))
	for n, g := range c.groups {
		m[n] = g.fd
	}
	return m
}
