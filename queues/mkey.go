package queues

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/bits"
	"strings"

	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// Access are the rights a memory key or a queue pair gives. Local reads are
// always allowed.
type Access uint8

// Rights.
const (
	// LocalWrite lets this device write the memory: receives, RDMA reads and
	// replies of atomics need it.
	LocalWrite Access = 1 << iota
	// RemoteRead, RemoteWrite and RemoteAtomic let the peer do so. InfiniBand
	// gives remote writes and atomics only together with LocalWrite.
	RemoteRead
	RemoteWrite
	RemoteAtomic

	// RemoteAll is everything a peer can do.
	RemoteAll = RemoteRead | RemoteWrite | RemoteAtomic
	// AccessAll is every right.
	AccessAll = LocalWrite | RemoteAll
)

// String lists the rights.
func (a Access) String() string {
	l := []string{"local read"}
	for i, n := range []string{"local write", "remote read", "remote write", "remote atomic"} {
		if a>>i&1 != 0 {
			l = append(l, n)
		}
	}
	return strings.Join(l, ", ")
}

// MKeyOptions describe a memory key over memory that is contiguous on the bus
// (Buffer) or given by its pages (Pages); exactly one of them.
type MKeyOptions struct {
	// PD is the protection domain.
	PD *PD
	// Buffer is DMA memory of the device's address space. It stays the caller's,
	// and cannot be freed as long as the key exists.
	Buffer *vfio.Buffer
	// Offset is the first byte of Buffer, or of the first page of Pages, that
	// the key covers.
	Offset uint64
	// Pages are bus addresses of pages of 1 << LogPageSize bytes, in the order of
	// the addresses they stand for.
	Pages []uint64
	// Start is the address by which requests name the first byte. 0 stands for
	// the bus address, unless ZeroBased asks for 0 itself. Bus address and Start
	// must agree below the page size.
	Start     uint64
	ZeroBased bool
	// Length in bytes; 0 is all of Buffer, or of Pages, behind Offset.
	Length uint64
	// Access are the rights, exactly these.
	Access Access
	// LogPageSize is log2 of the page size of the translation table. For a Buffer
	// 0 takes the largest page with which Start and bus address agree, so that
	// the table is as short as it can be; for Pages it is 12.
	LogPageSize uint8
	// FourKAligned refuses a Start or Length that is no multiple of 4096, as
	// memory keys of the firmware tracer have to be.
	FourKAligned bool
	// UMR lets a UMR WQE change the key.
	UMR bool
	// Variant is the low byte of the key; 0 takes the next of a running number,
	// so that a stale key of the same index is caught.
	Variant uint8
}

// maxMKeyPage is log2 of the largest page of a translation table: rdma-core
// knows five bits for it (mlx5_ifc.h, mkc.log_page_size).
const maxMKeyPage = 31

// MKey is a memory key: the right to reach a range of memory, for this device
// (lkey) and for peers (rkey). Its methods are safe for concurrent use.
type MKey struct {
	dev    *Dev
	pd     *PD
	buf    *vfio.Buffer // nil: over Pages
	key    uint32
	start  uint64
	length uint64
	access Access
	shift  uint8
	life   refs
}

// mkeyPlan is a checked MKeyOptions.
type mkeyPlan struct {
	start, length uint64
	shift         uint8
	pages         []uint64
}

// CreateMKey makes a memory key with a page table (opcode 0x200): any QP may use
// it, it is not a UMR key unless asked, and has no signatures. Refused before
// anything is sent, as *ObjectError: no or a foreign PD, both or none of Buffer
// and Pages, a range outside the memory, a page size the device does not have or
// with which Start and bus address disagree, remote writes or atomics without
// LocalWrite, atomics on a device without, and with FourKAligned a range that is
// not aligned. If the command gets no answer, the key may exist: Buffer is then held
// until ReleaseOrphans.
func (d *Dev) CreateMKey(ctx context.Context, o MKeyOptions) (*MKey, error) {
	op := "create a memory key"
	p, err := d.planMKey(op, &o)
	if err != nil {
		return nil, err
	}
	if err := o.PD.take(d, op); err != nil {
		return nil, err
	}
	if o.Buffer != nil {
		if err := o.Buffer.Hold(); err != nil {
			o.PD.life.drop()
			return nil, refuse(op, "Buffer", vfio.ErrClosed, "it was freed")
		}
	}
	if o.Variant == 0 {
		o.Variant = uint8(d.variants.Add(1))
	}
	in, out := createMKeyInput(&o, p), make([]byte, prm.CreateMKeyOutSize)
	what := fmt.Sprintf("%s (%#x bytes at %#x, %d pages of 2^%d bytes: %v)", op, p.length, p.start, len(p.pages), p.shift, o.Access)
	if err := d.exec(ctx, what, in, out); err != nil {
		o.PD.life.drop()
		if o.Buffer != nil {
			d.unhold(o.Buffer, answered(err))
		}
		return nil, err
	}
	m := &MKey{
		dev: d, pd: o.PD, buf: o.Buffer, key: prm.AsCreateMKeyOut(out).MKeyIndex()<<8 | uint32(o.Variant),
		start: p.start, length: p.length, access: o.Access, shift: p.shift,
	}
	d.born(m)
	return m, nil
}

// planMKey checks the options and lays the pages out.
func (d *Dev) planMKey(op string, o *MKeyOptions) (p mkeyPlan, err error) {
	if (o.Buffer == nil) == (o.Pages == nil) {
		return p, refuse(op, "Buffer", ErrMissing, "give either Buffer or Pages")
	}
	if o.Access&^AccessAll != 0 {
		return p, refuse(op, "Access", vfio.ErrRange, "%#x has unknown bits", uint8(o.Access))
	}
	if o.Access&(RemoteWrite|RemoteAtomic) != 0 && o.Access&LocalWrite == 0 {
		return p, refuse(op, "Access", vfio.ErrRange, "remote writes and atomics need LocalWrite too (InfiniBand section 10.6.3.1)")
	}
	if o.Access&RemoteAtomic != 0 && d.Caps.known() && d.Caps.AtomicMode() == prm.AtomicModeNone {
		return p, refuse(op, "Access", vfio.ErrNotSupported, "the device has no atomics; leave RemoteAtomic out")
	}
	var have, bus uint64
	if o.Buffer != nil {
		have, bus = uint64(o.Buffer.Size()), o.Buffer.IOVA()
	} else {
		if o.LogPageSize == 0 {
			o.LogPageSize = adapterPageShift
		}
		if o.LogPageSize > maxMKeyPage {
			return p, refuse(op, "LogPageSize", vfio.ErrRange, "2^%d bytes; 2^%d is the most", o.LogPageSize, maxMKeyPage)
		}
		if len(o.Pages) == 0 {
			return p, refuse(op, "Pages", ErrMissing, "the list is empty")
		}
		have, bus = uint64(len(o.Pages))<<o.LogPageSize, o.Pages[0]
	}
	if o.Length == 0 && o.Offset < have {
		o.Length = have - o.Offset
	}
	if o.Length == 0 || o.Offset > have || o.Length > have-o.Offset {
		return p, refuse(op, "Length", vfio.ErrRange, "%#x bytes from %#x on, of memory of %#x bytes", o.Length, o.Offset, have)
	}
	bus += o.Offset
	if o.Start == 0 && !o.ZeroBased {
		o.Start = bus
	}
	if o.Start+o.Length-1 < o.Start {
		return p, refuse(op, "Start", vfio.ErrRange, "%#x bytes from %#x on pass the end of the address space", o.Length, o.Start)
	}
	if o.FourKAligned && (o.Start|o.Length)&(1<<adapterPageShift-1) != 0 {
		return p, refuse(op, "FourKAligned", vfio.ErrRange, "%#x bytes at %#x are not aligned to 4096", o.Length, o.Start)
	}
	if d.Caps.LogMaxRegion != 0 && d.Caps.LogMaxRegion < 64 && o.Length > 1<<d.Caps.LogMaxRegion {
		return p, refuse(op, "Length", vfio.ErrRange, "%#x bytes; 2^%d is the most (log_max_mrw_sz)", o.Length, d.Caps.LogMaxRegion)
	}
	p = mkeyPlan{start: o.Start, length: o.Length}
	return p, d.planPages(op, o, &p, bus)
}

// planPages decides the page size and lists the pages.
func (d *Dev) planPages(op string, o *MKeyOptions, p *mkeyPlan, bus uint64) error {
	least := d.Caps.logMinPage()
	// Below the page size, bus address and Start must agree.
	agree := uint8(min(bits.TrailingZeros64(bus^p.start), 64))
	p.shift = o.LogPageSize
	if p.shift == 0 {
		// One page that covers everything is the shortest table there is.
		whole := uint8(bits.Len64(p.start ^ (p.start + p.length - 1)))
		p.shift = max(min(agree, whole, maxMKeyPage), least)
	}
	if p.shift < least || p.shift > maxMKeyPage {
		return refuse(op, "LogPageSize", vfio.ErrRange, "2^%d bytes; 2^%d to 2^%d are possible", p.shift, least, maxMKeyPage)
	}
	if p.shift > agree {
		return refuse(op, "Start", vfio.ErrRange, "%#x and the bus address %#x differ below the page size 2^%d; choose a Start with the same low bits or a smaller page", p.start, bus, p.shift)
	}
	mask := uint64(1)<<p.shift - 1
	n := (p.start+p.length-1)>>p.shift - p.start>>p.shift + 1
	if o.Buffer == nil {
		first := o.Offset >> p.shift
		for i, pa := range o.Pages {
			if pa&mask != 0 {
				return refuse(op, "Pages", vfio.ErrRange, "page %d at %#x is not aligned to 2^%d", i, pa, p.shift)
			}
		}
		p.pages = o.Pages[first : first+n]
		return nil
	}
	for i := range n {
		p.pages = append(p.pages, bus&^mask+i<<p.shift)
	}
	return nil
}

// mttBytes is the size of one entry of the translation table.
const mttBytes = 8

// createMKeyInput is the command. The table is padded to an even number of
// entries, since it is counted in units of 16 bytes.
func createMKeyInput(o *MKeyOptions, p mkeyPlan) []byte {
	octs := (len(p.pages) + 1) / 2
	in := withPages(prm.CreateMKeyInSize, p.pages)
	if len(p.pages)%2 != 0 {
		in = append(in, make([]byte, mttBytes)...)
	}
	cmd := prm.AsCreateMKeyIn(in)
	cmd.SetOpcode(prm.OpCreateMKey)
	cmd.SetTranslationsOctwordActualSize(uint32(octs))
	m := cmd.MemoryKeyMKeyEntry()
	m.SetUMREn(o.UMR)
	m.SetLr(true)
	m.SetLw(o.Access&LocalWrite != 0)
	m.SetRr(o.Access&RemoteRead != 0)
	m.SetRw(o.Access&RemoteWrite != 0)
	m.SetA(o.Access&RemoteAtomic != 0)
	m.SetAccessMode1_0(uint8(prm.AccessModeMTT))
	m.SetQPN(anyQPN)
	m.SetMKey7_0(o.Variant)
	m.SetPD(o.PD.number)
	m.SetStartAddr(p.start)
	m.SetLen(p.length)
	m.SetTranslationsOctwordSize(uint32(octs))
	m.SetLogPageSize(p.shift)
	return in
}

// anyQPN in a memory key lets every queue pair use it.
const anyQPN = 0xffffff

// Key is what WQEs name the memory by, as lkey and as rkey.
func (m *MKey) Key() uint32 { return m.key }

// Start is the address of the first byte, as requests name it.
func (m *MKey) Start() uint64 { return m.start }

// Length is the size in bytes.
func (m *MKey) Length() uint64 { return m.length }

// Access are its rights.
func (m *MKey) Access() Access { return m.access }

// LogPageSize is log2 of the page size of its table.
func (m *MKey) LogPageSize() uint8 { return m.shift }

// SGE is n bytes from offset off on, as local memory.
func (m *MKey) SGE(off uint64, n uint32) SGE { return SGE{Addr: m.start + off, Len: n, LKey: m.key} }

// Remote is the address off bytes into the memory, as a peer names it.
func (m *MKey) Remote(off uint64) Remote { return Remote{Addr: m.start + off, RKey: m.key} }

// MKeyState is what firmware says about a memory key (QUERY_MKEY).
type MKeyState struct {
	PD          uint32
	QPN         uint32 // the QP that may use it; 0xffffff is any
	Variant     uint8
	Mode        prm.AccessMode
	Access      Access
	LocalRead   bool
	Start       uint64
	Length      uint64
	WholeSpace  bool // 2^64 bytes, Length means nothing
	LogPageSize uint8
	Octwords    uint32 // size of the table in units of 16 bytes
	Free        bool   // without content
	UMR         bool
	Pages       []uint64 // the first of the table, up to 4
}

// QueryContext reads the context from firmware as it is (opcode 0x201).
func (m *MKey) QueryContext(ctx context.Context) (prm.MKC, error) {
	a, err := m.query(ctx)
	if err != nil {
		return prm.MKC{}, err
	}
	return *a.MemoryKeyMKeyEntry(), nil
}

func (m *MKey) query(ctx context.Context) (*prm.QueryMKeyOut, error) {
	op := fmt.Sprintf("query memory key %#x", m.key)
	if !m.life.alive() {
		return nil, refuse(op, "", vfio.ErrClosed, "it was destroyed")
	}
	in, out := make([]byte, prm.QueryMKeyInSize), make([]byte, prm.QueryMKeyOutSize)
	cmd := prm.AsQueryMKeyIn(in)
	cmd.SetOpcode(prm.OpQueryMKey)
	cmd.SetMKeyIndex(m.key >> 8)
	if err := m.dev.exec(ctx, op, in, out); err != nil {
		return nil, err
	}
	return prm.AsQueryMKeyOut(out), nil
}

// Query reads the context from firmware (opcode 0x201).
func (m *MKey) Query(ctx context.Context) (MKeyState, error) {
	a, err := m.query(ctx)
	if err != nil {
		return MKeyState{}, err
	}
	c := a.MemoryKeyMKeyEntry()
	s := MKeyState{
		PD: c.PD(), QPN: c.QPN(), Variant: c.MKey7_0(), Mode: prm.AccessMode(c.AccessMode4_2()<<2 | c.AccessMode1_0()),
		LocalRead: c.Lr(), Start: c.StartAddr(), Length: c.Len(), WholeSpace: c.Length64(),
		LogPageSize: c.LogPageSize(), Octwords: c.TranslationsOctwordSize(), Free: c.Free(), UMR: c.UMREn(),
	}
	for i, have := range []bool{c.Lw(), c.Rr(), c.Rw(), c.A()} {
		if have {
			s.Access |= 1 << i
		}
	}
	table := append(append([]byte(nil), a.BSF0KLM0PasMTT0_1()...), a.BSF1KLM1PasMTT2_3()...)
	for i := range min(2*s.Octwords, 4) {
		if pa := binary.BigEndian.Uint64(table[mttBytes*i:]); pa != 0 || i%2 == 0 {
			s.Pages = append(s.Pages, pa)
		}
	}
	return s, nil
}

// Destroy takes the key from firmware (opcode 0x202). WQEs that name it fail from
// then on; the memory is the caller's. A second call answers vfio.ErrClosed.
func (m *MKey) Destroy(ctx context.Context) error {
	op := fmt.Sprintf("destroy memory key %#x", m.key)
	err := m.life.destroy(m.dev, op, func() error {
		in, out := make([]byte, prm.DestroyMKeyInSize), make([]byte, prm.DestroyMKeyOutSize)
		cmd := prm.AsDestroyMKeyIn(in)
		cmd.SetOpcode(prm.OpDestroyMKey)
		cmd.SetMKeyIndex(m.key >> 8)
		return m.dev.exec(ctx, op, in, out)
	})
	if err == nil {
		m.close(true)
	}
	return err
}

// Release forgets the key without telling firmware: only for a device that was
// reset or cannot reach memory any more. A second call does nothing.
func (m *MKey) Release() {
	_, _ = m.abandon(true) // a key has no memory that could fail to be freed
}

// close takes the key from the books and, if free is set, lets go of its memory.
func (m *MKey) close(free bool) {
	m.dev.died(m)
	m.pd.life.drop()
	if m.buf != nil && free {
		m.buf.Unhold()
	}
}
