package vfiouser

import (
	"encoding/hex"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/mlxvfio/mlxvfio/vfio"
)

// The bytes are written out from the C structs of QEMU's protocol.h.
func TestWireLayout(t *testing.T) {
	t.Parallel()
	hdr := make([]byte, headerSize)
	header{id: 0x0102, cmd: 0x0304, size: 0x05060708 & 0xffff, flags: 0x21, errno: 17}.put(hdr)
	for _, c := range []struct {
		name string
		got  []byte
		want string
	}{
		{"VFIOUserHdr", hdr, "0201 0403 08070000 21000000 11000000"},
		{"VFIOUserDMAMap", body(dmaMap{32, 3, 0x1000, 0xfffffff000, 0x200000}), "20000000 03000000 0010000000000000 00f0ffffff000000 0000200000000000"},
		{"VFIOUserDMAUnmap", body(dmaUnmap{24, 2, 0x1000, 0x2000}), "18000000 02000000 0010000000000000 0020000000000000"},
		{"VFIOUserDeviceInfo", body(deviceInfo{16, 3, 9, 5}), "10000000 03000000 09000000 05000000"},
		{"VFIOUserRegionInfo", body(regionInfo{32, 3, 7, 0, 4096, 7 << 40}), "20000000 03000000 07000000 00000000 0010000000000000 0000000000070000"},
		{"VFIOUserIRQInfo", body(irqInfo{16, 9, 2, 64}), "10000000 09000000 02000000 40000000"},
		{"VFIOUserIRQSet", body(irqSet{20, 0x24, 2, 16, 3, []byte{1, 0, 1}}), "14000000 24000000 02000000 10000000 03000000 010001"},
		{"VFIOUserRegionRW", body(access{0x1122334455667788, 2, 8}), "8877665544332211 02000000 08000000"},
	} {
		want, err := hex.DecodeString(strings.ReplaceAll(c.want, " ", ""))
		require.NoError(t, err)
		require.Equal(t, want, c.got, c.name)
	}
}

func TestParseGivesBackWhatPutWrote(t *testing.T) {
	t.Parallel()
	m1 := dmaMap{1, 2, 3, 4, 5}
	g1, err := parseDMAMap(body(m1))
	require.NoError(t, err)
	require.Equal(t, m1, g1)
	m2 := dmaUnmap{1, 2, 3, 4}
	g2, err := parseDMAUnmap(body(m2))
	require.NoError(t, err)
	require.Equal(t, m2, g2)
	m3 := deviceInfo{1, 2, 3, 4}
	g3, err := parseDeviceInfo(body(m3))
	require.NoError(t, err)
	require.Equal(t, m3, g3)
	m4 := regionInfo{1, 2, 3, 4, 5, 6}
	g4, err := parseRegionInfo(body(m4))
	require.NoError(t, err)
	require.Equal(t, m4, g4)
	m5 := irqInfo{1, 2, 3, 4}
	g5, err := parseIRQInfo(body(m5))
	require.NoError(t, err)
	require.Equal(t, m5, g5)
	m6 := irqSet{1, irqSetDataBool, 3, 4, 2, []byte{7, 8}}
	g6, err := parseIRQSet(body(m6))
	require.NoError(t, err)
	require.Equal(t, m6, g6)
	m7 := access{1, 2, 3}
	g7, err := parseAccess(body(m7))
	require.NoError(t, err)
	require.Equal(t, m7, g7)
}

func TestShortBodiesAreRefused(t *testing.T) {
	t.Parallel()
	b := make([]byte, 64)
	for name, c := range map[string]struct {
		size  int
		parse func([]byte) error
	}{
		"header":      {headerSize, func(b []byte) error { _, err := parseHeader(b); return err }},
		"version":     {versionSize, func(b []byte) error { _, err := parseVersion(b); return err }},
		"dma map":     {dmaMapSize, func(b []byte) error { _, err := parseDMAMap(b); return err }},
		"dma unmap":   {dmaUnmapSize, func(b []byte) error { _, err := parseDMAUnmap(b); return err }},
		"device info": {deviceInfoSize, func(b []byte) error { _, err := parseDeviceInfo(b); return err }},
		"region info": {regionInfoSize, func(b []byte) error { _, err := parseRegionInfo(b); return err }},
		"irq info":    {irqInfoSize, func(b []byte) error { _, err := parseIRQInfo(b); return err }},
		"irq set":     {irqSetSize, func(b []byte) error { _, err := parseIRQSet(b); return err }},
		"access":      {accessSize, func(b []byte) error { _, err := parseAccess(b); return err }},
		"multi":       {multiCountSize, func(b []byte) error { _, err := parseWriteMulti(b); return err }},
	} {
		for n := range c.size {
			require.ErrorIs(t, c.parse(b[:n]), errShort, "%s of %d bytes", name, n)
		}
	}
}

func TestHeaderIsRefused(t *testing.T) {
	t.Parallel()
	b := make([]byte, headerSize)
	for _, size := range []uint32{0, 15, maxMessage + 1, 1 << 31, 0xffffffff} {
		header{cmd: cmdDMAMap, size: size}.put(b)
		_, err := parseHeader(b)
		require.ErrorContains(t, err, "DMA_MAP message claims", "size %d", size)
	}
	header{cmd: 99, size: headerSize, flags: 2}.put(b)
	_, err := parseHeader(b)
	require.ErrorContains(t, err, "command 99 message has the unknown type 2")
}

func TestIRQSetCountsItsBooleans(t *testing.T) {
	t.Parallel()
	for _, n := range []uint32{3, 1 << 20, 0xffffffff} {
		_, err := parseIRQSet(body(irqSet{flags: irqSetDataBool, count: n, data: []byte{1, 1}}))
		require.ErrorIs(t, err, errShort)
	}
}

func TestWriteMultiCountsItsEntries(t *testing.T) {
	t.Parallel()
	b := make([]byte, multiCountSize+2*multiEntrySize)
	for _, n := range []uint64{0, 1, 3, 1 << 32, 1<<64 - 1, 1<<64/multiEntrySize + 2} {
		le.PutUint64(b, n)
		_, err := parseWriteMulti(b)
		require.ErrorIs(t, err, errShort, "%d entries", n)
	}
	le.PutUint64(b, 2)
	n, err := parseWriteMulti(b)
	require.NoError(t, err)
	require.Equal(t, 2, n)
	le.PutUint32(b[multiCountSize+multiEntrySize+12:], 9)
	_, _, err = multiEntry(b, 1)
	require.ErrorIs(t, err, errShort)
}

// qemuHello is what QEMU 11.1 proposes (caps_json of proxy.c).
const qemuHello = `{"capabilities": {"migration": {"max_bitmap_size": 268435456, "pgsize": 4096}, "max_dma_maps": 65535, ` +
	`"max_data_xfer_size": 1048576, "pgsizes": 4096, "write_multiple": true, "max_msg_fds": 16}}`

func TestAnswerToQEMU(t *testing.T) {
	t.Parallel()
	hello := append([]byte{0, 0, 0, 0}, qemuHello...)
	v, err := parseVersion(append(hello, 0))
	require.NoError(t, err)
	a := v.answer(defaultMaxMaps).appendTo(nil)
	require.LessOrEqual(t, len(a), len(hello)+1, "QEMU reads no more than it sent")
	require.Equal(t, []byte{0, 0, 0, 0}, a[:4], "version 0.0")
	require.Equal(t, byte(0), a[len(a)-1], "the NUL counts")
	var got map[string]map[string]any
	require.NoError(t, json.Unmarshal(a[4:len(a)-1], &got))
	require.Equal(t, map[string]map[string]any{"capabilities": {
		"max_msg_fds": 16.0, "max_data_xfer_size": 65536.0, "max_dma_maps": 65535.0, "write_multiple": true,
	}}, got)
}

func TestAnswerIsSubsetOfProposal(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":       `{"capabilities":{}}`,
		"{}\x00": `{"capabilities":{}}`,
		`{"capabilities":{"twin_socket":{}}}` + "\x00": `{"capabilities":{}}`,
		`{"capabilities":{"max_msg_fds":1}}` + "\x00":  `{"capabilities":{"max_msg_fds":16}}`,
	} {
		v, err := parseVersion(append([]byte{0, 0, 7, 0}, text...))
		require.NoError(t, err)
		a := v.answer(10).appendTo(nil)
		require.Equal(t, "\x00\x00\x00\x00"+want+"\x00", string(a))
	}
}

func TestVersionTextIsRefused(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"{}", "x\x00", "[]\x00", `{"capabilities":{"max_msg_fds":"many"}}` + "\x00", "\x00"} {
		_, err := parseVersion(append([]byte{0, 0, 0, 0}, text...))
		require.Error(t, err, "%q", text)
	}
}

func TestErrnosTravel(t *testing.T) {
	t.Parallel()
	for _, s := range []error{vfio.ErrClosed, vfio.ErrGone, vfio.ErrNotSupported, vfio.ErrRange, vfio.ErrExists, vfio.ErrNotFound, vfio.ErrNoSpace} {
		e := errnoOf(&vfio.Error{Op: "x", Err: s})
		require.ErrorIs(t, refused(cmdDMAMap, uint32(e)), s)
	}
	require.Equal(t, unix.ENOMEM, errnoOf(&vfio.Error{Err: unix.ENOMEM}))
	require.ErrorIs(t, refused(cmdDMAMap, uint32(unix.ENOMEM)), unix.ENOMEM)
	for _, e := range []uint32{0, 1 << 20, 0xffffffff} {
		require.ErrorIs(t, refused(cmdDMAMap, e), unix.EIO)
	}
	require.EqualError(t, refused(cmdDMAMap, uint32(unix.EEXIST)), "the server refused DMA_MAP: file exists (errno 17)")
}

func FuzzHeader(f *testing.F) {
	f.Add(make([]byte, headerSize))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := parseHeader(b)
		if err != nil {
			return
		}
		require.GreaterOrEqual(t, h.size, uint32(headerSize))
		require.LessOrEqual(t, h.size, uint32(maxMessage))
		out := make([]byte, headerSize)
		h.put(out)
		require.Equal(t, b[:headerSize], out)
	})
}

func FuzzBodies(f *testing.F) {
	f.Add([]byte("\x00\x00\x00\x00" + qemuHello + "\x00"))
	f.Add(body(irqSet{20, irqSetDataBool | irqSetActionTrigger, 2, 0, 2, []byte{1, 0}}))
	f.Add(append([]byte{1, 0, 0, 0, 0, 0, 0, 0}, make([]byte, multiEntrySize)...))
	f.Fuzz(func(t *testing.T, b []byte) {
		if v, err := parseVersion(b); err == nil {
			a, err := parseVersion(v.answer(1).appendTo(nil))
			require.NoError(t, err)
			require.True(t, a.major == 0 && a.minor == 0)
			require.True(t, a.caps.MaxMsgFDs == nil || *a.caps.MaxMsgFDs == maxFDs)
		}
		if m, err := parseIRQSet(b); err == nil && m.flags&irqSetDataBool != 0 {
			require.Len(t, m.data, int(m.count))
		}
		if n, err := parseWriteMulti(b); err == nil {
			for i := range n {
				if a, p, err := multiEntry(b, i); err == nil {
					require.Len(t, p, int(a.count))
				}
			}
		}
	})
}
