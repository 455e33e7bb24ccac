package health

import (
	"fmt"

	"github.com/mlxvfio/mlxvfio/initseg"
	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// cold answers why no reset helps against the condition.
func (c *climber) cold() error {
	if c.crr() {
		return useless("firmware says that only a cold reset helps (crr)")
	}
	return nil
}

// surroundings answers why no rung helps where it is not the function that is ill:
// to open it again would only take it from its user for a while.
func (r *recovery) surroundings() error {
	switch r.cond {
	case HighTemperature, InsufficientPower, PCIeErrors:
		return useless("the cause is outside the function: %s", r.cond.Info().Remedy)
	}
	return nil
}

// crr tells whether firmware asks for a cold reset. A condition without a syndrome
// means that a monitor found what the buffer shows to be of an earlier run.
func (r *recovery) crr() bool {
	switch r.cond {
	case FatalCRR, NonFatalCRR:
		return true
	case CounterStopped, StaleError:
		return false
	}
	return r.before.Error() && r.before.CRR
}

// checkReopen: firmware that asks for a reset is not helped by a second bring-up.
func (c *climber) checkReopen() error {
	if err := c.cold(); err != nil {
		return err
	}
	switch c.cond {
	case FatalRFR:
		return useless("firmware asks for a reset (rfr)")
	case CommandsDead:
		return useless("a device that answers no command cannot be asked to let go of its memory")
	}
	return nil
}

// reopen drains a device that answers. One that is away, since somebody else resets
// it, is waited for instead: a reset ends its claim to all memory (Linux health.c
// sends no reset of its own then).
func (c *climber) reopen() error {
	if !wasAway(c.cond) {
		err := c.step("drain", func() (string, error) {
			ctx, cancel := c.within(orDefault(c.t.Timeouts.Teardown, initseg.DefaultTeardown)+orDefault(c.t.Timeouts.ReclaimPages, initseg.DefaultReclaimPages), "drain")
			defer cancel()
			return "", c.t.Lifecycle.Drain(ctx)
		})
		if err != nil {
			return fmt.Errorf("the device did not let go of its memory, a reset has to make it: %w", err)
		}
		return nil
	}
	if err := c.park(); err != nil {
		return err
	}
	return c.step("wait for the reset of another function", func() (string, error) {
		return c.awaitReset()
	})
}

// awaitReset waits until nobody resets the chip any more.
func (c *climber) awaitReset() (string, error) {
	p := pauser{}
	defer p.stop()
	for {
		err := c.answers()
		n := c.seg.NICInterface()
		if err == nil && n != prm.NICInterfaceSwReset {
			return fmt.Sprintf("nic_interface reads %v", n), nil
		}
		if err == nil {
			err = fmt.Errorf("nic_interface still reads %v", n)
		}
		if e := p.pause(c.ctx, presentPause); e != nil {
			return "", fmt.Errorf("%w: %w", err, e)
		}
	}
}

// checkFLR: nothing but the lack of it, or firmware's own word, speaks against it.
func (c *climber) checkFLR() error {
	if err := c.cold(); err != nil {
		return err
	}
	if c.t.Reset == nil {
		return unsupported("the function cannot be reset alone")
	}
	return nil
}

func (c *climber) flr() error {
	if err := c.park(); err != nil {
		return err
	}
	return c.step("reset", func() (string, error) { return "", c.t.Reset() })
}

// checkHotReset lists who would be hit, and asks for their consent.
func (c *climber) checkHotReset() error {
	if err := c.cold(); err != nil {
		return err
	}
	if c.t.HotReset == nil || c.t.HotResetInfo == nil {
		return unsupported("the transport has no hot reset")
	}
	hits, err := c.t.HotResetInfo()
	if err != nil {
		return unsupported("%s", oneLine(err))
	}
	c.rep.Hits = hits
	if c.rung > c.o.MaxLevel {
		return nil // not asked for what will not be done
	}
	return c.consent(hits)
}

// consent asks for the functions beside this one.
func (c *climber) consent(hits []vfio.HotResetFunction) error {
	others := 0
	for _, h := range hits {
		if !h.Self {
			others++
		}
	}
	switch {
	case others == 0:
		return nil
	case c.o.Consent == nil:
		return notAllowed("it would also reset %s; that was not agreed to", hitNames(hits))
	}
	if err := c.o.Consent(hits); err != nil {
		return notAllowed("it would also reset %s: %s", hitNames(hits), oneLine(err))
	}
	return nil
}

func hitNames(hits []vfio.HotResetFunction) string {
	s := ""
	for _, h := range hits {
		if !h.Self {
			if s != "" {
				s += ", "
			}
			s += h.Name
		}
	}
	return s
}

func (c *climber) hotReset() error {
	if err := c.park(); err != nil {
		return err
	}
	return c.step("hot reset", func() (string, error) { return "", c.t.HotReset() })
}
