package sim

import (
	"encoding/binary"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// firstUARByte is where UAR pages that can be allocated begin; below are the
// initialization segment and the MSI-X structures.
const firstUARByte = firstUAR * pageSize

// barAccess checks one access and tells whether the function answers it.
func (f *function) barAccess(op string, off uint64, n int) (bool, error) {
	if n != 1 && n != 2 && n != 4 && n != 8 || off%uint64(n) != 0 || off >= barSize || uint64(n) > barSize-off {
		return false, f.rangeError(op+" BAR 0", off, n, barSize)
	}
	f.accesses++
	if !f.cfg.memory() {
		f.count.BARUnsupported++
		return false, nil
	}
	return !f.allOnes(), nil
}

// readBAR answers a read; what does not answer reads all ones. Registers are
// big-endian dwords, so a narrower read takes the bytes of the dword in place.
func (f *function) readBAR(off uint64, p []byte) error {
	ok, err := f.barAccess("read", off, len(p))
	if err != nil {
		return err
	}
	if !ok {
		for i := range p {
			p[i] = 0xff
		}
		return nil
	}
	var w [4]byte
	for i := 0; i < len(p); {
		o := off + uint64(i)
		binary.BigEndian.PutUint32(w[:], f.readDword(o&^3))
		i += copy(p[i:], w[o&3:])
	}
	return nil
}

func (f *function) readDword(off uint64) uint32 {
	switch {
	case off >= msixTable && off < msixTable+uint64(len(f.msix)):
		return binary.BigEndian.Uint32(f.msix[off-msixTable:])
	case off < prm.InitialSegSize:
		return f.readISeg(off)
	}
	return 0 // the PBA, holes and UAR pages, which are written only
}

// writeBAR takes a write. Registers take whole dwords; a narrower write is
// dropped, and an 8-byte one is two dwords in ascending order. Doorbells get the
// store as it came: some take 8 bytes at once.
func (f *function) writeBAR(off uint64, p []byte) error {
	ok, err := f.barAccess("write", off, len(p))
	if err != nil || !ok {
		return err
	}
	if off >= firstUARByte {
		f.doorbell(off, p)
		return nil
	}
	if off >= msixTable && off+uint64(len(p)) <= msixTable+uint64(len(f.msix)) {
		copy(f.msix[off-msixTable:], p)
		return nil
	}
	for ; len(p) >= 4; off, p = off+4, p[4:] {
		f.writeDword(off, binary.BigEndian.Uint32(p))
	}
	return nil
}
