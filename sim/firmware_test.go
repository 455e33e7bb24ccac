package sim

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// TestInitSegment: the fields drivers look at, in every access width.
func TestInitSegment(t *testing.T) {
	r := newRaw(t, Options{Clock: NewManualClock(), Firmware: Version{16, 99, 4321}})
	require.EqualValues(t, 99<<16|16, r.read(0), "minor high, major low")
	require.EqualValues(t, 5<<16|4321, r.read(4))
	require.EqualValues(t, 5<<4|6, r.read(0x14)&0xff)
	r.write(0x10, 0x12)
	r.write(0x14, 0x3456_7000)
	require.EqualValues(t, 0x12, r.read(0x10))
	require.EqualValues(t, 0x3456_7056, r.read(0x14))
	require.Zero(t, r.read(0x18), "the doorbell is written only")
	require.Zero(t, r.read(0x1fc)>>31)
	require.EqualValues(t, 1, r.read(0x1fc)>>30&1, "firmware reset is supported")
	require.EqualValues(t, 1<<29|8, r.read(0xffc), "8 seconds")
	require.Zero(t, r.read(0x23c))

	t0 := uint64(r.read(0x1000))<<32 | uint64(r.read(0x1004))
	r.chip.Advance(100 * time.Second)
	t1 := uint64(r.read(0x1000))<<32 | uint64(r.read(0x1004))
	require.EqualValues(t, 156250*1000*100, t1-t0)
	require.EqualValues(t, 100*time.Second/healthTick+1, r.read(0x1010))
	require.EqualValues(t, r.chip.sched.clock.Now().Unix(), r.read(0x1040))

	var b [8]byte
	require.NoError(t, r.dev.ReadRegion(vfio.RegionBAR0, 0, b[:]))
	require.Equal(t, []byte{0, 99, 0, 16, 0, 5, 4321 >> 8, 4321 & 0xff}, b[:])
	require.NoError(t, r.dev.ReadRegion(vfio.RegionBAR0, 2, b[:2]))
	require.Equal(t, []byte{0, 16}, b[:2])
	require.NoError(t, r.dev.ReadRegion(vfio.RegionBAR0, 5, b[:1]))
	require.EqualValues(t, 5, b[0])
	require.NoError(t, r.dev.WriteRegion(vfio.RegionBAR0, 0x10, []byte{0, 0, 0, 1, 0, 0, 0x20, 0}))
	require.EqualValues(t, 1, r.read(0x10), "8 bytes are two dwords")
	require.EqualValues(t, 0x2056, r.read(0x14))
	require.NoError(t, r.dev.WriteRegion(vfio.RegionBAR0, 0x12, []byte{9, 9}))
	require.EqualValues(t, 1, r.read(0x10), "narrow stores are dropped")
	require.Zero(t, r.read(0x1ff_fffc))
}

// TestTeardownProfiles: force and fast drop everything; fast ends with
// nic_interface DISABLED, after which the interface is silent until a queue is
// published.
func TestTeardownProfiles(t *testing.T) {
	down := func(p prm.TeardownProfile) []byte {
		in := cmd(prm.OpTeardownHCA, 0, 16)
		prm.AsTeardownHCAIn(in).SetProfile(p)
		return in
	}
	r := newRaw(t, Options{}).to(phaseInit)
	r.eventMode(4)
	out := r.ok(down(prm.TeardownForce), 16)
	require.False(t, prm.AsTeardownHCAOut(out).State())
	s := r.chip.State(0)
	require.Equal(t, "off", s.Phase)
	require.Zero(t, s.Pages+s.EQs+s.UARs)
	require.EqualValues(t, 1030, r.chip.Counters(0).PagesDropped)

	r.next = 8 << 20
	r.to(phaseInit)
	r.ok(down(prm.TeardownPrepareFast), 16)
	require.Equal(t, 1030, r.chip.State(0).Pages, "only prepared")
	r.write(0x14, uint32(r.queue)|uint32(prm.NICInterfaceDisabled)<<8)
	require.EqualValues(t, prm.NICInterfaceDisabled, r.read(0x14)>>8&7)
	require.Zero(t, r.chip.State(0).Pages)
	r.post(0, cmd(prm.OpEnableHCA, 0, 16), 16)
	require.False(t, r.done(0), "silent")
	r.next = 16 << 20
	r.to(phaseInit)

	c := newRaw(t, Options{Profile: "cx4"}).to(phaseInit)
	for _, p := range []prm.TeardownProfile{prm.TeardownForce, prm.TeardownPrepareFast} {
		_, y := c.status(down(p), 16)
		require.Equal(t, syndProfileCap, y, "the ConnectX-4 of the capture has neither")
	}
	c.write(0x14, uint32(c.queue)|uint32(prm.NICInterfaceSwReset)<<8)
	require.Zero(t, c.read(0x14)>>8&7, "nor a reset through nic_interface")
	require.Equal(t, "init", c.chip.State(0).Phase)
}

// TestEnableAgain: rdma-core closes after TEARDOWN_HCA without taking pages back
// or disabling; the next open works without a reset.
func TestEnableAgain(t *testing.T) {
	r := newRaw(t, Options{}).to(phaseTornDown)
	r.next = 8 << 20
	r.to(phaseInit)
	require.EqualValues(t, 1030, r.chip.Counters(0).PagesDropped)
}

// TestPages: what is refused changes nothing, and pages come back whenever
// firmware does not need them.
func TestPages(t *testing.T) {
	r := newRaw(t, Options{}).to(phaseISSI)
	give := func(pages ...uint64) []byte {
		in := cmd(prm.OpManagePages, uint16(prm.ManagePagesGive), 16+8*len(pages))
		prm.AsManagePagesIn(in).SetInputNumEntries(uint32(len(pages)))
		for i, p := range pages {
			binary.BigEndian.PutUint64(in[16+i*8:], p)
		}
		return in
	}
	fresh := r.alloc(8*4096, 4096)
	for want, in := range map[synd][]byte{
		syndPageAlign:    give(fresh, fresh+4096+8),
		syndPageTwice:    give(fresh, fresh+4096, fresh),
		syndPageUnmapped: give(fresh, 0x7000_0000),
		syndPageCount:    give(fresh)[:16],
	} {
		_, y := r.status(in, 16)
		require.Equal(t, want, y)
		require.Equal(t, 6, r.chip.State(0).Pages)
	}
	_, y := r.status(give(r.pages[0]), 16)
	require.Equal(t, syndPageTwice, y)
	require.Len(t, r.take(100), 6, "before INIT_HCA everything comes back")

	_, y = r.status(cmd(prm.OpInitHCA, 0, 16), 16)
	require.Equal(t, syndBootPages, y)
	r.give(prm.QueryPagesBoot)
	_, y = r.status(cmd(prm.OpInitHCA, 0, 16), 16)
	require.Equal(t, syndInitPages, y)
	r.give(prm.QueryPagesInit)
	r.ok(cmd(prm.OpInitHCA, 0, 16), 16)
	require.Empty(t, r.take(10), "none was offered")
	require.False(t, r.chip.RequestPages(0, 4), "nobody listens")
	require.Equal(t, 4, r.give(prm.QueryPagesRegular))
	require.Equal(t, 0, r.chip.State(0).PagesWanted)
	r.chip.RequestPages(0, 4)
	r.ok(cmd(prm.OpManagePages, uint16(prm.ManagePagesCantGive), 16), 16)
	require.Zero(t, r.give(prm.QueryPagesRegular), "firmware gave up")

	in := cmd(prm.OpManagePages, uint16(prm.ManagePagesTake), 16)
	prm.AsManagePagesIn(in).SetInputNumEntries(100)
	_, y = r.status(in, 16+99*8)
	require.Equal(t, syndOutputShort, y)

	// Unmapping memory that firmware holds is seen.
	require.NoError(t, r.dev.DMA().Unmap(arenaIOVA, arenaSize))
	require.EqualValues(t, 1034, r.chip.Counters(0).PagesUnmapped)
	require.NoError(t, r.dev.DMA().Map(vfio.Mapping{IOVA: arenaIOVA, Bytes: r.mem.Bytes(), FD: -1}))

	r.eventMode(4)
	require.True(t, r.chip.ReleaseAllPages(0))
	for e := r.event(); ; e = r.event() {
		require.NotNil(t, e)
		if e.EventType() == prm.EventPageRequest {
			require.True(t, e.EventData().PagesReqEvent().ReleaseAll())
			break
		}
	}
	require.Zero(t, r.chip.State(0).Pages)
}

// TestSetCaps: only writable fields change, and none above its maximum.
func TestSetCaps(t *testing.T) {
	for typ, names := range writable {
		for _, n := range names {
			_, err := prm.CapStruct(typ).Lookup(n)
			require.NoError(t, err, "%s.%s", typ, n)
		}
	}
	r := newRaw(t, Options{}).to(phaseISSI)
	query := func(typ prm.CapType, cur uint16) []byte {
		return r.ok(cmd(prm.OpQueryHCACap, uint16(typ)<<1|cur, 16), 0x1010)[16:]
	}
	set := func(typ prm.CapType, b []byte) (prm.CommandStatus, synd) {
		in := cmd(prm.OpSetHCACap, uint16(typ)<<1, 0x1010)
		copy(in[16:], b)
		return r.status(in, 16)
	}
	b := query(prm.CapGeneral, 1)
	g := prm.AsCmdHCACap(b)
	g.SetLogMaxQP(18)
	g.SetReleaseAllPages(true)
	g.SetLogMaxCQ(1) // not writable
	_, y := set(prm.CapGeneral, b)
	require.Equal(t, syndOK, y)
	now := prm.AsCmdHCACap(query(prm.CapGeneral, 1))
	require.EqualValues(t, 18, now.LogMaxQP())
	require.True(t, now.ReleaseAllPages())
	require.EqualValues(t, 24, now.LogMaxCQ())
	require.EqualValues(t, 23, prm.AsCmdHCACap(query(prm.CapGeneral, 0)).LogMaxQP(), "maxima stay")
	g.SetDCT(true)
	s, y := set(prm.CapGeneral, b)
	require.Equal(t, prm.StatusBadParam, s)
	require.Equal(t, syndCapAboveMax, y)

	// Linux sends zeros for all but the endianness mode.
	a := make([]byte, capBytes)
	prm.AsAtomicCaps(a).SetAtomicReq8BEndiannessMode(1)
	_, y = set(prm.CapAtomic, a)
	require.Equal(t, syndOK, y)
	at := prm.AsAtomicCaps(query(prm.CapAtomic, 1))
	require.EqualValues(t, 1, at.AtomicReq8BEndiannessMode())
	require.EqualValues(t, 0x1fc, at.AtomicSizeQP(), "atomics did not disappear")

	require.Equal(t, make([]byte, capBytes), query(prm.CapGeneral2, 0), "a type the device lacks")
	_, y = r.status(cmd(prm.OpQueryHCACap, 0x7f<<1, 16), 0x1010)
	require.Equal(t, syndCapType, y, "a type that does not exist")

	// A shorter output is cut.
	require.Equal(t, query(prm.CapGeneral, 0)[:84], r.ok(cmd(prm.OpQueryHCACap, 0, 16), 100)[16:100])

	// DISABLE and ENABLE bring the power-on values back.
	r.ok(cmd(prm.OpDisableHCA, 0, 16), 16)
	r.to(phaseISSI)
	require.EqualValues(t, 14, prm.AsCmdHCACap(query(prm.CapGeneral, 1)).LogMaxQP())
}

// notPublic matches names that no reader of the model's sources could look up.
const notPublic = `\.md\b|judge|errat|demand \d|decisions? [A-Z]\d|UNVERIFIED`

// TestValues: every value has a tag and a source, and the ConnectX-4's
// capabilities are real but where the port was turned.
func TestValues(t *testing.T) {
	count := func(p string, port PortType) map[Tag]int {
		c, err := New(Options{Profile: p, Port: port})
		require.NoError(t, err)
		n := map[Tag]int{}
		seen := map[string]bool{}
		for _, v := range c.Values() {
			require.Contains(t, []Tag{Real, Derived, Chosen}, v.Tag, "%+v", v)
			require.NotEmpty(t, v.Source, "%+v", v)
			require.NotRegexp(t, notPublic, v.Source)
			require.NotEmpty(t, v.Value, "%+v", v)
			require.False(t, seen[v.Where+v.Name], "%+v twice", v)
			seen[v.Where+v.Name] = true
			if len(v.Where) > 3 && v.Where[:4] == "cap " {
				n[v.Tag]++
			}
		}
		return n
	}
	eth := count("cx4", PortEth)
	require.Equal(t, map[Tag]int{Real: eth[Real]}, eth)
	require.Greater(t, eth[Real], 200)
	ib := count("cx4", PortIB)
	require.Equal(t, 2, ib[Derived], "ib_virt, maximum and current; the rest of the port's fields are zero")
	require.Greater(t, count("cx5", PortIB)[Chosen], 10)
	for _, r := range Rulings() {
		require.NotEmpty(t, r.Name)
		require.NotEmpty(t, r.Text)
		require.NotEmpty(t, r.Source)
		require.NotRegexp(t, notPublic, r.Source+r.Text)
	}
}
