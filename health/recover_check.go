package health

import (
	"context"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/mlxvfio/mlxvfio/initseg"
	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// What is checked after a rung.

// comeBack checks that the device lives, opens the function, and looks again.
func (c *climber) comeBack() error {
	if err := c.step("answers", func() (string, error) { return "", c.present(c.ctx) }); err != nil {
		return err
	}
	c.releaseHeld()
	if err := c.step("initialized", func() (string, error) {
		return "", c.seg.WaitReady(c.ctx, initseg.PreInit, initseg.WaitOptions{Limit: 2 * time.Hour}) // Linux' limit on recovery; the rung's is shorter
	}); err != nil {
		return err
	}
	// A device that was only drained may need its new command queue to move again.
	if c.rung != RungReopen {
		if err := c.step("alive", func() (string, error) { return c.alive(c.ctx) }); err != nil {
			return err
		}
	}
	if err := c.step("open", func() (string, error) { return "", c.t.Lifecycle.Reopen(c.ctx) }); err != nil {
		return err
	}
	return c.step("well", func() (string, error) { return c.well() })
}

// Time between looks at a device that is coming back (Linux health.c: 20 ms).
const presentPause = 20 * time.Millisecond

// present waits until configuration space and BAR 0 answer.
func (r *recovery) present(ctx context.Context) error {
	p := pauser{}
	defer p.stop()
	for {
		err := r.answers()
		if err == nil {
			return nil
		}
		if e := p.pause(ctx, presentPause); e != nil {
			return fmt.Errorf("%w: %w", err, e)
		}
	}
}

func (r *recovery) answers() error {
	var id [2]byte
	if err := r.t.Config.ReadConfig(0, id[:]); err != nil {
		return err
	}
	if binary.LittleEndian.Uint16(id[:]) == 0xffff {
		return &vfio.Error{Op: "read configuration space", Target: r.t.Device, Err: vfio.ErrGone}
	}
	if r.t.Window.ReadBE32(offFWVersion) == allOnes {
		return &vfio.Error{Op: "read the firmware version", Target: r.t.Device, Err: vfio.ErrGone}
	}
	return nil
}

// Patience for the counter after a reset (Linux main.c, wait_vital).
const (
	aliveTries = 100
	alivePause = 50 * time.Millisecond
)

// alive waits until the counter, neither 0 nor all ones, has moved.
func (r *recovery) alive(ctx context.Context) (string, error) {
	p := pauser{}
	defer p.stop()
	var last, x uint32
	for range aliveTries {
		x = r.t.Window.ReadBE32(offCounter)
		if n := x & CounterMask; x != allOnes && n != 0 {
			if last != 0 && n != last {
				return fmt.Sprintf("counter %#x → %#x", last, n), nil
			}
			last = n
		}
		if err := p.pause(ctx, alivePause); err != nil {
			return "", fmt.Errorf("the health counter reads %#x: %w", x, err)
		}
	}
	return "", fmt.Errorf("the health counter reads %#x and has not moved in %v: %w", x, aliveTries*alivePause, ErrStalled)
}

// well looks at the sensors of the open function. An error in the health buffer
// that was there before and has not changed is stale, not a relapse.
func (c *climber) well() (string, error) {
	note, err := c.alive(c.ctx)
	if err != nil {
		return "", err
	}
	var s Sample
	c.smp.Read(&s)
	if s.Ones() > 0 {
		return "", vfio.ErrGone
	}
	if n := s.NICInterface(); n != prm.NICInterfaceFullDriver {
		return "", fmt.Errorf("nic_interface reads %v", n)
	}
	var b Buffer
	c.smp.ReadBuffer(&b)
	if b.Error() && b.Raw == c.before.Raw {
		if b.RFR && !wasAway(c.cond) && c.rung == RungReopen {
			return "", fmt.Errorf("firmware still asks for a reset: %w", ErrFatal)
		}
		return note + ", stale error in the health buffer", nil
	}
	if b.Error() && b.RFR {
		return "", fmt.Errorf("the health buffer shows a new error, %s, and asks for a reset: %w", b.SyndName, ErrFatal)
	}
	return note, nil
}
