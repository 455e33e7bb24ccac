package queues

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// producer writes entries as a device does: the body, then the owner bit of its
// pass.
type producer struct {
	mem vfio.Mem
	log uint8
	pi  uint32
}

func (p *producer) write(tag uint32) {
	off := int(p.pi&(1<<p.log-1)) * eqeSize
	var e prm.EQE
	e.SetEventType(prm.EventCmd)
	e.EventData().CmdInterCompEvent().SetCommandCompletionVector(tag)
	p.mem.CopyIn(off, e[:ownerWord])
	p.mem.StoreBE32(off+ownerWord, p.pi>>p.log&1)
	p.pi++
}

func newRing(log uint8) (*ring, *producer) {
	mem := vfio.MemOf(make([]byte, eqeSize<<log))
	r := &ring{}
	r.init(mem, log)
	return r, &producer{mem: mem, log: log}
}

func tag(e *prm.EQE) uint32 { return e.EventData().CmdInterCompEvent().CommandCompletionVector() }

// The ownership rule of eq.h: a new ring is empty, and entries arrive in order
// over many passes, however full the ring is when it is read.
func TestRingPasses(t *testing.T) {
	for _, log := range []uint8{0, 1, 3} {
		r, p := newRing(log)
		require.False(t, r.next(), "a new ring is empty")
		next := uint32(0)
		for round := range 40 {
			burst := round % (1<<log + 1)
			for range burst {
				p.write(p.pi)
			}
			for range burst {
				require.True(t, r.next())
				require.Equal(t, next, tag(&r.entry))
				next++
			}
			require.False(t, r.next())
			require.False(t, r.overrun())
		}
	}
}

// The consumer index is 24 bits on the wire; the ring keeps the right pass when
// it wraps.
func TestRingIndexWrap(t *testing.T) {
	r, p := newRing(2)
	r.ci, p.pi = 1<<24-6, 1<<24-6
	// Entries of the previous pass, as the device would have left them.
	for i := range uint32(4) {
		at := p.pi - 4 + i
		p.mem.StoreBE32(int(at&3)*eqeSize+ownerWord, at>>2&1)
	}
	for i := range uint32(12) {
		require.False(t, r.next())
		p.write(i)
		require.True(t, r.next())
		require.Equal(t, i, tag(&r.entry))
	}
	require.Equal(t, uint32(6), r.ci&ciMask)
}

// A device that laps the reader leaves the current slot in the next pass while
// its successor is still of this one.
func TestRingOverrun(t *testing.T) {
	r, p := newRing(3)
	for range 3 {
		p.write(p.pi)
	}
	for range 3 {
		require.True(t, r.next())
	}
	require.False(t, r.overrun())
	for range 8 {
		p.write(p.pi)
	}
	require.True(t, r.ready(r.ci), "a full ring is not an overrun")
	require.False(t, r.overrun())
	p.write(p.pi)
	require.False(t, r.next())
	require.True(t, r.overrun())
}

// Poll hands over copies: the device may reuse the slot before the handler has
// read the entry.
func TestRingCopies(t *testing.T) {
	r, p := newRing(0)
	p.write(7)
	require.True(t, r.next())
	p.write(8)
	require.Equal(t, uint32(7), tag(&r.entry))
}

func TestUARLayout(t *testing.T) {
	for _, c := range []struct {
		name   string
		layout UARLayout
		index  uint32
		off    uint64
	}{
		{"4 KiB host", UARLayout{PageShift: 12}, 0x10, 0x10000},
		{"4 KiB host, uar_4k", UARLayout{PageShift: 12, FourK: true}, 0x10, 0x10000},
		{"64 KiB host", UARLayout{PageShift: 16}, 3, 0x30000},
		{"64 KiB host, uar_4k", UARLayout{PageShift: 16, FourK: true}, 0x23, 0x23000},
		{"nothing announced", UARLayout{}, 2, 0x2000},
	} {
		require.Equal(t, c.off, c.layout.Offset(c.index), c.name)
	}
}

func TestEventMask(t *testing.T) {
	m := MaskOf(prm.EventPortChange, prm.EventCQError).With(prm.EventObjectChange, 200)
	require.Equal(t, EventMask{1<<4 | 1<<9 | 1<<0x27, 0, 0, 1 << 8}, m)
	require.Equal(t, []prm.EventType{prm.EventCQError, prm.EventPortChange, prm.EventObjectChange, 200}, m.Types())
	require.True(t, m.Has(200))
	require.False(t, m.Has(prm.EventCmd))
}

// Every event type and sub-type of the PRM has a name, and what has none is
// called by its number and shown whole.
func TestEventNames(t *testing.T) {
	var e prm.EQE
	for _, v := range prm.EventTypeEnum.Values {
		e = prm.EQE{}
		e.SetEventType(prm.EventType(v.Value))
		if names, ok := subTypes[e.EventType()]; ok {
			for _, s := range names.Values {
				e.SetEventSubType(uint8(s.Value))
				require.True(t, Known(&e))
				require.Contains(t, Describe(&e), v.Name+"/"+s.Name)
			}
			e.SetEventSubType(0xee)
			require.False(t, Known(&e), v.Name)
			require.Contains(t, Describe(&e), "SUBTYPE_0xee 00 00")
			continue
		}
		require.True(t, Known(&e), v.Name)
		require.Contains(t, Describe(&e), v.Name)
	}
	e = prm.EQE{}
	e.SetEventType(0x7f)
	e[0x20] = 0xab
	require.False(t, Known(&e))
	require.Contains(t, Describe(&e), "EVENT_0x7f ab 00")
}

// Descriptions say what the data says (Linux device.h and mlx5_ifc.h, offsets by hand).
func TestDescribe(t *testing.T) {
	for _, c := range []struct {
		want string
		set  map[int]byte
	}{
		{"PORT_CHANGE/ACTIVE port 2", map[int]byte{1: 9, 3: 4, 0x28: 0x20}},
		{"CMD slots 0x80000001", map[int]byte{1: 0x0a, 0x20: 0x80, 0x23: 1}},
		{"PAGE_REQUEST function 0x3 -16 pages", map[int]byte{1: 0x0b, 0x23: 3, 0x24: 0xff, 0x25: 0xff, 0x26: 0xff, 0x27: 0xf0}},
		{"PAGE_REQUEST function 0x0 release-all +0 pages", map[int]byte{1: 0x0b, 0x20: 0x40}},
		{"SQ_DRAINED SQ 0x4d2", map[int]byte{1: 3, 0x34: 2, 0x3a: 4, 0x3b: 0xd2}},
		{"CQ_ERROR cqn 0x401 OVERRUN", map[int]byte{1: 4, 0x22: 4, 0x23: 1, 0x2b: 1}},
		{"GENERAL_EVENT/PCI_SYNC_FOR_FW_UPDATE NOW", map[int]byte{1: 0x22, 3: 8, 0x23: 1}},
		{"COMP cqn 0x123456", map[int]byte{1: 0, 0x39: 0x12, 0x3a: 0x34, 0x3b: 0x56}},
	} {
		var e prm.EQE
		for i, b := range c.set {
			e[i] = b
		}
		require.Equal(t, c.want, Describe(&e))
	}
}

// The bits of the masks that a real driver asked a real ConnectX-4 for.
func TestMaskOfGolden(t *testing.T) {
	require.Equal(t, uint64(0x400), MaskOf(prm.EventCmd)[0])
	require.Equal(t, uint64(0x800), MaskOf(prm.EventPageRequest)[0])
}

func BenchmarkRingNext(b *testing.B) {
	r, p := newRing(8)
	b.ReportAllocs()
	for b.Loop() {
		p.write(1)
		if !r.next() {
			b.Fatal("no entry")
		}
	}
}
