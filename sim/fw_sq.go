package sim

import (
	"encoding/binary"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// Raw send queues. Linux's mlx5_core makes one to find out, with NOPs, whether
// write combining works; the model carries nothing else on them: no packet
// leaves the port. They are numbered with the QPs, as their doorbells are, and
// to the engine one is a QP without a receive side.

// Layout (Linux mlx5_ifc.h, create_sq_in, sqc and wq; the structures of these
// commands are not generated): context at 0x20, its wq at 0x50, pages at 0x110.
const (
	sqInBytes = 0x110
	sqContext = 0x20
	sqWQ      = 0x50
)

// sqState is a send queue's state (Linux mlx5_ifc.h, MLX5_SQC_STATE).
const (
	sqRST = 0
	sqRDY = 1
	sqERR = 3
)

var sqStates = map[uint8]prm.QPState{sqRST: prm.QPStateRst, sqRDY: prm.QPStateRts, sqERR: prm.QPStateErr}

func init() {
	handle(prm.OpCreateSQ, onlyInit, 1, createSQ).needs(createSQMin).refuses(syndNoCQ, syndQPSize)
	handle(prm.OpModifySQ, onlyInit, 1, modifySQ).needs(modifySQMin).refuses(syndNoSQ, syndSQState)
	handle(prm.OpDestroySQ, onlyInit, 1, destroySQ).needs(destroySQMin).refuses(syndNoSQ, syndOK)
}

func sqPages(w *prm.WQ) uint64 {
	return min(queuePages(pageOffset(w.PageOffset(), w.LogWQPgSz()), wqeBlock<<w.LogWQSz(), 12+uint(w.LogWQPgSz())), maxPages)
}

func createSQMin(f *function, c *call) (in, out int) {
	in = sqInBytes
	if len(c.in) < in {
		return in, inlineBytes
	}
	if w := prm.AsWQ(c.in[sqWQ:]); w.LogWQSz() <= f.general().LogMaxQPSz() && !w.WQUMEMValid() {
		in += int(sqPages(w)) * 8
	}
	return in, inlineBytes
}

func createSQ(f *function, c *call) synd {
	w := prm.AsWQ(c.in[sqWQ:])
	b := buffer{shift: 12 + uint(w.LogWQPgSz()), offset: pageOffset(w.PageOffset(), w.LogWQPgSz())}
	// Nothing on it uses a key, so the PD is not looked at: mlx5_core names none.
	q := &qp{uid: uidOf(c), bare: true, st: prm.QPTypeRawDatagram, uar: w.UARPage()}
	var ok bool
	if q.sendCQ, ok = f.cqs.get(binary.BigEndian.Uint32(c.in[sqContext+8:]) & counter24); !ok {
		return syndNoCQ
	}
	if _, ok = f.uars.get(q.uar); !ok {
		return syndNoUAR
	}
	switch {
	case w.LogWQSz() > f.general().LogMaxQPSz(), w.WQType() != prm.WQTypeCyclic, w.LogWQStride() != 6:
		return syndQPSize
	case w.WQUMEMValid() || w.DBRUMEMValid():
		return syndSRQUMEM
	}
	if b.pages, ok = pageList(c.in[sqInBytes:], sqPages(w), b.shift, false); !ok {
		return syndQueuePage
	}
	q.sq = workQueue{buf: b, log: uint(w.LogWQSz()), shift: 6, some: true}
	var s synd
	if q.dbr, _, s = f.dbrOf(false, 0, w.DBRAddr()); s != syndOK {
		return s
	}
	if q.n, ok = f.qps.add(q); !ok {
		return syndOutOfQPs
	}
	q.hold(f, 1)
	binary.BigEndian.PutUint32(c.out[8:], q.n)
	return syndOK
}

func (f *function) sqOf(c *call) (*qp, bool) {
	q, ok := f.qps.get(binary.BigEndian.Uint32(c.in[8:]) & counter24)
	return q, ok && q.bare
}

func modifySQMin(*function, *call) (in, out int) { return sqInBytes, inlineBytes }

func destroySQMin(*function, *call) (in, out int) { return inlineBytes, inlineBytes }

// modifySQ moves a queue from the state in the header to that of the context.
func modifySQ(f *function, c *call) synd {
	from := c.in[8] >> 4
	to, known := sqStates[c.in[sqContext+1]>>4]
	q, ok := f.sqOf(c)
	switch {
	case !ok:
		return syndNoSQ
	case !known, q.state != sqStates[from], to == prm.QPStateRts && q.state == prm.QPStateErr:
		return syndSQState
	}
	f.setState(q, to)
	return syndOK
}

func destroySQ(f *function, c *call) synd {
	q, ok := f.sqOf(c)
	if !ok {
		return syndNoSQ
	}
	f.engine.removed(q)
	q.hold(f, -1)
	f.qps.remove(q.n)
	return syndOK
}
