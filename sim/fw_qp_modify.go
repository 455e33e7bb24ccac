package sim

import "github.com/mlxvfio/mlxvfio/internal/prm"

// modifyQP is every command that changes the state. All their inputs have the
// QP's number and context in the same places.
func modifyQP(f *function, c *call) synd {
	q, ok := f.qpOf(c)
	if !ok {
		return syndNoQP
	}
	t := transitionOf(c.op)
	if !t.from.has(q.state) {
		return syndQPState
	}
	switch t.to {
	case prm.QPStateErr:
		f.setState(q, t.to)
		return syndOK
	case prm.QPStateRst:
		f.setState(q, t.to)
		q.count(nil)
		q.ctx = q.created
		q.parse()
		return syndOK
	}
	in := prm.AsRst2InitQPIn(c.in)
	mask := prm.OptParam(in.OptParamMask())
	if mask&^f.allowed(t, q.st) != 0 {
		return syndQPOptional
	}
	next := t.next(&q.ctx, in.QPC(), mask)
	if s := f.checkQP(q, &next, t.to); s != syndOK {
		return s
	}
	if s := f.rebind(q, &next, mask); s != syndOK {
		return s
	}
	q.ctx = next
	q.parse()
	f.setState(q, t.to)
	return syndOK
}

// allowed is what opt_param_mask may select.
func (f *function) allowed(t *transition, st prm.QPServiceType) prm.OptParam {
	o := t.optional.of(st)
	if t.op == prm.OpRts2RtsQP && f.general().Rts2RtsQPCountersSetID() {
		o |= prm.OptParamCounterSetID
	}
	return o
}

// rebind finds the objects that a transition names anew, and takes them.
func (f *function) rebind(q *qp, c *prm.QPC, mask prm.OptParam) synd {
	set, ok := f.sets.get(uint32(c.CounterSetID()))
	if !ok && c.CounterSetID() != 0 {
		return syndNoCounters
	}
	if mask&(prm.OptParamSRQN|prm.OptParamCQNRcv) != 0 {
		was := *q
		if s := f.attach(q, c); s != syndOK {
			q.srq, q.recvCQ, q.sendCQ = was.srq, was.recvCQ, was.sendCQ
			return s
		}
		was.hold(f, -1)
		q.hold(f, 1)
		// A reset does not bring the old ones back: they may be gone by then.
		q.created.SetSRQNRmpnXrqn(c.SRQNRmpnXrqn())
		q.created.SetCQNRcv(c.CQNRcv())
	}
	q.count(set)
	return syndOK
}

// count moves a QP to another set of counters; nil is none.
func (q *qp) count(set *qCounters) {
	if q.counters != nil {
		q.counters.users--
	}
	if set != nil {
		set.users++
	}
	q.counters = set
}

// checkQP looks at the context that a transition would leave.
func (f *function) checkQP(q *qp, c *prm.QPC, to prm.QPState) synd {
	g := f.general()
	connected := q.st == prm.QPTypeRC || q.st == prm.QPTypeXRC || q.st == prm.QPTypeUC
	if s := f.checkPath(c.PrimaryAddressPath(), connected && to >= prm.QPStateRtr); s != syndOK {
		return s
	}
	if c.Rae() && !f.hasAtomics() || !f.hasAtomicMode(c.AtomicMode()) {
		return syndQPAtomic
	}
	if to < prm.QPStateRtr {
		return syndOK
	}
	switch {
	case c.MTU() == 0 || c.MTU() > prm.PathMTU4kBytes:
		return syndQPMTU
	case c.LogMsgMax() > g.LogMaxMsg():
		return syndQPMessage
	case c.LogRraMax() > g.LogMaxRaResQP(), c.LogSraMax() > g.LogMaxRaReqQP():
		return syndQPDepth
	}
	return syndOK
}

// checkPath: the port is 1, the tables have the indexes, and a RoCE path has a
// global header (Linux mlx5_ifc.h, ads).
func (f *function) checkPath(p *prm.ADS, whole bool) synd {
	switch {
	case p.VHCAPortNum() != 1, int(p.PkeyIndex()) >= f.pkeys():
		return syndQPPath
	case !whole:
		return syndOK
	case p.StatRate() != 0 && p.StatRate() < prm.StatRate2_5gbps:
		return syndQPPath
	case f.chip.port == PortEth && (!p.Grh() || int(p.SrcAddrIndex()) >= len(f.roce)),
		f.chip.port == PortIB && p.Grh() && int(p.SrcAddrIndex()) >= f.gids():
		return syndQPPath
	}
	return syndOK
}

func (f *function) hasAtomics() bool { return f.general().Atomic() }

// hasAtomicMode: 1 needs the two standard operations and their 8 bytes, the
// others their largest size in the bitmap (Linux mlx5_ib qp.c, get_atomic_mode; UCX).
func (f *function) hasAtomicMode(m prm.AtomicMode) bool {
	a := prm.AsAtomicCaps(f.caps.current(prm.CapAtomic))
	bytes := map[prm.AtomicMode]uint16{prm.AtomicModeIBSpec: 8, prm.AtomicModeOnly8B: 8, prm.AtomicModeUpTo8B: 8,
		prm.AtomicModeUpTo16B: 16, prm.AtomicModeUpTo32B: 32, prm.AtomicModeUpTo64B: 64,
		prm.AtomicModeUpTo128B: 128, prm.AtomicModeUpTo256B: 256}[m]
	return m == prm.AtomicModeNone || bytes != 0 && f.hasAtomics() && a.AtomicSizeQP()&bytes != 0
}
