package initseg

import (
	"encoding/binary"
	"fmt"

	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// Byte offsets in BAR 0. The tests compare them with the descriptor of
// initial_seg in internal/prm.
const (
	offFWRev        = 0x0000
	offCmdIfRev     = 0x0004
	offQueueAddrHi  = 0x0010
	offQueueAddrLo  = 0x0014
	offDoorbell     = 0x0018
	offInitializing = 0x01fc
	offHealthBuffer = 0x0200
	offHealthFW     = 0x0230
	offNoDRAM       = 0x0240
	offCmdExecTO    = 0x0ff8
	offCmdQInitTO   = 0x0ffc
	offTimerHi      = 0x1000
	offTimerLo      = 0x1004
	offClearInt     = 0x100c
	offHealth       = 0x1010
	offRealTimeHi   = 0x1040
	offRealTimeLo   = 0x1044

	// segmentEnd is the first byte this package never touches.
	segmentEnd = 0x1048
)

// Fixed numbers of the command queue (Linux cmd.c).
const (
	// CommandInterfaceRev is the only interface revision drivers accept.
	CommandInterfaceRev = 5
	// QueuePageSize is the size and alignment of the command queue in bytes.
	QueuePageSize = 4096
	// MaxLogQueueSize is the largest log2 of the number of entries: a doorbell
	// has 32 bits.
	MaxLogQueueSize = 5
	// EntrySize is the size of a command queue entry in bytes; a stride is at
	// least as large.
	EntrySize = 64
)

const (
	nicShift = 8 // nic_interface in dword 0x14, 3 bits (health.c, nodnic; ifc says 2)
	nicMask  = 7
	lowMask  = 0xfff // bits 11:0 of dword 0x14: interface, size, stride
	ones     = 0xffffffff
)

// Segment is the initialization segment behind a window on BAR 0.
type Segment struct{ w *vfio.Window }

// New views the first bytes of w, a window on BAR 0. It panics when the window
// is smaller than the segment, as slicing would; a ConnectX BAR never is.
func New(w *vfio.Window) *Segment {
	if w.Size() < segmentEnd {
		panic(fmt.Sprintf("initseg: window of %d bytes is smaller than the initialization segment (%d)", w.Size(), segmentEnd))
	}
	return &Segment{w: w}
}

// Err is the first error a trapped access met; see vfio.Window.Err.
func (s *Segment) Err() error { return s.w.Err() }

// Version is a firmware version, printed major.minor.subminor with four digits
// in the last part, as ethtool does.
type Version struct{ Major, Minor, Subminor uint16 }

func (v Version) String() string {
	return fmt.Sprintf("%d.%d.%04d", v.Major, v.Minor, v.Subminor)
}

// FirmwareVersion is the revision of the running firmware. The major number is
// the low half of dword 0 (ifc, OpenBSD, illumos).
func (s *Segment) FirmwareVersion() Version {
	a, b := s.w.ReadBE32(offFWRev), s.w.ReadBE32(offCmdIfRev)
	return Version{Major: uint16(a), Minor: uint16(a >> 16), Subminor: uint16(b)}
}

// CommandInterfaceRev is the revision of the command interface; see the
// constant of that name for the one drivers know.
func (s *Segment) CommandInterfaceRev() uint16 { return uint16(s.w.ReadBE32(offCmdIfRev) >> 16) }

// Queue is the shape of the command queue, as the device dictates it.
type Queue struct {
	LogSize   uint8 // log2 of the number of entries
	LogStride uint8 // log2 of the bytes from one entry to the next
}

// Entries is the number of entries.
func (q Queue) Entries() int { return 1 << q.LogSize }

// Stride is the distance of entries in bytes.
func (q Queue) Stride() int { return 1 << q.LogStride }

// Queue reads the shape of the command queue and checks it: at most 32 entries,
// each at least 64 bytes, all in one 4 KB page. The error is a *QueueError.
func (s *Segment) Queue() (Queue, error) {
	v := s.w.ReadBE32(offQueueAddrLo)
	if v == ones && s.Gone() {
		return Queue{}, s.gone("read the shape of the command queue")
	}
	q := Queue{LogSize: uint8(v >> 4 & 15), LogStride: uint8(v & 15)}
	switch {
	case q.LogSize > MaxLogQueueSize:
		return q, &QueueError{Queue: q, Rule: "at most 32 entries fit the doorbell"}
	case q.Stride() < EntrySize:
		return q, &QueueError{Queue: q, Rule: "an entry needs 64 bytes"}
	case q.Entries()*q.Stride() > QueuePageSize:
		return q, &QueueError{Queue: q, Rule: "the queue must fit one 4 KB page"}
	}
	return q, nil
}

// QueueAddress is the IOVA of the command queue the device has now.
func (s *Segment) QueueAddress() uint64 {
	return uint64(s.w.ReadBE32(offQueueAddrHi))<<32 | uint64(s.w.ReadBE32(offQueueAddrLo)&^lowMask)
}

// PublishQueue tells the device where the command queue is: the high half
// first, then the low half, which publishes the address and sets nic_interface
// to full driver (Linux cmd.c). The address must be a multiple of 4096. One
// caller, before any command is sent.
func (s *Segment) PublishQueue(iova uint64) error {
	if iova&lowMask != 0 {
		return fmt.Errorf("publish command queue address 0x%x: it must be a multiple of 4096", iova)
	}
	s.w.WriteBE32(offQueueAddrHi, uint32(iova>>32))
	s.w.WriteBE32(offQueueAddrLo, uint32(iova))
	return s.w.Err()
}

// RingDoorbell hands the entries whose bits are set to the device. The caller
// has ordered the entries before it (mmio.ToDevice). Any goroutine may ring for
// the entries it owns.
func (s *Segment) RingDoorbell(vector uint32) { s.w.WriteBE32(offDoorbell, vector) }

// NICInterface is the state of the function's interface. A device that is gone
// reads as prm.NICInterface(7), software reset: ask Gone.
func (s *Segment) NICInterface() prm.NICInterface {
	return prm.NICInterface(s.w.ReadBE32(offQueueAddrLo) >> nicShift & nicMask)
}

// SetNICInterface writes the interface state and keeps the queue address; the
// read-only bits 11, 7:0 are written as zero, as Linux and rdma-core do. One
// caller, with no command in flight. A device that reads all ones is not
// written to; the error wraps vfio.ErrGone.
func (s *Segment) SetNICInterface(state prm.NICInterface) error {
	if state > nicMask {
		return fmt.Errorf("set nic_interface to %d: the field has 3 bits", state)
	}
	v := s.w.ReadBE32(offQueueAddrLo)
	if v == ones {
		return s.gone("set nic_interface")
	}
	s.w.WriteBE32(offQueueAddrLo, v&^lowMask|uint32(state)<<nicShift)
	return s.w.Err()
}

// State is dword 0x1fc. Linux names only initializing, the reset-supported bit,
// embedded_cpu and the reset state machine; the rest comes from NVIDIA's nodnic
// header and is shown, not acted upon.
type State struct {
	Raw              uint32
	Initializing     bool  // bit 31: firmware does not take commands yet
	FWResetSupported bool  // bit 30: a software reset may be requested (health.c)
	NICSupported     uint8 // bits 26:24
	EmbeddedCPU      bool  // bit 23: this function belongs to the DPU's own cores
	Recovery         bool  // bit 21
	PreBootHold      bool  // bit 20
	InitStep         uint8 // bits 19:16
	ResetState       uint8 // bits 15:12: 0 idle, 4 toggle request (fw_reset.c)
	PreBootAction    uint8 // bits 10:8
}

// State reads dword 0x1fc. All ones decode to everything set: ask Gone.
func (s *Segment) State() State {
	v := s.w.ReadBE32(offInitializing)
	return State{
		Raw:              v,
		Initializing:     v>>31 != 0,
		FWResetSupported: v>>30&1 != 0,
		NICSupported:     uint8(v >> 24 & 7),
		EmbeddedCPU:      v>>23&1 != 0,
		Recovery:         v>>21&1 != 0,
		PreBootHold:      v>>20&1 != 0,
		InitStep:         uint8(v >> 16 & 15),
		ResetState:       uint8(v >> 12 & 15),
		PreBootAction:    uint8(v >> 8 & 7),
	}
}

// AckReset writes bit 22 of dword 0x1fc: the driver has unloaded for a
// synchronized reset (Linux fw_reset.c, MLX5_RST_ACK_BIT_NUM).
func (s *Segment) AckReset() error {
	s.w.WriteBE32(offInitializing, 1<<22)
	return s.w.Err()
}

// Initializing tells whether firmware is still busy with itself. A device that
// reads all ones answers an error that wraps vfio.ErrGone.
func (s *Segment) Initializing() (bool, error) {
	v, err := s.initializing()
	return v>>31 != 0, err
}

func (s *Segment) initializing() (raw uint32, err error) {
	if raw = s.w.ReadBE32(offInitializing); raw == ones && s.Gone() {
		return raw, s.gone("read the initializing bit")
	}
	return raw, nil
}

// Alive answers an error that wraps vfio.ErrGone if Gone, else nil.
func (s *Segment) Alive() error {
	if s.Gone() {
		return s.gone("look for the device")
	}
	return nil
}

// Gone tells whether the device reads all ones: unplugged, asleep, or behind a
// dead link. Two dwords must agree that cannot both be all ones on a live one:
// the firmware revision and the health buffer's firmware version, which Linux
// tests (health.c).
func (s *Segment) Gone() bool {
	return s.w.ReadBE32(offFWRev) == ones && s.w.ReadBE32(offHealthFW) == ones
}

func (s *Segment) gone(op string) error {
	e := &vfio.Error{
		Op: op, Target: "initialization segment", Err: vfio.ErrGone,
		Remedy: "check that the function is present (lspci), powered (D0) and its link is up; re-plug or reset it",
	}
	err := s.w.Err()
	if ve, ok := err.(*vfio.Error); ok && ve.Remedy != "" { //nolint:errorlint // one that is wrapped says more
		bare := *ve
		bare.Remedy = ""
		err, e.Remedy = &bare, ve.Remedy // who knows why it is gone knows what to do
	}
	if err != nil {
		e.Err = fmt.Errorf("%w (%w)", vfio.ErrGone, err)
	}
	return e
}

// halfTries bounds how often a register of two dwords is read: on a device that
// counts, the high half moves once in seconds, so the second try agrees.
const halfTries = 8

// InternalTimer is the free-running 64-bit device counter; capability
// device_frequency_khz gives its rate. It is read high, low, high until both
// high halves agree, at most 8 times: of a device whose high half is another one on
// each read, the last two reads make the answer. A dead device ends that at once,
// all ones agree.
func (s *Segment) InternalTimer() uint64 {
	hi, lo := s.halves(offTimerHi, offTimerLo)
	return uint64(hi)<<32 | uint64(lo)
}

// RealTime is the device's real-time clock, read as InternalTimer is. It is
// zero on devices without one.
func (s *Segment) RealTime() (seconds, nanoseconds uint32) {
	return s.halves(offRealTimeHi, offRealTimeLo)
}

func (s *Segment) halves(offHi, offLo uint64) (hi, lo uint32) {
	hi = s.w.ReadBE32(offHi)
	for range halfTries {
		lo = s.w.ReadBE32(offLo)
		again := s.w.ReadBE32(offHi)
		if again == hi {
			break
		}
		hi = again
	}
	return hi, lo
}

// Health is dword 0x1010. Liveness is "Raw has changed" (Linux compares the
// whole dword). The syndrome is bits 31:24 after ifc; illumos takes the low
// byte, so prefer the syndrome of the health buffer.
type Health struct {
	Raw      uint32
	Counter  uint32 // bits 23:0
	Syndrome prm.HealthSyndrome
}

// Health reads the health counter.
func (s *Segment) Health() Health {
	v := s.w.ReadBE32(offHealth)
	return Health{Raw: v, Counter: v & 0xffffff, Syndrome: prm.HealthSyndrome(v >> 24)}
}

// HealthBufferSize is the size of the health buffer in bytes.
const HealthBufferSize = 64

// HealthBuffer copies the 64 bytes at 0x200 into b, dword by dword, in the
// device's (big-endian) order: what internal/prm's health buffer view and a
// report take. The copy is not a snapshot; firmware may write between dwords.
func (s *Segment) HealthBuffer(b *[HealthBufferSize]byte) {
	for i := 0; i < HealthBufferSize; i += 4 {
		binary.BigEndian.PutUint32(b[i:], s.w.ReadBE32(offHealthBuffer+uint64(i)))
	}
}

// FatalError says that firmware has given up: nothing but a reset helps.
type FatalError struct {
	Syndrome prm.HealthSyndrome
	Severity prm.HealthSeverity
	// ExtSyndrome is firmware's own number for the reason, for the vendor.
	ExtSyndrome uint16
}

// Error names the syndrome and the remedy.
func (e *FatalError) Error() string {
	what := e.Syndrome.String()
	if t := e.Syndrome.Text(); t != "" {
		what += " (" + t + ")"
	}
	return fmt.Sprintf("the health buffer shows the fatal syndrome %s, severity %v, ext_synd 0x%04x, and asks for a reset", what, e.Severity, e.ExtSyndrome)
}

// Fatal answers a *FatalError if the health buffer shows a syndrome together with
// firmware's request for recovery, which Linux takes for fatal (health.c,
// sensor_fw_synd_rfr); else nil. It reads 16 dwords.
func (s *Segment) Fatal() error {
	var raw [HealthBufferSize]byte
	s.HealthBuffer(&raw)
	b := prm.AsHealthBuffer(raw[:])
	if b.Synd() == prm.SyndOK || !b.RFR() || s.Gone() {
		return nil // a device that reads all ones says nothing
	}
	return &FatalError{Syndrome: b.Synd(), Severity: b.Severity(), ExtSyndrome: b.ExtSynd()}
}

// NoDRAMOffset is the offset of the reduced pre-boot configuration segment.
func (s *Segment) NoDRAMOffset() uint32 { return s.w.ReadBE32(offNoDRAM) }

// ClearInterrupt clears a legacy INTx interrupt (ifc, OpenBSD: 0x100c; the C
// structures of Linux and rdma-core have an unused second place at 0x200c).
func (s *Segment) ClearInterrupt() { s.w.WriteBE32(offClearInt, 1) }
