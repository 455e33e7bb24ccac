package sim

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/vfio"
)

// gateway is the vendor-specific capability of a function, used as Linux does.
type gateway struct {
	t   testing.TB
	dev vfio.Transport
}

func (g gateway) read(reg int) uint32 {
	var b [4]byte
	require.NoError(g.t, g.dev.ReadRegion(vfio.RegionConfig, uint64(capVSC+reg), b[:]))
	return binary.LittleEndian.Uint32(b[:])
}

func (g gateway) write(reg int, v uint32) {
	require.NoError(g.t, g.dev.WriteRegion(vfio.RegionConfig, uint64(capVSC+reg), binary.LittleEndian.AppendUint32(nil, v)))
}

// lock takes the gateway's semaphore, or says that it is held.
func (g gateway) lock() bool {
	if g.read(vscSemaphore) != 0 {
		return false
	}
	ticket := g.read(vscCounter)
	g.write(vscSemaphore, ticket)
	return g.read(vscSemaphore) == ticket
}

// space selects one and gives its size.
func (g gateway) space(n uint32) (size uint32, ok bool) {
	g.write(vscControl, g.read(vscControl)&^0xffff|n)
	c := g.read(vscControl)
	require.Equal(g.t, n, c&0xffff)
	if c>>28&1 != 0 {
		size = g.read(vscAddress)
	}
	return size, c>>29 != 0
}

func (g gateway) word(addr uint32) (v, next uint32) {
	g.write(vscAddress, addr)
	require.NotZero(g.t, g.read(vscAddress)>>31, "data is ready")
	return g.read(vscData), g.read(vscAddress) & vscAddrMask
}

func (g gateway) store(addr, v uint32) {
	g.write(vscData, v)
	g.write(vscAddress, addr|vscFlag)
	require.Zero(g.t, g.read(vscAddress)>>31, "done")
}

func TestVSC(t *testing.T) {
	r := newRaw(t, Options{Functions: 2, Clock: NewManualClock()})
	a, b := gateway{t, r.dev}, gateway{t, r.chip.Function(1)}
	require.EqualValues(t, 0x18<<16|capPM<<8|0x09, a.read(0))
	require.NotEqual(t, a.read(vscCounter), b.read(vscCounter))
	require.True(t, a.lock())
	require.False(t, a.lock(), "held")
	require.True(t, b.lock(), "each function has its own")
	held := a.read(vscSemaphore)
	a.write(vscSemaphore, held+1)
	require.Equal(t, held, a.read(vscSemaphore), "nobody replaces the owner")
	a.write(vscSemaphore, 0)
	require.True(t, a.lock())

	_, ok := a.space(0x3)
	require.False(t, ok)
	size, ok := a.space(spaceCR)
	require.True(t, ok)
	require.EqualValues(t, crSize, size)
	id, _ := a.word(crDeviceID)
	require.EqualValues(t, 0x20d, id)
	a.store(0x10, 1)
	v, next := a.word(0x10)
	require.EqualValues(t, crPattern<<20|0x10, v, "read-only")
	require.EqualValues(t, 0x14, next)
	a.write(vscAddress, crSize)
	require.EqualValues(t, vscFlag|vscSyndrome|crSize, a.read(vscAddress))
	require.Zero(t, a.read(vscData))
	a.write(vscAddress, crSize|vscFlag)
	require.EqualValues(t, vscSyndrome|crSize, a.read(vscAddress))

	// A dump: every address is larger than the last, and the last is the size.
	size, ok = a.space(spaceScan)
	require.True(t, ok)
	words := 0
	for at := uint32(0); at < size; words++ {
		v, next := a.word(at)
		require.EqualValues(t, crPattern<<20|at, v)
		require.Greater(t, next, at)
		at = next
	}
	require.EqualValues(t, (scanSize-0xc00-0xd800)/4, words)
	v, _ = a.word(0x500)
	require.Zero(t, v, "a hole")

	// The semaphore of the firmware reset is the chip's.
	take := func(g gateway) bool {
		_, ok := g.space(spaceSemaphore)
		require.True(t, ok)
		ticket := g.read(vscCounter)
		g.store(semSWReset, ticket)
		v, _ := g.word(semSWReset)
		return v == ticket
	}
	require.True(t, take(a))
	require.False(t, take(b))
	require.NoError(t, r.dev.Reset())
	require.True(t, a.lock(), "an FLR frees the gateway")
	require.False(t, take(b), "not the chip's semaphore")
	b.store(semSWReset, 0)
	require.True(t, take(a))
	a.store(semSWReset, 0)

	// Narrow and unaligned stores do nothing; reads beside the registers see them too.
	require.NoError(t, r.dev.WriteRegion(vfio.RegionConfig, capVSC+vscSemaphore, []byte{0}))
	require.False(t, a.lock())
	all := make([]byte, configSize)
	require.NoError(t, r.dev.ReadRegion(vfio.RegionConfig, 0, all))
	require.Equal(t, a.read(vscSemaphore), binary.LittleEndian.Uint32(all[capVSC+vscSemaphore:]))
	require.Equal(t, a.read(vscCounter), binary.LittleEndian.Uint32(all[capVSC+vscCounter:])+1)
}

// vscTests has a test for each fault of the capability.
var vscTests = map[string]func(t *testing.T, r *raw, g gateway){
	"vsc-absent": func(t *testing.T, r *raw, g gateway) {
		r.fault("vsc-absent", "")
		var next [1]byte
		require.NoError(t, r.dev.ReadRegion(vfio.RegionConfig, capMSIX+1, next[:]))
		require.EqualValues(t, capPM, next[0])
		require.Zero(t, g.read(0))
		g.write(vscSemaphore, 1)
		require.NoError(t, r.chip.ClearFault("vsc-absent"))
		require.True(t, g.lock())
	},
	"vsc-held": func(t *testing.T, r *raw, g gateway) {
		r.fault("vsc-held", "2s")
		require.False(t, g.lock())
		g.write(vscSemaphore, 0)
		require.False(t, g.lock())
		require.NoError(t, r.dev.Reset())
		require.False(t, g.lock())
		r.chip.Advance(2 * time.Second)
		require.True(t, g.lock())
		r.fault("vsc-held", "")
		r.chip.Advance(time.Hour)
		require.False(t, g.lock())
	},
	"vsc-stuck": func(t *testing.T, r *raw, g gateway) {
		r.fault("vsc-stuck", "")
		g.write(vscAddress, 8)
		require.EqualValues(t, 8, g.read(vscAddress))
		g.write(vscAddress, 8|vscFlag)
		require.EqualValues(t, 8|vscFlag, g.read(vscAddress))
	},
	"vsc-no-space": func(t *testing.T, r *raw, g gateway) {
		r.fault("vsc-no-space", "0xa")
		_, ok := g.space(spaceSemaphore)
		require.False(t, ok)
		_, ok = g.space(spaceScan)
		require.True(t, ok)
	},
	"vsc-no-size": func(t *testing.T, r *raw, g gateway) {
		r.fault("vsc-no-size", "")
		size, ok := g.space(spaceScan)
		require.True(t, ok)
		require.Zero(t, size)
	},
	"vsc-short": func(t *testing.T, r *raw, g gateway) {
		r.fault("vsc-short", "0x1010")
		g.space(spaceScan)
		_, next := g.word(0x1008)
		require.EqualValues(t, 0x100c, next)
		_, next = g.word(0x100c)
		require.EqualValues(t, 0x100c, next)
	},
	"swreset-held": func(t *testing.T, r *raw, g gateway) {
		r.fault("swreset-held", "2s")
		g.space(spaceSemaphore)
		g.store(semSWReset, 77)
		v, _ := g.word(semSWReset)
		require.EqualValues(t, foreignTicket, v)
		g.store(semSWReset, 0)
		r.chip.Advance(2 * time.Second)
		g.store(semSWReset, 77)
		v, _ = g.word(semSWReset)
		require.EqualValues(t, 77, v)
		g.store(semSWReset, 0)
	},
}

func init() {
	for name, test := range vscTests {
		faultTests[name] = func(t *testing.T, r *raw) { test(t, r, gateway{t, r.dev}) }
	}
}
