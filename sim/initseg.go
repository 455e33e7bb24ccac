package sim

import (
	"encoding/binary"
	"math/bits"
	"time"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

const (
	logQueueSize   = 5 // 32 entries
	logQueueStride = 6 // of 64 bytes
	queueSlots     = 1 << logQueueSize

	cmdInterfaceRev = 5

	// healthTick is the period of the health counter: a choice, no source states
	// the rate of a real device; Linux and rdma-core only want it to move.
	healthTick = 10 * time.Millisecond
)

// Dwords of the segment that the model does not keep as they are: those that
// change by themselves and those that act when written.
const (
	isegQueueHigh = 0x10
	isegQueueLow  = 0x14
	isegDoorbell  = 0x18
	isegInit      = 0x1fc
	isegTimerHigh = 0x1000
	isegTimerLow  = 0x1004
	isegHealth    = 0x1010
	isegRealHigh  = 0x1040
	isegRealLow   = 0x1044
)

// resetISeg fills in what reads the same until the next reset.
func (f *function) resetISeg() {
	c := f.chip
	f.iseg = prm.InitialSeg{}
	s := &f.iseg
	s.SetFWRevMajor(c.fwRev.Major)
	s.SetFWRevMinor(c.fwRev.Minor)
	s.SetFWRevSubminor(c.fwRev.Sub)
	s.SetCmdInterfaceRev(cmdInterfaceRev)
	s.SetLogCmdqSize(logQueueSize)
	s.SetLogCmdqStride(logQueueStride)
	s.SetFWResetSupported(c.prof.swReset)
	s.SetNicInterfaceSupported(1<<prm.NICInterfaceFullDriver | 1<<prm.NICInterfaceDisabled)
	setTimeout(s.CmdExecTO(), c.prof.cmdExecTO)
	setTimeout(s.CmdQInitTO(), c.prof.cmdQInitTO)
}

func setTimeout(t *prm.DefaultTimeout, d time.Duration) {
	if d%time.Second == 0 && d > 0 {
		t.SetToMultiplier(prm.TimeoutSeconds)
		t.SetToValue(uint32(d / time.Second))
		return
	}
	t.SetToMultiplier(prm.TimeoutMilliseconds)
	t.SetToValue(uint32(d / time.Millisecond))
}

// readISeg reads one dword of the segment.
func (f *function) readISeg(off uint64) uint32 {
	if off >= healthBuffer && off < healthBufferEnd {
		return f.chip.readHealth(off)
	}
	w := binary.BigEndian.Uint32(f.iseg[off:])
	switch off {
	case 4:
		w = uint32(f.chip.faults.interfaceRev(cmdInterfaceRev))<<16 | w&0xffff
	case isegQueueHigh:
		w = uint32(f.queue >> 32)
	case isegQueueLow:
		w |= uint32(f.queue)&^0xfff | uint32(f.nic()&7)<<8
	case isegInit:
		if f.initializing() {
			w |= 1 << 31
		}
		if !f.chip.swResetSupported() {
			w &^= 1 << 30
		}
	case isegTimerHigh:
		w = uint32(f.internalTimer() >> 32)
	case isegTimerLow:
		w = uint32(f.internalTimer())
	case isegHealth:
		w = f.chip.healthWord()
	case isegRealHigh, isegRealLow:
		if !f.chip.prof.realTime {
			break
		}
		t := f.chip.sched.clock.Now()
		if w = uint32(t.Unix()); off == isegRealLow {
			w = uint32(t.Nanosecond())
		}
	}
	return w
}

// internalTimer counts the device's clock since power-on.
func (f *function) internalTimer() uint64 {
	hi, lo := bits.Mul64(uint64(f.chip.now()), uint64(f.chip.prof.clockKHz))
	q, _ := bits.Div64(hi, lo, uint64(time.Millisecond))
	return q
}

// initializing tells whether firmware is still starting.
func (f *function) initializing() bool {
	c := f.chip
	return c.faults.neverReady() || c.health.resetting || c.health.startless() || c.sched.clock.Now().Before(f.fw.ready)
}

// startFirmware begins the time firmware takes to get ready.
func (f *function) startFirmware() {
	f.fw.ready = f.chip.sched.clock.Now().Add(f.chip.faults.startDelay())
}

// writeDword takes a write below the UAR pages.
func (f *function) writeDword(off uint64, v uint32) {
	switch off {
	case isegQueueHigh:
		f.queue = f.queue&0xffff_ffff | uint64(v)<<32
	case isegQueueLow:
		f.queue = f.queue&^0xffff_ffff | uint64(v&^0xfff)
		f.setNICInterface(prm.NICInterface(v >> 8 & 7))
	case isegDoorbell:
		f.ring(v)
	}
}

// setNICInterface acts on a write of nic_interface.
func (f *function) setNICInterface(n prm.NICInterface) {
	c := f.chip
	if c.health.resetting {
		return // nobody listens
	}
	switch n {
	case prm.NICInterfaceFullDriver:
		f.nicInterface = n
		f.startFirmware()
		c.reopened(f)
	case prm.NICInterfaceDisabled:
		// The end of a fast teardown: firmware lets go of everything at once.
		f.nicInterface = n
		f.stopFirmware()
		c.clearHealth()
	case prm.NICInterfaceSwReset:
		c.swReset()
	}
}

// ring is a store to the command doorbell: bit i hands slot i to the device.
func (f *function) ring(vector uint32) {
	if f.nic() != prm.NICInterfaceFullDriver || f.initializing() || f.chip.health.dead() {
		f.count.DoorbellsIgnored++
		return
	}
	if f.chip.faults.reorder() {
		var slots []int
		for ; vector != 0; vector &= vector - 1 {
			slots = append(slots, bits.TrailingZeros32(vector))
		}
		f.chip.rng.Shuffle(len(slots), func(i, j int) { slots[i], slots[j] = slots[j], slots[i] })
		for _, s := range slots {
			f.post(s)
		}
		return
	}
	for ; vector != 0; vector &= vector - 1 {
		f.post(bits.TrailingZeros32(vector))
	}
}
