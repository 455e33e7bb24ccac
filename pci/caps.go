package pci

import "fmt"

// Capability ids with a decoder here (Linux uapi/linux/pci_regs.h).
const (
	CapPM     = 0x01
	CapVPD    = 0x03
	CapMSI    = 0x05
	CapVendor = 0x09
	CapPCIe   = 0x10
	CapMSIX   = 0x11

	ExtCapAER    = 0x0001
	ExtCapSerial = 0x0003
	ExtCapACS    = 0x000d
	ExtCapARI    = 0x000e
	ExtCapATS    = 0x000f
	ExtCapSRIOV  = 0x0010
)

var stdCapNames = map[uint16]string{
	0x00: "Null", 0x01: "Power Management", 0x02: "AGP", 0x03: "Vital Product Data", 0x04: "Slot Identification",
	0x05: "MSI", 0x06: "CompactPCI Hot Swap", 0x07: "PCI-X", 0x08: "HyperTransport", 0x09: "Vendor Specific",
	0x0a: "Debug Port", 0x0b: "CompactPCI Resource Control", 0x0c: "Hot Plug", 0x0d: "Bridge Subsystem Id",
	0x0e: "AGP 8x", 0x0f: "Secure Device", 0x10: "PCI Express", 0x11: "MSI-X", 0x12: "SATA",
	0x13: "Advanced Features", 0x14: "Enhanced Allocation", 0x15: "Flattening Portal Bridge",
}

var extCapNames = map[uint16]string{
	0x00: "Null", 0x01: "Advanced Error Reporting", 0x02: "Virtual Channel", 0x03: "Device Serial Number",
	0x04: "Power Budgeting", 0x05: "Root Complex Link Declaration", 0x06: "Root Complex Internal Link Control",
	0x07: "Root Complex Event Collector", 0x08: "Multi-Function Virtual Channel", 0x09: "Virtual Channel (MFVC)",
	0x0a: "Root Complex Register Block", 0x0b: "Vendor Specific", 0x0d: "Access Control Services",
	0x0e: "Alternative Routing-ID", 0x0f: "Address Translation Services", 0x10: "SR-IOV", 0x11: "MR-IOV",
	0x12: "Multicast", 0x13: "Page Request", 0x15: "Resizable BAR", 0x16: "Dynamic Power Allocation",
	0x17: "TPH Requester", 0x18: "Latency Tolerance Reporting", 0x19: "Secondary PCI Express",
	0x1a: "Protocol Multiplexing", 0x1b: "Process Address Space Id", 0x1d: "Downstream Port Containment",
	0x1e: "L1 PM Substates", 0x1f: "Precision Time Measurement", 0x23: "Designated Vendor Specific",
	0x24: "VF Resizable BAR", 0x25: "Data Link Feature", 0x26: "Physical Layer 16.0 GT/s",
	0x27: "Lane Margining", 0x28: "Hierarchy Id", 0x2a: "Physical Layer 32.0 GT/s", 0x2e: "Data Object Exchange",
}

func capName(id uint16, extended bool) string {
	names := stdCapNames
	if extended {
		names = extCapNames
	}
	if n, ok := names[id]; ok {
		return n
	}
	return fmt.Sprintf("unknown (0x%02x)", id)
}

// PM is the power management capability.
type PM struct {
	Offset  int   `json:"offset"`
	Version uint8 `json:"version"`
	// State is the D state the function says it is in, 0 … 3 (3 is D3hot).
	State uint8 `json:"state"`
	// NoSoftReset: going from D3hot to D0 does not reset the function.
	NoSoftReset bool `json:"no_soft_reset"`
	D1          bool `json:"d1"`
	D2          bool `json:"d2"`
}

// MSI is the message signalled interrupt capability.
type MSI struct {
	Offset  int  `json:"offset"`
	Enabled bool `json:"enabled"`
	Vectors int  `json:"vectors"` // how many the function can send
	Is64    bool `json:"is64"`
	Masking bool `json:"masking"`
}

// MSIX is the MSI-X capability. Table and PBA lie in a BAR each; entries have
// 16 bytes, the PBA has one bit per entry in 64-bit words.
type MSIX struct {
	Offset       int    `json:"offset"`
	Enabled      bool   `json:"enabled"`
	FunctionMask bool   `json:"function_mask"`
	Vectors      int    `json:"vectors"` // 1 … 2048
	TableBAR     int    `json:"table_bar"`
	TableOffset  uint32 `json:"table_offset"`
	PBABAR       int    `json:"pba_bar"`
	PBAOffset    uint32 `json:"pba_offset"`
}

// TableSize is the size of the table in bytes.
func (m *MSIX) TableSize() uint64 { return uint64(m.Vectors) * 16 }

// PBASize is the size of the pending bits in bytes.
func (m *MSIX) PBASize() uint64 { return uint64(m.Vectors+63) / 64 * 8 }

// PCIe is the PCI Express capability. Sizes are in bytes, speeds in GT/s with
// 0 for a code this package does not know.
type PCIe struct {
	Offset  int    `json:"offset"`
	Version uint8  `json:"version"`
	Type    uint8  `json:"type"`
	TypeStr string `json:"type_name"`
	// FLR: the function can be reset alone (Function Level Reset).
	FLR             bool `json:"flr"`
	MaxPayloadCap   int  `json:"max_payload_supported"`
	MaxPayload      int  `json:"max_payload"`
	MaxReadRequest  int  `json:"max_read_request"`
	ExtendedTagCap  bool `json:"extended_tag_supported"`
	ExtendedTag     bool `json:"extended_tag"`
	RelaxedOrdering bool `json:"relaxed_ordering"`
	NoSnoop         bool `json:"no_snoop"`
	// TransactionsPending and the four errors are the device status.
	TransactionsPending bool `json:"transactions_pending"`
	CorrectableError    bool `json:"correctable_error"`
	NonFatalError       bool `json:"non_fatal_error"`
	FatalError          bool `json:"fatal_error"`
	UnsupportedRequest  bool `json:"unsupported_request"`

	// The link registers; VFs read zeros here.
	MaxSpeed     float64 `json:"max_speed"`
	MaxWidth     int     `json:"max_width"`
	CurrentSpeed float64 `json:"current_speed"`
	CurrentWidth int     `json:"current_width"`
	PortNumber   uint8   `json:"port_number"`

	// Present only when V2 (capability version 2 and later).
	V2 bool `json:"v2"`
	// AtomicOp completer: widths of PCIe atomics the function executes as a
	// target. AtomicRequester: it may issue them.
	Atomic32        bool `json:"atomic32"`
	Atomic64        bool `json:"atomic64"`
	AtomicCAS128    bool `json:"atomic_cas128"`
	AtomicRequester bool `json:"atomic_requester"`
	// Tag10 bits: 10-bit tags as requester, supported.
	Tag10Requester bool `json:"tag10_requester"`
}

// VSC is a vendor-specific capability. On mlx5 the one of 0x18 bytes is the
// gateway into the chip's address spaces (mstflint mtcr_ul): the registers
// below are decoded when Gateway is true, as they were at the time of reading.
type VSC struct {
	Offset  int  `json:"offset"`
	Length  int  `json:"length"`
	Gateway bool `json:"gateway"`
	// Space is the selected address space (0x7 SCAN_CRSPACE, 0xa SEMAPHORE …),
	// SpaceStatus its status, 0 meaning that the space is not supported.
	Space       uint16 `json:"space"`
	SpaceStatus uint8  `json:"space_status"`
	// Counter is the ticket register, Semaphore the holder's ticket, 0 = free.
	Counter   uint32 `json:"counter"`
	Semaphore uint32 `json:"semaphore"`
	// Address is bits 29:0 of the address register, Flag its bit 31.
	Address uint32 `json:"address"`
	Flag    bool   `json:"flag"`
	Data    uint32 `json:"data"`
}

// gatewayLength is the size of the mlx5 gateway: six dwords.
const gatewayLength = 0x18

func (c *Config) decodeStandard(id uint8, off int) error {
	switch id {
	case CapPM:
		if ok, err := c.have(off, 8); !ok {
			return err
		}
		pmc, ctl := c.u16(off+2), c.u16(off+4)
		c.PM = &PM{Offset: off, Version: uint8(pmc & 7), D1: pmc&(1<<9) != 0, D2: pmc&(1<<10) != 0,
			State: uint8(ctl & 3), NoSoftReset: ctl&(1<<3) != 0}
	case CapMSI:
		if ok, err := c.have(off, 4); !ok {
			return err
		}
		mc := c.u16(off + 2)
		if mmc := mc >> 1 & 7; mmc > 5 {
			return &ConfigError{off + 2, fmt.Sprintf("MSI vector count code %d is reserved", mmc)}
		}
		c.MSI = &MSI{Offset: off, Enabled: mc&1 != 0, Vectors: 1 << (mc >> 1 & 7), Is64: mc&(1<<7) != 0, Masking: mc&(1<<8) != 0}
	case CapMSIX:
		return c.decodeMSIX(off)
	case CapPCIe:
		return c.decodePCIe(off)
	case CapVendor:
		return c.decodeVSC(off)
	}
	return nil
}

func (c *Config) decodeMSIX(off int) error {
	if ok, err := c.have(off, 12); !ok {
		return err
	}
	mc, table, pba := c.u16(off+2), c.u32(off+4), c.u32(off+8)
	m := &MSIX{Offset: off, Enabled: mc&(1<<15) != 0, FunctionMask: mc&(1<<14) != 0, Vectors: int(mc&0x7ff) + 1,
		TableBAR: int(table & 7), TableOffset: table &^ 7, PBABAR: int(pba & 7), PBAOffset: pba &^ 7}
	if m.TableBAR > 5 {
		return &ConfigError{off + 4, fmt.Sprintf("MSI-X table in BAR %d, there are 0 to 5", m.TableBAR)}
	}
	if m.PBABAR > 5 {
		return &ConfigError{off + 8, fmt.Sprintf("MSI-X pending bits in BAR %d, there are 0 to 5", m.PBABAR)}
	}
	c.MSIX = m
	return nil
}

var pcieTypes = map[uint8]string{
	0x0: "endpoint", 0x1: "legacy endpoint", 0x4: "root port", 0x5: "upstream switch port", 0x6: "downstream switch port",
	0x7: "PCIe to PCI bridge", 0x8: "PCI to PCIe bridge", 0x9: "root complex integrated endpoint", 0xa: "root complex event collector",
}

// speeds are the link speed codes 1 … 7 in GT/s.
var speeds = [...]float64{1: 2.5, 2: 5, 3: 8, 4: 16, 5: 32, 6: 64, 7: 128}

func linkSpeed(code uint32) float64 {
	if int(code) < len(speeds) {
		return speeds[code]
	}
	return 0
}

func (c *Config) decodePCIe(off int) error {
	if ok, err := c.have(off, 0x14); !ok {
		return err
	}
	caps, devCap, devCtl, devSta := c.u16(off+2), c.u32(off+4), c.u16(off+8), c.u16(off+0xa)
	lnkCap, lnkSta := c.u32(off+0xc), uint32(c.u16(off+0x12))
	p := &PCIe{Offset: off, Version: uint8(caps & 0xf), Type: uint8(caps >> 4 & 0xf),
		FLR:             devCap&(1<<28) != 0,
		MaxPayloadCap:   128 << (devCap & 7),
		MaxPayload:      128 << (devCtl >> 5 & 7),
		MaxReadRequest:  128 << (devCtl >> 12 & 7),
		ExtendedTagCap:  devCap&(1<<5) != 0,
		ExtendedTag:     devCtl&(1<<8) != 0,
		RelaxedOrdering: devCtl&(1<<4) != 0,
		NoSnoop:         devCtl&(1<<11) != 0,

		CorrectableError: devSta&1 != 0, NonFatalError: devSta&2 != 0, FatalError: devSta&4 != 0,
		UnsupportedRequest: devSta&8 != 0, TransactionsPending: devSta&(1<<5) != 0,

		MaxSpeed: linkSpeed(lnkCap & 0xf), MaxWidth: int(lnkCap >> 4 & 0x3f),
		CurrentSpeed: linkSpeed(lnkSta & 0xf), CurrentWidth: int(lnkSta >> 4 & 0x3f), PortNumber: uint8(lnkCap >> 24)}
	p.TypeStr = pcieTypes[p.Type]
	if p.TypeStr == "" {
		p.TypeStr = fmt.Sprintf("reserved type %#x", p.Type)
	}
	if p.Version >= 2 {
		if ok, err := c.have(off, 0x2a); !ok {
			c.PCIe = p
			return err
		}
		cap2, ctl2 := c.u32(off+0x24), c.u16(off+0x28)
		p.V2 = true
		p.Atomic32, p.Atomic64, p.AtomicCAS128 = cap2&(1<<7) != 0, cap2&(1<<8) != 0, cap2&(1<<9) != 0
		p.Tag10Requester = cap2&(1<<17) != 0
		p.AtomicRequester = ctl2&(1<<6) != 0
	}
	c.PCIe = p
	return nil
}

func (c *Config) decodeVSC(off int) error {
	if ok, err := c.have(off, 3); !ok {
		return err
	}
	v := VSC{Offset: off, Length: int(c.raw[off+2])}
	if v.Length < 3 {
		return &ConfigError{off + 2, fmt.Sprintf("vendor-specific capability of %d bytes is shorter than its own header", v.Length)}
	}
	if ok, err := c.have(off, v.Length); !ok {
		c.Vendor = append(c.Vendor, v)
		return err
	}
	if v.Length == gatewayLength {
		ctl, addr := c.u32(off+4), c.u32(off+0x10)
		v.Gateway = true
		v.Space, v.SpaceStatus = uint16(ctl), uint8(ctl>>29)
		v.Counter, v.Semaphore = c.u32(off+8), c.u32(off+0xc)
		v.Address, v.Flag = addr&0x3fffffff, addr>>31 != 0
		v.Data = c.u32(off + 0x14)
	}
	c.Vendor = append(c.Vendor, v)
	return nil
}

// Gateway gives the mlx5 gateway capability, nil when there is none.
func (c *Config) Gateway() *VSC {
	for i := range c.Vendor {
		if c.Vendor[i].Gateway {
			return &c.Vendor[i]
		}
	}
	return nil
}

// have reports whether n bytes from off were given. A capability may not leave
// its space (256 bytes for the standard list, 4096 for the extended one): that
// is an error. One that only goes on behind the bytes given is a short read.
func (c *Config) have(off, n int) (bool, error) {
	end := ConfigFullSize
	if off < ConfigStandardSize {
		end = ConfigStandardSize
	}
	if off+n > end {
		return false, &ConfigError{off, fmt.Sprintf("capability of %d bytes leaves the %d bytes of its space", n, end)}
	}
	if off+n > len(c.raw) {
		c.Truncated = true
		return false, nil
	}
	return true, nil
}
