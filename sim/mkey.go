package sim

import (
	"github.com/mlxvfio/mlxvfio/internal/prm"
)

const (
	// firstMKey leaves the special keys of QUERY_SPECIAL_CONTEXTS below it.
	firstMKey = 0x10

	// First numbers of the other kinds: choices. QPs 0 and 1 are the special ones
	// of InfiniBand.
	firstCQN  = 0x400
	firstQPN  = 0x40
	firstSRQN = 0x10

	// Keys of QUERY_SPECIAL_CONTEXTS. 0x100 ends a scatter list (Linux
	// MLX5_INVALID_LKEY); the others are choices.
	terminateMKey = 0x100
	reservedLKey  = 0x200
	nullMKey      = 0x300
	dumpFillMKey  = 0x400

	octword = 16
)

// Access modes of a memory key.
const (
	modePA   = 0
	modeMTT  = 1
	modeKLMs = 2
	modeKSM  = 3
)

// createMKeyMin: translations follow in octwords, as many as the command says.
func createMKeyMin(_ *function, c *call) (in, out int) {
	n := prm.AsCreateMKeyIn(c.in).TranslationsOctwordActualSize()
	return prm.CreateMKeyInSize + int(min(n, maxChain*mailboxBytes/octword))*octword, prm.CreateMKeyOutSize
}

// mkey is a memory key. Next to its context it holds, parsed, what every access
// through it looks at. An access of n bytes at a is allowed when the key (index
// and variant) is this one, it is not free, the PD and, where it names one, the
// QP are the accessing queue's, the right is there, and [a, a+n) lies in it.
type mkey struct {
	uid   uint16
	ctx   prm.MKC
	xlate []byte // translation entries as sent

	key    uint32 // index << 8 | variant
	pd     uint32
	qpn    uint32 // anyQP, or the only QP that may use it
	mode   uint8  // modePA and so on
	free   bool   // without content until a UMR gives it some: every access fails
	start  uint64 // address of the first byte, as requests name it
	length uint64 // bytes; means nothing with all
	all    bool   // 2^64 bytes
	shift  uint   // log2 of the page (MTT) or entity (KSM) size
	pages  []uint64
	klms   []klm

	localRead, localWrite              bool
	remoteRead, remoteWrite, remoteRMW bool
}

// klm is one entry of an indirect key. Of a KSM size is the entity's.
type klm struct {
	size uint64
	key  uint32
	addr uint64
}

// anyQP in a key's qpn lets every QP use it.
const anyQP = 0xffffff

func createMKey(f *function, c *call) synd {
	in := prm.AsCreateMKeyIn(c.in)
	m := in.MemoryKeyMKeyEntry()
	owner, ok := f.pds.get(m.PD())
	if !ok {
		return syndNoPD
	}
	octs := in.TranslationsOctwordActualSize()
	if s := f.checkMKey(in, octs); s != syndOK {
		return s
	}
	k := &mkey{uid: uidOf(c), ctx: *m}
	k.xlate = append(k.xlate, c.in[prm.CreateMKeyInSize:prm.CreateMKeyInSize+int(octs)*octword]...)
	n, ok := f.mkeys.add(k)
	if !ok {
		return syndOutOfMKeys
	}
	k.parse(n)
	owner.users++
	prm.AsCreateMKeyOut(c.out).SetMKeyIndex(n)
	return syndOK
}

// checkMKey refuses what no later access could use. The range of a free key and
// its translations come with the UMR that fills it.
func (f *function) checkMKey(in *prm.CreateMKeyIn, octs uint32) synd {
	m := in.MemoryKeyMKeyEntry()
	g := f.general()
	mode := m.AccessMode4_2()<<2 | m.AccessMode1_0()
	switch {
	case mode > modeKSM:
		return syndMKeyMode
	case in.MKeyUMEMValid():
		return syndMKeyUMEM
	case m.BSFEn() || m.BSFOctwordSize() != 0:
		return syndMKeySignature
	case m.A() && !g.Atomic():
		return syndMKeyAtomic
	case octs > m.TranslationsOctwordSize():
		return syndMKeyTranslations
	case mode >= modeKLMs && m.TranslationsOctwordSize() > limitOf(g.LogMaxKLMListSize()):
		return syndMKeyTranslations
	case m.Free():
		return syndOK
	case !m.Length64() && m.Len() != 0 && m.StartAddr()+m.Len()-1 < m.StartAddr():
		return syndMKeyRange
	case mode != modeMTT:
		return syndOK
	case m.LogPageSize() < g.LogPgSz():
		return syndMKeyPage
	case m.Length64() || uint64(octs)*2 < mttsFor(m):
		return syndMKeyLength
	}
	return syndOK
}

// parse takes from the context what accesses look at.
func (k *mkey) parse(index uint32) {
	m := &k.ctx
	k.key = index<<8 | uint32(m.MKey7_0())
	k.pd, k.qpn = m.PD(), m.QPN()
	k.mode = m.AccessMode4_2()<<2 | m.AccessMode1_0()
	k.free = m.Free()
	k.start, k.length, k.all = m.StartAddr(), m.Len(), m.Length64()
	k.shift = uint(m.LogPageSize())
	k.localRead, k.localWrite = m.Lr(), m.Lw()
	k.remoteRead, k.remoteWrite, k.remoteRMW = m.Rr(), m.Rw(), m.A()
	switch k.mode {
	case modeMTT:
		k.pages, _ = pageList(k.xlate, uint64(len(k.xlate)/8), k.shift, true)
	case modeKLMs, modeKSM:
		for e := k.xlate; len(e) >= prm.KLMSize; e = e[prm.KLMSize:] {
			x := prm.AsKLM(e)
			l := klm{size: uint64(x.Bcount()), key: x.Key(), addr: x.Va()}
			if k.mode == modeKSM {
				l.size = 1 << k.shift
			}
			k.klms = append(k.klms, l)
		}
	}
}

// general is the general capabilities in force.
func (f *function) general() *prm.CmdHCACap { return prm.AsCmdHCACap(f.caps.current(prm.CapGeneral)) }

// mttsFor is the number of pages that a key's range touches.
func mttsFor(m *prm.MKC) uint64 {
	if m.Len() == 0 {
		return 0
	}
	shift := m.LogPageSize()
	first := m.StartAddr() >> shift
	last := (m.StartAddr() + m.Len() - 1) >> shift
	return last - first + 1
}

func queryMKey(f *function, c *call) synd {
	k, ok := f.mkeys.get(prm.AsQueryMKeyIn(c.in).MKeyIndex())
	if !ok {
		return syndNoMKey
	}
	out := prm.AsQueryMKeyOut(c.out)
	*out.MemoryKeyMKeyEntry() = k.ctx
	n := copy(out.BSF0KLM0PasMTT0_1(), k.xlate)
	copy(out.BSF1KLM1PasMTT2_3(), k.xlate[n:])
	return syndOK
}

func destroyMKey(f *function, c *call) synd {
	n := prm.AsDestroyMKeyIn(c.in).MKeyIndex()
	k, ok := f.mkeys.get(n)
	if !ok {
		return syndNoMKey
	}
	if p, ok := f.pds.get(k.ctx.PD()); ok {
		p.users--
	}
	f.mkeys.remove(n)
	return syndOK
}

func querySpecialContexts(f *function, c *call) synd {
	g := prm.AsCmdHCACap(f.caps.current(prm.CapGeneral))
	out := prm.AsQuerySpecialContextsOut(c.out)
	out.SetResdLkey(reservedLKey)
	if g.DumpFillMKey() {
		out.SetDumpFillMKey(dumpFillMKey)
	}
	if g.NullMKey() {
		out.SetNullMKey(nullMKey)
	}
	if g.TerminateScatterListMKey() {
		out.SetTerminateScatterListMKey(terminateMKey)
	}
	return syndOK
}
