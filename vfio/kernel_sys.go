package vfio

import (
	"errors"
	"unsafe"

	"github.com/mlxvfio/mlxvfio/internal/hostmem"
	"golang.org/x/sys/unix"
)

// sys are the system calls the kernel backends make, so that tests can stand in
// for the kernel at the ioctl table. Errors are unix.Errno, EINTR among them: the
// backends call through patient.
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
	// dup is another descriptor of the file, at least least; fd stays open.
	dup(fd, least int) (int, error)
	// contiguous is memory of huge pages at consecutive physical addresses from
	// base on; locate finds the address of one of them.
	contiguous(size int, locate func(page []byte) (uint64, error)) (b Backing, base uint64, err error)
	// blank puts ordinary memory where b is mapped, in one step.
	blank(b []byte) error
}

// kernelSys is the kernel itself.
type kernelSys struct{}

func (kernelSys) open(path string, flags int) (int, error) {
	return unix.Open(path, flags|unix.O_CLOEXEC, 0)
}

func (kernelSys) close(fd int) error { return unix.Close(fd) }

func (kernelSys) ioctl(fd int, req uint, arg unsafe.Pointer) (int, error) {
	n, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uintptr(req), uintptr(arg))
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}

func (kernelSys) ioctlInt(fd int, req uint, arg int) (int, error) {
	n, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uintptr(req), uintptr(arg))
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}

func (kernelSys) pread(fd int, p []byte, off int64) (int, error)  { return unix.Pread(fd, p, off) }
func (kernelSys) pwrite(fd int, p []byte, off int64) (int, error) { return unix.Pwrite(fd, p, off) }

func (kernelSys) mmap(fd int, off int64, size, prot int) ([]byte, error) {
	return unix.Mmap(fd, off, size, prot, unix.MAP_SHARED)
}

func (kernelSys) munmap(b []byte) error { return unix.Munmap(b) }

func (kernelSys) dup(fd, least int) (int, error) {
	return unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, least)
}

func (kernelSys) contiguous(size int, locate func(page []byte) (uint64, error)) (Backing, uint64, error) {
	a, base, err := hostmem.Contiguous("mlxvfio-dma", size, locate)
	if err != nil {
		return nil, 0, err
	}
	return a, base, nil
}

func (kernelSys) blank(b []byte) error {
	_, err := unix.MmapPtr(-1, 0, unsafe.Pointer(&b[0]), uintptr(len(b)), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE|unix.MAP_FIXED)
	return err
}

// patient repeats calls that a signal interrupted: Go's own preemption signals are
// among them. Each of these calls has done nothing when it answers EINTR. close is
// the one that has: Linux has freed the descriptor by then, and a second close
// could hit one that another thread was just given.
type patient struct{ sys }

// beneath is o's system calls, made patient once.
func beneath(s sys) sys {
	if p, ok := s.(patient); ok {
		return p
	}
	return patient{s}
}

func (p patient) open(path string, flags int) (n int, err error) {
	for {
		if n, err = p.sys.open(path, flags); !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

func (p patient) close(fd int) error {
	if err := p.sys.close(fd); !errors.Is(err, unix.EINTR) {
		return err
	}
	return nil
}

func (p patient) ioctl(fd int, req uint, arg unsafe.Pointer) (n int, err error) {
	for {
		if n, err = p.sys.ioctl(fd, req, arg); !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

func (p patient) ioctlInt(fd int, req uint, arg int) (n int, err error) {
	for {
		if n, err = p.sys.ioctlInt(fd, req, arg); !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

func (p patient) pread(fd int, b []byte, off int64) (n int, err error) {
	for {
		if n, err = p.sys.pread(fd, b, off); !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

func (p patient) pwrite(fd int, b []byte, off int64) (n int, err error) {
	for {
		if n, err = p.sys.pwrite(fd, b, off); !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

func (p patient) mmap(fd int, off int64, size, prot int) (b []byte, err error) {
	for {
		if b, err = p.sys.mmap(fd, off, size, prot); !errors.Is(err, unix.EINTR) {
			return b, err
		}
	}
}
