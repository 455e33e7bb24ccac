package pci

import "fmt"

// AER is the advanced error reporting capability.
type AER struct {
	Offset int `json:"offset"`
	// The status registers have a bit per error seen, sticky until cleared.
	UncorrectableStatus   uint32   `json:"uncorrectable_status"`
	UncorrectableMask     uint32   `json:"uncorrectable_mask"`
	UncorrectableSeverity uint32   `json:"uncorrectable_severity"`
	CorrectableStatus     uint32   `json:"correctable_status"`
	CorrectableMask       uint32   `json:"correctable_mask"`
	Uncorrectable         []string `json:"uncorrectable,omitempty"` // names of the set bits
	Correctable           []string `json:"correctable,omitempty"`
	FirstError            uint8    `json:"first_error"` // bit number of the first uncorrectable error
	// Header is the header of the packet that caused the first error, four
	// dwords in the order of the log registers.
	Header [4]uint32 `json:"header"`
}

// SerialNum is the device serial number, an EUI-64.
type SerialNum struct {
	Offset int    `json:"offset"`
	Value  uint64 `json:"value"`
}

// String writes the number as lspci does: "b8-ce-f6-03-00-12-34-56".
func (s SerialNum) String() string {
	b := make([]byte, 0, 23)
	for i := 7; i >= 0; i-- {
		b = fmt.Appendf(b, "%02x", byte(s.Value>>(8*i)))
		if i > 0 {
			b = append(b, '-')
		}
	}
	return string(b)
}

// ACS is the access control services capability. In a port, the services named
// here decide how fine IOMMU groups are.
type ACS struct {
	Offset  int      `json:"offset"`
	Cap     uint16   `json:"cap"`
	Control uint16   `json:"control"`
	Enabled []string `json:"enabled,omitempty"`
}

// ARI is the alternative routing-id capability.
type ARI struct {
	Offset       int   `json:"offset"`
	NextFunction uint8 `json:"next_function"`
}

// ATS is the address translation services capability.
type ATS struct {
	Offset  int  `json:"offset"`
	Enabled bool `json:"enabled"`
	// QueueDepth is how many invalidations the function queues, 1 … 32.
	QueueDepth int `json:"queue_depth"`
	// STU is the smallest translation unit in bytes, set by the host.
	STU uint64 `json:"stu"`
}

// SRIOV is the single root I/O virtualisation capability of a PF.
type SRIOV struct {
	Offset       int       `json:"offset"`
	VFEnabled    bool      `json:"vf_enabled"`
	VFMemory     bool      `json:"vf_memory"`
	InitialVFs   int       `json:"initial_vfs"`
	TotalVFs     int       `json:"total_vfs"`
	NumVFs       int       `json:"num_vfs"`
	FirstVF      int       `json:"first_vf_offset"` // routing-id distance from the PF to VF 0
	Stride       int       `json:"vf_stride"`
	VFDeviceID   uint16    `json:"vf_device_id"`
	PageSizes    uint32    `json:"page_sizes"` // bit n: 4096 << n
	SystemPage   uint32    `json:"system_page_size"`
	VFBARs       [6]uint32 `json:"vf_bars"` // raw
	VFMigration  bool      `json:"vf_migration"`
	ARIHierarchy bool      `json:"ari_capable_hierarchy"`
}

var uncorrectableNames = map[int]string{
	4: "data link protocol", 5: "surprise down", 12: "poisoned TLP", 13: "flow control protocol", 14: "completion timeout",
	15: "completer abort", 16: "unexpected completion", 17: "receiver overflow", 18: "malformed TLP", 19: "ECRC",
	20: "unsupported request", 21: "ACS violation", 22: "uncorrectable internal", 23: "MC blocked TLP",
	24: "AtomicOp egress blocked", 25: "TLP prefix blocked", 26: "poisoned TLP egress blocked",
}

var correctableNames = map[int]string{
	0: "receiver", 6: "bad TLP", 7: "bad DLLP", 8: "replay number rollover", 12: "replay timer timeout",
	13: "advisory non-fatal", 14: "corrected internal", 15: "header log overflow",
}

var acsNames = map[int]string{
	0: "source validation", 1: "translation blocking", 2: "P2P request redirect", 3: "P2P completion redirect",
	4: "upstream forwarding", 5: "P2P egress control", 6: "direct translated P2P",
}

// bitNames lists the set bits of v in ascending order.
func bitNames(v uint32, names map[int]string) []string {
	var out []string
	for i := 0; i < 32; i++ {
		if v>>i&1 == 0 {
			continue
		}
		if n, ok := names[i]; ok {
			out = append(out, n)
		} else {
			out = append(out, fmt.Sprintf("reserved bit %d", i))
		}
	}
	return out
}

func (c *Config) decodeExtended(id uint16, off int) error {
	need := map[uint16]int{ExtCapAER: 0x2c, ExtCapSerial: 12, ExtCapACS: 8, ExtCapARI: 8, ExtCapATS: 8, ExtCapSRIOV: 0x40}[id]
	if need == 0 {
		return nil
	}
	if ok, err := c.have(off, need); !ok {
		return err
	}
	switch id {
	case ExtCapAER:
		a := &AER{Offset: off, UncorrectableStatus: c.u32(off + 4), UncorrectableMask: c.u32(off + 8),
			UncorrectableSeverity: c.u32(off + 0xc), CorrectableStatus: c.u32(off + 0x10), CorrectableMask: c.u32(off + 0x14),
			FirstError: uint8(c.u32(off+0x18) & 0x1f)}
		for i := range a.Header {
			a.Header[i] = c.u32(off + 0x1c + 4*i)
		}
		a.Uncorrectable = bitNames(a.UncorrectableStatus, uncorrectableNames)
		a.Correctable = bitNames(a.CorrectableStatus, correctableNames)
		c.AER = a
	case ExtCapSerial:
		c.Serial = &SerialNum{off, uint64(c.u32(off+4)) | uint64(c.u32(off+8))<<32}
	case ExtCapACS:
		c.ACS = &ACS{Offset: off, Cap: c.u16(off + 4), Control: c.u16(off + 6), Enabled: bitNames(uint32(c.u16(off+6)), acsNames)}
	case ExtCapARI:
		c.ARI = &ARI{off, uint8(c.u16(off+4) >> 8)}
	case ExtCapATS:
		what, ctl := c.u16(off+4), c.u16(off+6)
		a := &ATS{Offset: off, Enabled: ctl&(1<<15) != 0, QueueDepth: int(what & 0x1f), STU: 4096 << (ctl & 0x1f)}
		if a.QueueDepth == 0 { // 0 stands for 32
			a.QueueDepth = 32
		}
		c.ATS = a
	case ExtCapSRIOV:
		what, ctl := c.u32(off+4), c.u16(off+8)
		s := &SRIOV{Offset: off, VFMigration: what&1 != 0, VFEnabled: ctl&1 != 0, VFMemory: ctl&(1<<3) != 0, ARIHierarchy: ctl&(1<<4) != 0,
			InitialVFs: int(c.u16(off + 0xc)), TotalVFs: int(c.u16(off + 0xe)), NumVFs: int(c.u16(off + 0x10)),
			FirstVF: int(c.u16(off + 0x14)), Stride: int(c.u16(off + 0x16)), VFDeviceID: c.u16(off + 0x1a),
			PageSizes: c.u32(off + 0x1c), SystemPage: c.u32(off + 0x20)}
		for i := range s.VFBARs {
			s.VFBARs[i] = c.u32(off + 0x24 + 4*i)
		}
		c.SRIOV = s
	}
	return nil
}
