package pci_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/pci"
	"github.com/mlxvfio/mlxvfio/pci/pcitest"
)

func TestParseConfig(t *testing.T) {
	data := pcitest.ConfigSpace()
	c, err := pci.ParseConfig(data)
	require.NoError(t, err)
	require.False(t, c.Truncated)
	require.Equal(t, data, c.Bytes())

	require.Equal(t, uint16(0x15b3), c.VendorID)
	require.Equal(t, uint16(0x1017), c.DeviceID)
	require.Equal(t, uint32(0x020000), c.Class)
	require.True(t, c.MultiFunction)
	require.Zero(t, c.HeaderType)
	require.Equal(t, uint32(0xa000000c), c.BARs[0])
	require.Equal(t, uint16(0x0008), c.SubDevice)
	require.NotZero(t, c.Command&pci.CommandBusMaster)
	require.NotZero(t, c.Command&pci.CommandMemory)
	require.NotZero(t, c.Command&pci.CommandNoINTx)

	type at struct {
		id  uint16
		off int
	}
	var std, ext []at
	for _, x := range c.Caps {
		if x.Extended {
			ext = append(ext, at{x.ID, x.Offset})
		} else {
			std = append(std, at{x.ID, x.Offset})
		}
	}
	require.Equal(t, []at{{0x10, 0x60}, {0x03, 0x48}, {0x11, 0x9c}, {0x09, 0xc0}, {0x01, 0x40}}, std)
	require.Equal(t, []at{{1, 0x100}, {0xe, 0x150}, {0x10, 0x180}, {0x19, 0x1c0}, {0xd, 0x230}, {3, 0x240}, {0xf, 0x250}}, ext)
	require.Equal(t, uint8(2), c.Find(pci.ExtCapAER, true).Version)
	require.Equal(t, "Secondary PCI Express", c.Find(0x19, true).Name)
	require.Nil(t, c.Find(0x19, false))

	require.Equal(t, &pci.PM{Offset: 0x40, Version: 3, NoSoftReset: true}, c.PM)
	require.Equal(t, &pci.MSIX{Offset: 0x9c, Enabled: true, Vectors: 64, TableOffset: 0x2000, PBAOffset: 0x3000}, c.MSIX)
	require.Equal(t, uint64(1024), c.MSIX.TableSize())
	require.Equal(t, uint64(8), c.MSIX.PBASize())
	require.Equal(t, &pci.PCIe{Offset: 0x60, Version: 2, TypeStr: "endpoint", FLR: true, MaxPayloadCap: 512, MaxPayload: 256,
		MaxReadRequest: 512, ExtendedTagCap: true, ExtendedTag: true, RelaxedOrdering: true, NoSnoop: true,
		TransactionsPending: true, CorrectableError: true, MaxSpeed: 8, MaxWidth: 16, CurrentSpeed: 8, CurrentWidth: 16,
		V2: true, Atomic32: true, Atomic64: true, AtomicCAS128: true, AtomicRequester: true, Tag10Requester: true}, c.PCIe)
	require.Equal(t, &pci.VSC{Offset: 0xc0, Length: 0x18, Gateway: true, Space: 7, SpaceStatus: 1, Counter: 0x1234,
		Address: 0xf0014, Flag: true, Data: 0x20d}, c.Gateway())

	require.Equal(t, []string{"unsupported request"}, c.AER.Uncorrectable)
	require.Equal(t, []string{"receiver", "bad TLP"}, c.AER.Correctable)
	require.Equal(t, uint8(20), c.AER.FirstError)
	require.Equal(t, uint32(0x04000001), c.AER.Header[0])
	require.Equal(t, uint8(1), c.ARI.NextFunction)
	require.Equal(t, &pci.SRIOV{Offset: 0x180, VFEnabled: true, VFMemory: true, InitialVFs: 8, TotalVFs: 8, NumVFs: 2, FirstVF: 2,
		Stride: 1, VFDeviceID: 0x1018, PageSizes: 0x553, SystemPage: 1, VFBARs: [6]uint32{0xa200000c}}, c.SRIOV)
	require.Equal(t, []string{"source validation", "P2P request redirect"}, c.ACS.Enabled)
	require.Equal(t, "b8-ce-f6-03-00-12-34-56", c.Serial.String())
	require.Equal(t, &pci.ATS{Offset: 0x250, Enabled: true, QueueDepth: 32, STU: 8192}, c.ATS)
}

// What a short read shows: 64 bytes for everyone, 256 on conventional PCI.
func TestParseConfigShort(t *testing.T) {
	full := pcitest.ConfigSpace()
	c, err := pci.ParseConfig(full[:64])
	require.NoError(t, err)
	require.True(t, c.Truncated)
	require.Empty(t, c.Caps)
	require.Equal(t, uint16(0x1017), c.DeviceID)

	c, err = pci.ParseConfig(full[:256])
	require.NoError(t, err)
	require.False(t, c.Truncated)
	require.Len(t, c.Caps, 5)
	require.NotNil(t, c.MSIX)
	require.Nil(t, c.AER)

	// Cut inside the PCIe capability: version 1 registers are there, the rest not.
	c, err = pci.ParseConfig(full[:0x80])
	require.NoError(t, err)
	require.True(t, c.Truncated)
	require.NotNil(t, c.PCIe)
	require.False(t, c.PCIe.V2)
	require.Nil(t, c.MSIX)

	c, err = pci.ParseConfig(full[:0x160])
	require.NoError(t, err)
	require.True(t, c.Truncated)
	require.NotNil(t, c.ARI)
	require.Nil(t, c.SRIOV)
}

func TestParseConfigMalformed(t *testing.T) {
	set := func(off int, b ...byte) func([]byte) { return func(c []byte) { copy(c[off:], b) } }
	set32 := func(off int, v uint32) func([]byte) {
		return func(c []byte) { binary.LittleEndian.PutUint32(c[off:], v) }
	}
	for name, tc := range map[string]struct {
		change func([]byte)
		offset int
		has    string
	}{
		"standard loop to itself":     {set(0x41, 0x40), 0x41, "loops back to 0x40"},
		"standard loop to the start":  {set(0x41, 0x60), 0x41, "loops back to 0x60"},
		"pointer into header":         {set(0x61, 0x10), 0x61, "into the header"},
		"first pointer into header":   {set(0x34, 0x3c), 0x34, "into the header"},
		"capability of ones":          {set(0x48, 0xff), 0x48, "all ones"},
		"MSI-X table in no BAR":       {set(0xa0, 0x06), 0xa0, "BAR 6"},
		"MSI-X PBA in no BAR":         {set(0xa4, 0x07), 0xa4, "BAR 7"},
		"MSI count reserved":          {func(c []byte) { c[0x48] = 5; c[0x4a] = 6 << 1 }, 0x4a, "reserved"},
		"VSC shorter than header":     {set(0xc2, 2), 0xc2, "shorter"},
		"VSC leaves the space":        {set(0xc2, 0xff), 0xc0, "leaves"},
		"capability leaves the space": {func(c []byte) { c[0x41] = 0xf8; c[0xf8] = 0x11 }, 0xf8, "leaves"},
		"CardBus":                     {set(0x0e, 0x02), 0x0e, "CardBus"},
		"extended loop":               {set32(0x250, 0x000f|1<<16|0x100<<20), 0x252, "loops back to 0x100"},
		"extended loop to itself":     {set32(0x250, 0x000f|1<<16|0x250<<20), 0x252, "loops back to 0x250"},
		"extended into standard":      {set32(0x250, 0x000f|1<<16|0x040<<20), 0x252, "into the standard space"},
		"extended of ones":            {set32(0x250, 0xffffffff), 0x250, "all ones"},
		"extended leaves the space":   {func(c []byte) { set32(0x250, 0x0f|1<<16|0xffc<<20)(c); set32(0xffc, 0x0001|1<<16)(c) }, 0xffc, "leaves"},
	} {
		t.Run(name, func(t *testing.T) {
			data := pcitest.ConfigSpace()
			tc.change(data)
			c, err := pci.ParseConfig(data)
			require.ErrorIs(t, err, pci.ErrBadConfig)
			var ce *pci.ConfigError
			require.True(t, errors.As(err, &ce))
			require.Equal(t, tc.offset, ce.Offset)
			require.Contains(t, ce.Reason, tc.has)
			require.NotContains(t, err.Error(), "\n")
			require.NotNil(t, c)
			require.Equal(t, uint16(0x1017), c.DeviceID, "what was decoded before stays")
		})
	}
	both := pcitest.ConfigSpace()
	both[0x41] = 0x40
	binary.LittleEndian.PutUint32(both[0x250:], 0x0f|0x100<<20)
	c, err := pci.ParseConfig(both)
	require.ErrorContains(t, err, "0x40;")
	require.NotContains(t, err.Error(), "\n")
	require.NotNil(t, c.ATS)
}

func TestParseConfigUnusable(t *testing.T) {
	for _, n := range []int{0, 1, 63, 4097, 8192} {
		c, err := pci.ParseConfig(make([]byte, n))
		require.ErrorIs(t, err, pci.ErrBadConfig)
		require.Nil(t, c)
	}
	ones := make([]byte, 4096)
	for i := range ones {
		ones[i] = 0xff
	}
	require.True(t, pci.AllOnes(ones))
	_, err := pci.ParseConfig(ones)
	require.ErrorContains(t, err, "all ones")

	// A VF that nobody virtualises has ids of ones and is alive.
	vf := pcitest.ConfigSpace()
	copy(vf, []byte{0xff, 0xff, 0xff, 0xff})
	require.False(t, pci.AllOnes(vf))
	c, err := pci.ParseConfig(vf)
	require.NoError(t, err)
	require.Equal(t, uint16(0xffff), c.VendorID)

	// Without the status bit the pointer means nothing; no extended list.
	plain := make([]byte, 4096)
	plain[0x34] = 0x07
	c, err = pci.ParseConfig(plain)
	require.NoError(t, err)
	require.Empty(t, c.Caps)
}

func TestReadConfig(t *testing.T) {
	tr := pcitest.New(t)
	tr.Add(pcitest.Spec{BDF: "0000:3b:00.0", Config: pcitest.ConfigSpace()})
	c, err := pci.InspectConfig(bdf(t, "3b:00.0"), tr.Options())
	require.NoError(t, err)
	require.Equal(t, 64, c.MSIX.Vectors)

	bad := pcitest.ConfigSpace()
	bad[0x41] = 0x40
	require.NoError(t, os.WriteFile(tr.Path(pcitest.Device("0000:3b:00.0")+"/config"), bad, 0o644))
	c, err = pci.InspectConfig(bdf(t, "3b:00.0"), tr.Options())
	var pe *pci.Error
	require.ErrorAs(t, err, &pe)
	require.ErrorIs(t, err, pci.ErrBadConfig)
	require.Equal(t, "lspci -xxxx -s 0000:3b:00.0", pe.Remedy)
	require.NotNil(t, c.MSIX)

	_, err = pci.InspectConfig(bdf(t, "3b:00.1"), tr.Options())
	require.ErrorIs(t, err, pci.ErrNotFound)
	_, err = pci.ReadConfig(pci.BDF{Device: 32}, tr.Options())
	require.ErrorIs(t, err, pci.ErrBadBDF)
}

// checkWalk requires what must hold for any bytes: typed errors, and a walk that
// saw each offset at most once, inside the data, in the list it belongs to.
func checkWalk(t *testing.T, data []byte) {
	c, err := pci.ParseConfig(data)
	if err != nil {
		require.ErrorIs(t, err, pci.ErrBadConfig)
		require.NotContains(t, err.Error(), "\n")
	}
	if c == nil {
		require.Error(t, err)
		return
	}
	seen := map[int]bool{}
	for _, x := range c.Caps {
		if seen[x.Offset] || x.Offset%4 != 0 || x.Offset >= len(data) || x.Offset < 64 || x.Extended != (x.Offset >= 256) {
			t.Fatalf("capability %+v in %d bytes, seen before: %v", x, len(data), seen[x.Offset])
		}
		seen[x.Offset] = true
	}
	if m := c.MSIX; m != nil && (m.Vectors < 1 || m.Vectors > 2048 || m.TableBAR > 5 || m.PBABAR > 5) {
		t.Fatalf("MSI-X %+v", m)
	}
	if !bytes.Equal(data, c.Bytes()) {
		t.Fatal("the bytes changed")
	}
}

func FuzzParseConfig(f *testing.F) {
	full := pcitest.ConfigSpace()
	f.Add(full[:64])
	f.Add(full[:256])
	f.Add(full[:0x180])
	f.Fuzz(checkWalk)
}

// FuzzCapabilityWalk patches a good configuration space: each six bytes of the
// input are an offset and a dword. So the fuzzer reaches pointers and sizes at
// once instead of inventing 4096 bytes.
func FuzzCapabilityWalk(f *testing.F) {
	f.Add([]byte{0x40, 0x00, 0x01, 0x60, 0x03, 0xc0})
	f.Add([]byte{0x50, 0x02, 0x0f, 0x00, 0x01, 0x10})
	for _, at := range []uint16{0x100, 0x150, 0x180, 0xffc} { // extended: to itself, below the start, to the end, unaligned
		for _, next := range []uint16{at, 0x40, 0xffc, at + 1, 0xfff} {
			head := uint32(0x0001) | 1<<16 | uint32(next)<<20
			f.Add(binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint16(nil, at), head))
		}
	}
	f.Fuzz(func(t *testing.T, patch []byte) {
		data := pcitest.ConfigSpace()
		for ; len(patch) >= 6; patch = patch[6:] {
			off := int(binary.LittleEndian.Uint16(patch)) % (len(data) - 3)
			copy(data[off:], patch[2:6])
		}
		checkWalk(t, data)
		checkWalk(t, data[:256])
	})
}
