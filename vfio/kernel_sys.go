package vfio

import (
	"errors"
	"unsafe"

	"golang.org/x/sys/unix"
)

// sys are the system calls the kernel backends make, so that tests can stand in
// for the kernel at the ioctl table. Errors are unix.Errno.
type sys interface {
	open(path string, flags int) (int, error)
	close(fd int) error
	// ioctl passes a pointer, ioctlInt a number, as the request wants it.
	ioctl(fd int, req uint, arg unsafe.Pointer) (int, error)
	ioctlInt(fd int, req uint, arg int) (int, error)
	pread(fd int, p []byte, off int64) (int, error)
	pwrite(fd int, p []byte, off int64) (int, error)
	mmap(fd int, off int64, size, prot int) ([]byte, error)
	munmap(b []byte) error
	// blank puts ordinary memory where b is mapped, in one step.
	blank(b []byte) error
}

// kernelSys is the kernel itself.
type kernelSys struct{}

func (kernelSys) open(path string, flags int) (int, error) {
	return retry(func() (int, error) { return unix.Open(path, flags|unix.O_CLOEXEC, 0) })
}

func (kernelSys) close(fd int) error { return unix.Close(fd) }

func (kernelSys) ioctl(fd int, req uint, arg unsafe.Pointer) (int, error) {
	for {
		n, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uintptr(req), uintptr(arg))
		switch errno {
		case 0:
			return int(n), nil
		case unix.EINTR:
		default:
			return 0, errno
		}
	}
}

func (kernelSys) ioctlInt(fd int, req uint, arg int) (int, error) {
	return retry(func() (int, error) {
		n, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uintptr(req), uintptr(arg))
		if errno != 0 {
			return 0, errno
		}
		return int(n), nil
	})
}

func (kernelSys) pread(fd int, p []byte, off int64) (int, error) {
	return retry(func() (int, error) { return unix.Pread(fd, p, off) })
}

func (kernelSys) pwrite(fd int, p []byte, off int64) (int, error) {
	return retry(func() (int, error) { return unix.Pwrite(fd, p, off) })
}

func (kernelSys) mmap(fd int, off int64, size, prot int) ([]byte, error) {
	return unix.Mmap(fd, off, size, prot, unix.MAP_SHARED)
}

func (kernelSys) munmap(b []byte) error { return unix.Munmap(b) }

func (kernelSys) blank(b []byte) error {
	_, err := unix.MmapPtr(-1, 0, unsafe.Pointer(&b[0]), uintptr(len(b)), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE|unix.MAP_FIXED)
	return err
}

// retry repeats a call that a signal interrupted: Go's own preemption signals
// are among them.
func retry(f func() (int, error)) (int, error) {
	for {
		n, err := f()
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}
