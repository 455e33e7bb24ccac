package sim

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// onFunction is a driver of function i of a chip that has one already.
func onFunction(t testing.TB, c *Chip, i int) *raw {
	t.Helper()
	r := &raw{t: t, chip: c, mem: vfio.MemOf(make([]byte, arenaSize))}
	r.dev = c.Function(i)
	t.Cleanup(func() { require.NoError(t, r.dev.Close()) })
	r.busMaster(true)
	require.NoError(t, r.dev.DMA().Map(vfio.Mapping{IOVA: arenaIOVA, Bytes: r.mem.Bytes(), FD: -1}))
	return r
}

// rawTracer is a driver's side of the tracer, without the driver.
type rawTracer struct {
	*raw
	log  uint8
	buf  *region
	eq   uint32
	eqAt uint64
	eqCI uint32

	known map[uint32]string // strings read so far

	// The reader: the place of the next block and the closing time of the last.
	at   int
	last uint64
	seen bool
}

// traceKey is a key that keeps the rules.
func traceKey(m *prm.MKC) {
	m.SetRr(false)
	m.SetRw(false)
	m.SetA(false)
}

func newTracer(r *raw, log uint8, key func(*prm.MKC)) *rawTracer {
	r.t.Helper()
	t := &rawTracer{raw: r, log: log, known: map[uint32]string{}}
	r.data()
	t.eq, t.eqAt = r.createEQ(6, 2, 1<<prm.EventDeviceTracer)
	t.buf = r.region(4096<<log, func(m *prm.MKC) {
		traceKey(m)
		if key != nil {
			key(m)
		}
	})
	return t
}

// newTracing is a tracer that is on and not armed; the chip remembers what it
// writes.
func newTracing(t testing.TB, o Options, log uint8) *rawTracer {
	t.Helper()
	x := newTracer(newFlow(t, o), log, nil)
	x.chip.KeepTrace(1 << 12)
	require.True(t, x.acquire())
	x.start()
	return x
}

func (t *rawTracer) acquire() bool {
	t.t.Helper()
	b, y := t.reg(prm.RegMtrcCap, func(img []byte) { prm.AsMtrcCap(img).SetTraceOwner(true) }, true)
	require.Equal(t.t, syndOK, y)
	return prm.AsMtrcCap(b).TraceOwner()
}

func (t *rawTracer) release() {
	t.t.Helper()
	b, y := t.reg(prm.RegMtrcCap, nil, true)
	require.Equal(t.t, syndOK, y)
	require.False(t.t, prm.AsMtrcCap(b).TraceOwner())
}

func (t *rawTracer) owns() bool {
	b, _ := t.reg(prm.RegMtrcCap, nil, false)
	return prm.AsMtrcCap(b).TraceOwner()
}

func (t *rawTracer) conf() synd {
	_, y := t.reg(prm.RegMtrcConf, func(img []byte) {
		c := prm.AsMtrcConf(img)
		c.SetTraceMode(traceToMemory)
		c.SetLogTraceBufferSize(t.log)
		c.SetTraceMKey(t.buf.key)
	}, true)
	t.at, t.last, t.seen = 0, 0, false
	return y
}

func (t *rawTracer) ctrl(status uint8, arm bool) *prm.MtrcCtrl {
	t.t.Helper()
	b, y := t.reg(prm.RegMtrcCtrl, func(img []byte) {
		c := prm.AsMtrcCtrl(img)
		if status < 2 {
			c.SetModifyFieldSelect(1)
			c.SetTraceStatus(status)
		}
		c.SetArmEvent(arm)
	}, true)
	require.Equal(t.t, syndOK, y)
	return prm.AsMtrcCtrl(b)
}

// armTrace asks for an event and leaves the status alone.
func (t *rawTracer) armTrace() { t.ctrl(2, true) }

func (t *rawTracer) start() {
	t.t.Helper()
	require.Equal(t.t, syndOK, t.conf())
	require.EqualValues(t.t, 1, t.ctrl(1, false).TraceStatus())
}

// tracerEvents are the sub-types of what the event queue got.
func (t *rawTracer) tracerEvents() (l []prm.TracerEventSubtype) {
	for {
		off := int(t.eqAt-arenaIOVA) + int(t.eqCI&63)*64
		if t.mem.LoadBE32(off+0x3c)&1 != t.eqCI>>6&1 {
			return l
		}
		e := prm.AsEQE(t.mem.Slice(off, 64).Bytes())
		require.Equal(t.t, prm.EventDeviceTracer, e.EventType())
		l = append(l, prm.TracerEventSubtype(e.EventSubType()))
		t.eqCI++
		t.raw.write(uint64(t.uar)*4096+0x48, t.eq<<24|t.eqCI&counter24)
	}
}

// section reads one section of the string database as Linux does.
func (t *rawTracer) section(i int) []byte {
	t.t.Helper()
	b, _ := t.reg(prm.RegMtrcCap, nil, false)
	size := int(prm.AsMtrcCap(b).StringDbParam(i).StringDbSize())
	var out []byte
	for len(out) < size {
		n := 256
		if size-len(out) < n {
			n = stringGrain
		}
		in := cmd(prm.OpAccessReg, regWrite, 16+prm.MtrcCapSize)
		prm.AsAccessRegisterIn(in).SetRegisterID(prm.RegMtrcStdb)
		s := prm.AsMtrcStdb(in[16:])
		s.SetStringDbIndex(uint8(i))
		s.SetReadSize(uint32(n))
		s.SetStartOffset(uint32(len(out)))
		out = append(out, t.ok(in, 16+8+n)[24:]...)
	}
	return out
}

// stringAt finds a string, with the base of its section inclusive.
func (t *rawTracer) stringAt(pointer uint32) (string, bool) {
	b, _ := t.reg(prm.RegMtrcCap, nil, false)
	c := prm.AsMtrcCap(b)
	for i := range int(c.NumStringDb()) {
		p := c.StringDbParam(i)
		if off := int64(pointer) - int64(p.StringDbBaseAddress()); off >= 0 && off < int64(p.StringDbSize()) {
			s, _, _ := strings.Cut(string(t.section(i)[off:]), "\x00")
			return s, true
		}
	}
	return "", false
}

func word53(w uint64) uint64 { return w>>32&0x1fff<<40 | w&0xffffffff<<8 | w>>56 }

// rawBlock is a block as it was read: its events.
type rawBlock [traceEvents]uint64

func (b *rawBlock) time() uint64 { return word53(b[traceEvents-1]) }

func (t *rawTracer) load(i int) (b rawBlock) {
	for k := range b {
		b[k] = t.mem.LoadBE64(int(t.buf.at-arenaIOVA) + i*traceBlock + k*8)
	}
	return b
}

// closing is the last event of a block in memory.
func (t *rawTracer) closing(i int) uint64 {
	return t.mem.LoadBE64(int(t.buf.at-arenaIOVA) + (i+1)*traceBlock - 8)
}

// newer is serial arithmetic of 53 bits.
func newer(a, b uint64) bool { d := (a - b) & traceMask; return d != 0 && d < 1<<52 }

// next gives the next block; overrun says that the writer came by: the blocks
// that lie between the last one and the one given are lost.
func (t *rawTracer) next() (b rawBlock, overrun, ok bool) {
	n := t.buf.n / traceBlock
	b = t.load(t.at)
	if b[traceEvents-1]>>48&0xff != traceStamp || t.seen && !newer(b.time(), t.last) {
		return b, false, false
	}
	// The writer is never in a block whose predecessor holds what was seen.
	prev := t.load((t.at + n - 1) % n)
	if t.seen && (prev[traceEvents-1]>>48&0xff != traceStamp || prev.time() != t.last) ||
		!t.seen && prev[traceEvents-1]>>48&0xff == traceStamp {
		overrun = true
	}
	t.at = (t.at + 1) % n
	t.last, t.seen = b.time(), true
	return b, overrun, true
}

// drain reads all blocks, which must follow one another.
func (t *rawTracer) drain() (l []rawBlock) {
	t.t.Helper()
	for {
		b, overrun, ok := t.next()
		if !ok {
			return l
		}
		require.False(t.t, overrun)
		l = append(l, b)
	}
}

// rawMessage is a message as the test's own decoder gives it.
type rawMessage struct {
	at   uint64
	id   uint8
	lost bool
	text string
	// linux is the time that Linux computes (fw_tracer.c).
	linux uint64
}

var conversion = regexp.MustCompile(`%[0-9]*[xXdiuc]`)

// decode is the simplest decoder that there can be: parts of a message follow
// one another, formats are the plain ones.
func (t *rawTracer) decode(blocks []rawBlock) (l []rawMessage) {
	t.t.Helper()
	type part struct {
		format string
		words  []any
		need   int
		stamp  uint64
	}
	var wait []*part
	var out []*rawMessage
	undated := 0
	for _, b := range blocks {
		for _, w := range b {
			id := uint8(w >> 48)
			if id == traceStamp {
				T := word53(w)
				for ; undated < len(out); undated++ {
					m, x := wait[undated].stamp, out[undated]
					x.at, x.linux = T&^127|m, T&^127|m
					if m >= T&127 {
						x.at, x.linux = (x.at-128)&traceMask, ((T-1)&^127|m)&traceMask
					}
				}
				continue
			}
			require.True(t.t, id >= traceFirst && id < traceFirst+traceIDs, "event %#x", w)
			if w>>32&7 == 0 {
				f, ok := t.known[uint32(w)]
				if !ok {
					f, ok = t.stringAt(uint32(w))
					require.True(t.t, ok, "string %#x", uint32(w))
					t.known[uint32(w)] = f
				}
				wait = append(wait, &part{format: f, need: len(conversion.FindAllString(f, -1)), stamp: w >> 56 & 127})
				out = append(out, &rawMessage{id: id})
			}
			p, m := wait[len(wait)-1], out[len(out)-1]
			m.lost = m.lost || w&traceLost != 0
			if n := w >> 32 & 7; n != 0 {
				require.EqualValues(t.t, len(p.words)+1, n)
				kind := conversion.FindAllString(p.format, -1)[n-1]
				if kind = kind[len(kind)-1:]; kind == "d" || kind == "i" {
					p.words = append(p.words, int32(w))
				} else {
					p.words = append(p.words, uint32(w))
				}
			}
		}
	}
	require.Equal(t.t, len(out), undated, "every message has a date")
	for i, m := range out {
		p := wait[i]
		require.Len(t.t, p.words, p.need, p.format)
		m.text = fmt.Sprintf(strings.NewReplacer("%u", "%d", "%i", "%d").Replace(p.format), p.words...)
		l = append(l, *m)
	}
	return l
}

// truth compares what was decoded with what the chip kept.
func (t *rawTracer) truth(got []rawMessage) {
	t.t.Helper()
	want := t.chip.KeptTrace().Messages
	require.Equal(t.t, len(want), len(got))
	for i, m := range got {
		require.Equal(t.t, TraceMessage{Block: want[i].Block, Time: m.at, Reliable: true, EventID: m.id, Lost: m.lost, Load: want[i].Load,
			Number: want[i].Number, Text: m.text}, want[i], "message %d", i)
	}
}
