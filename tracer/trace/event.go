package trace

import "encoding/binary"

// Shapes of the trace memory (Linux fw_tracer.h).
const (
	BlockSize      = 256 // bytes
	EventSize      = 8   // bytes, big-endian
	EventsPerBlock = BlockSize / EventSize
	TimeBits       = 53 // width of the device's timestamp
	TimeMask       = 1<<TimeBits - 1
	StampBits      = 7    // width of the stamp that every event but a timestamp carries
	TimestampID    = 0xff // event id of a timestamp, whatever the string ids are
	MaxParams      = 7    // 32-bit words after the header of a message
)

const (
	stampMask  = 1<<StampBits - 1
	epochTicks = 1 << StampBits
	tmsnBits   = 13
	tmsnCount  = 1 << tmsnBits
)

// Event is one 8-byte event as a number: the big-endian word of the ring.
//
//	any event    lost 63 | stamp 62:56 | id 55:48 | data 47:0
//	string event tmsn 47:35 | tdsn 34:32 | word 31:0
//	timestamp    time[7:0] 63:56 | 0xff 55:48 | urts 47:45 | time[52:40] 44:32 | time[39:8] 31:0
type Event uint64

// EventAt loads the event that b begins with. It panics if b has less than 8 bytes.
func EventAt(b []byte) Event { return Event(binary.BigEndian.Uint64(b)) }

// ID is the event id; TimestampID makes it a timestamp event.
func (e Event) ID() uint8 { return uint8(e >> 48) }

// IsTimestamp tells a timestamp event from all others.
func (e Event) IsTimestamp() bool { return e.ID() == TimestampID }

// Lost says that events were lost before this one. Not for timestamp events.
func (e Event) Lost() bool { return e>>63 != 0 }

// Stamp is the low 7 bits of the device's time. Not for timestamp events.
func (e Event) Stamp() uint8 { return uint8(e>>56) & stampMask }

// TMSN is the 13-bit number that the events of one message share.
func (e Event) TMSN() uint16 { return uint16(e>>35) & (tmsnCount - 1) }

// TDSN is the place of a string event in its message: 0 is the header.
func (e Event) TDSN() uint8 { return uint8(e>>32) & 7 }

// Param is the 32-bit word of a string event: the string's address in a header,
// a value otherwise.
func (e Event) Param() uint32 { return uint32(e) }

// Time is the 53-bit time of a timestamp event, in ticks of the device.
func (e Event) Time() uint64 {
	return uint64(e>>32&0x1fff)<<40 | uint64(uint32(e))<<8 | uint64(e>>56)
}

// URTS are the three bits of a timestamp event that mark an unreliable time; see
// Geometry.Unreliable.
func (e Event) URTS() uint8 { return uint8(e>>45) & 7 }

// StringEvent composes a string event.
func StringEvent(lost bool, stamp, id uint8, tmsn uint16, tdsn uint8, word uint32) Event {
	e := Event(stamp&stampMask)<<56 | Event(id)<<48 | Event(tmsn&(tmsnCount-1))<<35 | Event(tdsn&7)<<32 | Event(word)
	if lost {
		e |= 1 << 63
	}
	return e
}

// TimestampEvent composes a timestamp event.
func TimestampEvent(t uint64, urts uint8) Event {
	return Event(t&0xff)<<56 | TimestampID<<48 | Event(urts&7)<<45 | Event(t>>40&0x1fff)<<32 | Event(t>>8&0xffffffff)
}

// Newer says that t follows last in serial arithmetic: (t − last) mod 2^53 is in
// 1 … 2^52−1. Exactly half the circle apart is not newer.
func Newer(t, last uint64) bool {
	d := (t - last) & TimeMask
	return d != 0 && d < 1<<(TimeBits-1)
}

// Elapsed is (t − last) mod 2^53: the ticks from last to a later t.
func Elapsed(t, last uint64) uint64 { return (t - last) & TimeMask }

// Place gives the full time of an event with a 7-bit stamp whose next timestamp
// event has the time t: an event lies before the timestamp that closes it, so a
// stamp smaller than t's low bits is of t's epoch of 128 ticks, and an equal or
// larger one of the epoch before, modulo 2^53.
func Place(t uint64, stamp uint8) uint64 {
	// Without a branch, which stamps decide: low ≤ stamp makes the difference negative.
	before := (t&stampMask - uint64(stamp) - 1) >> 63
	return (t&^stampMask - before*epochTicks | uint64(stamp)) & TimeMask
}

// ClosedTime returns the time of the event that closes a block, and whether the
// block is closed: only a block whose last event is a timestamp counts. It panics
// if b is shorter than a block.
func ClosedTime(b []byte) (uint64, bool) {
	e := EventAt(b[BlockSize-EventSize : BlockSize])
	return e.Time(), e.IsTimestamp()
}
