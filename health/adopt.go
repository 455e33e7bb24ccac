package health

import "time"

// Adoption says how a function stands that the watcher has brought up, or tried to,
// while it was being watched from outside.
type Adoption struct {
	// Owner: the function is up, or was lost on the way: see Options.Owner. Without
	// it the function was given back in good order, and a disabled interface is
	// nothing to wonder at.
	Owner bool
	// Commands is watched from now on; nil keeps what is watched.
	Commands Watchdog
	// HealthPoll is what the device states (register DTOR); 0 keeps what is known.
	HealthPoll time.Duration
}

// Adopt tells the monitor of a bring-up that has ended. What was seen so far stays;
// Options.OnVerdict hears the verdict that holds once more, now that there is somebody
// to be told of it. It answers false, and does nothing, when the monitor does not run.
func (m *Monitor) Adopt(a Adoption) bool {
	return m.do(func() {
		j := m.j
		j.owner = a.Owner
		if !a.Owner {
			j.seenFull = false
		}
		if a.Commands != nil {
			j.cmds = commandWatch{w: a.Commands}
		}
		if a.HealthPoll > 0 {
			m.o.HealthPoll = a.HealthPoll
			j.lim = newLimits(m.o.Period, a.HealthPoll)
		}
	})
}
