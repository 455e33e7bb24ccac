package cmdif

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/initseg"
	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// fake is a scripted device: an initialization segment and a command queue whose
// commands go to handle, called synchronously from the doorbell.
type fake struct {
	t testing.TB

	mu      sync.Mutex
	bar     [0x2000]byte
	cfg     [256]byte
	maps    []vfio.Mapping
	handle  func(*call)
	publish func() // after the queue address was written, with mu held
	broken  error  // what writes answer
	stuck   error  // what writes to configuration space answer
	doorbel atomic.Uint64
	gone    atomic.Bool

	onMap func()       // when memory is mapped
	bus   sync.RWMutex // held while the device writes
	off   atomic.Bool  // no longer a bus master: it writes no more

	entries [32]vfio.Mem // cached views for the fast path
	instant bool         // answer OK at once, allocating nothing
	events  func(uint32) // then told what completed
}

// call is one command as the device sees it.
type call struct {
	f      *fake
	slot   int
	entry  vfio.Mem
	token  byte
	in     []byte
	inBox  []uint64 // addresses of the input mailboxes
	outLen int
	outBox []uint64
	out    []vfio.Mem // output mailboxes
	corrupt
}

// corrupt says how to spoil a reply.
type corrupt struct {
	entryToken, boxToken, entrySig, boxSig bool
	delivery                               prm.DeliveryStatus
}

func newFake(t testing.TB) *fake {
	f := &fake{t: t}
	f.set(0, 0x000a000e) // firmware 14.10.…
	f.set(4, 5<<16|1234)
	f.set(0x14, 5<<4|6)
	f.set(0x1010, 1)
	f.handle = func(c *call) { c.reply(nil) }
	return f
}

func (f *fake) set(off int, v uint32) { binary.BigEndian.PutUint32(f.bar[off:], v) }

func (f *fake) poke(off int, v uint32) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.set(off, v)
}

func (f *fake) onCommand(h func(*call)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.handle = h
}

// vfio.Transport

func (f *fake) Info() (vfio.DeviceInfo, error) {
	return vfio.DeviceInfo{Name: "fake", Backend: "test", Regions: vfio.NumRegions}, nil
}

func (f *fake) RegionInfo(i int) (vfio.RegionInfo, error) {
	if i != vfio.RegionBAR0 {
		return vfio.RegionInfo{}, nil
	}
	return vfio.RegionInfo{Size: uint64(len(f.bar)), Read: true, Write: true}, nil
}

func (f *fake) ReadRegion(i int, off uint64, p []byte) error {
	if f.gone.Load() {
		for i := range p {
			p[i] = 0xff
		}
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if i == vfio.RegionConfig {
		copy(p, f.cfg[off:])
		return nil
	}
	copy(p, f.bar[off:])
	return nil
}

func (f *fake) WriteRegion(i int, off uint64, p []byte) error {
	if f.gone.Load() {
		return nil
	}
	if i == vfio.RegionConfig {
		f.mu.Lock()
		defer f.mu.Unlock()
		copy(f.cfg[off:], p)
		return f.stuck
	}
	f.mu.Lock()
	broken := f.broken
	f.mu.Unlock()
	if broken != nil {
		return broken
	}
	if off == 0x18 {
		f.doorbell(binary.BigEndian.Uint32(p))
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if off == 0x14 { // size and stride are read-only
		p = binary.BigEndian.AppendUint32(nil, binary.BigEndian.Uint32(p)&^0xff|binary.BigEndian.Uint32(f.bar[0x14:])&0xff)
	}
	copy(f.bar[off:], p)
	if off == 0x14 && f.publish != nil {
		f.publish()
	}
	return nil
}

func (f *fake) MapRegion(int) ([]vfio.Area, error)     { return nil, nil }
func (f *fake) IRQInfo(int) (vfio.IRQInfo, error)      { return vfio.IRQInfo{}, nil }
func (f *fake) NewVector() (*vfio.Vector, error)       { return vfio.NewChanVector(), nil }
func (f *fake) SetIRQs(int, int, []*vfio.Vector) error { return nil }
func (f *fake) DMA() vfio.Mapper                       { return f }
func (f *fake) Reset() error                           { return nil }
func (f *fake) Close() error                           { return nil }
func (f *fake) Limits() (vfio.DMALimits, error) {
	return vfio.DMALimits{Ranges: []vfio.IOVARange{{First: 0, Last: 1<<48 - 1}}, PageSizes: 4096}, nil
}

func (f *fake) Map(m vfio.Mapping) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.maps = append(f.maps, m)
	if f.onMap != nil {
		f.onMap()
	}
	return nil
}

func (f *fake) Unmap(iova, size uint64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := len(f.maps)
	f.maps = slices.DeleteFunc(f.maps, func(m vfio.Mapping) bool { return m.IOVA == iova && uint64(len(m.Bytes)) == size })
	if len(f.maps) == n {
		return fmt.Errorf("unmap of 0x%x+0x%x, which is not mapped", iova, size)
	}
	return nil
}

// dma is what the device sees at an address.
func (f *fake) dma(iova uint64, n int) vfio.Mem {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, m := range f.maps {
		if iova >= m.IOVA && iova+uint64(n) <= m.IOVA+uint64(len(m.Bytes)) {
			return vfio.MemOf(m.Bytes).Slice(int(iova-m.IOVA), n)
		}
	}
	f.t.Errorf("the device was given address 0x%x+%d, which is not mapped", iova, n)
	return vfio.MemOf(make([]byte, n))
}

func (f *fake) queue() (addr uint64, stride int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	lo := binary.BigEndian.Uint32(f.bar[0x14:])
	return uint64(binary.BigEndian.Uint32(f.bar[0x10:]))<<32 | uint64(lo&^0xfff), 1 << (lo & 15)
}

func (f *fake) doorbell(vector uint32) {
	f.doorbel.Add(1)
	for i := range 32 {
		if vector>>i&1 == 0 {
			continue
		}
		if f.instant && f.entries[i].Len() != 0 {
			e := f.entries[i]
			w := e.LoadBE32(0x3c)
			clear(e.Bytes()[0x20:0x30])
			e.StoreBE32(0x3c, w&^1)
			if f.events != nil {
				f.events(1 << i)
			}
			continue
		}
		addr, stride := f.queue()
		e := f.dma(addr+uint64(i*stride), 64)
		f.mu.Lock()
		f.entries[i] = e
		f.mu.Unlock()
		c := f.parse(i, e)
		f.mu.Lock()
		h := f.handle
		f.mu.Unlock()
		h(c)
	}
}

// offBus keeps the device off the bus: when it returns, nothing is written any more.
func (f *fake) offBus() {
	f.bus.Lock()
	f.off.Store(true)
	f.bus.Unlock()
}

// parse takes a command in and checks everything a strict device could.
func (f *fake) parse(slot int, e vfio.Mem) *call {
	w := e.LoadBE32(0x3c)
	b := e.Bytes()
	bad := func(format string, args ...any) { f.t.Errorf("slot %d: "+format, append([]any{slot}, args...)...) }
	if w&1 == 0 {
		bad("doorbell for an entry the device does not own")
	}
	var x byte
	for _, v := range b {
		x ^= v
	}
	if x != 0xff {
		bad("XOR of the entry is 0x%x", x)
	}
	if b[0] != 7 || b[1]|b[2]|b[3]|b[0x3e] != 0 || w&0xfe != 0 {
		bad("type or reserved bytes of the entry: % x", b)
	}
	if w>>24 == 0 {
		bad("token is 0")
	}
	c := &call{f: f, slot: slot, entry: e, token: byte(w >> 24)}
	n := int(binary.BigEndian.Uint32(b[4:]))
	c.outLen = int(binary.BigEndian.Uint32(b[0x38:]))
	c.in = slices.Clone(b[0x10 : 0x10+min(n, 16)])
	ins, at := f.chain(c, binary.BigEndian.Uint64(b[8:]), n, bad)
	c.inBox = at
	for _, m := range ins {
		c.in = append(c.in, m.Bytes()[:min(512, n-len(c.in))]...)
	}
	if len(c.in) != n {
		bad("input of %d bytes, %d arrived", n, len(c.in))
	}
	c.out, c.outBox = f.chain(c, binary.BigEndian.Uint64(b[0x30:]), c.outLen, bad)
	return c
}

func (f *fake) chain(c *call, iova uint64, n int, bad func(string, ...any)) (ms []vfio.Mem, at []uint64) {
	for left := n - 16; left > 0; left -= 512 {
		if iova == 0 || iova%1024 != 0 {
			bad("mailbox %d at 0x%x", len(ms), iova)
			return ms, at
		}
		m := f.dma(iova, 576)
		b := m.Bytes()
		var ctrl, all byte
		for i, v := range b {
			all ^= v
			if i >= 0x200 && i < 0x23f {
				ctrl ^= v
			}
			if i >= 0x200 && i < 0x230 && v != 0 {
				bad("reserved byte 0x%x of mailbox %d is 0x%x", i, len(ms), v)
			}
		}
		if ctrl != 0xff || all != 0xff {
			bad("signatures of mailbox %d: 0x%x 0x%x", len(ms), ctrl, all)
		}
		if got := binary.BigEndian.Uint32(b[0x238:]); int(got) != len(ms) {
			bad("mailbox %d has block number %d", len(ms), got)
		}
		if b[0x23c] != 0 || b[0x23d] != c.token {
			bad("mailbox %d has token 0x%x, the entry 0x%x", len(ms), b[0x23d], c.token)
		}
		for _, v := range b[min(left, 512):512] {
			if v != 0 {
				bad("payload of mailbox %d is not zero behind the message", len(ms))
				break
			}
		}
		ms, at = append(ms, m), append(at, iova)
		iova = binary.BigEndian.Uint64(b[0x230:])
	}
	if iova != 0 && n > 16 {
		bad("the last mailbox points to 0x%x", iova)
	}
	if iova != 0 && n <= 16 {
		bad("a message of %d bytes has a mailbox", n)
	}
	return ms, at
}

func (c *call) op() prm.Opcode { return prm.Opcode(binary.BigEndian.Uint16(c.in)) }

// refuse completes the command with a status.
func (c *call) refuse(s prm.CommandStatus, syndrome uint32) {
	out := make([]byte, 8)
	out[0] = byte(s)
	binary.BigEndian.PutUint32(out[4:], syndrome)
	c.reply(out)
}

// reply completes the command: the output, signed, then the ownership bit.
func (c *call) reply(out []byte) {
	c.f.bus.RLock()
	defer c.f.bus.RUnlock()
	if c.f.off.Load() {
		return
	}
	out = slices.Concat(out, make([]byte, max(0, c.outLen-len(out))))[:c.outLen]
	b := c.entry.Bytes()
	n := copy(b[0x20:0x30], out)
	rest := out[n:]
	for i, m := range c.out {
		d := m.Bytes()
		rest = rest[copy(d[:512], rest):]
		if c.boxToken && i == len(c.out)-1 {
			d[0x23d]++
		}
		d[0x23e] = ^xorOf(d[0x200:0x23e])
		d[0x23f] = ^xorOf(d[:0x23f])
		if c.boxSig && i == len(c.out)-1 {
			d[0x23f] ^= 0x40
		}
	}
	token := c.token
	if c.entryToken {
		token = token%255 + 1
	}
	status := byte(c.delivery) << 1
	sig := ^(xorOf(b[:0x3c]) ^ token ^ status ^ 1)
	if c.entrySig {
		sig ^= 0x10
	}
	c.entry.StoreBE32(0x3c, uint32(token)<<24|uint32(sig)<<16|uint32(status))
}

func xorOf(b []byte) (x byte) {
	for _, v := range b {
		x ^= v
	}
	return x
}

// bench is a Conn on a fake.
type bench struct {
	*fake
	dev  *vfio.Device
	seg  *initseg.Segment
	conn *Conn
}

// device makes the layers below a Conn.
func (f *fake) device() (*vfio.Device, *initseg.Segment) {
	dev, err := vfio.NewDevice(f, vfio.DeviceOptions{Memory: vfio.MemoryHeap})
	require.NoError(f.t, err)
	w, err := dev.Window(vfio.RegionBAR0)
	require.NoError(f.t, err)
	return dev, initseg.New(w)
}

// open makes a Conn and, at the end of the test, closes it and asserts that no
// DMA memory is left.
func open(t testing.TB, o Options) *bench {
	f := newFake(t)
	dev, seg := f.device()
	c, err := Open(context.Background(), dev, seg, o)
	require.NoError(t, err)
	return &bench{fake: f, dev: dev, seg: seg, conn: c}
}

// The error of Close names exactly the commands that the device still holds. That is
// read behind Close (the slots are Go memory, and stay as they were): others may post
// until it begins.
func (b *bench) close() {
	b.t.Helper()
	err := b.conn.Close()
	var held []int
	for i := range b.conn.slots {
		if b.conn.slots[i].mem.LoadBE32(0x3c)&1 != 0 {
			held = append(held, i)
		}
	}
	if len(held) == 0 {
		require.NoError(b.t, err)
	} else {
		var ue *UnansweredError
		require.ErrorAs(b.t, err, &ue)
		var named []int
		for _, r := range ue.Commands {
			named = append(named, r.Slot)
		}
		require.Equal(b.t, held, named)
	}
	require.Zero(b.t, b.dev.Space().Stats().LiveBuffers, "DMA memory is left")
	require.NoError(b.t, b.dev.Close())
	require.Empty(b.t, b.maps, "mappings are left")
}

// msg is an input of n bytes with a body that tells commands apart.
func msg(op prm.Opcode, n int, seed uint64) []byte {
	in := make([]byte, n)
	binary.BigEndian.PutUint16(in, uint16(op))
	for i := 8; i < n; i++ {
		seed = seed*6364136223846793005 + 1442695040888963407
		in[i] = byte(seed >> 56)
	}
	return in
}

// echo answers OK and the input's body as far as it fits.
func echo(c *call) { c.reply(echoed(c.in)) }

func echoed(in []byte) []byte { return slices.Concat(make([]byte, 8), in[8:]) }

// after runs f later, as firmware would.
func after(d time.Duration, f func()) { time.AfterFunc(d, f) }
