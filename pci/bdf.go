package pci

import (
	"fmt"
	"strconv"
	"strings"
)

// BDF is the address of a PCI function: domain, bus, device and function
// number. It is comparable and may key a map. The zero value is 0000:00:00.0.
type BDF struct {
	Domain   uint32 // PCI segment; 16 bits on most machines, more behind VMD
	Bus      uint8
	Device   uint8 // 0 … 31
	Function uint8 // 0 … 7
}

// ParseBDF reads "0000:3b:00.0" or, in domain 0, "3b:00.0". Digits are
// hexadecimal; the domain has 4 to 8 of them, bus and device exactly two, the
// function one of 0 … 7. Anything else, white space included, is an error that
// wraps ErrBadBDF.
func ParseBDF(s string) (BDF, error) {
	bad := func(why string) (BDF, error) {
		return BDF{}, fmt.Errorf("%w %q: %s (want DDDD:BB:DD.F such as 0000:3b:00.0, or 3b:00.0)", ErrBadBDF, s, why)
	}
	parts := strings.Split(s, ":")
	var b BDF
	switch len(parts) {
	case 2:
	case 3:
		if n := len(parts[0]); n < 4 || n > 8 {
			return bad("the domain has 4 to 8 hexadecimal digits")
		}
		v, ok := hexDigits(parts[0])
		if !ok {
			return bad("the domain is not hexadecimal")
		}
		b.Domain = uint32(v)
		parts = parts[1:]
	default:
		return bad("not a PCI address")
	}
	v, ok := hexDigits(parts[0])
	if len(parts[0]) != 2 || !ok {
		return bad("the bus is two hexadecimal digits")
	}
	b.Bus = uint8(v)
	dev, fn, found := strings.Cut(parts[1], ".")
	if !found {
		return bad("the function number after '.' is missing")
	}
	if v, ok = hexDigits(dev); len(dev) != 2 || !ok {
		return bad("the device is two hexadecimal digits")
	}
	if v > 0x1f {
		return bad("the device number is at most 1f")
	}
	b.Device = uint8(v)
	if len(fn) != 1 || fn[0] < '0' || fn[0] > '7' {
		return bad("the function number is one digit, 0 to 7")
	}
	b.Function = fn[0] - '0'
	return b, nil
}

// hexDigits converts s, which must consist of hexadecimal digits only:
// strconv alone would accept a sign or an underscore in some bases.
func hexDigits(s string) (uint64, bool) {
	for i := 0; i < len(s); i++ {
		c := s[i] | 0x20
		if (s[i] < '0' || s[i] > '9') && (c < 'a' || c > 'f') {
			return 0, false
		}
	}
	v, err := strconv.ParseUint(s, 16, 32)
	return v, err == nil
}

// String gives the form sysfs uses for folder names: "0000:3b:00.0".
func (b BDF) String() string {
	return fmt.Sprintf("%04x:%02x:%02x.%x", b.Domain, b.Bus, b.Device, b.Function)
}

// Valid reports whether device and function number are in range; a BDF from
// ParseBDF always is.
func (b BDF) Valid() bool { return b.Device <= 0x1f && b.Function <= 7 }

// Compare orders addresses as lspci does: domain, bus, device, function.
func (b BDF) Compare(o BDF) int {
	key := func(x BDF) uint64 {
		return uint64(x.Domain)<<32 | uint64(x.Bus)<<16 | uint64(x.Device)<<8 | uint64(x.Function)
	}
	switch kb, ko := key(b), key(o); {
	case kb < ko:
		return -1
	case kb > ko:
		return 1
	}
	return 0
}

// MarshalText makes a BDF a string in JSON.
func (b BDF) MarshalText() ([]byte, error) { return []byte(b.String()), nil }

// UnmarshalText accepts what ParseBDF accepts.
func (b *BDF) UnmarshalText(text []byte) error {
	v, err := ParseBDF(string(text))
	if err != nil {
		return err
	}
	*b = v
	return nil
}
