package cmdif

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/initseg"
	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// CheckAlive finds what a command that waits would find, without one: a waiting one
// ends at once, later ones are refused, and the reason stays.
func TestCheckAlive(t *testing.T) {
	broken := errors.New("the bus is broken")
	for _, c := range []struct {
		name, says string
		dies       func(b *bench)
		is         func(t *testing.T, err error)
	}{
		{"all ones", "device does not answer commands any more: initialization segment: look for the device: device reads all ones; check",
			func(b *bench) { b.gone.Store(true) },
			func(t *testing.T, err error) { require.ErrorIs(t, err, vfio.ErrGone) }},
		{"fatal", "FW_INTERNAL_ERR (firmware internal error), severity CRITICAL, ext_synd 0x0000, and asks for a reset; reset the function and open it again",
			func(b *bench) {
				b.fake.mu.Lock()
				defer b.fake.mu.Unlock()
				h := prm.AsHealthBuffer(b.bar[0x200:0x240])
				h.SetSynd(prm.SyndFWInternalErr)
				h.SetSeverity(prm.SeverityCritical)
				h.SetRFR(true)
			},
			func(t *testing.T, err error) {
				var fe *initseg.FatalError
				require.ErrorAs(t, err, &fe)
				require.Equal(t, prm.SyndFWInternalErr, fe.Syndrome)
			}},
		{"access failed", "access to BAR 0 failed: ",
			func(b *bench) {
				b.breaks(broken)
				b.conn.seg.RingDoorbell(0) // as a data path would
			},
			func(t *testing.T, err error) { require.ErrorIs(t, err, broken) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := open(t, Options{})
				defer b.close()
				require.NoError(t, b.conn.CheckAlive())
				b.onCommand(func(*call) {}) // it does not come back
				waits := make(chan error)
				go func() { waits <- b.conn.NOP(context.Background()) }()
				time.Sleep(time.Millisecond)
				start := time.Now()
				c.dies(b)
				err := b.conn.CheckAlive()
				var de *DeadError
				require.ErrorAs(t, err, &de)
				require.Equal(t, b.conn.Device().Info().Name, de.Device)
				require.ErrorIs(t, err, ErrDead)
				require.ErrorContains(t, err, c.says)
				require.NotContains(t, err.Error(), "op_mod", "no command met it")
				require.False(t, Unanswered(err))
				c.is(t, err)
				werr := <-waits
				require.LessOrEqual(t, time.Since(start), time.Millisecond, "it looks every 0.1 s itself")
				require.ErrorIs(t, werr, ErrDead)
				require.True(t, Unanswered(werr))
				require.ErrorIs(t, b.conn.NOP(context.Background()), ErrDead)
				b.gone.Store(false)
				b.breaks(nil)
				require.Equal(t, err, b.conn.CheckAlive(), "dead for good")
			})
		})
	}
}

// breaks makes writes to the device fail.
func (b *bench) breaks(err error) {
	b.fake.mu.Lock()
	defer b.fake.mu.Unlock()
	b.broken = err
}

// After Close there is nothing to look at.
func TestCheckAliveAfterClose(t *testing.T) {
	b := open(t, Options{})
	b.close()
	err := b.conn.CheckAlive()
	require.ErrorIs(t, err, ErrClosed)
	require.NotErrorIs(t, err, ErrDead)
}
