package tracer

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/tracer/capture"
	"github.com/mlxvfio/mlxvfio/tracer/trace"
	"github.com/mlxvfio/mlxvfio/vfio"
)

var errPlanned = errors.New("planned")

// fake is a device's tracer as its registers show it, and a writer of blocks.
type fake struct {
	mu       sync.Mutex
	owner    bool // ours
	tool     bool // somebody else's
	caps     prm.MtrcCap
	sections [][]byte
	conf     prm.MtrcConf
	status   uint8
	armed    bool
	fresh    bool
	events   chan Event
	now      uint64

	mem      vfio.Mem
	pos      uint64
	written  []uint64 // closing times of all blocks, in order
	ops      []string
	on       func(op string) error // called with mu held
	asks     int
	freeFrom int  // tries after which the tool lets go; 0 never
	stubborn bool // trace_owner stays 1
	freed    int
	key      prm.MKC
	confLies bool
	ctrlLies bool
}

func newFake() *fake {
	f := &fake{events: make(chan Event, 64), now: 1000}
	f.caps.SetTraceToMemory(true)
	f.caps.SetTrcVer(1)
	f.caps.SetFirstStringTrace(16)
	f.caps.SetNumStringTrace(8)
	f.caps.SetLogMaxTraceBufferSize(6)
	f.setSections([]byte("hello %u\x00"), make([]byte, 1000), nil)
	return f
}

// setSections pads them to 64 bytes.
func (f *fake) setSections(l ...[]byte) {
	f.sections = nil
	f.caps.SetNumStringDb(uint8(len(l)))
	for i, s := range l {
		s = append([]byte(nil), s...)
		s = append(s, make([]byte, -len(s)&63)...)
		f.sections = append(f.sections, s)
		f.caps.StringDbParam(i).SetStringDbBaseAddress(uint32(0x400000 + 0x100000*i))
		f.caps.StringDbParam(i).SetStringDbSize(uint32(len(s)))
	}
}

func (f *fake) AccessRegister(ctx context.Context, mode prm.AccessRegOpMod, id prm.RegisterID, _ uint32, in, out []byte) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	write := mode == prm.AccessRegWrite
	op := map[prm.RegisterID]string{prm.RegMtrcCap: "cap", prm.RegMtrcConf: "conf", prm.RegMtrcCtrl: "ctrl", prm.RegMtrcStdb: "stdb"}[id]
	if write {
		switch id {
		case prm.RegMtrcCap:
			op = map[bool]string{true: "acquire", false: "release"}[prm.AsMtrcCap(in).TraceOwner()]
			for i, b := range in {
				if i == 0 {
					b &= 0x7f
				}
				if b != 0 {
					return fmt.Errorf("MTRC_CAP is written with more than trace_owner: %x", in)
				}
			}
		case prm.RegMtrcConf:
			op = "configure"
		case prm.RegMtrcCtrl:
			op = "arm"
			if c := prm.AsMtrcCtrl(in); c.ModifyFieldSelect()&1 != 0 {
				op = []string{"off", "on"}[c.TraceStatus()]
			}
		}
	}
	if op != "stdb" {
		f.ops = append(f.ops, op)
	}
	if f.on != nil {
		if err := f.on(op); err != nil {
			return err
		}
	}
	switch id {
	case prm.RegMtrcCap:
		if write {
			f.askLocked(prm.AsMtrcCap(in).TraceOwner())
		}
		c := f.caps
		c.SetTraceOwner(f.owner)
		copy(out, c[:])
	case prm.RegMtrcConf:
		if write && f.owner {
			copy(f.conf[:], in)
			f.pos = 0
		}
		copy(out, f.conf[:])
		if f.confLies {
			prm.AsMtrcConf(out).SetLogTraceBufferSize(0)
		}
	case prm.RegMtrcCtrl:
		c := prm.AsMtrcCtrl(in)
		if write && f.owner {
			if c.ModifyFieldSelect()&1 != 0 {
				f.status = c.TraceStatus()
			}
			if c.ArmEvent() {
				f.armed = true
				f.tellLocked()
			}
		}
		clear(out)
		r := prm.AsMtrcCtrl(out)
		if f.owner && !f.ctrlLies {
			r.SetTraceStatus(f.status)
		}
		r.SetCurrentTimestamp52_32(uint32(f.now >> 32))
		r.SetCurrentTimestamp31_0(uint32(f.now))
	case prm.RegMtrcStdb:
		s := prm.AsMtrcStdb(in)
		i, at, n := int(s.StringDbIndex()), int(s.StartOffset()), int(s.ReadSize())
		if i >= len(f.sections) || at%64 != 0 || n%64 != 0 || n == 0 || at+n > len(f.sections[i]) || len(out) != 8+n {
			return fmt.Errorf("bad string read: section %d, %d bytes at %d, room for %d", i, n, at, len(out))
		}
		copy(out[8:], f.sections[i][at:at+n])
	}
	return nil
}

func (f *fake) askLocked(own bool) {
	switch {
	case !own:
		if !f.stubborn {
			f.owner, f.status = false, 0
		}
	case f.tool:
		if f.asks++; f.freeFrom > 0 && f.asks >= f.freeFrom {
			f.tool, f.owner = false, true
		}
	default:
		f.owner = true
	}
}

func (f *fake) tellLocked() {
	if f.armed && f.fresh {
		f.armed, f.fresh = false, false
		select {
		case f.events <- prm.TracerEventTracesAvailable:
		default:
		}
	}
}

// steal gives the tracer to a tool.
func (f *fake) steal(silent bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.owner, f.tool, f.status = false, true, 0
	if !silent {
		f.events <- prm.TracerEventOwnershipChange
	}
}

// blockAt composes a block that closes at t, with its number in every event.
func blockAt(n, t uint64) (b [trace.BlockSize]byte) {
	for i := range trace.EventsPerBlock - 1 {
		binary.BigEndian.PutUint64(b[8*i:], n<<8|uint64(i))
	}
	binary.BigEndian.PutUint64(b[closingWord:], uint64(trace.TimestampEvent(t, 0)))
	return b
}

// put writes a block as a device does: its words in order, the closing one last.
func put(mem vfio.Mem, place uint64, b *[trace.BlockSize]byte) {
	for i := 0; i < trace.BlockSize; i += 8 {
		mem.StoreBE64(int(place)*trace.BlockSize+i, binary.BigEndian.Uint64(b[i:]))
	}
}

// write writes n blocks, if the tracer is on.
func (f *fake) write(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.owner || f.status != 1 {
		return
	}
	blocks := uint64(16) << f.conf.LogTraceBufferSize()
	for range n {
		f.now = (f.now + 7) & trace.TimeMask
		b := blockAt(uint64(len(f.written)), f.now)
		put(f.mem, f.pos, &b)
		f.pos = (f.pos + 1) & (blocks - 1)
		f.written = append(f.written, f.now)
	}
	f.fresh = true
	f.tellLocked()
}

func (f *fake) writtenBlocks() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.written)
}

func (f *fake) opsOf(names ...string) (l []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, o := range f.ops {
		for _, n := range names {
			if o == n {
				l = append(l, o)
			}
		}
	}
	return l
}

func (f *fake) state() (owner bool, status uint8, freed int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.owner, f.status, f.freed
}

// goodKey is the context of a memory key that keeps every rule.
func goodKey(iova, size uint64, key uint32) (m prm.MKC) {
	m.SetLr(true)
	m.SetLw(true)
	m.SetAccessMode1_0(uint8(prm.AccessModeMTT))
	m.SetQPN(anyQPN)
	m.SetMKey7_0(uint8(key))
	m.SetStartAddr(iova)
	m.SetLen(size)
	m.SetLogPageSize(12)
	m.SetTranslationsOctwordSize(uint32(size/4096+1) / 2)
	return m
}

func (f *fake) device() Device {
	return Device{
		Port: f,
		Meta: capture.Meta{Device: "fake", Firmware: "1.2.3"},
		Alloc: func(_ context.Context, size int) (*Buffer, error) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.mem = vfio.MemOf(make([]byte, size))
			b := &Buffer{Mem: f.mem, IOVA: 0x10000, Key: 0x1234, Context: goodKey(0x10000, uint64(size), 0x1234)}
			if f.key != (prm.MKC{}) {
				b.Context = f.key
			}
			b.Free = func(context.Context) error {
				f.mu.Lock()
				defer f.mu.Unlock()
				if f.on != nil {
					if err := f.on("free"); err != nil {
						return err
					}
				}
				f.ops = append(f.ops, "free")
				f.freed++
				return nil
			}
			b.Release = func() error { return b.Free(context.Background()) }
			return b, nil
		},
		Subscribe: func() (<-chan Event, func()) { return f.events, func() {} },
		Timer:     func() uint64 { f.mu.Lock(); defer f.mu.Unlock(); return f.now },
	}
}
