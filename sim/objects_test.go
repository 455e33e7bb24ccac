package sim

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// TestMKeys: lifetimes, numbers and what a key must satisfy.
func TestMKeys(t *testing.T) {
	r := newRaw(t, Options{}).to(phaseInit)
	pd := binary.BigEndian.Uint32(r.ok(valid(prm.OpAllocPD), 16)[8:])
	key := func(mtts int, set func(m *prm.MKC)) []byte {
		in := make([]byte, prm.CreateMKeyInSize+(mtts+1)/2*16)
		copy(in, cmd(prm.OpCreateMKey, 0, prm.CreateMKeyInSize))
		c := prm.AsCreateMKeyIn(in)
		c.SetTranslationsOctwordActualSize(uint32(mtts+1) / 2)
		m := c.MemoryKeyMKeyEntry()
		m.SetPD(pd)
		m.SetAccessMode1_0(modeMTT)
		m.SetLogPageSize(12)
		m.SetMKey7_0(0x5a)
		m.SetTranslationsOctwordSize(uint32(mtts+1) / 2)
		for i := range mtts {
			binary.BigEndian.PutUint64(in[prm.CreateMKeyInSize+i*8:], arenaIOVA+uint64(i)*4096|3)
		}
		set(m)
		return in
	}
	in := key(3, func(m *prm.MKC) { m.SetStartAddr(0x1ff0); m.SetLen(0x1020) }) // touches three pages
	n := prm.AsCreateMKeyOut(r.ok(in, 16)).MKeyIndex()
	out := prm.AsQueryMKeyOut(r.ok(number(prm.OpQueryMKey, n), prm.QueryMKeyOutSize))
	require.EqualValues(t, 0x5a, out.MemoryKeyMKeyEntry().MKey7_0())
	require.EqualValues(t, 0x1020, out.MemoryKeyMKeyEntry().Len())
	require.EqualValues(t, arenaIOVA|3, binary.BigEndian.Uint64(out.BSF0KLM0PasMTT0_1()))
	require.EqualValues(t, arenaIOVA+8192|3, binary.BigEndian.Uint64(out.BSF1KLM1PasMTT2_3()))

	for want, in := range map[synd][]byte{
		syndMKeyLength:       key(2, func(m *prm.MKC) { m.SetStartAddr(0x1ff0); m.SetLen(0x1020) }),
		syndMKeyPage:         key(2, func(m *prm.MKC) { m.SetLogPageSize(11); m.SetLen(1) }),
		syndMKeyMode:         key(0, func(m *prm.MKC) { m.SetAccessMode4_2(1) }),
		syndMKeyTranslations: key(2, func(m *prm.MKC) { m.SetTranslationsOctwordSize(0); m.SetLen(1) }),
		syndMKeyRange:        key(2, func(m *prm.MKC) { m.SetStartAddr(^uint64(0) - 4095); m.SetLen(4097) }),
		syndMKeySignature:    key(2, func(m *prm.MKC) { m.SetBSFEn(true); m.SetLen(1) }),
		syndMKeyUMEM: func() []byte {
			in := key(2, func(m *prm.MKC) { m.SetLen(1) })
			prm.AsCreateMKeyIn(in).SetMKeyUMEMValid(true)
			return in
		}(),
		syndInputShort: in[:len(in)-16],
	} {
		_, y := r.status(in, 16)
		require.Equal(t, want, y)
	}
	m := prm.AsCreateMKeyOut(r.ok(key(0, func(m *prm.MKC) { m.SetAccessMode1_0(modePA); m.SetLength64(true) }), 16)).MKeyIndex()
	require.NotEqual(t, n, m)
	r.ok(key(0, func(m *prm.MKC) { m.SetFree(true); m.SetUMREn(true) }), 16)
	r.ok(number(prm.OpDestroyMKey, n), 16)
	again := prm.AsCreateMKeyOut(r.ok(in, 16)).MKeyIndex()
	require.NotEqual(t, n, again, "a number is not used again at once")

	sp := prm.AsQuerySpecialContextsOut(r.ok(valid(prm.OpQuerySpecialContexts), prm.QuerySpecialContextsOutSize))
	require.NotZero(t, sp.ResdLkey())
	require.Zero(t, sp.NullMKey(), "without its capability")
}

// TestUserContexts: objects belong to the user context they were made in.
func TestUserContexts(t *testing.T) {
	r := newRaw(t, Options{}).to(phaseInit)
	uid := prm.AsCreateUCTXOut(r.ok(valid(prm.OpCreateUCTX), 16)).UID()
	require.NotZero(t, uid)
	in := valid(prm.OpAllocPD)
	binary.BigEndian.PutUint16(in[2:], uid)
	pd := binary.BigEndian.Uint32(r.ok(in, 16)[8:])
	destroy := valid(prm.OpDestroyUCTX)
	prm.AsDestroyUCTXIn(destroy).SetUID(uid)
	s, y := r.status(destroy, 16)
	require.Equal(t, prm.StatusResBusy, s)
	require.Equal(t, syndUCTXBusy, y)
	r.ok(number(prm.OpDeallocPD, pd), 16)
	um := binary.BigEndian.Uint32(r.ok(umemInput(uid), 16)[8:])
	require.Equal(t, 1, r.chip.State(0).UMEMs)
	r.ok(number(prm.OpDestroyUMEM, um), 16)
	r.ok(destroy, 16)
	_, y = r.status(in, 16)
	require.Equal(t, syndUID, y)

	// The ConnectX-4 of the capture has no user contexts and no umem_uid_0.
	c := newRaw(t, Options{Profile: "cx4"}).to(phaseInit)
	_, y = c.status(valid(prm.OpCreateUCTX), 16)
	require.Equal(t, syndOutOfUCTXs, y)
	_, y = c.status(umemInput(0), 16)
	require.Equal(t, syndUMEMUID, y)
}

// TestTeardownDropsObjects: a graceful teardown takes what is left with it.
func TestTeardownDropsObjects(t *testing.T) {
	r := newRaw(t, Options{}).to(phaseInit)
	r.eventMode(4)
	r.ok(valid(prm.OpAllocPD), 16)
	r.ok(cmd(prm.OpTeardownHCA, 0, 16), 16)
	s := r.chip.State(0)
	require.Zero(t, s.EQs+s.UARs+s.PDs)
	require.Equal(t, 1030, s.Pages)
}
