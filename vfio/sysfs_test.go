package vfio_test

import (
	"encoding/binary"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/vfio"
	"github.com/mlxvfio/mlxvfio/vfio/vfiotest"
)

// sysfsTree is a function in a sysfs of plain files.
func sysfsTree(t *testing.T, config int) vfio.KernelOptions {
	t.Helper()
	root := t.TempDir()
	dir := filepath.Join(root, "bus/pci/devices/0000:3b:00.0")
	require.NoError(t, os.MkdirAll(dir, 0o700))
	bar := make([]byte, 1<<20)
	binary.BigEndian.PutUint32(bar, 0x0010001c)
	binary.BigEndian.PutUint64(bar[8:], 0x0102030405060708)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "resource0"), bar, 0o600))
	conf := make([]byte, config)
	binary.LittleEndian.PutUint32(conf, 0x101715b3)
	conf[4] = 2 // memory decoding
	require.NoError(t, os.WriteFile(filepath.Join(dir, "config"), conf, 0o600))
	return vfio.KernelOptions{Sysfs: root}
}

func TestSysfs(t *testing.T) {
	o := sysfsTree(t, 4096)
	open := func(t *testing.T) vfio.Transport {
		tr, err := vfio.OpenSysfs("3b:00.0", o)
		require.NoError(t, err)
		return tr
	}
	vfiotest.Run(t, open, vfiotest.Options{ReadOnly: true})

	d, err := vfio.NewDevice(open(t), vfio.DeviceOptions{})
	require.NoError(t, err)
	w := openWindow(t, d)
	require.Equal(t, uint64(1<<20), w.Size())
	require.Equal(t, uint32(0x0010001c), w.ReadBE32(0))
	require.Equal(t, uint64(0x0102030405060708), w.ReadBE64(8))
	require.Equal(t, "0000:3b:00.0", d.Info().Name)
	require.Equal(t, "sysfs", d.Info().Backend)
	p := make([]byte, 1)
	require.NoError(t, d.Transport().ReadRegion(vfio.RegionBAR0, 11, p))
	require.Equal(t, byte(4), p[0])
	require.NoError(t, d.Close())
}

// Who is not root sees 64 bytes of configuration space.
func TestSysfsShortConfig(t *testing.T) {
	tr, err := vfio.OpenSysfs("0000:3b:00.0", sysfsTree(t, 64))
	require.NoError(t, err)
	require.NoError(t, tr.ReadRegion(vfio.RegionConfig, 0, make([]byte, 64)))
	err = tr.ReadRegion(vfio.RegionConfig, 64, make([]byte, 4))
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	require.ErrorContains(t, err, "root")
	require.NoError(t, tr.Close())
}

// What a sleeping function seems to say is not what the device says.
func TestSysfsAsleep(t *testing.T) {
	o := sysfsTree(t, 64)
	dir := filepath.Join(o.Sysfs, "bus/pci/devices/0000:3b:00.0")
	tr, err := vfio.OpenSysfs("3b:00.0", o)
	require.NoError(t, err)
	var p [4]byte
	reads := func() error { return tr.ReadRegion(vfio.RegionBAR0, 0, p[:]) }
	require.NoError(t, reads(), "a kernel without power_state")
	for state, asleep := range map[string]bool{"D0": false, "unknown": false, "D3hot": true, "D3cold": true, "D1": true} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "power_state"), []byte(state+"\n"), 0o600))
		err := reads()
		if !asleep {
			require.NoError(t, err, state)
			continue
		}
		require.ErrorIs(t, err, vfio.ErrGone, state)
		require.ErrorContains(t, err, state)
		require.ErrorContains(t, err, "mlxvfio info 0000:3b:00.0")
	}
	require.NoError(t, os.Remove(filepath.Join(dir, "power_state")))
	config, err := os.OpenFile(filepath.Join(dir, "config"), os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = config.WriteAt([]byte{4}, 4) // bus master only
	require.NoError(t, err)
	require.NoError(t, config.Close())
	require.ErrorIs(t, reads(), vfio.ErrGone)
	require.ErrorContains(t, reads(), "memory decoding is off")
	require.NoError(t, tr.ReadRegion(vfio.RegionConfig, 0, p[:]), "configuration space can be read all the same")
	require.NoError(t, tr.Close())
}

func TestSysfsErrors(t *testing.T) {
	o := sysfsTree(t, 64)
	_, err := vfio.OpenSysfs("0000:ff:1f.7", o)
	require.ErrorIs(t, err, vfio.ErrNotFound)
	_, err = vfio.OpenSysfs("nonsense", o)
	require.ErrorIs(t, err, vfio.ErrRange)
	dir := filepath.Join(o.Sysfs, "bus/pci/devices/0000:3b:00.0")
	require.NoError(t, os.Remove(filepath.Join(dir, "config")))
	before := openFDs(t)
	_, err = vfio.OpenSysfs("3b:00.0", o)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.Equal(t, before, openFDs(t))
	require.NoError(t, os.Remove(filepath.Join(dir, "resource0")))
	_, err = vfio.OpenSysfs("3b:00.0", o)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.ErrorContains(t, err, "BAR0")
}

func openFDs(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(list)
}
