package trace

import (
	"encoding/binary"
	"math/bits"
)

// The digits of a number are made eight at a time in one 64-bit word, and stored
// with one store that may write up to eight bytes past the number: the callers
// have made room. The tests compare every way with strconv.

// hex8 gives the eight lower-case hex digits of v as a big-endian word: the most
// significant digit in the top byte.
func hex8(v uint32) uint64 {
	x := uint64(v)
	x = (x | x<<16) & 0x0000ffff0000ffff
	x = (x | x<<8) & 0x00ff00ff00ff00ff
	x = (x | x<<4) & 0x0f0f0f0f0f0f0f0f
	letters := (x + 0x0606060606060606) >> 4 & 0x0101010101010101
	return x + 0x3030303030303030 + letters*('a'-'0'-10)
}

// putHex writes v with at least least digits (1 to 8) to b, which has eight bytes
// or more, and returns their number.
func putHex(b []byte, v uint32, least int) int {
	n := hexLen(v, least)
	binary.BigEndian.PutUint64(b, hex8(v)<<uint(64-8*n))
	return n
}

// hexLen is the number of hex digits of v, or least.
func hexLen(v uint32, least int) int { return max((bits.Len32(v)+3)>>2, least) }

// dec8 gives the eight decimal digits of v < 10^8 as a little-endian word of
// values 0 to 9: the most significant digit in the lowest byte.
func dec8(v uint32) uint64 {
	x := uint64(v/10000) | uint64(v%10000)<<32
	h := x * 10486 >> 20 & 0x0000007f0000007f // both halves / 100
	x = h | (x-100*h)<<16
	t := x * 103 >> 10 & 0x000f000f000f000f // all quarters / 10
	return t | (x-10*t)<<8
}

// digits10 has, by the length of a number in bits, what makes the upper half of a
// sum the length in decimal digits.
var digits10 = func() (t [64]uint64) {
	for n := range 33 {
		least := uint64(1) << max(n-1, 0) >> (min(n, 1) ^ 1) // smallest number of n bits; 0 for none
		k, p := uint64(1), uint64(10)
		for p <= least {
			k++
			p *= 10
		}
		// From p on there is one digit more.
		t[n] = k<<32 + (1<<32 - min(p, 1<<32))
	}
	return t
}()

// decLen is the number of decimal digits of v.
func decLen(v uint32) int { return int((uint64(v) + digits10[bits.Len32(v)&63]) >> 32) }

// zeros turns eight values 0 to 9 into digits.
const zeros = 0x3030303030303030

// dec2 gives the two decimal digits of v < 100 as a little-endian word.
func dec2(v uint32) uint16 {
	t := v * 103 >> 10
	return uint16(t|(v-10*t)<<8) + zeros&0xffff
}

// putDec writes v in decimal to b, which has 10 bytes or more, and returns the
// number of digits. There is no branch: the digits above the eighth are written
// first, if there are any or not, and the lower eight over what is too much.
func putDec(b []byte, v uint32) int {
	n := decLen(v)
	h, over := v/100000000, max(n-8, 0)
	binary.LittleEndian.PutUint16(b, dec2(h)>>uint((10-n)*8&15))
	binary.LittleEndian.PutUint64(b[over&3:], (dec8(v-h*100000000)+zeros)>>uint((8+over-n)*8&63))
	return n
}

// appendUint appends v in decimal; for 53-bit times and the like.
func appendUint(dst []byte, v uint64) []byte {
	dst = grow(dst, 32)
	n := len(dst)
	return dst[:n+putUint(dst[n:n+32], v)]
}

// putUint writes v in decimal to b, which has 28 bytes or more.
func putUint(b []byte, v uint64) int {
	if v <= 0xffffffff {
		return putDec(b, uint32(v))
	}
	// Groups of eight digits from the right; 2^64 has 20 digits.
	low := uint32(v % 100000000)
	n := putUint(b, v/100000000)
	binary.LittleEndian.PutUint64(b[n:], dec8(low)+zeros)
	return n + 8
}

// appendHex appends v in hex without leading zeros.
func appendHex(dst []byte, v uint64) []byte {
	dst = grow(dst, 16)
	n := len(dst)
	return dst[:n+putHex64(dst[n:n+16], v)]
}

// appendRaw appends 0x and 16 hex digits: the text of an event that stands alone.
func appendRaw(dst []byte, v uint64) []byte {
	dst = grow(dst, 18)
	n := len(dst)
	b := dst[n : n+18]
	b[0], b[1] = '0', 'x'
	binary.BigEndian.PutUint64(b[2:], hex8(uint32(v>>32)))
	binary.BigEndian.PutUint64(b[10:], hex8(uint32(v)))
	return dst[:n+18]
}

// putHex64 writes v in hex without leading zeros to b, which has 16 bytes or more.
func putHex64(b []byte, v uint64) int {
	if h := uint32(v >> 32); h != 0 {
		n := putHex(b, h, 1)
		return n + putHex(b[n:], uint32(v), 8)
	}
	return putHex(b, uint32(v), 1)
}

// grow gives dst the room for n more bytes.
func grow(dst []byte, n int) []byte {
	if cap(dst)-len(dst) >= n {
		return dst
	}
	return growSlow(dst, n)
}

//go:noinline
func growSlow(dst []byte, n int) []byte {
	b := make([]byte, len(dst), 2*cap(dst)+n)
	copy(b, dst)
	return b
}
