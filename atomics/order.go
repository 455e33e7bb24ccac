package atomics

import (
	"encoding/binary"
	"fmt"
)

// Order is the byte order of a word: of the word in the responder's memory as
// the device calculates with it, or of the word it returns. Which one a device
// uses is a property of the device that Probe finds (ruling A1).
type Order uint8

// The orders. The zero value is what little-endian hosts see on the hardware
// that has been probed (a public program that checks masked atomics).
const (
	LittleEndian Order = iota
	BigEndian
	// Unknown is neither: a probe saw bytes in another order. Nothing is encoded
	// for it.
	Unknown
)

// HostOrder is the byte order of this host: what to assume of a responder like
// this one until it has been probed (ruling A1).
func HostOrder() Order {
	var b [2]byte
	binary.NativeEndian.PutUint16(b[:], 1)
	if b[0] == 1 {
		return LittleEndian
	}
	return BigEndian
}

// ReplyOrder is the order in which the returned word of an operation of size
// bytes is documented to arrive, in endianness mode 0 or 1 of the requester's
// capabilities: big-endian, except that mode 1 gives 8-byte words in the
// requester's own order (Linux MLX5_ATOMIC_REQ_MODE_HOST_ENDIANNESS; ruling A3).
func ReplyOrder(size int, mode uint8) Order {
	if size == 8 && mode == 1 {
		return HostOrder()
	}
	return BigEndian
}

func (o Order) String() string {
	switch o {
	case LittleEndian:
		return "little-endian"
	case BigEndian:
		return "big-endian"
	}
	return "unknown"
}

// MarshalText gives the name, for JSON.
func (o Order) MarshalText() ([]byte, error) { return []byte(o.String()), nil }

// UnmarshalText reads a name that MarshalText gave.
func (o *Order) UnmarshalText(b []byte) error {
	for _, v := range []Order{LittleEndian, BigEndian, Unknown} {
		if string(b) == v.String() {
			*o = v
			return nil
		}
	}
	return fmt.Errorf("byte order %q: want little-endian, big-endian or unknown", b)
}

// load reads the word of b, 1, 2, 4 or 8 bytes, as a number.
func (o Order) load(b []byte) uint64 {
	var v uint64
	if o == BigEndian {
		for _, x := range b {
			v = v<<8 | uint64(x)
		}
		return v
	}
	for i := len(b) - 1; i >= 0; i-- {
		v = v<<8 | uint64(b[i])
	}
	return v
}

// store writes v to the word b.
func (o Order) store(b []byte, v uint64) {
	if o == BigEndian {
		for i := len(b) - 1; i >= 0; i-- {
			b[i], v = byte(v), v>>8
		}
		return
	}
	for i := range b {
		b[i], v = byte(v), v>>8
	}
}

// Load reads a variable of 1, 2, 4 or 8 bytes from memory in this order.
func (o Order) Load(b []byte) uint64 { return o.load(b) }

// Store writes a variable of 1, 2, 4 or 8 bytes to memory in this order.
func (o Order) Store(b []byte, v uint64) { o.store(b, v) }

// wordSize is the size of one word of an argument of s bytes: the device counts
// in 4-byte words for s = 4, in 8-byte words above (the same program).
func wordSize(s int) int { return min(s, 8) }
