package sim

import (
	"fmt"
	"time"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// Levels and types of register MFRL.
const (
	mfrlLive   = 1 << 0 // live patch
	mfrlToggle = 1 << 3 // at the next link toggle or hot reset
	mfrlPower  = 1 << 6 // at the next loss of power

	mfrlFullChip = 1 << 0

	mfrlAck    = 1
	mfrlRefuse = 2
)

// mfrlNegotiation is how long functions have to answer, Linux's default for
// PCI_SYNC_UPDATE and what DTOR says.
const mfrlNegotiation = 5 * time.Second

// fwReset is a firmware reset asked for through MFRL. It belongs to the chip and
// outlives what resets single functions.
type fwReset struct {
	state   prm.MFRLResetState
	pending uint8 // level that the next trigger carries out; 0 is none
	waiting []*function
	round   int // a deadline of an earlier round ends nothing
}

func readMFRL(f *function, img []byte) synd {
	m := prm.AsMfrlReg(img)
	*m = prm.MfrlReg{}
	m.SetResetLevel(mfrlLive | mfrlToggle | mfrlPower)
	m.SetResetType(mfrlFullChip)
	m.SetPCIResetReqMethod(1) // hot reset
	m.SetResetState(f.chip.reset.state)
	return syndOK
}

func writeMFRL(f *function, img []byte) synd {
	m, c := prm.AsMfrlReg(img), f.chip
	if r := m.PCISyncForFWUpdateResp(); r != 0 {
		return c.answerReset(f, r)
	}
	switch level := m.ResetLevel(); {
	case level == mfrlLive:
		return syndOK // nothing waits to be patched
	case level != mfrlToggle && level != mfrlPower:
		return syndResetLevel
	case m.RstTypeSel() != 0:
		return syndResetLevel // bit 0 of reset_type is the only one
	case c.reset.state == prm.MFRLResetInNegotiation, c.reset.state == prm.MFRLResetInProgress:
		return syndResetBusy
	case !m.PCISyncForFWUpdateStart():
		c.reset.pending = level
		c.reset.state = prm.MFRLResetWaitingForTrigger
		return syndOK
	default:
		f.later = append(f.later, func() { c.negotiate(f, level) })
		return syndOK
	}
}

// negotiate asks every function with a driver, and the one that started it, for
// its consent.
func (c *Chip) negotiate(by *function, level uint8) {
	r := &c.reset
	*r = fwReset{state: prm.MFRLResetInNegotiation, pending: level, round: r.round + 1}
	if x := c.faults.find("mfrl-fails"); x != nil {
		c.endNegotiation(x.mfrl)
		return
	}
	for _, f := range c.funcs {
		if f == by || f.fw.phase == phaseInit {
			r.waiting = append(r.waiting, f)
			f.syncEvent(prm.SyncResetRequest)
		}
	}
	round := r.round
	c.lazily(mfrlNegotiation, func(time.Time) {
		if r.round == round && r.state == prm.MFRLResetInNegotiation {
			c.endNegotiation(prm.MFRLResetNegTimeout)
		}
	})
}

// answerReset takes a function's consent or refusal.
func (c *Chip) answerReset(f *function, answer uint8) synd {
	r := &c.reset
	if r.state != prm.MFRLResetInNegotiation {
		return syndResetBusy
	}
	if answer != mfrlAck {
		f.later = append(f.later, func() { c.endNegotiation(prm.MFRLResetNack) })
		return syndOK
	}
	var left []*function
	for _, g := range r.waiting {
		if g != f {
			left = append(left, g)
		}
	}
	if r.waiting = left; len(left) == 0 {
		f.later = append(f.later, func() { c.endNegotiation(prm.MFRLResetInProgress) })
	}
	return syndOK
}

// endNegotiation tells all functions to reset now, or that nothing comes of it.
func (c *Chip) endNegotiation(s prm.MFRLResetState) {
	r := &c.reset
	r.state, r.waiting = s, nil
	say := prm.SyncResetNow
	if s != prm.MFRLResetInProgress {
		r.pending, say = 0, prm.SyncResetAbort
	}
	for _, f := range c.funcs {
		if f.fw.phase == phaseInit {
			f.syncEvent(say)
		}
	}
}

func (f *function) syncEvent(s prm.SyncResetState) {
	f.generalEvent(prm.GeneralEventPCISyncForFWUpdate, func(d *prm.EventAuto) {
		d.SyncFWUpdateEvent().SetSyncRstState(s)
	})
}

// trigger is how far a hot reset reaches: with a firmware reset that waits for
// it, further.
func (c *Chip) trigger() rung {
	if c.reset.pending == mfrlToggle && c.reset.state != prm.MFRLResetInNegotiation {
		return rungMFRL
	}
	return rungHotReset
}

func parseMFRLState(x *fault, arg string) error {
	s, ok := prm.ParseMFRLResetState(arg)
	switch {
	case ok && (s == prm.MFRLResetNack || s == prm.MFRLResetNegTimeout || s == prm.MFRLResetUnloadTimeout):
		x.mfrl = s
		return nil
	}
	return fmt.Errorf("%q is no state in which it fails", arg)
}
