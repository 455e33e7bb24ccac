package vfio

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// The MSI-X capability (PCI Local Bus 3.0, 6.8.2): id 0x11; message control at 2,
// whose low 11 bits are the number of entries less one; table offset and BAR
// index (low 3 bits) at 4. An entry has 16 bytes.
const (
	configStatus   = 6
	statusCapList  = 1 << 4
	configCapFirst = 0x34
	capMSIX        = 0x11
	msixEntry      = 16
)

// findTable reads configuration space for the place of the MSI-X table: the BAR
// index, −1 without MSI-X, and its bytes there.
func (d *kernelDevice) findTable() (bar int, table Span, err error) {
	r := &d.regions[RegionConfig]
	read := func(off int, p []byte) error {
		if uint64(off+len(p)) > r.Size {
			return fmt.Errorf("%w: offset %#x", ErrRange, off)
		}
		return whole(d.sys.pread, d.fd, p, r.at+int64(off), true)
	}
	bar, table, err = msixTable(read)
	if err != nil {
		return -1, Span{}, d.fail("find the MSI-X table in configuration space", err, "")
	}
	return bar, table, nil
}

// errCapLoop: a capability list that does not end.
var errCapLoop = errors.New("the capability list does not end")

func msixTable(read func(off int, p []byte) error) (bar int, table Span, err error) {
	var b [8]byte
	if err := read(configStatus, b[:2]); err != nil {
		return -1, Span{}, err
	}
	if binary.LittleEndian.Uint16(b[:])&statusCapList == 0 {
		return -1, Span{}, nil
	}
	if err := read(configCapFirst, b[:1]); err != nil {
		return -1, Span{}, err
	}
	// 48 capabilities of 4 bytes fill the space behind the header.
	for range 48 {
		at := int(b[0] &^ 3)
		if at == 0 {
			return -1, Span{}, nil
		}
		if err := read(at, b[:8]); err != nil {
			return -1, Span{}, err
		}
		if b[0] == capMSIX {
			n := uint64(binary.LittleEndian.Uint16(b[2:])&0x7ff) + 1
			place := binary.LittleEndian.Uint32(b[4:])
			return int(place & 7), Span{Offset: uint64(place &^ 7), Size: n * msixEntry}, nil
		}
		b[0] = b[1]
	}
	return -1, Span{}, errCapLoop
}
