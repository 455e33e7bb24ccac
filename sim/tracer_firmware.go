package sim

import "github.com/mlxvfio/mlxvfio/internal/prm"

// What firmware says about its work. Each of its units has an event id of its
// own; the load speaks with all of them.
const (
	traceCore = traceFirst + iota
	traceCommands
	tracePages
	traceHealth
	traceQueues
)

// say writes a message of firmware, after those of the load that were due.
func (t *tracer) say(id uint8, format int, words ...uint32) {
	if !t.on || t.chip.health.dead() {
		return
	}
	t.pump()
	t.speak(id, format, words, t.ticks(), &logged{})
}

// traceCommand tells of a command that was answered. Accesses to the tracer's own
// registers are left out: arming it would never end.
func (t *tracer) traceCommand(f *function, c *call, status prm.CommandStatus, syndrome uint32) {
	if !t.on {
		return
	}
	if c.op == prm.OpAccessReg && len(c.in) >= prm.AccessRegisterInSize && tracerRegister(prm.AsAccessRegisterIn(c.in).RegisterID()) {
		return
	}
	t.say(traceCommands, msgCommand, uint32(f.index), uint32(c.op), uint32(c.opMod), uint32(status), syndrome)
}

func (t *tracer) traceQueue(f *function, q *qp, from, to prm.QPState) {
	if t.on {
		t.say(traceQueues, msgQueue, uint32(f.index), q.n, uint32(from), uint32(to))
	}
}

// traceHealth tells of a syndrome, at once: firmware may not speak again.
func (t *tracer) traceHealth(b *prm.HealthBuffer) {
	if !t.on {
		return
	}
	t.say(traceHealth, msgHealth, uint32(b.Synd()), uint32(b.ExtSynd()), uint32(b.Severity()))
	if t.on && t.stream.used > 0 {
		t.close(t.ticks())
	}
}
