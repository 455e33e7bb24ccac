package sim

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// raw is a driver of the tests' own: it shares nothing with the real one but the
// layouts. It puts every message together by hand.
type raw struct {
	t     testing.TB
	chip  *Chip
	dev   vfio.Transport
	mem   vfio.Mem // the arena, at arenaIOVA
	next  uint64   // first free byte of the arena
	queue uint64
	token byte
	pages []uint64 // given to firmware
	pd    uint32
	xrcd  uint32
	cq    *rawCQ
	// What eventMode left.
	uar, eqn uint32
	eqAt     uint64
	eqLog    uint
	ci       uint32
	vectors  []*vfio.Vector
}

const (
	arenaIOVA = 1 << 30
	arenaSize = 64 << 20
)

func newRaw(t testing.TB, o Options) *raw {
	t.Helper()
	c, err := New(o)
	require.NoError(t, err)
	r := &raw{t: t, chip: c, mem: vfio.MemOf(make([]byte, arenaSize))}
	t.Cleanup(func() {
		if r.dev != nil {
			require.NoError(t, r.dev.Close())
		}
		require.NoError(t, c.Close())
	})
	r.open()
	require.NoError(t, r.dev.DMA().Map(vfio.Mapping{IOVA: arenaIOVA, Bytes: r.mem.Bytes(), FD: -1}))
	return r
}

func (r *raw) open() {
	r.dev = r.chip.Function(0)
	r.busMaster(true)
}

func (r *raw) busMaster(on bool) {
	v := uint16(cmdMemory)
	if on {
		v |= cmdBusMaster
	}
	require.NoError(r.t, r.dev.WriteRegion(vfio.RegionConfig, 4, binary.LittleEndian.AppendUint16(nil, v)))
}

// alloc gives n bytes of the arena, aligned.
func (r *raw) alloc(n, align int) uint64 {
	r.next = (r.next + uint64(align) - 1) &^ (uint64(align) - 1)
	at := r.next
	r.next += uint64(n)
	require.LessOrEqual(r.t, r.next, uint64(arenaSize), "the arena is too small for this test")
	return arenaIOVA + at
}

func (r *raw) bytes(iova uint64, n int) []byte {
	return r.mem.Slice(int(iova-arenaIOVA), n).Bytes()
}

func (r *raw) read(off uint64) uint32 {
	var b [4]byte
	require.NoError(r.t, r.dev.ReadRegion(vfio.RegionBAR0, off, b[:]))
	return binary.BigEndian.Uint32(b[:])
}

func (r *raw) write(off uint64, v uint32) {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], v)
	require.NoError(r.t, r.dev.WriteRegion(vfio.RegionBAR0, off, b[:]))
}

// publish gives the device a command page.
func (r *raw) publish() {
	if r.queue == 0 {
		r.queue = r.alloc(4096, 4096)
	}
	clear(r.bytes(r.queue, 4096))
	r.write(0x10, uint32(r.queue>>32))
	r.write(0x14, uint32(r.queue))
}

// chain builds mailboxes for a message of n bytes and fills them from body.
func (r *raw) chain(n int, body []byte) uint64 {
	next, boxes := uint64(0), blocks(uint32(n))
	for i := boxes - 1; i >= 0; i-- {
		at := r.alloc(prm.CmdIfBoxSize, 1024)
		b := prm.AsCmdIfBox(r.bytes(at, prm.CmdIfBoxSize))
		*b = prm.CmdIfBox{}
		if i*512 < len(body) {
			copy(b.MailboxData(), body[i*512:])
		}
		b.SetNextPointer63_32(uint32(next >> 32))
		b.SetNextPointer31_10(uint32(next) >> 10)
		b.SetBlockNumber(uint32(i))
		b.SetToken(r.token)
		b.SetCtrlSignature(^xor(b[0x200:0x23e]))
		b.SetSignature(^xor(b[:0x23f]))
		next = at
	}
	return next
}

// entry lays a command down in a slot without ringing.
func (r *raw) entry(slot int, in []byte, outLen int) *prm.CmdQueueEntry {
	r.token++
	if r.token == 0 {
		r.token = 1
	}
	e := prm.AsCmdQueueEntry(r.bytes(r.queue+uint64(slot)*64, 64))
	*e = prm.CmdQueueEntry{}
	e.SetType(7)
	e.SetInputLength(uint32(len(in)))
	e.SetOutputLength(uint32(outLen))
	e.SetToken(r.token)
	n := copy(e.CommandInputInlineData(), in)
	if len(in) > 16 {
		binary.BigEndian.PutUint64(e[0x08:], r.chain(len(in), in[n:]))
	}
	if outLen > 16 {
		binary.BigEndian.PutUint64(e[0x30:], r.chain(outLen, nil))
	}
	e.SetOwnership(true)
	e.SetSignature(^xor(e[:]))
	return e
}

func (r *raw) ring(slot int) { r.write(0x18, 1<<slot) }

// done tells whether a slot is the software's again.
func (r *raw) done(slot int) bool {
	return r.mem.LoadBE32(int(r.queue-arenaIOVA)+slot*64+0x3c)&1 == 0
}

// reply collects the output of a completed slot.
func (r *raw) reply(slot int) (prm.DeliveryStatus, []byte) {
	e := prm.AsCmdQueueEntry(r.bytes(r.queue+uint64(slot)*64, 64))
	out := append([]byte(nil), e.CommandOutputInlineData()...)
	at := binary.BigEndian.Uint64(e[0x30:])
	for at != 0 {
		b := prm.AsCmdIfBox(r.bytes(at, prm.CmdIfBoxSize))
		out = append(out, b.MailboxData()...)
		at = uint64(b.NextPointer63_32())<<32 | uint64(b.NextPointer31_10())<<10
	}
	return e.Status(), out[:max(16, min(len(out), int(e.OutputLength())))]
}

// send runs a command in slot 0 and gives delivery status and output.
func (r *raw) send(in []byte, outLen int) (prm.DeliveryStatus, []byte) {
	r.t.Helper()
	keep := r.next // mailboxes are gone with the command
	r.entry(0, in, outLen)
	r.ring(0)
	require.True(r.t, r.done(0), "the model answers on the doorbell")
	d, out := r.reply(0)
	r.next = keep
	return d, out
}

// status runs a command that is delivered and gives status and syndrome.
func (r *raw) status(in []byte, outLen int) (prm.CommandStatus, synd) {
	r.t.Helper()
	d, out := r.send(in, outLen)
	require.Equal(r.t, prm.DeliveryOK, d)
	return prm.CommandStatus(out[0]), synd(binary.BigEndian.Uint32(out[4:]))
}

// ok runs a command that must succeed and gives its output.
func (r *raw) ok(in []byte, outLen int) []byte {
	r.t.Helper()
	d, out := r.send(in, outLen)
	require.Equal(r.t, prm.DeliveryOK, d)
	require.Equal(r.t, prm.StatusOK, prm.CommandStatus(out[0]), "%s: %s", prm.Opcode(binary.BigEndian.Uint16(in)),
		SyndromeText(binary.BigEndian.Uint32(out[4:])))
	return out
}

// cmd is an input of n bytes with its header.
func cmd(op prm.Opcode, opMod uint16, n int) []byte {
	b := make([]byte, n)
	binary.BigEndian.PutUint16(b, uint16(op))
	binary.BigEndian.PutUint16(b[6:], opMod)
	return b
}

func (r *raw) enable() { r.ok(cmd(prm.OpEnableHCA, 0, 16), 16) }

func (r *raw) issi() {
	r.ok(cmd(prm.OpQueryISSI, 0, 16), 0x70)
	in := cmd(prm.OpSetISSI, 0, 16)
	prm.AsSetISSIIn(in).SetCurrentISSI(1)
	r.ok(in, 16)
}

// give answers QUERY_PAGES of one kind with pages of the arena.
func (r *raw) give(kind prm.QueryPagesOpMod) int {
	out := r.ok(cmd(prm.OpQueryPages, uint16(kind), 16), 16)
	n := int(int32(prm.AsQueryPagesOut(out).NumPages()))
	if n > 0 {
		first := r.alloc(n*4096, 4096)
		in := cmd(prm.OpManagePages, uint16(prm.ManagePagesGive), 16+n*8)
		prm.AsManagePagesIn(in).SetInputNumEntries(uint32(n))
		for i := range n {
			binary.BigEndian.PutUint64(in[16+i*8:], first+uint64(i)*4096)
			r.pages = append(r.pages, first+uint64(i)*4096)
		}
		r.ok(in, 16)
	}
	return n
}

// take asks for up to n pages back.
func (r *raw) take(n int) []uint64 {
	in := cmd(prm.OpManagePages, uint16(prm.ManagePagesTake), 16)
	prm.AsManagePagesIn(in).SetInputNumEntries(uint32(n))
	out := r.ok(in, 16+n*8)
	var l []uint64
	for i := range prm.AsManagePagesOut(out).OutputNumEntries() {
		l = append(l, binary.BigEndian.Uint64(out[16+i*8:]))
	}
	return l
}

// to brings the function up to a phase.
func (r *raw) to(p phase) *raw {
	r.t.Helper()
	r.publish()
	if p >= phaseEnabled {
		r.enable()
	}
	if p >= phaseISSI {
		r.issi()
		r.give(prm.QueryPagesBoot)
	}
	if p >= phaseInit {
		r.give(prm.QueryPagesInit)
		r.ok(cmd(prm.OpInitHCA, 0, 16), 16)
	}
	if p >= phaseTornDown {
		r.ok(cmd(prm.OpTeardownHCA, 0, 16), 16)
	}
	return r
}

// createEQ makes an event queue of 1<<log entries on vector v.
func (r *raw) createEQ(log uint, v int, mask uint64) (n uint32, at uint64) {
	r.t.Helper()
	shift := max(12, log+6)
	at = r.alloc(1<<shift, 1<<shift)
	buf := r.bytes(at, 1<<shift)
	clear(buf)
	for i := 63; i < len(buf); i += 64 {
		buf[i] = 1
	}
	in := cmd(prm.OpCreateEQ, 0, 0x118)
	c := prm.AsCreateEQIn(in)
	c.EQContextEntry().SetLogEQSize(uint8(log))
	c.EQContextEntry().SetUARPage(r.uar)
	c.EQContextEntry().SetIntr(uint16(v))
	c.EQContextEntry().SetLogPageSize(uint8(shift - 12))
	c.SetEventBitmask(0, mask)
	binary.BigEndian.PutUint64(in[0x110:], at)
	out := r.ok(in, 16)
	return uint32(prm.AsCreateEQOut(out).EQNumber()), at
}

// eventMode makes a UAR, vectors and an event queue of commands and pages.
func (r *raw) eventMode(log uint) {
	r.t.Helper()
	for range 4 {
		v, err := r.dev.NewVector()
		require.NoError(r.t, err)
		r.vectors = append(r.vectors, v)
	}
	require.NoError(r.t, r.dev.SetIRQs(vfio.IRQMSIX, 0, r.vectors))
	r.uar = prm.AsAllocUAROut(r.ok(cmd(prm.OpAllocUAR, 0, 16), 16)).UAR()
	r.eqLog = log
	r.eqn, r.eqAt = r.createEQ(log, 1, 1<<prm.EventCmd|1<<prm.EventPageRequest|1<<prm.EventPortChange|1<<prm.EventGeneral|1<<prm.EventTempWarn)
}

// arm sends the consumer index and arms.
func (r *raw) arm() { r.write(uint64(r.uar)*4096+0x40, r.eqn<<24|r.ci&counter24) }

// event takes the next entry of the event queue; nil when there is none.
func (r *raw) event() *prm.EQE {
	i := r.ci & (1<<r.eqLog - 1)
	off := int(r.eqAt-arenaIOVA) + int(i)*64
	owner := r.mem.LoadBE32(off+0x3c) & 1
	if owner != r.ci>>r.eqLog&1 {
		return nil
	}
	r.ci++
	e := *prm.AsEQE(r.mem.Slice(off, 64).Bytes())
	return &e
}
