package health_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/health"
	"github.com/mlxvfio/mlxvfio/sim"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// simChip makes a model of some functions, and the Devices over them.
func simChip(t *testing.T, words string, functions int) (*sim.Chip, []*vfio.Device) {
	t.Helper()
	o, err := sim.Parse(words)
	require.NoError(t, err)
	o.Functions = functions
	c, err := sim.New(o)
	require.NoError(t, err)
	var devs []*vfio.Device
	for i := range functions {
		d, err := vfio.NewDevice(c.Function(i), vfio.DeviceOptions{})
		require.NoError(t, err)
		devs = append(devs, d)
	}
	t.Cleanup(func() {
		for _, d := range devs {
			require.NoError(t, d.Close())
		}
		require.NoError(t, c.Close())
	})
	return c, devs
}

// TestGatewayOnModel: what the model's gateway, written by others from the same
// facts, makes of ours.
func TestGatewayOnModel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, devs := simChip(t, "sim:cx5", 2)
		v, err := health.OpenVSC(devs[0])
		require.NoError(t, err)
		spaces, err := v.Spaces(t.Context())
		require.NoError(t, err)
		require.Contains(t, spaces, health.SpaceCR)
		require.Contains(t, spaces, health.SpaceSemaphore)
		require.Positive(t, spaces[health.SpaceScanCR])
		require.NotContains(t, spaces, health.SpaceICMD)
		id, err := v.Read(t.Context(), health.SpaceCR, 0xf0014)
		require.NoError(t, err)
		require.Equal(t, uint32(0x20d), id&0xffff, "ConnectX-5")

		d, err := v.DumpCR(t.Context(), health.CRDumpOptions{})
		require.NoError(t, err)
		require.Equal(t, spaces[health.SpaceScanCR], d.Size)
		require.Greater(t, len(d.Spans), 1, "it has holes")
		require.Less(t, d.Words*4, int(d.Size))

		// Both functions see one software-reset semaphore, through gateways of
		// their own.
		release, err := v.LockSWReset(t.Context())
		require.NoError(t, err)
		other, err := health.OpenVSC(devs[1])
		require.NoError(t, err)
		_, err = other.LockSWReset(t.Context())
		require.ErrorIs(t, err, health.ErrSemaphoreHeld)
		_, err = other.DumpCR(t.Context(), health.CRDumpOptions{})
		require.ErrorIs(t, err, health.ErrSemaphoreHeld)
		require.NoError(t, release())
		release, err = other.LockSWReset(t.Context())
		require.NoError(t, err)
		require.NoError(t, release())

		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		for _, f := range []struct {
			fault, arg string
			is         error
			op         func() error
		}{
			{"vsc-absent", "", health.ErrNoVSC, func() error { _, err := health.OpenVSC(devs[0]); return err }},
			{"vsc-held", "", health.ErrGatewayHeld, func() error { _, err := v.Read(ctx, health.SpaceCR, 0); return err }},
			{"vsc-stuck", "", health.ErrGatewayTimeout, func() error { return v.Write(t.Context(), health.SpaceCR, 0, 1) }},
			{"vsc-no-space", "7", health.ErrSpaceUnsupported, func() error { _, err := v.DumpCR(t.Context(), health.CRDumpOptions{}); return err }},
			{"vsc-no-space", "0xa", health.ErrSpaceUnsupported, func() error { _, err := v.LockSWReset(t.Context()); return err }},
			{"vsc-no-size", "", health.ErrSpaceUnsupported, func() error { _, err := v.DumpCR(t.Context(), health.CRDumpOptions{}); return err }},
			{"vsc-short", "0x40", health.ErrGatewayRefused, func() error { _, err := v.DumpCR(t.Context(), health.CRDumpOptions{}); return err }},
			{"swreset-held", "", health.ErrSemaphoreHeld, func() error { _, err := v.LockSWReset(t.Context()); return err }},
			{"all-ones", "", vfio.ErrGone, func() error { _, err := v.Read(t.Context(), health.SpaceCR, 0); return err }},
		} {
			require.NoError(t, c.SetFault(f.fault, f.arg))
			err := f.op()
			require.ErrorIs(t, err, f.is, "%s: %v", f.fault, err)
			require.NoError(t, c.ClearFault(f.fault))
			// Nothing is left held by it.
			_, err = v.DumpCR(t.Context(), health.CRDumpOptions{})
			require.NoError(t, err, "after %s", f.fault)
		}
	})
}

// noLife is the owner of a function that nobody has opened.
type noLife struct{ log []string }

func (l *noLife) Drain(context.Context) error  { l.log = append(l.log, "drain"); return nil }
func (l *noLife) Park(error) error             { l.log = append(l.log, "park"); return nil }
func (l *noLife) Reopen(context.Context) error { return errors.New("no driver here") }

// TestSWResetFaultsOnModel: a software reset that is ignored, stuck, slow or held by
// another, and what the rung says.
func TestSWResetFaultsOnModel(t *testing.T) {
	for _, f := range []struct{ fault, arg, says string }{
		{"swreset-unsupported", "", "bit 30"},
		{"swreset-ignored", "", "nic_interface reads FULL_DRIVER"},
		{"swreset-stuck", "", "nic_interface reads SW_RESET"},
		{"swreset-held", "", "held by another owner"},
		{"vsc-absent", "", "no semaphore"},
		{"swreset-slow", "1s", "no driver here"},
		{"swreset-held", "3s", "no driver here"},
		{"", "", "no driver here"},
	} {
		t.Run(f.fault+f.arg, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, devs := simChip(t, "sim:cx5", 1)
				if f.fault != "" {
					require.NoError(t, c.SetFault(f.fault, f.arg))
				}
				w, err := devs[0].Window(vfio.RegionBAR0)
				require.NoError(t, err)
				life := &noLife{}
				rep, err := health.Recover(t.Context(), health.Target{Device: "sim", Window: w, Config: devs[0], Lifecycle: life},
					health.RecoverOptions{MaxLevel: health.RungSWReset, Verdict: health.Verdict{Condition: health.FatalRFR}})
				require.Error(t, err)
				sw := rep.Rungs[1]
				require.Equal(t, health.RungSWReset, sw.Rung)
				require.Contains(t, sw.Reason, f.says)
				if f.fault != "swreset-held" || f.arg != "" {
					require.NoError(t, c.ClearFault("vsc-absent"))
				}
				_ = c.ClearFault("swreset-held")
				v, err := health.OpenVSC(devs[0])
				require.NoError(t, err)
				release, err := v.LockSWReset(t.Context())
				require.NoError(t, err, "the semaphore is free again")
				require.NoError(t, release())
			})
		})
	}
}
