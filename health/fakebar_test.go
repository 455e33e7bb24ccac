package health_test

import (
	"encoding/binary"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/health"
	"github.com/mlxvfio/mlxvfio/vfio"
	"github.com/mlxvfio/mlxvfio/vfio/vfiotest"
)

// fakeBAR is a BAR 0 whose health registers a test writes by hand. Its offsets
// are numbers of the facts, not those of the package.
type fakeBAR struct {
	mu     sync.Mutex
	start  time.Time
	tick   time.Duration // of the counter
	offset uint32        // added to the counter
	stop   *uint32       // the counter stands there
	nic    uint32
	dword  map[uint64]uint32 // any other dword
	ones   bool              // every dword reads all ones
	reads  map[uint64]int
	// hook may change what dword off reads, after everything else.
	hook func(off uint64, v uint32) uint32
}

const fakeFW = 0x102001ec // 16.32.492

// newBAR is a healthy function: a counter that moves every 10 ms.
func newBAR(t testing.TB) (*fakeBAR, *vfio.Window) {
	t.Helper()
	f := &fakeBAR{start: time.Now(), tick: 10 * time.Millisecond, offset: 1, reads: map[uint64]int{}, dword: map[uint64]uint32{
		0x0: 32<<16 | 16, 0x4: 5<<16 | 492, 0x230: fakeFW, 0x234: 0x20d,
	}}
	ram := vfiotest.NewRAM(vfiotest.RAMOptions{OnRead: f.read})
	dev, err := vfio.NewDevice(ram, vfio.DeviceOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, dev.Close()) })
	w, err := dev.Window(vfio.RegionBAR0)
	require.NoError(t, err)
	return f, w
}

func (f *fakeBAR) read(region int, off uint64, p []byte) {
	if region != vfio.RegionBAR0 || len(p) != 4 {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reads[off]++
	v := f.dword[off]
	switch off {
	case 0x14:
		v = 0x12345000 | f.nic<<8 | 0x56
	case 0x1010:
		v = f.dword[0x23c]>>16<<24 | f.counter()
	}
	if f.ones {
		v = 0xffffffff
	}
	if f.hook != nil {
		v = f.hook(off, v)
	}
	binary.BigEndian.PutUint32(p, v)
}

func (f *fakeBAR) counter() uint32 {
	if f.stop != nil {
		return *f.stop
	}
	return (uint32(time.Since(f.start)/f.tick) + f.offset) & 0xffffff
}

// change changes the function in one go.
func (f *fakeBAR) change(g func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	g()
}

func (f *fakeBAR) stopCounter() {
	f.change(func() {
		v := f.counter()
		f.stop = &v
	})
}

// goOn lets the counter move again, from where it stood.
func (f *fakeBAR) goOn() {
	f.change(func() {
		f.offset, f.start, f.stop = *f.stop, time.Now(), nil
	})
}

// report puts an error into the health buffer.
func (f *fakeBAR) report(synd, flags uint32) {
	f.change(func() {
		f.dword[0x200], f.dword[0x220], f.dword[0x22c] = 0xa0, 0x1000, uint32(time.Since(f.start))
		f.dword[0x238], f.dword[0x23c] = flags, 3<<24|synd<<16|0x1234
	})
}

func (f *fakeBAR) clear() {
	f.change(func() { f.dword[0x238], f.dword[0x23c] = 0, 0 })
}

// Flags of dword 0x238.
const (
	rfr   = 1 << 31
	crr   = 1 << 30
	valid = 1 << 27
)

// watch starts a monitor and stops it when the test is over.
func watch(t *testing.T, o health.Options) *health.Monitor {
	t.Helper()
	m, err := health.New(o)
	require.NoError(t, err)
	require.NoError(t, m.Start(t.Context()))
	t.Cleanup(m.Stop)
	return m
}

// within waits until the state holds, at most d, and answers how long it took to
// the millisecond. It works in a bubble of synctest.
func within(t *testing.T, m *health.Monitor, s health.State, d time.Duration) time.Duration {
	t.Helper()
	const step = time.Millisecond
	start := time.Now()
	for time.Since(start) <= d {
		synctest.Wait()
		if m.Verdict().State == s {
			return time.Since(start)
		}
		time.Sleep(step)
	}
	v := m.Verdict()
	require.Failf(t, "no such state in time", "want %v within %v, have %v (%s): %s", s, d, v.State, v.Condition, v.Explanation)
	return 0
}

// pause lets time pass in a bubble, and what is due at its end happen.
func pause(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}
