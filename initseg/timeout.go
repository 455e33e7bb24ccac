package initseg

import "time"

// Driver-side limits that a device may override, with Linux' defaults
// (lib/tout.c). The first group is overridden by the segment itself, the second
// by register DTOR, which is not read here.
const (
	DefaultPreInit         = 120 * time.Second // FW_PRE_INIT_TIMEOUT
	DefaultPreInitRecovery = 2 * time.Hour     // FW_PRE_INIT_ON_RECOVERY_TIMEOUT
	DefaultPreInitWarn     = 20 * time.Second  // FW_PRE_INIT_WARN_MESSAGE_INTERVAL
	DefaultPollInterval    = 2 * time.Millisecond
	DefaultInit            = 2 * time.Second  // FW_INIT, overridden by cmd_q_init_to
	DefaultCommand         = 60 * time.Second // CMD, overridden by cmd_exec_to

	DefaultPCIToggle       = 2 * time.Second
	DefaultHealthPoll      = 2 * time.Second
	DefaultFullCRDump      = 60 * time.Second
	DefaultFWReset         = 60 * time.Second
	DefaultFlushOnError    = 2 * time.Second
	DefaultPCISyncUpdate   = 5 * time.Second
	DefaultTeardown        = 3 * time.Second
	DefaultFSMReactivate   = 5 * time.Second
	DefaultReclaimPages    = 5 * time.Second
	DefaultReclaimVFsPages = 120 * time.Second
	DefaultResetUnload     = 300 * time.Second
)

// DecodeTimeout decodes a default_timeout dword (the segment's and DTOR's
// form): value in bits 19:0, its unit in the low two bits of bits 31:29: ms, s,
// min, h (Linux tout.c).
func DecodeTimeout(v uint32) time.Duration {
	n := time.Duration(v & 0xfffff)
	switch v >> 29 & 3 {
	case 0:
		return n * time.Millisecond
	case 1:
		return n * time.Second
	case 2:
		return n * time.Minute
	default:
		return n * time.Hour
	}
}

// TimeoutsSupported tells whether the device states its own limits: dword
// cmd_q_init_to is not zero. It gates DTOR as well (Linux tout.c). A device that
// is gone supports nothing.
func (s *Segment) TimeoutsSupported() bool {
	v := s.w.ReadBE32(offCmdQInitTO)
	return v != 0 && v != ones
}

// CommandTimeout is how long a command may run (cmd_exec_to); ok is false when
// the device does not say, and DefaultCommand holds.
func (s *Segment) CommandTimeout() (d time.Duration, ok bool) { return s.timeout(offCmdExecTO) }

// InitTimeout is how long initializing may stay set after the queue address was
// published (cmd_q_init_to); ok is false when the device does not say, and
// DefaultInit holds.
func (s *Segment) InitTimeout() (d time.Duration, ok bool) { return s.timeout(offCmdQInitTO) }

func (s *Segment) timeout(off uint64) (time.Duration, bool) {
	if !s.TimeoutsSupported() {
		return 0, false
	}
	v := s.w.ReadBE32(off)
	d := DecodeTimeout(v)
	return d, d != 0 && v != ones
}
