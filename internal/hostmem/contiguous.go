package hostmem

import (
	"errors"
	"fmt"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

var (
	// ErrNoHuge: the machine has not enough free huge pages.
	ErrNoHuge = errors.New("not enough reserved huge pages")
	// ErrFragmented: it has, but they do not follow each other in memory.
	ErrFragmented = errors.New("huge pages in pieces")
)

// spare is how many times as many pages as needed are looked at for a run.
const spare = 8

// Contiguous makes an arena of reserved huge pages at consecutive physical
// addresses from base on. size is a multiple of HugeSize, and locate tells the
// physical address of a huge page, whose memory it may touch. Since neighbours come
// by luck, it takes more pages than needed for a while and keeps those that lie in
// one piece. Errors: ErrSize, ErrNoHuge, ErrFragmented, and what locate answers.
func Contiguous(name string, size int, locate func(page []byte) (uint64, error)) (a *Arena, base uint64, err error) {
	return contiguous(size, locate, func(size int) (*Arena, error) { return memfd(name, size, true) })
}

func contiguous(size int, locate func(page []byte) (uint64, error), take func(size int) (*Arena, error)) (*Arena, uint64, error) {
	if size <= 0 || size%HugeSize != 0 {
		return nil, 0, fmt.Errorf("allocate %d bytes in huge pages: %w", size, ErrSize)
	}
	looked := 0
	for much := size; much <= spare*size; much *= 2 {
		a, err := take(much)
		if err != nil && looked == 0 {
			return nil, 0, fmt.Errorf("%w: %w", ErrNoHuge, err)
		}
		if err != nil {
			break // that many are not there, or not for this process
		}
		base, ok, err := a.keepRun(size, locate)
		if ok && err == nil {
			return a, base, nil
		}
		if err = errors.Join(err, a.Close()); err != nil {
			return nil, 0, err
		}
		looked = much / HugeSize
	}
	return nil, 0, fmt.Errorf("%w: %d of them were looked at", ErrFragmented, looked)
}

// keepRun makes the arena a run of size bytes of its pages in the order of their
// addresses, and gives the others back; false where there is no such run.
func (a *Arena) keepRun(size int, locate func(page []byte) (uint64, error)) (base uint64, ok bool, err error) {
	type page struct {
		at  uint64
		off int // in the file
	}
	pages := make([]page, 0, len(a.b)/HugeSize)
	for off := 0; off < len(a.b); off += HugeSize {
		at, err := locate(a.b[off : off+HugeSize : off+HugeSize])
		if err != nil {
			return 0, false, err
		}
		pages = append(pages, page{at, off})
	}
	slices.SortFunc(pages, func(x, y page) int {
		if x.at < y.at {
			return -1
		}
		return 1
	})
	n, first := size/HugeSize, 0
	for i := range pages {
		if i > 0 && pages[i].at != pages[i-1].at+HugeSize {
			first = i
		}
		if i-first+1 < n {
			continue
		}
		run := pages[first : i+1]
		for k, p := range run {
			if p.off == k*HugeSize {
				continue
			}
			a.shuffled = true
			if _, err := unix.MmapPtr(a.fd, int64(p.off), unsafe.Pointer(&a.b[k*HugeSize]), HugeSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_FIXED); err != nil {
				return 0, false, fmt.Errorf("map huge page %d: %w", k, err)
			}
		}
		return run[0].at, true, a.cut(size, func(off int) bool {
			return slices.ContainsFunc(run, func(p page) bool { return p.off == off })
		})
	}
	return 0, false, nil
}

// cut ends the arena after size bytes, and gives back the pages of its file that
// are not kept.
func (a *Arena) cut(size int, kept func(off int) bool) error {
	whole := len(a.b)
	if whole == size {
		return nil
	}
	if err := unix.MunmapPtr(unsafe.Pointer(&a.b[size]), uintptr(whole-size)); err != nil {
		return fmt.Errorf("unmap %d spare bytes: %w", whole-size, err)
	}
	a.b = a.b[:size:size]
	for off := 0; off < whole; off += HugeSize {
		if kept(off) {
			continue
		}
		if err := unix.Fallocate(a.fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, int64(off), HugeSize); err != nil {
			return fmt.Errorf("give a spare huge page back: %w", err)
		}
	}
	return nil
}
