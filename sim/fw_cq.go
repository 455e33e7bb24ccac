package sim

import (
	"encoding/binary"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// MODIFY_CQ: what it changes (Linux cq.h).
const (
	cqModify = 0 // op_mod: the fields that the mask selects
	cqResize = 1 // op_mod: size, page offset and page size, with a new page list

	cqModifyPeriod  = 1 << 0
	cqModifyCount   = 1 << 1
	cqModifyOverrun = 1 << 2
	cqModifyMode    = 1 << 4

	cqResizeSize = 1 << 0
	cqResizeAll  = 1<<0 | 1<<1 | 1<<2
)

func init() {
	handle(prm.OpCreateCQ, onlyInit, 1, createCQ).needs(createCQMin).refuses(syndNoEQ, syndCQSize)
	handle(prm.OpQueryCQ, onlyInit, 1, queryCQ).refuses(syndNoCQ, syndOK)
	handle(prm.OpModifyCQ, onlyInit, 1<<cqModify|1<<cqResize, modifyCQ).needs(modifyCQMin).refuses(syndNoCQ, syndOK)
	handle(prm.OpDestroyCQ, onlyInit, 1, destroyCQ).refuses(syndNoCQ, syndOK)
}

// Where both commands describe a buffer in user memory: rdma-core's mlx5_ifc.h
// has these fields, Linux's does not. cq_umem_valid is in the layouts.
func cqUMEM(in []byte) (off uint64, id uint32, valid bool) {
	return binary.BigEndian.Uint64(in[0x50:]), binary.BigEndian.Uint32(in[0x58:]), in[0x5c]&0x80 != 0
}

// cqEntry is the size of an entry; 128-byte entries come padded or not, the
// completion is their second half.
func cqEntry(c *prm.CQC) uint64 {
	if c.CQESz() == prm.CQESize64Bytes {
		return cqeBytes
	}
	return 2 * cqeBytes
}

// queuePages is how many pages of 1<<shift bytes hold size bytes from offset on.
func queuePages(offset, size uint64, shift uint) uint64 {
	return (offset + size + 1<<shift - 1) >> shift
}

// pageOffset is where a queue begins in its first page: page_offset counts
// sixty-fourths of a page (Linux mem.c; 64 bytes of a 4096-byte one).
func pageOffset(n uint8, logPage uint8) uint64 { return uint64(n) << (12 + logPage) >> 6 }

// maxPages is more than any command can carry: what asks for more is refused for
// its size before its list is looked at.
const maxPages = maxChain * mailboxBytes / 8

func cqPages(c *prm.CQC) uint64 {
	return min(queuePages(pageOffset(c.PageOffset(), c.LogPageSize()), cqEntry(c)<<c.LogCQSize(), 12+uint(c.LogPageSize())), maxPages)
}

func createCQMin(f *function, c *call) (in, out int) {
	return prm.CreateCQInSize + f.cqList(c.in, prm.AsCreateCQIn(c.in).CQContext()), prm.CreateCQOutSize
}

// cqList is the bytes of the page list behind a command; none in user memory,
// nor for a size that will be refused.
func (f *function) cqList(in []byte, c *prm.CQC) int {
	if _, _, valid := cqUMEM(in); valid || c.LogCQSize() > f.general().LogMaxCQSz() {
		return 0
	}
	return int(cqPages(c)) * 8
}

// checkCQ looks at what a context asks for.
func (f *function) checkCQ(c *prm.CQC) synd {
	g := f.general()
	switch {
	case c.LogCQSize() > g.LogMaxCQSz():
		return syndCQSize
	case c.CQECompEn() || c.ApuCQ() || c.CQESz() > prm.CQESize128BytesPadded || c.Oi() && !g.CQOi():
		return syndCQEntry
	}
	return syndOK
}

// cqBuffer places a queue's entries.
func (f *function) cqBuffer(in []byte, c *prm.CQC) (b buffer, u *umem, s synd) {
	size := cqEntry(c) << c.LogCQSize()
	if off, id, valid := cqUMEM(in); valid {
		u, ok := f.umems.get(id)
		if !ok {
			return b, nil, syndNoUMEM
		}
		if b, ok = u.buffer(off, size); !ok {
			return b, nil, syndQueuePage
		}
		return b, u, syndOK
	}
	b = buffer{shift: 12 + uint(c.LogPageSize()), offset: pageOffset(c.PageOffset(), c.LogPageSize())}
	var ok bool
	if b.pages, ok = pageList(in[prm.CreateCQInSize:], cqPages(c), b.shift, false); !ok {
		return b, nil, syndQueuePage
	}
	return b, nil, syndOK
}

func createCQ(f *function, c *call) synd {
	ctx := prm.AsCreateCQIn(c.in).CQContext()
	if s := f.checkCQ(ctx); s != syndOK {
		return s
	}
	e, ok := f.eqs.get(ctx.CEQNOrApuElement())
	if !ok {
		return syndNoEQ
	}
	u, ok := f.uars.get(ctx.UARPage())
	if !ok {
		return syndNoUAR
	}
	q := &cq{uid: uidOf(c), ctx: *ctx, eq: e, logSize: uint(ctx.LogCQSize()), entry: cqEntry(ctx)}
	var s synd
	if q.buf, q.mem, s = f.cqBuffer(c.in, ctx); s != syndOK {
		return s
	}
	if q.dbr, q.rec, s = f.dbrOf(ctx.DBRUMEMValid(), cqcRecordUMEM(ctx), ctx.DBRAddr()); s != syndOK {
		return s
	}
	if q.n, ok = f.cqs.add(q); !ok {
		return syndOutOfCQs
	}
	hold(q.mem, q.rec)
	e.cqs++
	u.users++
	q.ctx.SetStatus(prm.CQStatusOK)
	prm.AsCreateCQOut(c.out).SetCQN(q.n)
	return syndOK
}

// hold and release count uses of user memories; nil stands for memory given by
// address.
func hold(l ...*umem)    { use(l, 1) }
func release(l ...*umem) { use(l, -1) }

func use(l []*umem, n int) {
	for _, u := range l {
		if u != nil {
			u.users += n
		}
	}
}

func destroyCQ(f *function, c *call) synd {
	q, ok := f.cqs.get(prm.AsDestroyCQIn(c.in).CQN())
	switch {
	case !ok:
		return syndNoCQ
	case q.users > 0:
		return syndCQBusy
	}
	q.eq.cqs--
	f.uars.objs[q.ctx.UARPage()].users--
	release(q.mem, q.rec)
	f.cqs.remove(q.n)
	return syndOK
}

func queryCQ(f *function, c *call) synd {
	q, ok := f.cqs.get(prm.AsQueryCQIn(c.in).CQN())
	if !ok {
		return syndNoCQ
	}
	// The consumer index of the record counts, whether it was looked at or not.
	if ci, ok := f.readRecord(q.dbr + cqRecordCI); ok && !q.failed {
		q.consumer = ci & counterCQ
	}
	out := prm.AsQueryCQOut(c.out)
	x := out.CQContext()
	*x = q.ctx
	x.SetProducerCounter(q.producer)
	x.SetConsumerCounter(q.consumer)
	x.SetLastNotifiedIndex(q.notified)
	x.SetLastSolicitIndex(q.solicit)
	x.SetSt(map[armState]prm.CQState{cqFired: prm.CQStateFired, cqArmed: prm.CQStateArmed,
		cqArmedSolicited: prm.CQStateSolicitedArmed}[q.armed])
	c.n = putPages(c.out, prm.QueryCQOutSize, q.buf.pages)
	return syndOK
}

// putPages writes as much of a page list as the output has room for and gives
// the output's length.
func putPages(out []byte, at int, pages []uint64) int {
	for _, p := range pages {
		if at+8 > len(out) {
			break
		}
		binary.BigEndian.PutUint64(out[at:], p)
		at += 8
	}
	return at
}

func modifyCQMin(f *function, c *call) (in, out int) {
	if c.opMod == cqModify {
		return prm.ModifyCQInSize, prm.ModifyCQOutSize
	}
	ctx := *prm.AsModifyCQIn(c.in).CQContext()
	if q, ok := f.cqs.get(prm.AsModifyCQIn(c.in).CQN()); ok {
		ctx.SetCQESz(q.ctx.CQESz())
	}
	return prm.ModifyCQInSize + f.cqList(c.in, &ctx), prm.ModifyCQOutSize
}

func modifyCQ(f *function, c *call) synd {
	in := prm.AsModifyCQIn(c.in)
	q, ok := f.cqs.get(in.CQN())
	if !ok {
		return syndNoCQ
	}
	if c.opMod == cqResize {
		return f.resizeCQ(q, c)
	}
	g, x := f.general(), in.CQContext()
	mask := in.ModifyFieldSelectResizeFieldSelect().ModifyFieldSelect().ModifyFieldSelect()
	switch {
	case mask&^(cqModifyPeriod|cqModifyCount|cqModifyOverrun|cqModifyMode) != 0,
		mask&(cqModifyPeriod|cqModifyCount) != 0 && !g.CQModeration(),
		mask&cqModifyMode != 0 && !g.CQPeriodModeModify(),
		mask&cqModifyOverrun != 0 && !g.CQOi():
		return syndCQField
	}
	if mask&cqModifyPeriod != 0 {
		q.ctx.SetCQPeriod(x.CQPeriod())
	}
	if mask&cqModifyCount != 0 {
		q.ctx.SetCQMaxCount(x.CQMaxCount())
	}
	if mask&cqModifyMode != 0 {
		q.ctx.SetCQPeriodMode(x.CQPeriodMode())
	}
	if mask&cqModifyOverrun != 0 {
		q.ctx.SetOi(x.Oi())
	}
	return syndOK
}

// resizeCQ moves a queue to another buffer. The last entry of the old one is
// RESIZE_CQ, the switch point; the next completion is the first of the new one
// and follows it in number (Linux cq.c, copy_resize_cqes).
func (f *function) resizeCQ(q *cq, c *call) synd {
	in := prm.AsModifyCQIn(c.in)
	ctx := *in.CQContext()
	ctx.SetCQESz(q.ctx.CQESz())
	mask := in.ModifyFieldSelectResizeFieldSelect().ResizeFieldSelect().ResizeFieldSelect()
	if !f.general().CQResize() || mask&cqResizeSize == 0 || mask&^cqResizeAll != 0 {
		return syndCQField
	}
	if ctx.LogCQSize() > f.general().LogMaxCQSz() {
		return syndCQSize
	}
	b, mem, s := f.cqBuffer(c.in, &ctx)
	if s != syndOK {
		return s
	}
	if ci, ok := f.readRecord(q.dbr + cqRecordCI); ok {
		q.consumer = ci & counterCQ
	}
	if (q.producer-q.consumer)&counterCQ >= 1<<ctx.LogCQSize() {
		return syndCQShrink
	}
	e := &prm.CQE64{}
	e.SetOpcode(prm.CQEResizeCQ)
	if !f.postCQE(q, e, false) {
		return syndCQShrink
	}
	release(q.mem)
	hold(mem)
	q.mem = mem
	q.buf, q.logSize = b, uint(ctx.LogCQSize())
	q.ctx.SetLogCQSize(ctx.LogCQSize())
	q.ctx.SetLogPageSize(ctx.LogPageSize())
	q.ctx.SetPageOffset(ctx.PageOffset())
	return syndOK
}
