package sim

import (
	"slices"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// phaseRow says for each phase why a command is refused in it; syndOK where it
// is possible. Together with the rows of the command table (handle, needs,
// refuses) it is the model's table of refusals.
type phaseRow [phases]synd

// The rows. A real device's answers to commands out of order are not published:
// every one is a choice. ENABLE_HCA after TEARDOWN_HCA starts over, because
// rdma-core closes without giving pages back or disabling.
var (
	forEnable   = phaseRow{syndOK, syndEnabled, syndEnabled, syndEnabled, syndOK}
	forDisable  = phaseRow{syndNotEnabled, syndOK, syndOK, syndInit, syndOK}
	fromEnabled = phaseRow{syndNotEnabled, syndOK, syndOK, syndOK, syndOK}
	onlyEnabled = phaseRow{syndNotEnabled, syndOK, syndISSISet, syndISSISet, syndTornDown}
	withPages   = phaseRow{syndNotEnabled, syndNoISSI, syndOK, syndOK, syndOK}
	fromISSI    = phaseRow{syndNotEnabled, syndNoISSI, syndOK, syndOK, syndTornDown}
	onlyISSI    = phaseRow{syndNotEnabled, syndNoISSI, syndOK, syndInit, syndTornDown}
	onlyInit    = phaseRow{syndNotEnabled, syndNoISSI, syndNotInit, syndOK, syndTornDown}
)

// Situation is a column of the table of refusals.
type Situation string

// Situations.
const (
	BeforeEnable   Situation = "before ENABLE_HCA"
	BeforeISSI     Situation = "before SET_ISSI"
	BeforeInit     Situation = "before INIT_HCA"
	AfterInit      Situation = "after INIT_HCA"
	AfterTeardown  Situation = "after TEARDOWN_HCA"
	InputShort     Situation = "input too short"
	OutputShort    Situation = "output too short"
	UnknownOpMod   Situation = "unknown op_mod"
	ReservedOpcode Situation = "reserved opcode"
	FreedObject    Situation = "freed object"
	AboveMaximum   Situation = "value above maximum"
)

// Refusal is one cell of the table: the status and syndrome with which a command
// is refused in a situation.
type Refusal struct {
	Opcode    prm.Opcode // 0 for a reserved opcode, which stands for all
	Situation Situation
	Syndrome
}

// Refusals lists the table: every command the model implements, in every
// situation in which it is refused.
func Refusals() []Refusal {
	l := []Refusal{{0, ReservedOpcode, syndromes[syndReservedOpcode]}}
	var ops []prm.Opcode
	for op := range handlers {
		ops = append(ops, op)
	}
	slices.Sort(ops)
	for _, op := range ops {
		h := handlers[op]
		add := func(w Situation, s synd) {
			if s != syndOK {
				l = append(l, Refusal{op, w, syndromes[s]})
			}
		}
		for p, w := range [phases]Situation{BeforeEnable, BeforeISSI, BeforeInit, AfterInit, AfterTeardown} {
			add(w, h.phases[p])
		}
		add(InputShort, syndInputShort)
		if prm.CommandByOpcode(op).MinOut > headerBytes {
			add(OutputShort, syndOutputShort)
		}
		if h.opMods != anyOpMod {
			add(UnknownOpMod, syndOpMod)
		} else {
			add(UnknownOpMod, syndCapType) // op_mod is a capability type
		}
		add(FreedObject, h.freed)
		add(AboveMaximum, h.above)
	}
	return l
}
