package health

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/mlxvfio/mlxvfio/initseg"
	"github.com/mlxvfio/mlxvfio/internal/prm"
)

func orDefault(d, def time.Duration) time.Duration {
	if d <= 0 {
		return def
	}
	return d
}

// checkSWReset: physical functions only, where dword 0x1fc bit 30 says that the
// device supports it, and never while another function resets (Linux health.c,
// mlx5_error_sw_reset and reset_fw_if_needed). Unlike Linux, no reset is asked for
// without the semaphore.
func (c *climber) checkSWReset() error {
	if err := c.cold(); err != nil {
		return err
	}
	switch {
	case c.t.Virtual:
		return unsupported("virtual functions never reset the chip")
	case wasAway(c.cond):
		return useless("the device is away or was reset already (%s)", c.cond)
	}
	if err := c.answers(); err != nil {
		return useless("a device that does not answer takes no request: %s", oneLine(err))
	}
	if !c.seg.State().FWResetSupported {
		return unsupported("the device does not offer it (dword 0x1fc bit 30)")
	}
	v, err := OpenVSC(c.t.Config)
	if err != nil {
		return unsupported("no semaphore to do it under: %s", oneLine(err))
	}
	c.vsc = v
	return nil
}

// swReset asks for the reset if nobody else does, and waits for its end.
func (c *climber) swReset() (err error) {
	if err := c.park(); err != nil {
		return err
	}
	var release func() error
	err = c.step("take the software-reset semaphore", func() (note string, err error) {
		release, note, err = c.takeSemaphore()
		return note, err
	})
	if err != nil {
		return err
	}
	limit := orDefault(c.t.Timeouts.FullCRDump, initseg.DefaultFullCRDump)
	if release != nil {
		// It is given back on every path, and after the reset: until then another
		// function would reset once more.
		defer func() {
			if e := release(); e != nil {
				// The reset stands; what failed is on record, and tried again later.
				c.held = release
				c.note("give the software-reset semaphore back", e)
			}
		}()
		limit = orDefault(c.t.Timeouts.PCIToggle, initseg.DefaultPCIToggle)
		err = c.step("ask for the reset", func() (string, error) {
			return "", c.seg.SetNICInterface(prm.NICInterfaceSwReset)
		})
		if err != nil {
			return err
		}
	}
	err = c.step("wait for its end", func() (string, error) { return c.awaitDisabled(limit) })
	if err != nil {
		return err
	}
	return c.step("answers again", func() (string, error) {
		ctx, cancel := c.within(orDefault(c.t.Timeouts.FWReset, initseg.DefaultFWReset), "wait for PCI")
		defer cancel()
		if err := c.present(ctx); err != nil {
			return "", err
		}
		if n := c.seg.NICInterface(); n == prm.NICInterfaceSwReset {
			return "", fmt.Errorf("nic_interface still reads %v", n)
		}
		return "", nil
	})
}

// note books a failure that does not end the rung.
func (c *climber) note(step string, err error) {
	s := RecoveryStep{Step: step, Err: err}
	c.rep.Steps = append(c.rep.Steps, s)
	if c.o.OnStep != nil {
		c.o.OnStep(c.rung, s)
	}
}

// within is the rung's context with a shorter limit.
func (c *climber) within(d time.Duration, what string) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(c.ctx, d, fmt.Errorf("%s: %v are over: %w", what, d, context.DeadlineExceeded))
}

// takeSemaphore takes it, or finds that its owner has reset the chip meanwhile:
// release is nil then. A semaphore that neither gets free nor shows a reset within
// full_crdump_to is an error.
func (c *climber) takeSemaphore() (release func() error, note string, err error) {
	ctx, cancel := c.within(orDefault(c.t.Timeouts.FullCRDump, initseg.DefaultFullCRDump), "wait for the semaphore")
	defer cancel()
	p := pauser{}
	defer p.stop()
	var held error
	for {
		release, err = c.vsc.LockSWReset(ctx)
		if err == nil {
			return release, note, nil
		}
		if !errors.Is(err, ErrSemaphoreHeld) {
			return nil, "", errors.Join(held, err)
		}
		held = err
		note = "another owner had it"
		if n := c.seg.NICInterface(); n == prm.NICInterfaceSwReset || n == prm.NICInterfaceDisabled {
			return nil, fmt.Sprintf("another function resets the chip (nic_interface reads %v)", n), nil
		}
		if e := p.pause(ctx, presentPause); e != nil {
			return nil, "", fmt.Errorf("%w: %w", err, e)
		}
	}
}

// awaitDisabled waits until nic_interface reads DISABLED: the end of the reset. A
// device that reads all ones at the limit is on its way as well; it is waited for
// by what comes next.
func (c *climber) awaitDisabled(limit time.Duration) (string, error) {
	ctx, cancel := c.within(limit, "wait for nic_interface DISABLED")
	defer cancel()
	p := pauser{}
	defer p.stop()
	start := time.Now()
	for {
		x := c.t.Window.ReadBE32(offNIC)
		n := prm.NICInterface(x >> 8 & 7)
		if x != allOnes && n == prm.NICInterfaceDisabled {
			return fmt.Sprintf("after %v", time.Since(start).Round(time.Millisecond)), nil
		}
		if err := p.pause(ctx, presentPause); err != nil {
			if x == allOnes && c.ctx.Err() == nil {
				return "the device reads all ones", nil
			}
			return "", fmt.Errorf("nic_interface reads %v: %w", n, err)
		}
	}
}
