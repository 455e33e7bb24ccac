package cmdif

import (
	"errors"
	"fmt"
)

// CheckAlive looks at the device, for whoever waits for something else than a command
// that would find out: the completions of a data path. It is declared dead, as by Dead,
// if an access to it failed, if it reads all ones, or if its health buffer shows a fatal
// error. The error is a *DeadError without an opcode where the device is dead, now or
// since earlier, ErrClosed after Close, nil otherwise. It reads a few registers and
// never waits.
func (c *Conn) CheckAlive() error {
	if c.Err() == nil {
		c.checkAlive()
	}
	err := c.Err()
	if err == nil || errors.Is(err, ErrClosed) {
		return err
	}
	return &DeadError{Device: c.dev.Info().Name, Slot: -1, Err: err}
}

// checkAlive declares the device dead if it reads all ones or its firmware has given
// up. It is asked only while something does not come back.
func (c *Conn) checkAlive() {
	c.checkWindow()
	if err := c.seg.Alive(); err != nil {
		c.Dead(err)
		return
	}
	if err := c.seg.Fatal(); err != nil {
		c.Dead(err)
	}
}

// checkWindow declares the device dead if an access to it failed.
func (c *Conn) checkWindow() {
	if err := c.seg.Err(); err != nil && c.mmioErr == nil {
		c.Dead(fmt.Errorf("access to BAR 0 failed: %w", err))
	}
}
