package sim

import (
	"encoding/binary"
	"time"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// headerBytes is the part of every input (opcode, uid, op_mod) and output
// (status, syndrome) without which there is no command.
const headerBytes = 8

// phase is how far bring-up has come.
type phase uint8

const (
	phaseOff      phase = iota // before ENABLE_HCA
	phaseEnabled               // before SET_ISSI
	phaseISSI                  // pages, registers, capabilities
	phaseInit                  // after INIT_HCA
	phaseTornDown              // after TEARDOWN_HCA: pages go back
	phases
)

func (p phase) String() string {
	return [phases]string{"off", "enabled", "issi", "init", "torn-down"}[p]
}

// firmware is what the embedded processors know of a function.
type firmware struct {
	phase    phase
	ready    time.Time // initializing clears
	issi     int
	noISSI   bool // QUERY_ISSI did not offer ISSI 1: the driver may go on with 0
	ledger   ledger
	extra    int      // pages asked for (> 0) or offered (< 0) at run time
	checksum bool     // command checksums are on (cmdif_checksum 3 at INIT_HCA)
	prepared bool     // a fast teardown was prepared
	driver   [64]byte // SET_DRIVER_VERSION
	swOwner  [16]byte
}

// signing tells whether completed entries are signed: until INIT_HCA always, as
// the captured ConnectX-4 did, and after it while checksums are on.
func (w *firmware) signing() bool { return w.phase != phaseInit || w.checksum }

// checksums tells whether inputs are verified and output mailboxes signed.
func (w *firmware) checksums() bool { return w.checksum }

// resetFirmware is the state after power-on or FLR.
func (f *function) resetFirmware() {
	f.dropObjects()
	f.count.PagesDropped += uint64(f.fw.ledger.len())
	f.fw = firmware{}
	f.fw.ledger.reset()
	f.caps.reset(f.chip)
	f.regs.reset(f)
	f.resetPort()
	f.resetVport()
	f.startFirmware()
	f.chip.faults.afterReset(f)
}

// stopFirmware is the end of a fast teardown or a firmware reset: pages, objects
// and commands in flight are forgotten, configuration space and the published
// queue stay.
func (f *function) stopFirmware() {
	f.chip.tracer.say(traceCore, msgStopped, uint32(f.index))
	f.dropCommands()
	f.resetFirmware()
}

// call is one command being executed.
type call struct {
	op    prm.Opcode
	opMod uint16
	in    []byte // exactly what was sent, at least the command's minimum
	out   []byte // zeroed, at least the command's structure
	room  int    // bytes the driver accepts
	n     int    // bytes of output; the structure's size unless the handler says more
}

// handler is one row of the command table.
type handler struct {
	phases phaseRow
	opMods uint64 // bit n: op_mod n exists; handlers with anyOpMod look themselves
	do     func(f *function, c *call) synd
	min    func(f *function, c *call) (in, out int) // nil: the minimum of prm
	freed  synd                                     // an object that no longer exists
	above  synd                                     // a value above its maximum
}

// needs sets what the lengths depend on.
func (h *handler) needs(least func(f *function, c *call) (in, out int)) *handler {
	h.min = least
	return h
}

// refuses documents the command's own refusals: of a freed object and of a value
// above its maximum; syndOK where there is none.
func (h *handler) refuses(freed, above synd) *handler {
	h.freed, h.above = freed, above
	return h
}

const anyOpMod = ^uint64(0)

// handlers is the command table; it is filled in by init functions of the files
// that hold the commands.
var handlers = map[prm.Opcode]*handler{}

func handle(op prm.Opcode, p phaseRow, opMods uint64, do func(f *function, c *call) synd) *handler {
	h := &handler{phases: p, opMods: opMods, do: do}
	handlers[op] = h
	return h
}

// execute runs a command and gives its output: status, syndrome and, where it
// was done, the answer, cut to room. The result is valid until the next command.
func (f *function) execute(input []byte, room int, plan commandPlan) []byte {
	c := &f.call
	*c = call{in: input, room: room}
	c.op = prm.Opcode(binary.BigEndian.Uint16(input))
	c.opMod = binary.BigEndian.Uint16(input[6:])
	s := f.attempt(c, plan)
	status := s.status()
	if plan.status != prm.StatusOK {
		status = plan.status
	}
	if c.op == prm.OpQueryISSI {
		f.fw.noISSI = status != prm.StatusOK || prm.AsQueryISSIOut(c.out).SupportedISSIDw0()>>1&1 == 0
	}
	if status != prm.StatusOK {
		f.count.CommandsFailed++
		f.out = resize(f.out, headerBytes)
		c.out, c.n = f.out, headerBytes
		clear(c.out)
		binary.BigEndian.PutUint32(c.out[4:], uint32(s))
		if plan.syndrome != 0 {
			binary.BigEndian.PutUint32(c.out[4:], plan.syndrome)
		}
	}
	c.out[0] = byte(status)
	f.traceCall(c, status)
	return c.out[:min(c.n, room)]
}

// attempt finds the row of the table, refuses what it does not allow and runs it.
// The order of the refusals is the model's choice: opcode, phase, op_mod, input
// length, output length, uid, then the command's own.
func (f *function) attempt(c *call, plan commandPlan) synd {
	cmd := prm.CommandByOpcode(c.op)
	h := handlers[c.op]
	if h != nil && f.fw.noISSI && h.phases[f.fw.phase] == syndNoISSI {
		f.fw.phase = phaseISSI // no SET_ISSI will come: ISSI 0
	}
	switch {
	case plan.status != prm.StatusOK:
		return syndInjected
	case cmd == nil:
		return syndReservedOpcode
	case h == nil:
		return syndNotModelled
	case h.phases[f.fw.phase] != syndOK:
		return h.phases[f.fw.phase]
	case h.opMods != anyOpMod && (c.opMod > 63 || h.opMods>>c.opMod&1 == 0):
		return syndOpMod
	}
	minIn, minOut := cmd.MinIn, cmd.MinOut
	if len(c.in) < minIn {
		return syndInputShort
	}
	if h.min != nil {
		minIn, minOut = h.min(f, c)
	}
	switch {
	case len(c.in) < minIn:
		return syndInputShort
	case c.room < minOut:
		return syndOutputShort
	}
	if uid := uidOf(c); uid != 0 && uid != sharedUID {
		if _, ok := f.uctxs.get(uint32(uid)); !ok {
			return syndUID
		}
	}
	size := max(minOut, c.room)
	if cmd.Out != nil {
		size = max(size, cmd.Out.Size)
	}
	f.out = resize(f.out, size)
	c.out, c.n = f.out, minOut
	clear(c.out)
	if cmd.Out != nil {
		c.n = max(c.n, cmd.Out.Size)
	}
	return h.do(f, c)
}

func (f *function) traceCall(c *call, status prm.CommandStatus) {
	reg := ""
	if c.op == prm.OpAccessReg && len(c.in) >= prm.AccessRegisterInSize {
		reg = prm.AsAccessRegisterIn(c.in).RegisterID().String()
	}
	f.chip.tracer.traceCommand(f, c, status, binary.BigEndian.Uint32(c.out[4:]))
	f.trace(c.op, c.opMod, reg, prm.DeliveryOK, status, binary.BigEndian.Uint32(c.out[4:]))
}

// sharedUID marks an object that every user context may use; Linux's mlx5_ib
// allocates its Q counters so.
const sharedUID = 0xffff

// uidOf is the user context that a command speaks for.
func uidOf(c *call) uint16 { return binary.BigEndian.Uint16(c.in[2:]) }
