package queues_test

import (
	"errors"
	"math/bits"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/cmdif"
	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/queues"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// refused requires an *ObjectError with this sentinel about this field, for which
// no command was sent.
func (b *bench) refused(field string, sentinel error, attempt func() error) {
	b.t.Helper()
	before := b.commands()
	err := attempt()
	var oe *queues.ObjectError
	require.ErrorAs(b.t, err, &oe)
	require.ErrorIs(b.t, err, sentinel)
	require.Equal(b.t, field, oe.Field, "%v", err)
	if errors.Is(sentinel, queues.ErrInUse) {
		require.Equal(b.t, b.hca.Device().Info().Name, oe.Device, "whose it is")
		require.Contains(b.t, err.Error(), oe.Device+": "+oe.Op+": ")
	}
	require.NotContains(b.t, err.Error(), "\n")
	require.Equal(b.t, before, b.commands(), "%v: a command was sent", err)
}

// commands is the number of commands the driver has handed to the device.
func (b *bench) commands() (n uint64) {
	for _, o := range b.hca.Conn().Stats().Ops {
		n += o.Count
	}
	return n
}

func TestPD(t *testing.T) {
	b := newBench(t, "sim:cx5")
	ctx := t.Context()
	p, err := b.dev.AllocPD(ctx)
	require.NoError(t, err)
	require.NotEqual(t, b.pd.Number(), p.Number())
	m, err := b.dev.CreateMKey(ctx, queues.MKeyOptions{PD: p, Buffer: b.buffer(4096)})
	require.NoError(t, err)
	b.refused("", queues.ErrInUse, func() error { return p.Free(ctx) })
	require.NoError(t, m.Destroy(ctx))
	require.NoError(t, p.Free(ctx))
	b.refused("", vfio.ErrClosed, func() error { return p.Free(ctx) })
	b.refused("PD", vfio.ErrClosed, func() error {
		_, err := b.dev.CreateMKey(ctx, queues.MKeyOptions{PD: p, Buffer: b.buffer(4096)})
		return err
	})
}

// A key is what was asked for, as the device itself says: range, rights, domain,
// page size, and a table of as few pages as the addresses allow.
func TestMKeyQuery(t *testing.T) {
	b := newBench(t, "sim:cx5")
	ctx := t.Context()
	buf := b.buffer(3<<20 + 4096)
	for _, c := range []struct {
		name  string
		o     queues.MKeyOptions
		shift uint8
		pages int
	}{
		{"all of it", queues.MKeyOptions{Access: queues.AccessAll}, 0, 0},
		{"read only", queues.MKeyOptions{}, 0, 0},
		{"remote read", queues.MKeyOptions{Access: queues.RemoteRead}, 0, 0},
		{"local write", queues.MKeyOptions{Access: queues.LocalWrite}, 0, 0},
		{"4 KiB pages", queues.MKeyOptions{LogPageSize: 12}, 12, 769},
		{"64 KiB pages", queues.MKeyOptions{LogPageSize: 16, Length: 1 << 16}, 16, 1},
		{"zero based", queues.MKeyOptions{ZeroBased: true, Length: 4096}, 12, 1},
		{"in the middle of a page", queues.MKeyOptions{Offset: 100, Length: 50}, 0, 1},
		{"another address", queues.MKeyOptions{Start: 0x7fff_0000_1000 | buf.IOVA()&0xfff, Offset: 4096, Length: 8192}, 0, 0},
		{"tracer", queues.MKeyOptions{FourKAligned: true, Access: queues.LocalWrite}, 0, 0},
		{"umr", queues.MKeyOptions{UMR: true}, 0, 0},
		{"own variant", queues.MKeyOptions{Variant: 0x5a}, 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := c.o
			o.PD, o.Buffer = b.pd, buf
			m, err := b.dev.CreateMKey(ctx, o)
			require.NoError(t, err)
			s, err := m.Query(ctx)
			require.NoError(t, err)
			start, length := buf.IOVA()+o.Offset, uint64(buf.Size())-o.Offset
			if o.Start != 0 || o.ZeroBased {
				start = o.Start
			}
			if o.Length != 0 {
				length = o.Length
			}
			require.Equal(t, m.Key()&0xff, uint32(s.Variant))
			if o.Variant != 0 {
				require.Equal(t, o.Variant, s.Variant)
			}
			require.Equal(t, queues.MKeyState{
				PD: b.pd.Number(), QPN: 0xffffff, Variant: s.Variant, Mode: prm.AccessModeMTT, Access: o.Access, LocalRead: true,
				Start: start, Length: length, LogPageSize: m.LogPageSize(), Octwords: s.Octwords, UMR: o.UMR, Pages: s.Pages,
			}, s)
			if c.shift != 0 {
				require.Equal(t, c.shift, s.LogPageSize)
			}
			// The rule of translation (Linux mr.c) leads to the buffer.
			mask := uint64(1)<<s.LogPageSize - 1
			require.Equal(t, buf.IOVA()+o.Offset, s.Pages[0]&^mask|start&mask)
			n := (start+length-1)>>s.LogPageSize - start>>s.LogPageSize + 1
			require.Equal(t, uint32(n+1)/2, s.Octwords)
			if c.pages != 0 {
				require.EqualValues(t, c.pages, n)
			}
			if o.LogPageSize == 0 {
				// No larger page would do: they disagree, or one covers all already.
				agree := bits.TrailingZeros64(start ^ (buf.IOVA() + o.Offset))
				require.True(t, n == 1 || int(s.LogPageSize) == min(agree, 31), "%d pages of 2^%d", n, s.LogPageSize)
			}
			require.Equal(t, queues.SGE{Addr: start + 3, Len: 5, LKey: m.Key()}, m.SGE(3, 5))
			require.Equal(t, queues.Remote{Addr: start + 3, RKey: m.Key()}, m.Remote(3))
			require.NoError(t, m.Destroy(ctx))
		})
	}
}

// Pages need not be neighbours; the addresses of the key are.
func TestMKeyPages(t *testing.T) {
	b := newBench(t, "sim:cx5")
	ctx := t.Context()
	buf := b.buffer(16 << 12)
	at := func(i uint64) uint64 { return buf.IOVA() + i<<12 }
	pages := []uint64{at(9), at(2), at(14)}
	m, err := b.dev.CreateMKey(ctx, queues.MKeyOptions{PD: b.pd, Pages: pages, Start: 0x10010, Offset: 0x10, Length: 0x2500})
	require.NoError(t, err)
	s, err := m.Query(ctx)
	require.NoError(t, err)
	require.Equal(t, pages, s.Pages)
	require.EqualValues(t, 12, s.LogPageSize)
	require.EqualValues(t, 2, s.Octwords, "three entries, padded to four")
	require.NoError(t, m.Destroy(ctx))

	m, err = b.dev.CreateMKey(ctx, queues.MKeyOptions{PD: b.pd, Pages: pages, Offset: 1 << 12, ZeroBased: true})
	require.NoError(t, err)
	s, err = m.Query(ctx)
	require.NoError(t, err)
	require.Equal(t, pages[1:], s.Pages, "pages before Offset are left out")
	require.EqualValues(t, 2<<12, s.Length)
	require.NoError(t, m.Destroy(ctx))
}

// Each creation gives the next variant, so that a stale key is caught even where
// firmware hands out the same index again.
func TestMKeyVariant(t *testing.T) {
	b := newBench(t, "sim:cx5")
	ctx := t.Context()
	buf := b.buffer(4096)
	var last uint32
	for i := range 300 {
		m, err := b.dev.CreateMKey(ctx, queues.MKeyOptions{PD: b.pd, Buffer: buf})
		require.NoError(t, err)
		if i > 0 {
			require.Equal(t, (last+1)&0xff, m.Key()&0xff)
		}
		last = m.Key()
		require.NoError(t, m.Destroy(ctx))
	}
}

// What is refused before anything is sent.
func TestMKeyRefused(t *testing.T) {
	b := newBench(t, "sim:cx5")
	other := newBench(t, "sim:cx5")
	none := newBench(t, "sim:cx5")
	none.dev.Caps.AtomicOperations = 0
	buf := b.buffer(8192)
	for _, c := range []struct {
		on       *bench
		field    string
		sentinel error
		o        queues.MKeyOptions
	}{
		{b, "PD", queues.ErrMissing, queues.MKeyOptions{Buffer: buf}},
		{b, "PD", queues.ErrForeign, queues.MKeyOptions{PD: other.pd, Buffer: buf}},
		{b, "Buffer", queues.ErrMissing, queues.MKeyOptions{PD: b.pd}},
		{b, "Buffer", queues.ErrMissing, queues.MKeyOptions{PD: b.pd, Buffer: buf, Pages: []uint64{0}}},
		{b, "Pages", queues.ErrMissing, queues.MKeyOptions{PD: b.pd, Pages: []uint64{}}},
		{b, "Pages", vfio.ErrRange, queues.MKeyOptions{PD: b.pd, Pages: []uint64{0x1000, 0x2800}}},
		{b, "LogPageSize", vfio.ErrRange, queues.MKeyOptions{PD: b.pd, Pages: []uint64{0x1000}, LogPageSize: 63}},
		{b, "LogPageSize", vfio.ErrRange, queues.MKeyOptions{PD: b.pd, Buffer: buf, LogPageSize: 5}},
		{b, "LogPageSize", vfio.ErrRange, queues.MKeyOptions{PD: b.pd, Buffer: buf, LogPageSize: 32}},
		{b, "Length", vfio.ErrRange, queues.MKeyOptions{PD: b.pd, Buffer: buf, Length: 8193}},
		{b, "Length", vfio.ErrRange, queues.MKeyOptions{PD: b.pd, Buffer: buf, Offset: 8000, Length: 500}},
		{b, "Length", vfio.ErrRange, queues.MKeyOptions{PD: b.pd, Buffer: buf, Offset: 8192}},
		{b, "Length", vfio.ErrRange, queues.MKeyOptions{PD: b.pd, Buffer: buf, Offset: ^uint64(0), Length: 2}},
		{b, "Start", vfio.ErrRange, queues.MKeyOptions{PD: b.pd, Buffer: buf, Start: ^uint64(0) - 4095}},
		{b, "Start", vfio.ErrRange, queues.MKeyOptions{PD: b.pd, Buffer: buf, Start: 0x10001}},
		{b, "Start", vfio.ErrRange, queues.MKeyOptions{PD: b.pd, Buffer: buf, Start: buf.IOVA() ^ 0x1000, LogPageSize: 13}},
		{b, "FourKAligned", vfio.ErrRange, queues.MKeyOptions{PD: b.pd, Buffer: buf, FourKAligned: true, Offset: 8, Length: 4096}},
		{b, "FourKAligned", vfio.ErrRange, queues.MKeyOptions{PD: b.pd, Buffer: buf, FourKAligned: true, Length: 100}},
		{b, "Access", vfio.ErrRange, queues.MKeyOptions{PD: b.pd, Buffer: buf, Access: queues.RemoteWrite}},
		{b, "Access", vfio.ErrRange, queues.MKeyOptions{PD: b.pd, Buffer: buf, Access: queues.RemoteAtomic}},
		{b, "Access", vfio.ErrRange, queues.MKeyOptions{PD: b.pd, Buffer: buf, Access: 0x40}},
		{none, "Access", vfio.ErrNotSupported, queues.MKeyOptions{PD: none.pd, Buffer: buf, Access: queues.AccessAll}},
	} {
		c.on.refused(c.field, c.sentinel, func() error {
			_, err := c.on.dev.CreateMKey(t.Context(), c.o)
			return err
		})
	}
}

func TestMKeyEnd(t *testing.T) {
	b := newBench(t, "sim:cx5")
	ctx := t.Context()
	buf := b.buffer(4096)
	m, err := b.dev.CreateMKey(ctx, queues.MKeyOptions{PD: b.pd, Buffer: buf})
	require.NoError(t, err)
	require.NoError(t, m.Destroy(ctx))
	b.refused("", vfio.ErrClosed, func() error { return m.Destroy(ctx) })
	b.refused("", vfio.ErrClosed, func() error { _, err := m.Query(ctx); return err })
	m.Release()
	// The domain is free of users, however often the key was given back.
	p, err := b.dev.AllocPD(ctx)
	require.NoError(t, err)
	m, err = b.dev.CreateMKey(ctx, queues.MKeyOptions{PD: p, Buffer: buf})
	require.NoError(t, err)
	require.NoError(t, b.chip.SetFault("status", "DESTROY_MKEY=INT_ERR"))
	err = m.Destroy(ctx)
	require.ErrorIs(t, err, cmdif.Status(prm.StatusInternal))
	b.refused("", queues.ErrInUse, func() error { return p.Free(ctx) })
	require.NoError(t, b.chip.ClearFault("status"))
	require.NoError(t, m.Destroy(ctx), "a refused destruction can be repeated")
	require.NoError(t, p.Free(ctx))
}
