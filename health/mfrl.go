package health

import (
	"context"
	"fmt"

	"github.com/mlxvfio/mlxvfio/initseg"
	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// Reset levels of register MFRL, a bitmap (Linux fw_reset.c; triggers as in
// mstflint's register database).
const (
	mfrlLevelLink  = 1 << 3 // PCIe link toggle or hot reset
	mfrlLevelPERST = 1 << 6 // PERST: a reset of the host

	mfrlAck = 1 // pci_sync_for_fw_update_resp

	mfrlToggle = 0 // pci_reset_req_method
	mfrlHot    = 1
)

// MFRLState is register MFRL (0x9028) as it was read.
type MFRLState struct {
	Levels uint8              // bitmap of levels that can be asked for
	Types  uint8              // bitmap of reset types: bit 0 full chip, 1 ports stay alive
	State  prm.MFRLResetState // where a reset stands
	Method uint8              // how the link is to be reset: 0 toggle, 1 hot reset
}

// ReadMFRL reads the register.
func ReadMFRL(ctx context.Context, regs RegisterReader) (MFRLState, error) {
	var img [prm.MfrlRegSize]byte
	if err := regs.ReadRegister(ctx, prm.RegMfrl, img[:]); err != nil {
		return MFRLState{}, err
	}
	v := prm.AsMfrlReg(img[:])
	return MFRLState{Levels: v.ResetLevel(), Types: v.ResetType(), State: v.ResetState(), Method: v.PCIResetReqMethod()}, nil
}

func writeMFRL(ctx context.Context, regs RegisterAccess, f func(*prm.MfrlReg)) error {
	var img [prm.MfrlRegSize]byte
	v := prm.AsMfrlReg(img[:])
	v.SetResetLevel(mfrlLevelLink)
	f(v)
	return regs.WriteRegister(ctx, prm.RegMfrl, img[:])
}

// checkMFRL finds the way to the register last: it may take a bring-up.
func (c *climber) checkMFRL() error {
	if err := c.cold(); err != nil {
		return err
	}
	switch {
	case c.t.Virtual:
		return unsupported("virtual functions never reset the chip")
	case c.t.Registers == nil:
		return unsupported("no command interface to write the register with")
	}
	var hits []vfio.HotResetFunction
	if c.t.HotReset != nil && c.t.HotResetInfo != nil {
		l, err := c.t.HotResetInfo()
		hits, c.slot = l, err == nil
	}
	c.rep.Hits = hits
	if !c.slot && c.t.LinkToggle == nil {
		return unsupported("nothing here can reset the link, which level 3 needs")
	}
	if err := c.answers(); err != nil {
		return useless("a device that does not answer takes no command: %s", oneLine(err))
	}
	switch {
	case c.rung > c.o.MaxLevel:
		return nil
	case hits == nil && c.o.Consent == nil:
		return notAllowed("which functions it would also reset is not known; that was not agreed to")
	case hits == nil:
		if err := c.o.Consent(nil); err != nil {
			return notAllowed("which functions it would also reset is not known: %s", oneLine(err))
		}
		return nil
	}
	return c.consent(hits)
}

// mfrl asks for a synchronized reset of level 3, answers for this driver, and
// resets the link when firmware is ready. Drivers of the other functions are asked
// by events of their own; reset_state says what came of it.
func (c *climber) mfrl() error {
	var regs RegisterAccess
	err := c.step("command interface", func() (_ string, err error) {
		regs, err = c.t.Registers(c.ctx)
		return "", err
	})
	if err != nil {
		return err
	}
	var m MFRLState
	err = c.step("query MFRL", func() (_ string, err error) {
		if m, err = ReadMFRL(c.ctx, regs); err != nil {
			return "", err
		}
		note := fmt.Sprintf("levels %#x, types %#x, state %v", m.Levels, m.Types, m.State)
		switch {
		case m.Levels&mfrlLevelLink == 0 && m.Levels&mfrlLevelPERST != 0:
			return note, fmt.Errorf("%w: the device offers level 6 only, a reset of the host", vfio.ErrNotSupported)
		case m.Levels&mfrlLevelLink == 0:
			return note, fmt.Errorf("%w: the device does not offer level 3", vfio.ErrNotSupported)
		case m.Types == 0:
			return note, fmt.Errorf("%w: the device offers no reset type", vfio.ErrNotSupported)
		case m.State == prm.MFRLResetInNegotiation || m.State == prm.MFRLResetInProgress:
			return note, fmt.Errorf("%w: another reset is going on", vfio.ErrBusy)
		case !c.linkBy(m.Method):
			// Firmware that has begun cannot be told to stop: so this is asked first.
			return note, fmt.Errorf("%w: firmware wants the link reset by method %d, which is not at hand", vfio.ErrNotSupported, m.Method)
		}
		return note, nil
	})
	if err != nil {
		return err
	}
	err = c.step("start", func() (string, error) {
		return "", writeMFRL(c.ctx, regs, func(v *prm.MfrlReg) {
			v.SetRstTypeSel(lowestBit(m.Types))
			v.SetPCISyncForFWUpdateStart(true)
		})
	})
	if err != nil {
		return err
	}
	if err := c.step("negotiate", func() (string, error) { return c.negotiate(regs, &m) }); err != nil {
		return err
	}
	if err := c.park(); err != nil {
		return err
	}
	return c.step("reset the link", func() (string, error) {
		if m.Method == mfrlHot {
			return "hot reset", c.t.HotReset()
		}
		return "toggle", c.t.LinkToggle(c.ctx)
	})
}

// linkBy tells whether the link can be reset that way.
func (c *climber) linkBy(method uint8) bool {
	switch method {
	case mfrlToggle:
		return c.t.LinkToggle != nil
	case mfrlHot:
		return c.slot
	}
	return false
}

// lowestBit is the index of the lowest bit that is set: type 0, the full chip,
// where it is offered.
func lowestBit(x uint8) uint8 {
	for i := range uint8(8) {
		if x>>i&1 != 0 {
			return i
		}
	}
	return 0
}

// negotiate answers firmware's question once and waits for the word to go.
func (c *climber) negotiate(regs RegisterAccess, m *MFRLState) (string, error) {
	ctx, cancel := c.within(orDefault(c.t.Timeouts.PCISyncUpdate, initseg.DefaultPCISyncUpdate), "wait for the drivers of the chip")
	defer cancel()
	p := pauser{}
	defer p.stop()
	acked := false
	for {
		now, err := ReadMFRL(ctx, regs)
		if err != nil {
			return "", err
		}
		switch now.State {
		case prm.MFRLResetInProgress:
			if m.Method = now.Method; !c.linkBy(m.Method) {
				return "", fmt.Errorf("%w: firmware now wants the link reset by method %d", vfio.ErrNotSupported, m.Method)
			}
			return fmt.Sprintf("firmware is ready, method %d", now.Method), nil
		case prm.MFRLResetInNegotiation:
			if !acked {
				acked = true
				if err := writeMFRL(ctx, regs, func(v *prm.MfrlReg) { v.SetPCISyncForFWUpdateResp(mfrlAck) }); err != nil {
					return "", err
				}
				continue
			}
		case prm.MFRLResetNegTimeout, prm.MFRLResetNack, prm.MFRLResetUnloadTimeout:
			return "", fmt.Errorf("firmware gave up: reset_state %v; a driver of another function refused or did not answer", now.State)
		}
		if err := p.pause(ctx, presentPause); err != nil {
			return "", fmt.Errorf("reset_state %v: %w", now.State, err)
		}
	}
}
