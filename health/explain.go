package health

import (
	"fmt"
	"strings"
	"time"
)

// explain says in one line what was seen; err is the window's, wall the clock.
func (j *judge) explain(err error, last *Sample, wall time.Time) string {
	switch j.cond {
	case AllOnes:
		s := "every register reads all ones: the function is unplugged, asleep, or behind a dead link"
		if err != nil {
			s += " (" + oneLine(err) + ")"
		}
		return s
	case PCICommError:
		return fmt.Sprintf("part of the registers read all ones (counter 0x%08x, nic_interface 0x%08x, fw_version 0x%08x, synd 0x%08x)", last.Health, last.NIC, last.FW, last.Synd)
	case NICDisabled:
		return "nic_interface reads 1 (disabled): the function was taken down by a reset, by another function, or by its driver"
	case NICSWReset:
		return "nic_interface reads 7: a software reset of the device is going on"
	case FatalCRR, FatalRFR, NonFatalCRR, SyndromeNonFatal:
		return "firmware reports " + j.buffer.sentence() + j.ageNote()
	case InRecovery:
		return "a recovery is going on"
	case SyndromeStopped:
		return j.stood() + "; firmware reports " + j.buffer.sentence() + j.ageNote()
	case CounterStopped:
		s := j.stood() + ": firmware does not answer"
		if j.hasBuffer {
			return s + "; the health buffer holds an error from before the reset, stale, which explains nothing"
		}
		return s + ", and reports no syndrome; the health buffer explains nothing"
	case CommandsDead:
		return "the counter moves, but commands are dead: " + j.cmds.overdue(wall) + ", and nothing has been answered since"
	case OverdueCommands:
		return j.cmds.overdue(wall)
	case LateCompletions:
		return fmt.Sprintf("%d commands completed after they had been given up", j.cmds.last.Late-j.cmds.base.Late)
	case LostInterrupts:
		return fmt.Sprintf("%d completions were found by polling, %d of them with the event already in the queue", j.cmds.last.Recovered-j.cmds.base.Recovered, j.cmds.last.LostInterrupts-j.cmds.base.LostInterrupts)
	case ForeignReplies:
		return fmt.Sprintf("%d entries came back with another command's token", j.cmds.last.Foreign-j.cmds.base.Foreign)
	case PCIReadError:
		return fmt.Sprintf("%d samples read all ones once and were right when repeated", j.glitches)
	case PCIeErrors, HighTemperature, InsufficientPower:
		return j.env.explain(j.cond)
	case NICNotFull:
		return fmt.Sprintf("nic_interface reads %d (%v)", last.NICInterface(), last.NICInterface())
	case Starting:
		return "the counter has not been seen moving yet"
	case StaleError:
		return "the counter moves; the health buffer still holds what was there after the reset, stale: " + j.buffer.sentence()
	case NICIdle:
		return "the counter moves, no syndrome; no driver has the function up (nic_interface 1)"
	}
	return "the counter moves, no syndrome"
}

// stood says for how long the counter has not moved.
func (j *judge) stood() string {
	if !j.moving {
		return fmt.Sprintf("the counter stands at 0x%06x since the watch began, %v ago (limit %v)", j.prev.Counter(), (j.now - j.movedAt).Round(time.Millisecond), j.lim.stall)
	}
	return fmt.Sprintf("the counter has stood at 0x%06x for %v (limit %v)", j.prev.Counter(), (j.now - j.movedAt).Round(time.Millisecond), j.lim.stall)
}

// ageNote says where the error was there before the watch began.
func (j *judge) ageNote() string {
	switch {
	case !j.stale:
		return ""
	case j.moving:
		return "; stale: it was there at the first look, the counter moves"
	}
	return "; stale: it was there at the first look, and the counter has not been seen moving yet"
}

func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }
