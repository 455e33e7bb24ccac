package vfiouser

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/mlxvfio/mlxvfio/vfio"
	"github.com/mlxvfio/mlxvfio/vfio/vfiotest"
)

func (r *raw) dmaMap(flags uint32, off, iova, size uint64, fds ...int) unix.Errno {
	r.t.Helper()
	h, b := r.ask(cmdDMAMap, body(dmaMap{32, flags, off, iova, size}), fds...)
	require.Empty(r.t, b)
	return unix.Errno(h.errno)
}

func (r *raw) dmaUnmap(flags uint32, iova, size uint64) unix.Errno {
	r.t.Helper()
	q := dmaUnmap{24, flags, iova, size}
	h, b := r.ask(cmdDMAUnmap, body(q))
	if h.errno == 0 {
		require.Equal(r.t, body(q), b)
	}
	return unix.Errno(h.errno)
}

const rw = dmaFlagRead | dmaFlagWrite

// span is a mapping as the function has it.
type span struct{ iova, size, off uint64 }

func spans(d *device) []span {
	s := []span{}
	for _, m := range d.Memory().Mappings() {
		s = append(s, span{m.IOVA, uint64(len(m.Bytes)), uint64(m.Offset)})
	}
	return s
}

// TestDMA: the function sees the client's memory, whatever piece of it a mapping
// shows, and the file is mapped once.
func TestDMA(t *testing.T) {
	noLeaks(t)
	d := newDevice(vfiotest.RAMOptions{})
	r := rawDial(t, serve(t, d, Options{}), true)
	const size = 64 << 20
	fd, mem := memfd(t, size)
	before := countFDs(t)
	maps := countMaps(t)
	for i := range uint64(16) {
		// A descriptor of its own each time, as messages bring them.
		dup, err := unix.Dup(fd)
		require.NoError(t, err)
		off := (15 - i) * 4 << 20
		require.Zero(t, r.dmaMap(rw, off, 1<<32+i*0x10000, 0x2000, dup))
		require.NoError(t, unix.Close(dup))
		mem[off] = byte(i)
		got := make([]byte, 1)
		require.NoError(t, d.Memory().Access(1<<32+i*0x10000, got, false))
		require.Equal(t, byte(i), got[0])
		require.NoError(t, d.Memory().Access(1<<32+i*0x10000+0x1fff, []byte{0xa5}, true))
		require.Equal(t, byte(0xa5), mem[off+0x1fff])
	}
	require.Equal(t, before+1, countFDs(t), "one descriptor for all of them")
	require.Equal(t, maps+1, countMaps(t), "one mmap for all of them")
	require.Zero(t, r.dmaMap(dmaFlagRead, 0, 0x1000, 0x1000, fd))
	require.Error(t, d.Memory().Access(0x1000, []byte{1}, true), "read-only")
	require.NoError(t, d.Memory().Access(0x1000, []byte{1}, false))
	require.Zero(t, r.dmaUnmap(0, 0, 1<<63))
	require.Equal(t, before, countFDs(t))
	require.Equal(t, maps, countMaps(t))
	require.Empty(t, spans(d))
}

// countMaps is the number of mappings of test memory in this process.
func countMaps(t *testing.T) int {
	t.Helper()
	b, err := os.ReadFile("/proc/self/maps")
	require.NoError(t, err)
	n := 0
	for i := 0; i+len(mapMark) <= len(b); i++ {
		if string(b[i:i+len(mapMark)]) == mapMark {
			n++
		}
	}
	return n
}

const mapMark = "memfd:vfiouser-test"

// TestUnmapIsNotExact: ranges that cover more, less, nothing or too much.
func TestUnmapIsNotExact(t *testing.T) {
	noLeaks(t)
	d := newDevice(vfiotest.RAMOptions{})
	r := rawDial(t, serve(t, d, Options{}), true)
	fd, mem := memfd(t, 1<<20)
	all := []span{{0x10000, 0x4000, 0}, {0x20000, 0x4000, 0x4000}, {1 << 40, 0x4000, 0x8000}}
	top := uint64(1<<64 - 0x2000)
	for name, c := range map[string]struct {
		flags      uint32
		iova, size uint64
		want       []span
	}{
		"exact":             {0, 0x20000, 0x4000, []span{all[0], all[2]}},
		"nothing there":     {0, 0x30000, 0x1000, all},
		"more than one":     {0, 0x0, 0x100000, all[2:]},
		"gaps":              {0, 0xf000, 1 << 41, []span{}},
		"runs over the end": {0, 0x20000, 1<<64 - 0x1000, all[:1]},
		"size all ones":     {0, 0x20001, 1<<64 - 1, all[:1]},
		"from the top":      {0, top, 0x4000, all},
		"size 0":            {0, 0x10000, 0, all},
		"flag all":          {unmapFlagAll, 0, 0, []span{}},
		"head":              {0, 0x20000, 0x1000, []span{all[0], {0x21000, 0x3000, 0x5000}, all[2]}},
		"tail":              {0, 0x23000, 0x1000, []span{all[0], {0x20000, 0x3000, 0x4000}, all[2]}},
		"middle":            {0, 0x21000, 0x1000, []span{all[0], {0x20000, 0x1000, 0x4000}, {0x22000, 0x2000, 0x6000}, all[2]}},
		"less than a page":  {0, 0x21800, 1, []span{all[0], {0x20000, 0x1000, 0x4000}, {0x22000, 0x2000, 0x6000}, all[2]}},
		"tail and head":     {0, 0x13000, 0xe000, []span{{0x10000, 0x3000, 0}, {0x21000, 0x3000, 0x5000}, all[2]}},
	} {
		for _, s := range all {
			require.Zero(t, r.dmaMap(rw, s.off, s.iova, s.size, fd))
		}
		require.Zero(t, r.dmaMap(rw, 0, top, 0x1000), "no memory, at the end of the address space")
		require.Zero(t, r.dmaUnmap(c.flags, c.iova, c.size), name)
		require.Equal(t, c.want, spans(d), name)
		for _, s := range c.want { // what is left still shows the same bytes
			mem[s.off]++
			got := make([]byte, 1)
			require.NoError(t, d.Memory().Access(s.iova, got, false))
			require.Equal(t, mem[s.off], got[0], name)
		}
		require.Zero(t, r.dmaUnmap(unmapFlagAll, 0, 0))
		require.Empty(t, spans(d))
	}
}

// TestPiecesHoldTheFile: what is left of a mapping lives on by itself.
func TestPiecesHoldTheFile(t *testing.T) {
	noLeaks(t)
	d := newDevice(vfiotest.RAMOptions{})
	r := rawDial(t, serve(t, d, Options{}), true)
	fd, mem := memfd(t, 0x3000)
	maps := countMaps(t)
	require.Zero(t, r.dmaMap(rw, 0, 0x10000, 0x3000, fd))
	require.Zero(t, r.dmaUnmap(0, 0x11000, 0x1000))
	require.Equal(t, maps+1, countMaps(t))
	require.Zero(t, r.dmaUnmap(0, 0x10000, 0x1000))
	require.Equal(t, maps+1, countMaps(t))
	require.NoError(t, d.Memory().Access(0x12000, []byte{9}, true))
	require.Equal(t, byte(9), mem[0x2000])
	require.Zero(t, r.dmaUnmap(0, 0x12000, 0x1000))
	require.Equal(t, maps, countMaps(t))
}

// TestMappingWithoutMemory: an address range that the function cannot reach, but
// that is taken.
func TestMappingWithoutMemory(t *testing.T) {
	d := newDevice(vfiotest.RAMOptions{})
	r := rawDial(t, serve(t, d, Options{}), true)
	fd, _ := memfd(t, 1<<16)
	require.Zero(t, r.dmaMap(rw, 0, 0xfffc0000, 0x40000))
	require.Zero(t, r.dmaMap(dmaFlagRead, 0, 0xfe001234, 0x10), "not even pages")
	require.Empty(t, spans(d))
	require.ErrorIs(t, d.Memory().Access(0xfffc0000, make([]byte, 4), false), vfio.ErrNotFound)
	require.Equal(t, unix.EEXIST, r.dmaMap(rw, 0, 0xfffd0000, 0x1000, fd))
	require.Zero(t, r.dmaUnmap(0, 0xfffd0000, 0x1000))
	require.Zero(t, r.dmaMap(rw, 0, 0xfffd0000, 0x1000, fd), "after a piece was cut out")
	require.Equal(t, []span{{0xfffd0000, 0x1000, 0}}, spans(d))
}

func TestMappingsRefused(t *testing.T) {
	noLeaks(t)
	d := newDevice(vfiotest.RAMOptions{})
	r := rawDial(t, serve(t, d, Options{MaxMappings: 3}), true)
	fd, _ := memfd(t, 1<<16)
	ev := eventfds(t, 1)[0]
	var pipe [2]int
	require.NoError(t, unix.Pipe2(pipe[:], unix.O_CLOEXEC))
	defer closeAll(pipe[:])
	dir, err := unix.Open(t.TempDir(), unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	zero, err := unix.Open("/dev/zero", unix.O_RDWR|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	name := t.TempDir() + "/f"
	require.NoError(t, os.WriteFile(name, make([]byte, 8192), 0o600))
	ro, err := unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	wo, err := unix.Open(name, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	defer closeAll([]int{dir, zero, ro, wo})

	require.Zero(t, r.dmaMap(rw, 0, 0x10000, 0x4000, fd))
	for what, c := range map[string]struct {
		flags           uint32
		off, iova, size uint64
		fds             []int
		want            unix.Errno
	}{
		"same again":           {rw, 0, 0x10000, 0x4000, []int{fd}, unix.EEXIST},
		"overlap below":        {rw, 0, 0xf000, 0x2000, []int{fd}, unix.EEXIST},
		"overlap above":        {rw, 0, 0x13000, 0x2000, []int{fd}, unix.EEXIST},
		"overlap around":       {rw, 0, 0x8000, 1 << 16, []int{fd}, unix.EEXIST},
		"size 0":               {rw, 0, 0x20000, 0, []int{fd}, unix.EINVAL},
		"runs over the end":    {rw, 0, 1<<64 - 0x1000, 0x2000, []int{fd}, unix.EINVAL},
		"no access at all":     {0, 0, 0x20000, 0x1000, []int{fd}, unix.EINVAL},
		"unaligned address":    {rw, 0, 0x20010, 0x1000, []int{fd}, unix.EINVAL},
		"unaligned size":       {rw, 0, 0x20000, 0x1010, []int{fd}, unix.EINVAL},
		"unaligned offset":     {rw, 8, 0x20000, 0x1000, []int{fd}, unix.EINVAL},
		"past the file":        {rw, 0, 0x20000, 1<<16 + 0x1000, []int{fd}, unix.EINVAL},
		"offset past the file": {rw, 1 << 16, 0x20000, 0x1000, []int{fd}, unix.EINVAL},
		"offset overflows":     {rw, 1<<64 - 0x1000, 0x20000, 0x1000, []int{fd}, unix.EINVAL},
		"two files":            {rw, 0, 0x20000, 0x1000, []int{fd, fd}, unix.EINVAL},
		"an eventfd":           {rw, 0, 0x20000, 0x1000, []int{ev}, unix.EINVAL},
		"a pipe":               {rw, 0, 0x20000, 0x1000, []int{pipe[0]}, unix.EINVAL},
		"a folder":             {rw, 0, 0x20000, 0x1000, []int{dir}, unix.EINVAL},
		"a device":             {rw, 0, 0x20000, 0x1000, []int{zero}, unix.EINVAL},
		"write to read-only":   {rw, 0, 0x20000, 0x1000, []int{ro}, unix.EACCES},
		"file not readable":    {rw, 0, 0x20000, 0x1000, []int{wo}, unix.EACCES},
		"address not usable":   {rw, 0, 1 << 60, 0x1000, []int{fd}, unix.ERANGE},
	} {
		before := countFDs(t)
		require.Equal(t, c.want, r.dmaMap(c.flags, c.off, c.iova, c.size, c.fds...), what)
		require.Equal(t, before, countFDs(t), what)
	}
	require.Equal(t, []span{{0x10000, 0x4000, 0}}, spans(d))
	require.Zero(t, r.dmaMap(dmaFlagRead, 0x1000, 0x20000, 0x1000, ro), "reading a read-only file")
	require.Zero(t, r.dmaMap(rw, 0, 0x30000, 0x1000))
	require.Equal(t, unix.ENOSPC, r.dmaMap(rw, 0, 0x40000, 0x1000), "the fourth")
	require.Equal(t, unix.EOPNOTSUPP, r.dmaUnmap(unmapFlagDirty, 0, 0x1000))
}

// TestMemoryThatGrows: a larger mapping of a file that has grown.
func TestMemoryThatGrows(t *testing.T) {
	noLeaks(t)
	d := newDevice(vfiotest.RAMOptions{})
	r := rawDial(t, serve(t, d, Options{}), true)
	fd, mem := memfd(t, 1<<16)
	require.Zero(t, r.dmaMap(rw, 0, 0x10000, 1<<16, fd))
	require.NoError(t, unix.Ftruncate(fd, 1<<17))
	require.Zero(t, r.dmaMap(rw, 1<<16, 0x20000, 1<<16, fd))
	require.NoError(t, d.Memory().Access(0x20000, []byte("new"), true))
	require.NoError(t, d.Memory().Access(0x10000, []byte("old"), true))
	require.Equal(t, "old", string(mem[:3]))
	got := make([]byte, 3)
	_, err := unix.Pread(fd, got, 1<<16)
	require.NoError(t, err)
	require.Equal(t, "new", string(got))
	require.Zero(t, r.dmaUnmap(0, 0x10000, 1<<16))
	require.NoError(t, d.Memory().Access(0x20000, got, false))
}

// TestMemoryCannotShrink: truncating mapped memory would kill the server.
func TestMemoryCannotShrink(t *testing.T) {
	d := newDevice(vfiotest.RAMOptions{})
	r := rawDial(t, serve(t, d, Options{}), true)
	fd, _ := memfd(t, 1<<16)
	require.Zero(t, r.dmaMap(rw, 0, 0x10000, 1<<16, fd))
	require.ErrorIs(t, unix.Ftruncate(fd, 0), unix.EPERM)
	require.NoError(t, d.Memory().Access(0x1f000, make([]byte, 8), false))
}

// stubborn is a Mapper that refuses to unmap.
type stubborn struct {
	*vfiotest.Mapper
	refuse bool
}

func (s *stubborn) Unmap(iova, size uint64) error {
	if s.refuse {
		return &vfio.Error{Op: "unmap", Err: unix.EBUSY}
	}
	return s.Mapper.Unmap(iova, size)
}

// TestMemoryInUseStays: what the function did not let go of is not unmapped from
// this process.
func TestMemoryInUseStays(t *testing.T) {
	m := &stubborn{Mapper: vfiotest.NewMapper(vfio.DMALimits{}), refuse: true}
	g := newGuestMemory(m, 10, defaultMaxMapped, Options{}.logger())
	fd, mem := memfd(t, 1<<16)
	require.NoError(t, g.add(dmaMap{32, rw, 0, 0x10000, 1 << 16}, fd))
	require.ErrorIs(t, g.remove(0x10000, 0x1ffff), unix.EBUSY)
	require.NoError(t, m.Access(0x10000, []byte{7}, true))
	require.Equal(t, byte(7), mem[0])
	g.close()
	require.NoError(t, m.Access(0x10000, []byte{8}, true))
	require.Equal(t, byte(8), mem[0])
	m.refuse = false
	g.close()
	require.Empty(t, m.Mappings())
	require.Zero(t, g.count)
}

// TestMemoryThatGrewIsKept: the end of the smaller mapping of a file leaves the
// larger one to be found.
func TestMemoryThatGrewIsKept(t *testing.T) {
	g := newGuestMemory(vfiotest.NewMapper(vfio.DMALimits{}), 10, defaultMaxMapped, Options{}.logger())
	fd, _ := memfd(t, pageSize)
	require.NoError(t, g.add(dmaMap{32, rw, 0, 0x10000, pageSize}, fd))
	require.NoError(t, unix.Ftruncate(fd, 2*pageSize))
	require.NoError(t, g.add(dmaMap{32, rw, pageSize, 0x20000, pageSize}, fd))
	require.Equal(t, 2, g.count)
	require.NoError(t, g.remove(0x10000, 0x10000+pageSize-1))
	require.Equal(t, 1, g.count)
	require.NoError(t, g.add(dmaMap{32, rw, 0, 0x30000, pageSize}, fd))
	require.Equal(t, 1, g.count, "one mmap for both")
	g.close()
	require.Zero(t, g.count)
	require.Zero(t, g.mapped)
	require.Empty(t, g.files)
}

// TestManyMappings: the pages of a ConnectX-4's firmware, one by one, downwards
// as Linux hands out bus addresses.
func TestManyMappings(t *testing.T) {
	m := vfiotest.NewMapper(vfio.DMALimits{})
	g := newGuestMemory(m, defaultMaxMaps, defaultMaxMapped, Options{}.logger())
	const pages = 12868
	fd, _ := memfd(t, pages*pageSize)
	for i := range uint64(pages) {
		require.NoError(t, g.add(dmaMap{32, rw, i * pageSize, 0xfe000000 - i*pageSize*2, pageSize}, fd))
	}
	require.Equal(t, pages, len(g.ranges))
	require.Equal(t, 1, g.count)
	require.NoError(t, g.remove(0xfe000000-pageSize*2*9, 0xfe000000-pageSize*2*9+pageSize-1))
	require.Equal(t, pages-1, len(g.ranges))
	g.close()
	require.Empty(t, m.Mappings())
}
