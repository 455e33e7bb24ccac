package health

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// BufferSize is the size of the health buffer in bytes.
const BufferSize = prm.HealthBufferSize

// RawBuffer are the 64 bytes of the health buffer in the device's (big-endian)
// order. Its text form is 128 hex digits.
type RawBuffer [BufferSize]byte

// MarshalText gives hex digits.
func (r RawBuffer) MarshalText() ([]byte, error) { return hex.AppendEncode(nil, r[:]), nil }

// UnmarshalText reads hex digits.
func (r *RawBuffer) UnmarshalText(b []byte) error {
	if len(b) != 2*BufferSize {
		return fmt.Errorf("health buffer of %d hex digits, want %d", len(b), 2*BufferSize)
	}
	_, err := hex.Decode(r[:], b)
	return err
}

// Buffer is the health buffer, raw and decoded (mlx5_ifc health_buffer, device.h).
// What it says is a diagnosis only while Synd is not 0: otherwise the other fields
// are leftovers.
type Buffer struct {
	AssertVar     [6]uint32 `json:"assert_var"`
	AssertExitPtr uint32    `json:"assert_exit_ptr"`
	AssertCallRA  uint32    `json:"assert_callra"`
	// Time is when firmware met the error. No source gives the unit; seconds since
	// the epoch are presumed.
	Time uint32 `json:"time"`
	// FWVersion is the raw dword; see DecodeFWVersion.
	FWVersion uint32 `json:"fw_version"`
	// HWID names the chip; it is not the PCI device id.
	HWID uint32 `json:"hw_id"`
	// RFR: firmware requires the recovery flow, a reset. CRR: only a cold reset
	// helps (Linux 7.3, NVIDIA's nodnic header).
	RFR bool `json:"rfr"`
	CRR bool `json:"crr"`
	// Severity, 0 EMERGENCY to 7 DEBUG, means something only if Valid.
	Valid        bool   `json:"valid"`
	Severity     uint8  `json:"severity"`
	SeverityName string `json:"severity_name,omitempty"`
	// IRISCIndex is the embedded processor that reported.
	IRISCIndex uint8  `json:"irisc_index"`
	Synd       uint8  `json:"synd"`
	SyndName   string `json:"synd_name"` // mlx5_ifc's name, or the number in hex
	SyndText   string `json:"synd_text,omitempty"`
	// ExtSynd is a detail of the firmware version at hand: no table of its values
	// is published. ExtSyndClaim is a name in circulation, given under synd 0xb
	// only, and unproven.
	ExtSynd      uint16    `json:"ext_synd"`
	ExtSyndClaim string    `json:"ext_synd_unproven,omitempty"`
	Raw          RawBuffer `json:"raw"`
	// Torn: firmware kept writing, no two reads in a row agreed; this is the last.
	Torn bool `json:"torn"`
	// Stale: this was there at the first look, and has neither been cleared nor
	// changed since. It may be the error of an earlier run.
	Stale bool `json:"stale"`
	// Reads is how many times the 64 bytes were read.
	Reads int `json:"reads"`
}

// Error tells whether the buffer reports an error.
func (b *Buffer) Error() bool { return b.Synd != 0 }

// differs tells whether b reports something else than o, read before it. What is torn
// reads otherwise each time, and only its syndrome and flags say whether that is news.
func (b *Buffer) differs(o *Buffer) bool {
	if b.Torn && o.Torn {
		return b.Synd != o.Synd || b.RFR != o.RFR || b.CRR != o.CRR
	}
	return b.Raw != o.Raw
}

// AllOnes tells whether every byte reads 0xff: no device answered.
func (b *Buffer) AllOnes() bool {
	for _, v := range b.Raw {
		if v != 0xff {
			return false
		}
	}
	return true
}

// bufferReads bounds how often ReadBuffer reads for two that agree.
const bufferReads = 8

// ReadBuffer reads the health buffer consistently: firmware may write between two
// dwords, so it is read until two reads in a row agree, at most 8 times (Torn says
// that they never did). Staleness is for a Monitor to say.
func (r Sampler) ReadBuffer(b *Buffer) {
	var raw [2]RawBuffer
	r.readRaw(&raw[0])
	n, last := 1, 0
	torn := true
	for n < bufferReads && torn {
		last = n & 1
		r.readRaw(&raw[last])
		n++
		torn = raw[0] != raw[1]
	}
	*b = DecodeBuffer(raw[last])
	b.Torn, b.Reads = torn, n
}

func (r Sampler) readRaw(raw *RawBuffer) {
	for i := uint64(0); i < BufferSize; i += 4 {
		binary.BigEndian.PutUint32(raw[i:], r.w.ReadBE32(offBuffer+i))
	}
}

// DecodeBuffer decodes 64 raw bytes.
func DecodeBuffer(raw RawBuffer) Buffer {
	h := prm.AsHealthBuffer(raw[:])
	b := Buffer{
		AssertExitPtr: h.AssertExistptr(), AssertCallRA: h.AssertCallra(), Time: h.Time(),
		FWVersion: h.FWVersion(), HWID: h.HwID(), RFR: h.RFR(), CRR: h.CRR(),
		Valid: h.Valid(), Severity: uint8(h.Severity()), IRISCIndex: h.IriscIndex(),
		Synd: uint8(h.Synd()), SyndName: h.Synd().String(), SyndText: h.Synd().Text(),
		ExtSynd: h.ExtSynd(), ExtSyndClaim: extSyndClaim(h.Synd(), h.ExtSynd()), Raw: raw,
	}
	for i := range b.AssertVar {
		b.AssertVar[i] = h.AssertVar(i)
	}
	if b.Valid {
		b.SeverityName = h.Severity().String()
	}
	return b
}

// extSyndClaim is the name that a public article gives a value of ext_synd. No
// other source has it, so it is shown as unproven, and under the one syndrome that
// the article can have meant.
func extSyndClaim(s prm.HealthSyndrome, ext uint16) string {
	if s != prm.SyndIcmPageErr {
		return ""
	}
	switch ext {
	case 1:
		return "DPS buffer overrun"
	case 2:
		return "ICM fetch page not present"
	case 3:
		return "EQ invalid"
	}
	return ""
}

// sentence says in a few words what the buffer reports.
func (b *Buffer) sentence() string {
	s := fmt.Sprintf("synd 0x%x", b.Synd)
	switch {
	case b.SyndText != "":
		s += " " + b.SyndName + " (" + b.SyndText + ")"
	case b.SyndName == fmt.Sprintf("0x%x", b.Synd):
		s += " (no published name)"
	default:
		s += " " + b.SyndName
	}
	s += fmt.Sprintf(", ext_synd 0x%04x, irisc %d, rfr %d, crr %d", b.ExtSynd, b.IRISCIndex, bit(b.RFR), bit(b.CRR))
	if b.Valid {
		s += ", severity " + b.SeverityName
	}
	if b.Torn {
		s += ", torn: firmware was writing while it was read"
	}
	return s
}

func bit(v bool) int {
	if v {
		return 1
	}
	return 0
}

// FWPacking is one way in which a dword called "fw_ver" is in circulation.
type FWPacking struct {
	// Packing names it: "health-buffer", "segment-dword-0" or "segment".
	Packing string `json:"packing"`
	// Version is the dword read so, major.minor.subminor; the subminor is missing
	// where the packing has none.
	Version string `json:"version"`
	Note    string `json:"note"`
}

// DecodeFWVersion reads a raw dword in the packings known: the health buffer's
// (Linux prints it as raw fw_ver), dword 0 of the initialization segment (which
// rdma-core's VFIO provider prints under the same name), and that dword joined by
// dword 1 (dword1, 0 if not at hand), as the segment has it. Which of them holds is
// told by comparing with the running version.
func DecodeFWVersion(raw, dword1 uint32) [3]FWPacking {
	return [3]FWPacking{
		{"health-buffer", fmt.Sprintf("%d.%d.%04d", raw>>24, raw>>16&0xff, raw&0xffff), "major 31:24, minor 23:16, subminor 15:0 (mlx5_core: raw fw_ver)"},
		{"segment-dword-0", fmt.Sprintf("%d.%d", raw&0xffff, raw>>16), "minor 31:16, major 15:0, no subminor (rdma-core VFIO prints it as raw fw_ver)"},
		{"segment", fmt.Sprintf("%d.%d.%04d", raw&0xffff, raw>>16, dword1&0xffff), "minor 31:16, major 15:0, subminor in the low half of the next dword"},
	}
}
