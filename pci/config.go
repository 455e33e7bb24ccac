package pci

import (
	"encoding/binary"
	"fmt"
	"path/filepath"
)

// Sizes of a configuration space in bytes.
const (
	ConfigHeaderSize   = 64   // what an unprivileged sysfs read gives
	ConfigStandardSize = 256  // conventional PCI
	ConfigFullSize     = 4096 // PCI Express
)

// ConfigError is a contradiction found in a configuration space. It wraps
// ErrBadConfig.
type ConfigError struct {
	Offset int // byte offset of what is wrong
	Reason string
}

func (e *ConfigError) Error() string {
	return fmt.Sprintf("%v at 0x%03x: %s", ErrBadConfig, e.Offset, e.Reason)
}

func (e *ConfigError) Unwrap() error { return ErrBadConfig }

// Config is a decoded configuration space. Raw multi-byte values are
// little-endian in the bytes and plain numbers here. Source: PCI Local Bus 3.0
// and PCI Express Base Specification, with the names of Linux uapi/linux/pci_regs.h.
type Config struct {
	// VendorID and DeviceID read 0xffff on a VF whose accesses nobody
	// virtualises (the SR-IOV specification wants it): take them from sysfs.
	VendorID   uint16 `json:"vendor_id"`
	DeviceID   uint16 `json:"device_id"`
	Command    uint16 `json:"command"`
	Status     uint16 `json:"status"`
	Revision   uint8  `json:"revision"`
	Class      uint32 `json:"class"` // 24 bits
	HeaderType uint8  `json:"header_type"`
	// MultiFunction is bit 7 of the header type register.
	MultiFunction bool       `json:"multi_function"`
	BARs          [6]uint32  `json:"bars"` // raw; only the first two count in a bridge
	SubVendor     uint16     `json:"subvendor"`
	SubDevice     uint16     `json:"subdevice"`
	IntPin        uint8      `json:"interrupt_pin"`
	Caps          []Cap      `json:"capabilities"`
	PM            *PM        `json:"pm,omitempty"`
	MSI           *MSI       `json:"msi,omitempty"`
	MSIX          *MSIX      `json:"msix,omitempty"`
	PCIe          *PCIe      `json:"pcie,omitempty"`
	Vendor        []VSC      `json:"vendor_specific,omitempty"`
	AER           *AER       `json:"aer,omitempty"`
	Serial        *SerialNum `json:"serial,omitempty"`
	ACS           *ACS       `json:"acs,omitempty"`
	ARI           *ARI       `json:"ari,omitempty"`
	ATS           *ATS       `json:"ats,omitempty"`
	SRIOV         *SRIOV     `json:"sriov,omitempty"`

	// Size is the number of bytes given. Truncated says that a capability list
	// goes on behind them: only root reads more than 64 bytes from sysfs.
	Size      int  `json:"size"`
	Truncated bool `json:"truncated,omitempty"`

	raw []byte
}

// Command register bits.
const (
	CommandMemory    = 1 << 1
	CommandBusMaster = 1 << 2
	CommandNoINTx    = 1 << 10
)

// statusCapList: the function has a capability list.
const statusCapList = 1 << 4

// Cap is one capability as found in a list, decoded or not.
type Cap struct {
	ID       uint16 `json:"id"`
	Extended bool   `json:"extended,omitempty"`
	Name     string `json:"name"`
	Offset   int    `json:"offset"`
	// Version is the capability version; 0 in the standard list.
	Version uint8 `json:"version,omitempty"`
}

// AllOnes reports whether data is what a dead link returns: only ones in the
// header. A VF whose ids read 0xffff has other header bytes.
func AllOnes(data []byte) bool {
	if len(data) < ConfigHeaderSize {
		return false
	}
	for _, b := range data[:ConfigHeaderSize] {
		if b != 0xff {
			return false
		}
	}
	return true
}

// ParseConfig decodes a configuration space of 64 to 4096 bytes, from
// wherever it was read; data is not kept. Without an error the whole lists
// were walked, or Truncated is set. With an error the Config is still not nil
// if data had a header, and holds what was decoded before the contradiction:
// a malformed chain ends the walk of its list, never hangs it.
func ParseConfig(data []byte) (*Config, error) {
	if len(data) < ConfigHeaderSize {
		return nil, &ConfigError{0, fmt.Sprintf("%d bytes are no header, at least %d are needed", len(data), ConfigHeaderSize)}
	}
	if len(data) > ConfigFullSize {
		return nil, &ConfigError{ConfigFullSize, fmt.Sprintf("%d bytes are more than a configuration space holds", len(data))}
	}
	if AllOnes(data) {
		return nil, &ConfigError{0, "the header reads all ones: the function is gone, in D3cold, or behind a dead link"}
	}
	c := &Config{raw: append([]byte(nil), data...), Size: len(data), Caps: []Cap{}}
	c.VendorID, c.DeviceID = c.u16(0x00), c.u16(0x02)
	c.Command, c.Status = c.u16(0x04), c.u16(0x06)
	c.Revision, c.Class = data[0x08], c.u32(0x08)>>8
	c.HeaderType, c.MultiFunction = data[0x0e]&0x7f, data[0x0e]&0x80 != 0
	for i := range c.BARs {
		c.BARs[i] = c.u32(0x10 + 4*i)
	}
	if c.HeaderType == 0 { // bridges have other registers here
		c.SubVendor, c.SubDevice = c.u16(0x2c), c.u16(0x2e)
	}
	c.IntPin = data[0x3d]
	std, ext := c.walkStandard(), c.walkExtended()
	switch {
	case std == nil:
		return c, ext
	case ext == nil:
		return c, std
	}
	return c, fmt.Errorf("%w; %w", std, ext)
}

// walkStandard follows the list from byte 0x34. Its pointers have 8 bits with
// the two low ones reserved, so a list has at most 48 entries; a set of
// visited offsets finds loops at the first repetition.
func (c *Config) walkStandard() error {
	if c.Status&statusCapList == 0 {
		return nil
	}
	const start = 0x34
	if c.HeaderType == 2 {
		return &ConfigError{0x0e, "a CardBus bridge keeps its list elsewhere: not supported"}
	}
	from := start
	var visited [ConfigStandardSize / 4]bool
	for ptr := int(c.raw[start]) &^ 3; ptr != 0; {
		if ptr < ConfigHeaderSize {
			return &ConfigError{from, fmt.Sprintf("capability pointer 0x%02x points into the header", ptr)}
		}
		if visited[ptr/4] {
			return &ConfigError{from, fmt.Sprintf("capability list loops back to 0x%02x", ptr)}
		}
		visited[ptr/4] = true
		if ptr+2 > len(c.raw) {
			c.Truncated = true
			return nil
		}
		id := c.raw[ptr]
		if id == 0xff {
			return &ConfigError{ptr, "capability reads all ones"}
		}
		c.Caps = append(c.Caps, Cap{ID: uint16(id), Name: capName(uint16(id), false), Offset: ptr})
		if err := c.decodeStandard(id, ptr); err != nil {
			return err
		}
		from, ptr = ptr+1, int(c.raw[ptr+1])&^3
	}
	return nil
}

// walkExtended follows the list that starts at 0x100 in a PCI Express
// configuration space. An all-zero or all-ones first header means no list.
func (c *Config) walkExtended() error {
	if len(c.raw) <= ConfigStandardSize {
		return nil
	}
	from := ConfigStandardSize
	var visited [ConfigFullSize / 4]bool
	for ptr := ConfigStandardSize; ptr != 0; {
		if ptr < ConfigStandardSize {
			return &ConfigError{from, fmt.Sprintf("extended capability pointer 0x%03x points into the standard space", ptr)}
		}
		if visited[ptr/4] {
			return &ConfigError{from, fmt.Sprintf("extended capability list loops back to 0x%03x", ptr)}
		}
		visited[ptr/4] = true
		if ptr+4 > len(c.raw) {
			c.Truncated = true
			return nil
		}
		h := c.u32(ptr)
		if ptr == ConfigStandardSize && (h == 0 || h == 0xffffffff) {
			return nil
		}
		if h == 0xffffffff {
			return &ConfigError{ptr, "extended capability reads all ones"}
		}
		id := uint16(h)
		// Id 0 is a null capability: it only links on (PCIe 7.9.28).
		c.Caps = append(c.Caps, Cap{ID: id, Extended: true, Name: capName(id, true), Offset: ptr, Version: uint8(h>>16) & 0xf})
		if err := c.decodeExtended(id, ptr); err != nil {
			return err
		}
		from, ptr = ptr+2, int(h>>20)&^3
	}
	return nil
}

// Find gives the first capability of an id, nil when there is none.
func (c *Config) Find(id uint16, extended bool) *Cap {
	for i := range c.Caps {
		if c.Caps[i].ID == id && c.Caps[i].Extended == extended {
			return &c.Caps[i]
		}
	}
	return nil
}

// Bytes returns a copy of what was parsed.
func (c *Config) Bytes() []byte { return append([]byte(nil), c.raw...) }

func (c *Config) u16(off int) uint16 { return binary.LittleEndian.Uint16(c.raw[off:]) }
func (c *Config) u32(off int) uint32 { return binary.LittleEndian.Uint32(c.raw[off:]) }

// ReadConfig reads the configuration space of a function through sysfs: 256 or
// 4096 bytes as root, 64 bytes otherwise. The read wakes a sleeping device.
func ReadConfig(b BDF, opt Options) ([]byte, error) {
	const op = "read configuration space of"
	o := opt.withDefaults()
	if !b.Valid() {
		return nil, failf(op, b, ErrBadBDF, "", "device at most 1f, function at most 7")
	}
	name := filepath.Join(o.deviceDir(b), "config")
	data, err := o.FS.ReadFile(name)
	if err != nil {
		return nil, sysfsError(op, b, "read", name, err)
	}
	return data, nil
}

// InspectConfig is ReadConfig and ParseConfig; both results may be there at
// once, see ParseConfig.
func InspectConfig(b BDF, opt Options) (*Config, error) {
	data, err := ReadConfig(b, opt)
	if err != nil {
		return nil, err
	}
	c, err := ParseConfig(data)
	if err != nil {
		return c, &Error{Op: "decode configuration space", BDF: b.String(), Err: err,
			Remedy: "lspci -xxxx -s " + b.String()}
	}
	return c, nil
}
