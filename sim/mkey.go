package sim

import (
	"github.com/mlxvfio/mlxvfio/internal/prm"
)

const (
	// firstMKey leaves the special keys of QUERY_SPECIAL_CONTEXTS below it.
	firstMKey = 0x10

	// Keys of QUERY_SPECIAL_CONTEXTS. 0x100 ends a scatter list (W10,
	// contexts.md); the others are choices.
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

func createMKey(f *function, c *call) synd {
	in := prm.AsCreateMKeyIn(c.in)
	m := in.MemoryKeyMKeyEntry()
	owner, ok := f.pds.get(m.PD())
	if !ok {
		return syndNoPD
	}
	octs := uint64(in.TranslationsOctwordActualSize())
	switch mode := m.AccessMode4_2()<<2 | m.AccessMode1_0(); {
	case mode > modeKSM:
		return syndMKeyMode
	case mode != modeMTT || m.Free() || in.MKeyUMEMValid():
		// Translations come later or are not needed.
	case m.LogPageSize() < f.minPageShift():
		return syndMKeyPage
	case !m.Length64() && octs*2 < mttsFor(m):
		return syndMKeyLength
	}
	k := &mkey{uid: uidOf(c), ctx: *m}
	k.xlate = append(k.xlate, c.in[prm.CreateMKeyInSize:prm.CreateMKeyInSize+int(octs)*octword]...)
	n, ok := f.mkeys.add(k)
	if !ok {
		return syndOutOfMKeys
	}
	owner.mkeys++
	prm.AsCreateMKeyOut(c.out).SetMKeyIndex(n)
	return syndOK
}

func (f *function) minPageShift() uint8 {
	return prm.AsCmdHCACap(f.caps.current(prm.CapGeneral)).LogPgSz()
}

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
		p.mkeys--
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
