//go:build hw

package vfio_test

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/internal/absent"
	"github.com/mlxvfio/mlxvfio/internal/hwtest"
	"github.com/mlxvfio/mlxvfio/vfio"
	"github.com/mlxvfio/mlxvfio/vfio/vfiotest"
)

// The kernel keeps the contract, with a real IOMMU and real interrupts. The
// device is not told to do DMA or to raise anything: that needs a driver.
func TestHWContract(t *testing.T) {
	hwtest.Function(t) // skips where there is none
	vfiotest.Run(t, func(t *testing.T) vfio.Transport { return hwtest.Open(t) }, vfiotest.Options{})
}

// A Device opens, maps memory for the function, attaches every vector, resets and
// closes, leaving neither files nor mappings; twice, since the first life must
// not disturb the second.
func TestHWLife(t *testing.T) {
	_, o := hwtest.Function(t)
	for life := range 2 {
		before := openFDs(t)
		d, err := vfio.NewDevice(hwtest.Open(t), vfio.DeviceOptions{})
		require.NoError(t, err)
		if o.Backend != "" {
			require.Equal(t, o.Backend, d.Info().Backend)
		}
		w, err := d.Window(vfio.RegionBAR0)
		require.NoError(t, err)
		fw := w.ReadBE32(0)
		t.Logf("life %d: %s, BAR0 %#x bytes (mapped: %t), firmware word %#x, limits %+v",
			life, d.Info().Name, w.Size(), w.Mapped(0), fw, d.Space().Limits())
		require.NotEqual(t, ^uint32(0), fw, "BAR0 reads all ones")
		require.NoError(t, d.SetBusMaster(true))
		var p [2]byte
		require.NoError(t, d.ReadConfig(4, p[:]))
		require.Equal(t, uint16(6), binary.LittleEndian.Uint16(p[:])&6, "memory decoding and bus master")

		var bs []*vfio.Buffer
		for _, size := range []int{64, 4096, 1 << 20, 5 << 20} {
			for _, ro := range []bool{false, true} {
				b, err := d.Space().Alloc(size, vfio.BufferOptions{Name: "hw", ReadOnly: ro})
				require.NoError(t, err)
				require.NotZero(t, b.IOVA())
				bs = append(bs, b)
			}
		}
		t.Logf("address space: %+v", d.Space().Stats())
		n, err := d.MaxVectors()
		require.NoError(t, err)
		vs, err := d.EnableVectors(n)
		require.NoError(t, err)
		t.Logf("%d vectors attached", len(vs))

		require.NoError(t, d.Reset())
		require.NoError(t, d.ReadConfig(0, p[:]))
		require.Equal(t, uint16(0x15b3), binary.LittleEndian.Uint16(p[:]), "vendor id after reset")
		require.NoError(t, w.Err())
		for _, b := range bs {
			require.NoError(t, b.Free())
		}
		require.NoError(t, d.Close())
		require.Zero(t, d.Space().Stats().Mappings)
		require.Zero(t, memfds(t))
		require.Equal(t, before, openFDs(t), "files left open")
	}
}

// While one opener has the function, a second one learns who it is.
func TestHWBusy(t *testing.T) {
	bdf, o := hwtest.Function(t)
	tr := hwtest.Open(t)
	defer func() { require.NoError(t, tr.Close()) }()
	_, err := vfio.Open(bdf, o)
	require.ErrorIs(t, err, vfio.ErrBusy)
	require.ErrorContains(t, err, "which is this one")
}

// Two functions share one address space: what is mapped once is there for both,
// stays when the one that came first goes, and the other maps on. A second function
// is named by MLXVFIO_TEST_PEER; with MLXVFIO_TEST_STEPS, a folder, the test waits
// there for a file "seen" while both have the mapping.
func TestHWShared(t *testing.T) {
	bdf, o := hwtest.Function(t)
	peer := os.Getenv("MLXVFIO_TEST_PEER")
	if peer == "" {
		absent.Skip(t, "two functions of real hardware in one address space", "MLXVFIO_TEST_PEER names no second function")
	}
	require.NoError(t, os.WriteFile(filepath.Join(t.TempDir(), "first"), nil, 0o600)) // Go's poller opens files of its own
	before := openFDs(t)
	var shared interface {
		vfio.Mapper
		Close() error
	}
	if o.Backend == vfio.BackendIOMMUFD {
		a, err := vfio.NewIOAS(o)
		require.NoError(t, err)
		shared, o.IOAS = a, a
	} else {
		c, err := vfio.NewContainer(o)
		require.NoError(t, err)
		shared, o.Container = c, c
	}
	var fns []vfio.Transport
	for _, name := range []string{bdf, peer} {
		f, err := vfio.Open(name, o)
		require.NoError(t, err)
		require.Same(t, shared, f.DMA())
		fns = append(fns, f)
	}
	s, err := vfio.NewAddressSpace(shared, vfio.SpaceOptions{})
	require.NoError(t, err)
	b, err := s.Alloc(1<<20, vfio.BufferOptions{Name: "shared"})
	require.NoError(t, err)
	require.ErrorIs(t, shared.Close(), vfio.ErrBusy)
	if steps := os.Getenv("MLXVFIO_TEST_STEPS"); steps != "" {
		require.NoError(t, os.WriteFile(filepath.Join(steps, "mapped"), nil, 0o600))
		require.Eventually(t, func() bool { _, err := os.Stat(filepath.Join(steps, "seen")); return err == nil }, 20*time.Second, 10*time.Millisecond)
	}
	require.NoError(t, fns[0].Close())
	more, err := s.Alloc(4<<20, vfio.BufferOptions{Name: "of the one that stays"})
	require.NoError(t, err)
	for _, x := range []*vfio.Buffer{b, more} {
		require.NoError(t, x.Free())
	}
	require.NoError(t, s.Close())
	require.NoError(t, fns[1].Close())
	require.NoError(t, shared.Close())
	require.Equal(t, before, openFDs(t), "files left open")
}

// sysfs reads configuration space beside VFIO. Of BAR0 it must not pretend: an
// idle function of vfio-pci sleeps (or, with disable_idle_d3, may decode no
// memory). While VFIO has the function, the file can be mapped only where the
// kernel does not claim BARs exclusively.
func TestHWSysfs(t *testing.T) {
	bdf, _ := hwtest.Function(t)
	tr, err := vfio.OpenSysfs(bdf, vfio.KernelOptions{})
	require.NoError(t, err)
	d, err := vfio.NewDevice(tr, vfio.DeviceOptions{})
	require.NoError(t, err)
	w, err := d.Window(vfio.RegionBAR0)
	require.NoError(t, err)
	var p [2]byte
	require.NoError(t, d.ReadConfig(0, p[:]))
	require.Equal(t, uint16(0x15b3), binary.LittleEndian.Uint16(p[:]))
	fw := w.ReadBE32(0)
	t.Logf("firmware word through sysfs %#x, %v", fw, w.Err())
	if err := w.Err(); err != nil {
		require.ErrorIs(t, err, vfio.ErrGone)
		require.Equal(t, ^uint32(0), fw)
	} else {
		require.NotZero(t, fw)
	}
	require.NoError(t, d.Close())
}
