package sim

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/vfio"
	"github.com/mlxvfio/mlxvfio/vfio/vfiotest"
)

// TestContract: the model keeps the contract of every Transport.
func TestContract(t *testing.T) {
	for _, p := range Profiles() {
		t.Run(p, func(t *testing.T) {
			vfiotest.Run(t, func(t *testing.T) vfio.Transport {
				c, err := New(Options{Profile: p})
				require.NoError(t, err)
				t.Cleanup(func() { require.NoError(t, c.Close()) })
				return c.Function(0)
			}, vfiotest.Options{
				Scratch: []vfio.Span{{Offset: msixTable, Size: msixVectors * 16}},
				Raise: func(_ *testing.T, tr vfio.Transport, i int) {
					f := tr.(*transport).f
					f.chip.mu.Lock()
					defer f.chip.mu.Unlock()
					f.interrupt(i)
				},
				Access: func(tr vfio.Transport, iova uint64, p []byte, write bool) error {
					f := tr.(*transport).f
					f.chip.mu.Lock()
					defer f.chip.mu.Unlock()
					f.cfg.setCommand(cmdMemory | cmdBusMaster)
					access := f.dmaRead
					if write {
						access = f.dmaWrite
					}
					if !access(iova, p) {
						return errors.New("the IOMMU refused the access")
					}
					return nil
				},
				SharedDMA: true,
			})
		})
	}
}

// TestConfigSpace: sizing of BAR 0, the capability chain and FLR through device
// control, as PCI cores do them.
func TestConfigSpace(t *testing.T) {
	r := newRaw(t, Options{Port: PortIB})
	cfg := func(off, n int) []byte {
		b := make([]byte, n)
		require.NoError(t, r.dev.ReadRegion(vfio.RegionConfig, uint64(off), b))
		return b
	}
	set := func(off int, b ...byte) {
		require.NoError(t, r.dev.WriteRegion(vfio.RegionConfig, uint64(off), b))
	}
	require.Equal(t, []byte{0xb3, 0x15, 0x17, 0x10}, cfg(0, 4))
	require.Equal(t, []byte{0x00, 0x07, 0x02}, cfg(9, 3), "class of an InfiniBand port")
	set(0x10, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff)
	require.Equal(t, []byte{0x0c, 0, 0, 0xfe, 0xff, 0xff, 0xff, 0xff}, cfg(0x10, 8), "32 MiB, 64-bit, prefetchable")
	set(0x18, 0xff, 0xff, 0xff, 0xff)
	require.Equal(t, make([]byte, 4), cfg(0x18, 4), "no BAR 2")

	var ids []byte
	for at := int(cfg(0x34, 1)[0]); at != 0; at = int(cfg(at+1, 1)[0]) {
		ids = append(ids, cfg(at, 1)[0])
	}
	require.Equal(t, []byte{0x10, 0x11, 0x09, 0x01}, ids, "PCIe, MSI-X, vendor-specific, power management")
	require.Equal(t, []byte{63, 0}, cfg(capMSIX+2, 2))
	require.NotZero(t, cfg(capPCIe+7, 1)[0]&0x10, "FLR capability")

	r.to(phaseInit)
	require.Equal(t, "init", r.chip.State(0).Phase)
	set(capPCIe+8, cfg(capPCIe+8, 1)[0], cfg(capPCIe+9, 1)[0]|0x80)
	require.Equal(t, "off", r.chip.State(0).Phase)
	require.Zero(t, cfg(capPCIe+9, 1)[0]&0x80, "reads as 0")
	require.Equal(t, []byte{0, 0}, cfg(4, 2), "FLR clears the command register")
	require.Equal(t, uint32(0xffffffff), r.read(0), "no memory decoding")
	require.NotZero(t, r.chip.Counters(0).BARUnsupported)

	// The reset verb restores configuration space, as vfio-pci does.
	r.busMaster(true)
	require.NoError(t, r.dev.Reset())
	require.Equal(t, []byte{6, 0}, cfg(4, 2))
	set(capPM+4, 3)
	require.Equal(t, uint32(0xffffffff), r.read(0), "D3 answers nothing")
	set(capPM+4, 0)
	require.NotEqual(t, uint32(0xffffffff), r.read(0))
}

// TestDMAGate: a device without bus mastering, mapping or opener reaches nothing,
// and each attempt is counted.
func TestDMAGate(t *testing.T) {
	r := newRaw(t, Options{})
	r.publish()
	r.busMaster(false)
	r.entry(0, cmd(1, 0, 16), 16)
	r.ring(0)
	require.False(t, r.done(0))
	require.EqualValues(t, 1, r.chip.Counters(0).DMABlocked)
	r.busMaster(true)
	r.ring(0)
	require.True(t, r.done(0), "the same entry, once it can be fetched")

	r.write(0x14, 0x7000_0000) // a queue nobody mapped
	r.ring(0)
	c := r.chip.Counters(0)
	require.EqualValues(t, 1, c.DMAFaults)
	require.EqualValues(t, 0x7000_0000, c.LastFaultIOVA)

	ro := vfio.MemOf(make([]byte, 4096))
	require.NoError(t, r.dev.DMA().Map(vfio.Mapping{IOVA: 0x7000_0000, Bytes: ro.Bytes(), FD: -1, ReadOnly: true}))
	copy(ro.Bytes(), r.bytes(r.queue, 64))
	ro.StoreBE32(0x3c, ro.LoadBE32(0x3c)|1)
	r.ring(0)
	require.EqualValues(t, 1, ro.LoadBE32(0x3c)&1, "the answer cannot be written")
	require.EqualValues(t, 2, r.chip.Counters(0).DMAFaults)
}

// TestFunctionsOfAChip: two functions have their own state and, unless asked
// otherwise, their own address space.
func TestFunctionsOfAChip(t *testing.T) {
	for _, shared := range []bool{false, true} {
		c, err := New(Options{Functions: 2, SharedDomain: shared})
		require.NoError(t, err)
		a, b := c.Function(0), c.Function(1)
		require.NoError(t, a.DMA().Map(vfio.Mapping{IOVA: 1 << 20, Bytes: make([]byte, 4096), FD: -1}))
		err = b.DMA().Map(vfio.Mapping{IOVA: 1 << 20, Bytes: make([]byte, 4096), FD: -1})
		if shared {
			require.ErrorIs(t, err, vfio.ErrExists)
		} else {
			require.NoError(t, err)
		}
		require.NoError(t, a.Close())
		_, err = a.Info()
		require.ErrorIs(t, err, vfio.ErrClosed)
		_, err = b.Info()
		require.NoError(t, err)
		require.NoError(t, c.Close())
		_, err = b.Info()
		require.ErrorIs(t, err, vfio.ErrClosed)
	}
}
