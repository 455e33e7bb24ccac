package health

import (
	"fmt"
	"strings"

	"github.com/mlxvfio/mlxvfio/initseg"
	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// Field describes one field that belongs to health: where it is in BAR 0, and what
// it means. Value is there when it was read from a device.
type Field struct {
	Name   string `json:"name"`
	Offset uint32 `json:"offset"` // of the dword, in BAR 0
	High   int    `json:"high"`   // bits of the dword, High:Low
	Low    int    `json:"low"`
	Value  uint32 `json:"value"`
	Text   string `json:"text,omitempty"` // the value in words
	// Meaning, and Note on what sources disagree about or leave open.
	Meaning string `json:"meaning"`
	Note    string `json:"note,omitempty"`
	Source  string `json:"source"`
}

// Width is the number of bits.
func (f Field) Width() int { return f.High - f.Low + 1 }

// fieldTexts are the meanings; the places come from internal/prm.
var fieldTexts = []struct{ path, meaning, note, source string }{
	{"nic_interface", "state of the interface: 0 full driver, 1 disabled, 2 pre-boot (no DRAM), 7 software reset", "mlx5_ifc has 2 bits; every driver uses 3, and 7 needs them. A device that is gone reads 7 too", "Linux health.c, nodnic header"},
	{"initializing", "firmware is still starting", "not part of a sample", "mlx5_ifc"},
	{"fw_reset_supported", "a software reset may be asked for through nic_interface", "not part of a sample", "Linux device.h, health.c"},
	{"health_buffer.assert_var", "arguments of the firmware assert", "rdma-core and kernels before 5.16 know five; mlx5_ifc leaves them reserved", "Linux device.h"},
	{"health_buffer.assert_existptr", "exit pointer of the assert", "device.h: assert_exit_ptr", "mlx5_ifc"},
	{"health_buffer.assert_callra", "return address of the caller of the assert", "", "mlx5_ifc"},
	{"health_buffer.time", "when firmware met the error", "no source gives the unit; seconds since the epoch are presumed: the host sets the device's clock through register MRTC", "mlx5_ifc"},
	{"health_buffer.fw_version", "firmware version: major 31:24, minor 23:16, subminor 15:0; all ones: PCI is dead", "the initialization segment packs it otherwise, and rdma-core prints the segment's dword 0 under this name", "Linux health.c"},
	{"health_buffer.hw_id", "the chip; not the PCI device id", "", "mlx5_ifc"},
	{"health_buffer.rfr", "recovery flow required: the function must be reset", "counts only while synd is not 0", "Linux health.c"},
	{"health_buffer.crr", "cold reset required: only powering the host off helps", "unknown to Linux before 7.3", "Linux 7.3 health.c, nodnic header"},
	{"health_buffer.valid", "severity is valid", "", "mlx5_ifc"},
	{"health_buffer.severity", "0 EMERGENCY to 7 DEBUG", "means nothing unless valid is set; Linux prints ERROR then", "mlx5_ifc"},
	{"health_buffer.irisc_index", "the embedded processor that reported", "", "mlx5_ifc"},
	{"health_buffer.synd", "syndrome: 0 is no error", "0x02 to 0x06 and 0x11 have no published name", "mlx5_ifc"},
	{"health_buffer.ext_synd", "a detail of the firmware version at hand", "opaque: no table is published; names in circulation are unproven and can only belong to synd 0xb", "mlx5_ifc"},
	{"health_syndrome", "copy of the syndrome beside the counter", "illumos takes the low byte of the dword; no verdict is built on it", "mlx5_ifc"},
	{"health_counter", "moves while firmware is alive, modulo 2^24", "no source states a rate; one per 10 ms is in circulation, unproven. Linux compares the whole dword, rdma-core these 24 bits", "mlx5_ifc, rdma-core"},
}

// Fields lists the fields of health by offset, without values.
func Fields() []Field {
	var l []Field
	for _, t := range fieldTexts {
		l = append(l, placed(t.path, t.meaning, t.note, t.source)...)
	}
	return l
}

// placed finds a field in the descriptor of the initialization segment; an array
// gives one field for each element.
func placed(path, meaning, note, source string) []Field {
	s, base, name := prm.InitialSegStruct, uint32(0), path
	if sub, rest, ok := strings.Cut(path, "."); ok {
		f := s.Field(sub)
		s, base, name = f.Sub, f.Off, rest
	}
	f := s.Field(name)
	var l []Field
	for i := range f.Count {
		off := base + f.Off + uint32(i)*f.Width
		low := 32 - f.Width - off%32
		x := Field{
			Name: name, Offset: off / 32 * 4, High: int(low + f.Width - 1), Low: int(low),
			Meaning: meaning, Note: note, Source: source,
		}
		if f.Array {
			x.Name = fmt.Sprintf("%s[%d]", name, i)
		}
		l = append(l, x)
	}
	return l
}

// ReadFields reads every field from a device: the health buffer consistently, each
// other dword once.
func ReadFields(w *vfio.Window) []Field {
	var b Buffer
	NewSampler(w).ReadBuffer(&b)
	seg := initseg.New(w)
	dwords := map[uint32]uint32{}
	l := Fields()
	for i := range l {
		f := &l[i]
		v, ok := dwords[f.Offset]
		if !ok {
			if o := int(f.Offset) - offBuffer; o >= 0 && o < BufferSize {
				r := b.Raw[o:]
				v = uint32(r[0])<<24 | uint32(r[1])<<16 | uint32(r[2])<<8 | uint32(r[3])
			} else {
				v = w.ReadBE32(uint64(f.Offset))
			}
			dwords[f.Offset] = v
		}
		f.Value = v >> f.Low & (1<<f.Width() - 1)
		f.Text = fieldText(f, &b, seg.FirmwareVersion())
	}
	return l
}

// fieldText is the value of a field in words, where there are any.
func fieldText(f *Field, b *Buffer, running initseg.Version) string {
	switch f.Name {
	case "nic_interface":
		return prm.NICInterface(f.Value).String()
	case "synd", "health_syndrome":
		s := prm.HealthSyndrome(f.Value)
		if t := s.Text(); t != "" {
			return s.String() + ": " + t
		}
		return s.String()
	case "severity":
		if !b.Valid {
			return "not valid"
		}
		return b.SeverityName
	case "ext_synd":
		if b.ExtSyndClaim != "" {
			return b.ExtSyndClaim + " (unproven)"
		}
	case "fw_version":
		if p := packingOf(f.Value, running); p != "" {
			return fmt.Sprintf("%v (packed as %s)", running, p)
		}
		return fmt.Sprintf("%s by the buffer's packing; firmware %v runs", DecodeFWVersion(f.Value, 0)[0].Version, running)
	}
	return ""
}

// packingOf tells in which packing a raw version is the running one.
func packingOf(raw uint32, v initseg.Version) string {
	switch {
	case raw == uint32(v.Major)<<24|uint32(v.Minor&0xff)<<16|uint32(v.Subminor):
		return "health-buffer"
	case raw == uint32(v.Minor)<<16|uint32(v.Major):
		return "segment-dword-0"
	}
	return ""
}
