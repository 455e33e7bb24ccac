package vfiouser

import (
	"fmt"
	"log/slog"
	"slices"
	"sort"

	"golang.org/x/sys/unix"

	"github.com/mlxvfio/mlxvfio/vfio"
)

// maxFiles bounds the memory files of one client, and with them the mmaps and the
// descriptors that it can make this process hold.
const maxFiles = 1024

// farFiles are file systems whose pages come from another process or another
// machine (Linux magic.h, statfs(2)): touching them can take for ever.
var farFiles = map[int64]string{
	unix.FUSE_SUPER_MAGIC: "FUSE", unix.NFS_SUPER_MAGIC: "NFS", unix.CIFS_SUPER_MAGIC: "CIFS", unix.SMB2_SUPER_MAGIC: "SMB2",
	unix.SMB_SUPER_MAGIC: "SMB", unix.V9FS_MAGIC: "9p", unix.CEPH_SUPER_MAGIC: "Ceph", unix.AFS_SUPER_MAGIC: "AFS",
	unix.CODA_SUPER_MAGIC: "Coda", unix.NCP_SUPER_MAGIC: "NCP", unix.OCFS2_SUPER_MAGIC: "OCFS2",
}

// guestMemory is what one client mapped for DMA: files, each mmapped once and
// whole, and ranges of bus addresses that show pieces of them to the function.
// One goroutine uses it.
type guestMemory struct {
	m      vfio.Mapper
	max    int    // ranges
	bytes  uint64 // of files that may be mapped
	log    *slog.Logger
	files  map[fileKey]*guestFile
	count  int         // files that are mapped, replaced ones included
	mapped uint64      // their bytes
	ranges []*dmaRange // disjoint, ascending
}

// fileKey tells whether two descriptors are the same memory.
type fileKey struct {
	dev, ino uint64
	readOnly bool
}

// guestFile is a memory file of the client, in one mapping that all its ranges
// are slices of.
type guestFile struct {
	key  fileKey
	fd   int
	data []byte
	refs int // ranges
}

// dmaRange is the bus addresses first … last. Without a file it is something
// that only the client's side can reach (flash, a BAR): an address that is
// taken, with no memory behind it.
type dmaRange struct {
	first, last uint64
	file        *guestFile
	off         uint64
	readOnly    bool
}

func newGuestMemory(m vfio.Mapper, maxRanges int, maxBytes uint64, log *slog.Logger) *guestMemory {
	return &guestMemory{m: m, max: maxRanges, bytes: maxBytes, log: log, files: make(map[fileKey]*guestFile)}
}

// search is the index of the first range that ends at or after a.
func (g *guestMemory) search(a uint64) int {
	return sort.Search(len(g.ranges), func(i int) bool { return g.ranges[i].last >= a })
}

// add serves DMA_MAP. fd is the memory file, −1 for a range without memory; it
// stays the caller's.
func (g *guestMemory) add(m dmaMap, fd int) error {
	last := m.iova + m.size - 1
	switch {
	case m.flags&(dmaFlagRead|dmaFlagWrite) == 0, m.size == 0, last < m.iova:
		return fmt.Errorf("map [%#x, +%#x) with flags %#x: %w", m.iova, m.size, m.flags, unix.EINVAL)
	case len(g.ranges) >= g.max:
		return fmt.Errorf("the client holds %d DMA mappings, no more are allowed: %w", len(g.ranges), vfio.ErrNoSpace)
	}
	i := g.search(m.iova)
	if i < len(g.ranges) && g.ranges[i].first <= last {
		return fmt.Errorf("map [%#x, %#x]: [%#x, %#x] is mapped: %w", m.iova, last, g.ranges[i].first, g.ranges[i].last, vfio.ErrExists)
	}
	r := &dmaRange{first: m.iova, last: last, off: m.offset, readOnly: m.flags&dmaFlagWrite == 0}
	if fd >= 0 {
		if (m.iova|m.size|m.offset)%pageSize != 0 {
			return fmt.Errorf("map [%#x, +%#x) of offset %#x: not in pages of %d bytes: %w", m.iova, m.size, m.offset, pageSize, unix.EINVAL)
		}
		f, err := g.open(fd, m.offset, m.size, !r.readOnly)
		if err != nil {
			return err
		}
		r.file = f
		if err := g.show(r); err != nil {
			g.release(f)
			return err
		}
	}
	g.ranges = slices.Insert(g.ranges, i, r)
	return nil
}

// open finds or makes the mapping that holds [off, off+size) of fd's file, and
// counts a range on it.
func (g *guestMemory) open(fd int, off, size uint64, write bool) (*guestFile, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("fstat of DMA memory: %w", err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, fmt.Errorf("DMA memory is no file (mode %#o): %w", st.Mode, unix.EINVAL)
	}
	if st.Size <= 0 || off+size < off || off+size > uint64(st.Size) {
		return nil, fmt.Errorf("DMA memory [%#x, +%#x) is not inside its file of %#x bytes: %w", off, size, st.Size, unix.EINVAL)
	}
	fl, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err != nil {
		return nil, fmt.Errorf("flags of DMA memory: %w", err)
	}
	key := fileKey{st.Dev, st.Ino, fl&unix.O_ACCMODE == unix.O_RDONLY}
	if key.readOnly && write {
		return nil, fmt.Errorf("writable DMA memory in a file that is open for reading: %w", unix.EACCES)
	}
	// A file that has grown since gets a second mapping; the ranges of the first
	// keep theirs.
	if f := g.files[key]; f != nil && off+size <= uint64(len(f.data)) {
		f.refs++
		return f, nil
	}
	switch {
	case g.count >= maxFiles:
		return nil, fmt.Errorf("the client passed %d memory files, no more are allowed: %w", g.count, vfio.ErrNoSpace)
	case uint64(st.Size) > g.bytes-g.mapped:
		return nil, fmt.Errorf("a memory file of %#x bytes beside %#x, %#x are allowed: %w", st.Size, g.mapped, g.bytes, vfio.ErrNoSpace)
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return nil, fmt.Errorf("fstatfs of DMA memory: %w", err)
	}
	if far, ok := farFiles[int64(fs.Type)]; ok { //nolint:unconvert // on other architectures it is no int64
		return nil, fmt.Errorf("DMA memory in a file of %s, whose pages may never come: %w", far, vfio.ErrNotSupported)
	}
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("keep the file of DMA memory: %w", err)
	}
	// Memory that the client has truncated away cannot be touched any more. A memfd
	// can be sealed against that, and some of QEMU's already are. Where the file
	// takes no seals its mappings are lent (vfio.Mapping): an access fails then.
	_, _ = unix.FcntlInt(uintptr(own), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK)
	if err := unix.Fstat(own, &st); err != nil || off+size > uint64(st.Size) || uint64(st.Size) > g.bytes-g.mapped {
		_ = unix.Close(own)
		return nil, fmt.Errorf("DMA memory changed its size while it was mapped: %w", unix.EINVAL)
	}
	prot := unix.PROT_READ
	if !key.readOnly {
		prot |= unix.PROT_WRITE
	}
	data, err := unix.Mmap(own, 0, int(st.Size), prot, unix.MAP_SHARED|unix.MAP_NORESERVE)
	if err != nil {
		_ = unix.Close(own)
		return nil, fmt.Errorf("mmap %d bytes of DMA memory: %w", st.Size, err)
	}
	f := &guestFile{key: key, fd: own, data: data, refs: 1}
	g.files[key] = f
	g.count++
	g.mapped += uint64(len(data))
	return f, nil
}

// release takes one range off f and frees f after its last.
func (g *guestMemory) release(f *guestFile) {
	if f.refs--; f.refs > 0 {
		return
	}
	if g.files[f.key] == f {
		delete(g.files, f.key)
	}
	g.count--
	g.mapped -= uint64(len(f.data))
	if err := unix.Munmap(f.data); err != nil {
		g.log.Error("munmap of DMA memory failed", "err", err)
	}
	_ = unix.Close(f.fd)
}

// show makes r visible to the function.
func (g *guestMemory) show(r *dmaRange) error {
	n := r.last - r.first + 1
	return g.m.Map(vfio.Mapping{
		IOVA: r.first, Bytes: r.file.data[r.off : r.off+n : r.off+n],
		FD: r.file.fd, Offset: int64(r.off), ReadOnly: r.readOnly, Lent: true,
	})
}

// hide takes r from the function. The function does not touch the memory after
// that.
func (g *guestMemory) hide(r *dmaRange) error {
	if r.file == nil {
		return nil
	}
	return g.m.Unmap(r.first, r.last-r.first+1)
}

// remove serves DMA_UNMAP: whatever is mapped inside first … last goes. Clients
// also unmap what was never mapped, and mappings in part; what lies outside of
// the range stays.
func (g *guestMemory) remove(first, last uint64) error {
	i := g.search(first)
	j := i
	var keep []*dmaRange
	var failed error
	for ; j < len(g.ranges) && g.ranges[j].first <= last; j++ {
		r := g.ranges[j]
		if err := g.hide(r); err != nil {
			// The function may still use the memory: it stays.
			failed = err
			keep = append(keep, r)
			continue
		}
		if r.first < first || r.last > last {
			keep = append(keep, g.cut(r, first, last)...)
		}
		if r.file != nil {
			g.release(r.file)
		}
	}
	g.ranges = slices.Replace(g.ranges, i, j, keep...)
	return failed
}

// cut makes new ranges of what r, hidden already, has outside of first … last.
func (g *guestMemory) cut(r *dmaRange, first, last uint64) []*dmaRange {
	if r.file != nil { // memory goes in whole pages
		first &^= pageSize - 1
		last |= pageSize - 1
	}
	var keep []*dmaRange
	piece := func(a, b uint64) {
		p := &dmaRange{first: a, last: b, file: r.file, off: r.off + (a - r.first), readOnly: r.readOnly}
		if p.file != nil {
			if err := g.show(p); err != nil {
				g.log.Error("what is left of a mapping is lost", "first", a, "last", b, "err", err)
				return
			}
			p.file.refs++
		}
		keep = append(keep, p)
	}
	if r.first < first {
		piece(r.first, first-1)
	}
	if r.last > last {
		piece(last+1, r.last)
	}
	return keep
}

// close takes everything from the function. Memory that it refuses to let go
// of stays mapped into this process: a live device may write to it.
func (g *guestMemory) close() {
	if err := g.remove(0, ^uint64(0)); err != nil {
		g.log.Error("the function keeps DMA memory of a client that left", "ranges", len(g.ranges), "err", err)
	}
}
