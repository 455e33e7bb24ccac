package health

import (
	"time"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// leastMisses is how many looks in a row must find the counter where it was before
// a stall is declared, besides the time that must pass: a process that was stopped
// for an hour has looked once.
const leastMisses = 3

// betterSamples is how many samples in a row must be better than the verdict before
// it gets better. It gets worse at once.
const betterSamples = 3

// limits are the times a judge goes by.
type limits struct {
	period time.Duration
	stall  time.Duration // the counter has not moved for so long: stalled
	hold   time.Duration // a signal that is an event counts for so long
}

// newLimits: a stall is declared after three periods (Linux' and rdma-core's three
// misses), but not before the time in which the device says its counter must have
// advanced (DTOR.health_poll_to), so that a fast sampler does not cry wolf.
func newLimits(period, healthPoll time.Duration) limits {
	return limits{
		period: period,
		stall:  max(leastMisses*period, healthPoll),
		hold:   max(5*period, 10*time.Second),
	}
}

// look is what one sample brings to the judge.
type look struct {
	s      *Sample
	buf    *Buffer // read because the sample shows a syndrome, else nil
	glitch bool    // a dword read all ones, and did not when it was read again
}

// judge is the state machine: samples in, conditions out. It knows no clock but
// the samples' and touches nothing; a Monitor owns one and guards it.
type judge struct {
	lim   limits
	owner bool // the watcher brought the function up: it must read full driver
	cmds  commandWatch
	env   environmentWatch
	rate  rateMeter

	samples, missed, gaps, glitches uint64

	// Since the last rebase.
	based    bool
	prev     Sample        // the last with a counter
	lastLook time.Duration // of any sample
	movedAt  time.Duration // when the counter was last seen moved, or the watch began
	// movedWall is the look that found it moved last, or the first one: unlike movedAt
	// no gap restarts it.
	movedWall time.Time
	moving    bool // it was seen moving at all
	misses    int  // looks in a row that found it where it was
	forgiven  bool // a gap restarted the clock since it last moved
	seenFull  bool
	// A buffer that shows an error at the first look is stale until it has been
	// seen cleared or changed; oldRun: the first look came after a reset.
	stale, oldRun bool
	staleRaw      RawBuffer
	buffer        Buffer // the last that showed an error, or zero
	hasBuffer     bool
	hard          Condition // the last sensor that says that the function is lost
	glitch        seenAt

	now     time.Duration
	cond    Condition // the verdict's
	better  int
	rescued bool // between BeginRecovery and EndRecovery: no looks are taken
}

func newJudge(lim limits, owner, afterReset bool) *judge {
	return &judge{lim: lim, owner: owner, oldRun: afterReset, cond: Starting}
}

// rebase forgets what was seen of the function: the next sample is the first one of
// a new run.
func (j *judge) rebase(afterReset bool) {
	j.based, j.moving, j.misses, j.forgiven, j.seenFull = false, false, 0, false, false
	j.stale, j.oldRun = false, afterReset
	j.buffer, j.hasBuffer = Buffer{}, false
	j.hard, j.better = "", 0
	j.rate.cut()
}

// step takes a look and answers whether the condition changed.
func (j *judge) step(l look) bool {
	j.samples++
	j.now = l.s.Elapsed
	hard := j.sensors(l.s)
	if hard == "" && wasAway(j.hard) {
		// The function was away and answers again: that was a reset, as like as not.
		j.rebase(true)
	}
	first, moved := !j.based, false
	if l.s.Ones() == 0 {
		moved = j.count(l.s)
		j.age(l, first)
	}
	j.lastLook = j.now
	if l.glitch {
		j.glitches++
		j.glitch.mark(j.now)
	}
	if hard == "" && j.live() && j.buffer.RFR {
		hard = FatalRFR
		if j.buffer.CRR {
			hard = FatalCRR
		}
	}
	j.hard = hard
	return j.decide(j.candidate(hard), moved)
}

// sensors are Linux' fatal sensors that need no health buffer, in its order, with
// the all-ones device before them.
func (j *judge) sensors(s *Sample) Condition {
	switch s.Ones() {
	case 0:
	case 4:
		return AllOnes
	default:
		return PCICommError
	}
	switch s.NICInterface() {
	case prm.NICInterfaceFullDriver:
		j.seenFull = true
	case prm.NICInterfaceDisabled:
		if j.owner || j.seenFull {
			return NICDisabled
		}
	case prm.NICInterfaceSwReset:
		return NICSWReset
	}
	return ""
}

// wasAway tells whether a sensor means that the device was, or is being, reset.
func wasAway(c Condition) bool {
	switch c {
	case AllOnes, PCICommError, NICDisabled, NICSWReset:
		return true
	}
	return false
}

// count follows the counter and answers whether it moved.
func (j *judge) count(s *Sample) bool {
	if !j.based {
		j.based, j.movedAt, j.movedWall, j.prev = true, j.now, s.At, *s
		return false
	}
	n := s.moved(&j.prev)
	// So long without a look that nothing is known of the time between: the process
	// was stopped, or the machine.
	gap := j.now-j.lastLook >= j.lim.stall
	if gap {
		j.gaps++
		j.rate.cut()
	} else {
		j.rate.add(n, j.now-j.prev.Elapsed)
	}
	j.prev = *s
	switch {
	case n != 0:
		j.movedAt, j.moving, j.misses, j.forgiven = j.now, true, 0, false
		j.movedWall = s.At
		return true
	case gap && !j.forgiven:
		// Not the device's fault so far. Once: were it every time, a host too busy
		// to look in time would never see a stall.
		j.movedAt, j.misses, j.forgiven = j.now, 0, true
	default:
		j.misses++
		j.missed++
	}
	if j.stalled() {
		j.rate.stop()
	}
	return false
}

// stalled tells whether the counter has stood for the limit.
func (j *judge) stalled() bool {
	return j.based && j.misses >= leastMisses && j.now-j.movedAt >= j.lim.stall
}

// due is when the stall limit is over if the counter does not move, 0 where that
// is past.
func (j *judge) due() time.Duration {
	if d := j.movedAt + j.lim.stall; j.based && d > j.now {
		return d
	}
	return 0
}

// age keeps the buffer and tells how old it is: what shows an error at the first
// look is stale until it has been seen cleared or changed.
func (j *judge) age(l look, first bool) {
	b := l.buf
	if b == nil || !b.Error() {
		j.stale, j.hasBuffer = false, false
		return
	}
	switch {
	case first:
		j.stale, j.staleRaw = !b.Torn, b.Raw
	case b.Torn || b.Raw != j.staleRaw:
		j.stale = false
	}
	j.buffer, j.hasBuffer = *b, true
	j.buffer.Stale = j.stale
}

// live tells whether the buffer shows an error that counts: not one that stood
// there unchanged since a reset.
func (j *judge) live() bool { return j.hasBuffer && (!j.stale || !j.oldRun) }

// candidate is the first condition of the table that holds now.
func (j *judge) candidate(hard Condition) Condition {
	if hard != "" {
		return hard
	}
	live, cmds := j.live(), j.cmds.condition(j.now, j.lim.hold)
	switch {
	case j.stalled() && live:
		return SyndromeStopped
	case j.stalled():
		return CounterStopped
	case cmds == CommandsDead && (j.cond == CommandsDead || j.misses < leastMisses):
		// Only if the counter moves. One that has been standing for some looks may be
		// about to be the verdict, and then explains the commands too.
		return cmds
	case live && j.buffer.CRR:
		return NonFatalCRR
	case live:
		return SyndromeNonFatal
	case cmds == CommandsDead:
		return OverdueCommands
	case cmds != OK:
		return cmds
	case j.glitch.holds(j.now, j.lim.hold):
		return PCIReadError
	}
	if c := j.env.condition(j.now, j.lim.hold); c != OK {
		return c
	}
	nic := j.prev.NICInterface()
	switch {
	case nic != prm.NICInterfaceFullDriver && nic != prm.NICInterfaceDisabled:
		return NICNotFull
	case !j.moving:
		return Starting
	case j.hasBuffer:
		return StaleError
	case nic == prm.NICInterfaceDisabled:
		return NICIdle
	}
	return OK
}

// decide applies the hysteresis: worse at once, better after betterSamples samples
// in a row, and for a stall only those count in which the counter moved. What the
// watcher itself brought up and lost stays lost until EndRecovery: its state is
// gone whatever the registers say.
func (j *judge) decide(c Condition, moved bool) bool {
	was, is := j.cond.Info().State, c.Info().State
	switch {
	case c == j.cond:
		j.better = 0
		return false
	case c == Starting:
		return false
	case is >= was || was == Unknown:
	case j.owner && (was == Fatal || was == Gone):
		return false
	case (j.cond == CounterStopped || j.cond == SyndromeStopped) && !moved:
		return false
	default:
		if j.better++; j.better < betterSamples {
			return false
		}
	}
	j.cond, j.better = c, 0
	return true
}
