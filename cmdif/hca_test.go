package cmdif

import (
	"context"
	"encoding/binary"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/initseg"
	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// A value too wide for its field is refused by name, and nothing is sent.
func TestWideValuesAreNotSent(t *testing.T) {
	b := open(t, Options{})
	defer b.close()
	ctx := context.Background()
	for field, f := range map[string]func() error{
		"current_issi": func() error { return b.conn.SetISSI(ctx, 0x10000) },
		"op_mod": func() error {
			_, err := b.conn.QueryHCACap(ctx, 0x8000, CapCurrent)
			return err
		},
		"input_num_entries": func() error {
			r := b.conn.managePages(Function{}, prm.ManagePagesTake, 1<<32, 0)
			_, err := b.conn.run(ctx, r, 16)
			return err
		},
	} {
		err := f()
		var we *prm.WidthError
		require.ErrorAs(t, err, &we, field)
		require.Equal(t, field, we.Field)
		require.Contains(t, err.Error(), field)
		require.False(t, Unanswered(err))
	}
	require.ErrorContains(t, b.conn.SetISSI(ctx, -1), "current_issi")
	require.ErrorContains(t, b.conn.SetHCACap(ctx, prm.CapGeneral, make([]byte, CapSize+1)), "capability")
	require.ErrorContains(t, b.conn.SetDriverVersion(ctx, string(make([]byte, 64))), "driver_version")
	require.ErrorContains(t, b.conn.ReadRegister(ctx, prm.RegDtor, make([]byte, 6)), "multiples of 4")
	_, err := b.conn.GivePages(ctx, Function{}, []uint64{0x1000, 0x2004})
	require.ErrorContains(t, err, "pas[1]")
	_, err = b.conn.ReclaimPages(ctx, Function{}, 0)
	require.ErrorContains(t, err, "input_num_entries")
	require.Zero(t, b.doorbel.Load())
}

func TestPages(t *testing.T) {
	b := open(t, Options{})
	defer b.close()
	ctx := context.Background()
	vf := Function{ID: 3, EmbeddedCPU: true}
	var got []uint64
	var batches []int
	b.onCommand(func(c *call) {
		v := prm.AsManagePagesIn(c.in)
		require.Equal(t, prm.OpManagePages, v.Opcode())
		require.Equal(t, uint16(3), v.FunctionID())
		require.True(t, v.EmbeddedCpuFunction())
		n := int(v.InputNumEntries())
		out := make([]byte, 16)
		switch prm.ManagePagesOpMod(v.OpMod()) {
		case prm.ManagePagesGive:
			require.Len(t, c.in, 16+8*n)
			for i := range n {
				got = append(got, binary.BigEndian.Uint64(c.in[16+8*i:]))
			}
			batches = append(batches, n)
		case prm.ManagePagesTake:
			require.Equal(t, 16+8*n, c.outLen)
			n = min(n, len(got), 100)
			binary.BigEndian.PutUint32(out[8:], uint32(n))
			for _, p := range got[:n] {
				out = binary.BigEndian.AppendUint64(out, p)
			}
			got = got[n:]
		case prm.ManagePagesCantGive:
			require.Zero(t, n)
			require.Len(t, c.in, 16)
		}
		c.reply(out)
	})
	pages := make([]uint64, GiveBatch+5)
	for i := range pages {
		pages[i] = uint64(i+1) << 40 >> 16 &^ 4095
	}
	n, err := b.conn.GivePages(ctx, vf, pages)
	require.NoError(t, err)
	require.Equal(t, len(pages), n)
	require.Equal(t, []int{GiveBatch, 5}, batches)
	require.Equal(t, pages, got)
	back, err := b.conn.ReclaimPages(ctx, vf, ReclaimBatch)
	require.NoError(t, err)
	require.Equal(t, pages[:100], back, "firmware may return fewer")
	require.NoError(t, b.conn.CannotGive(ctx, vf))
	n, err = b.conn.GivePages(ctx, vf, nil)
	require.NoError(t, err)
	require.Zero(t, n)

	// The second batch fails: the caller learns what was taken.
	k := 0
	b.onCommand(func(c *call) {
		if k++; k == 2 {
			c.refuse(prm.StatusBadParam, 1)
			return
		}
		c.reply(nil)
	})
	n, err = b.conn.GivePages(ctx, vf, pages)
	require.ErrorIs(t, err, Status(prm.StatusBadParam))
	require.Equal(t, GiveBatch, n)

	// More pages than asked for cannot be believed.
	b.onCommand(func(c *call) { c.reply(binary.BigEndian.AppendUint32(make([]byte, 8), 9)) })
	_, err = b.conn.ReclaimPages(ctx, vf, 8)
	require.ErrorIs(t, err, ErrNotOurs)

	// Firmware wants pages back.
	b.onCommand(func(c *call) { c.reply([]byte{0, 0, 0, 0, 0, 0, 0, 0, 0x80, 0, 0, 3, 0xff, 0xff, 0xff, 0xf0}) })
	req, err := b.conn.QueryPages(ctx, prm.QueryPagesRegular)
	require.NoError(t, err)
	require.Equal(t, PageRequest{Function: vf, Pages: -16}, req)
}

func TestRegisters(t *testing.T) {
	b := open(t, Options{})
	defer b.close()
	ctx := context.Background()
	b.onCommand(func(c *call) {
		v := prm.AsAccessRegisterIn(c.in)
		require.Equal(t, prm.OpAccessReg, v.Opcode())
		require.Equal(t, prm.RegDtor, v.RegisterID())
		require.Equal(t, uint16(prm.AccessRegRead), v.OpMod())
		r := make([]byte, prm.DtorRegSize)
		d := prm.AsDtorReg(r)
		d.PCIEToggleTO().SetToValue(1500)
		d.FWResetTO().SetToMultiplier(prm.TimeoutSeconds)
		d.FWResetTO().SetToValue(10)
		d.TearDownTO().SetToMultiplier(prm.TimeoutMinutes)
		d.TearDownTO().SetToValue(1)
		c.reply(append(make([]byte, 16), r...))
	})
	got, err := b.conn.QueryTimeouts(ctx)
	require.NoError(t, err)
	want := DefaultTimeouts()
	want.PCIToggle = 1500 * time.Millisecond
	want.FWReset = 11500 * time.Millisecond
	want.Teardown = time.Minute
	require.Equal(t, want, got)
	require.Equal(t, initseg.DefaultReclaimPages, got.ReclaimPages)

	b.onCommand(func(c *call) { c.refuse(prm.StatusBadParam, 5) })
	got, err = b.conn.QueryTimeouts(ctx)
	require.ErrorContains(t, err, "DTOR (0xc00e) READ")
	require.Equal(t, DefaultTimeouts(), got)

	// In and out lengths differ; the image travels behind the header.
	b.onCommand(func(c *call) {
		v := prm.AsAccessRegisterIn(c.in)
		require.Equal(t, uint32(7), v.Argument())
		require.Equal(t, []byte{1, 2, 3, 4}, c.in[16:])
		require.Equal(t, 16+8, c.outLen)
		c.reply(append(make([]byte, 16), 8, 7, 6, 5, 4, 3, 2, 1))
	})
	out := make([]byte, 8)
	require.NoError(t, b.conn.AccessRegister(ctx, prm.AccessRegWrite, 0x1234, 7, []byte{1, 2, 3, 4}, out))
	require.Equal(t, []byte{8, 7, 6, 5, 4, 3, 2, 1}, out)
}

func TestInitAndTeardown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := open(t, Options{})
		defer b.close()
		ctx := context.Background()
		var in []byte
		failed := false
		b.onCommand(func(c *call) {
			in = c.in
			out := make([]byte, 16)
			if failed {
				out[15] = 1
			}
			c.reply(out)
			if b.conn.EventMode() && c.op() != prm.OpTeardownHCA {
				b.conn.Complete(1 << c.slot)
			}
		})
		require.NoError(t, b.conn.InitHCA(ctx, &[4]uint32{1, 2, 3, 4}))
		require.Len(t, in, prm.InitHCAInSize)
		require.Equal(t, uint32(4), prm.AsInitHCAIn(in).SwOwnerID(3))
		require.NoError(t, b.conn.SetDriverVersion(ctx, "Linux,mlxvfio,0.1"))
		require.Equal(t, "Linux,mlxvfio,0.1\x00", string(in[16:16+18]))
		require.NoError(t, b.conn.TeardownHCA(ctx, prm.TeardownGraceful))

		b.toEvents()
		start := time.Now()
		require.NoError(t, b.conn.TeardownHCA(ctx, prm.TeardownForce), "polled: no event comes")
		require.Less(t, time.Since(start), 10*time.Millisecond)
		require.Equal(t, prm.TeardownForce, prm.AsTeardownHCAIn(in).Profile())
		failed = true
		err := b.conn.TeardownHCA(ctx, prm.TeardownPrepareFast)
		var te *TeardownError
		require.ErrorAs(t, err, &te)
		require.Equal(t, prm.TeardownPrepareFast, te.Profile)
		require.NoError(t, b.conn.DisableHCA(ctx, Function{ID: 9}))
		require.Equal(t, uint16(9), prm.AsDisableHCAIn(in).FunctionID())
	})
}
