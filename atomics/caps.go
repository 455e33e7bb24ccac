package atomics

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"strings"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// Bits of atomic_operations (Linux device.h, MLX5_ATOMIC_OPS_*).
const (
	OpCmpSwap uint16 = 1 << iota
	OpFetchAdd
	OpExtCmpSwap
	OpExtFetchAdd
)

var operationNames = []string{"CMP_SWAP", "FETCH_ADD", "EXT_CMP_SWAP", "EXT_FETCH_ADD"}

// Caps are the atomic capabilities of a device: what QUERY_HCA_CAP answers for
// type 3, and the two fields of type 0 that concern atomics. The sizes are in no
// other place; the initialization segment does not have them.
type Caps struct {
	// Operations is a set of OpCmpSwap, OpFetchAdd, OpExtCmpSwap, OpExtFetchAdd.
	Operations uint16 `json:"operations"`
	// SizesQP and SizesDC are bitmaps: bit n means arguments of 2^n bytes.
	SizesQP uint16 `json:"atomic_size_qp"`
	SizesDC uint16 `json:"atomic_size_dc"`
	// Mode is atomic_req_8B_endianness_mode: 1 means that 8-byte replies arrive in
	// the order of the requester's host. ModeSelectable means it can be set.
	Mode           uint8 `json:"atomic_req_8B_endianness_mode"`
	ModeSelectable bool  `json:"mode_1_selectable"`
	// PCIFetchAdd, PCISwap and PCICompareSwap are the sizes the device can issue as
	// PCIe AtomicOps: bit 0 4 bytes, bit 1 8 bytes, bit 2 16 bytes.
	PCIFetchAdd    uint16 `json:"fetch_add_pci_atomic"`
	PCISwap        uint16 `json:"swap_pci_atomic"`
	PCICompareSwap uint16 `json:"compare_swap_pci_atomic"`
	// LogMaxQP is log_max_atomic_size_qp of the general capabilities: 0 where the
	// device leaves it out, as Linux expects.
	LogMaxQP uint8 `json:"log_max_atomic_size_qp"`
}

// ParseCaps reads the current atomic capabilities (type 3) and, if given, the
// general ones (type 0) from their payloads, prm.AtomicCapsSize bytes each or
// more. A device whose general capabilities lack the bit atomic has none, and
// answers type 3 with zeros; an empty atomic payload gives the zero value.
func ParseCaps(atomic, general []byte) (Caps, error) {
	var c Caps
	if len(general) != 0 {
		if len(general) < prm.CmdHCACapSize {
			return c, fmt.Errorf("general capabilities of %d bytes: want %d", len(general), prm.CmdHCACapSize)
		}
		g := prm.AsCmdHCACap(general)
		if !g.Atomic() {
			return c, nil
		}
		c.LogMaxQP = g.LogMaxAtomicSizeQP()
	}
	if len(atomic) == 0 {
		return c, nil
	}
	if len(atomic) < prm.AtomicCapsSize {
		return Caps{}, fmt.Errorf("atomic capabilities of %d bytes: want %d", len(atomic), prm.AtomicCapsSize)
	}
	a := prm.AsAtomicCaps(atomic)
	c.Operations, c.SizesQP, c.SizesDC = a.AtomicOperations(), a.AtomicSizeQP(), a.AtomicSizeDC()
	c.Mode, c.ModeSelectable = a.AtomicReq8BEndiannessMode(), a.SupportedAtomicReq8BEndiannessMode1()
	// Reserved in Linux' header; rdma-core's and UCX's have them (atomic_caps).
	c.PCIFetchAdd = binary.BigEndian.Uint16(atomic[0x50:])
	c.PCISwap = binary.BigEndian.Uint16(atomic[0x52:])
	c.PCICompareSwap = binary.BigEndian.Uint16(atomic[0x54:])
	return c, nil
}

// sizeBits are the bits of a size bitmap that stand for sizes (1 to 256 bytes).
const sizeBits = 0x1ff

// Standard tells whether the plain 8-byte operations are there, both of them.
func (c Caps) Standard() bool {
	return c.Operations&(OpCmpSwap|OpFetchAdd) == OpCmpSwap|OpFetchAdd
}

// Extended tells whether a masked operation is there.
func (c Caps) Extended() bool { return c.Operations&(OpExtCmpSwap|OpExtFetchAdd) != 0 }

// Sizes are the argument sizes of the bitmap for QPs, ascending. A bit for a
// size does not imply the sizes below it.
func (c Caps) Sizes() []int {
	var s []int
	for m := c.SizesQP & sizeBits; m != 0; m &= m - 1 {
		s = append(s, 1<<bits.TrailingZeros16(m))
	}
	return s
}

// MaxAtomicSize is the largest argument of an atomic operation on a QP in bytes,
// 0 without atomics: the largest of the bitmap with masked operations, and 8
// with the two plain ones alone. With atomic_like_write_en it is also the size up
// to which a write to a QP in Mode() is atomic.
func (c Caps) MaxAtomicSize() int {
	switch m := c.SizesQP & sizeBits; {
	case c.Extended() && m != 0:
		return 1 << (bits.Len16(m) - 1)
	case c.Standard():
		return 8
	}
	return 0
}

// AtomicMode is the value of qpc.atomic_mode for QPs of this device, by the rule
// of Linux (get_atomic_mode in mlx5_ib's qp.c): with a masked operation log2 of
// the largest size of the bitmap, but at least the mode for 8 bytes; else, with
// the two plain ones, IB_SPEC. The error wraps ErrNotOffered.
func (c Caps) AtomicMode() (prm.AtomicMode, error) {
	switch m := c.SizesQP & sizeBits; {
	case c.Extended() && m != 0:
		return prm.AtomicMode(max(bits.Len16(m)-1, int(prm.AtomicModeUpTo8B))), nil
	case c.Standard():
		return prm.AtomicModeIBSpec, nil
	}
	return prm.AtomicModeNone, fmt.Errorf("choose an atomic mode: %w: atomic_operations is 0x%x, atomic_size_qp 0x%x; use a function with atomics", ErrNotOffered, c.Operations, c.SizesQP)
}

// And is what two devices have in common: the requester and the responder of a
// connection. Endianness mode and PCIe sizes stay c's, the requester's.
func (c Caps) And(responder Caps) Caps {
	c.Operations &= responder.Operations
	c.SizesQP &= responder.SizesQP
	c.SizesDC &= responder.SizesDC
	c.LogMaxQP = min(c.LogMaxQP, responder.LogMaxQP)
	return c
}

// ModeSize is the largest argument in bytes of a QP with this atomic_mode.
func ModeSize(m prm.AtomicMode) int {
	switch {
	case m == prm.AtomicModeNone || m > prm.AtomicModeUpTo256B:
		return 0
	case m <= prm.AtomicModeUpTo8B:
		return 8
	}
	return 1 << m
}

// Check tells whether a QP of this device takes the operation: the WQE's opcode
// and argument size must be offered. The error is an *OpError.
func (c Caps) Check(o *Op) error {
	if err := o.Check(); err != nil {
		return err
	}
	s := max(o.Size, 4)
	need := OpExtCmpSwap
	switch {
	case s == 8 && o.plain() && o.Kind == FetchAdd:
		need = OpFetchAdd
	case s == 8 && o.plain():
		need = OpCmpSwap
	case o.Kind.adds():
		need = OpExtFetchAdd
	}
	if c.Operations&need == 0 {
		return o.refuse(ErrNotOffered, fmt.Sprintf("atomic_operations lacks %s", operationNames[bits.TrailingZeros16(need)]))
	}
	if c.SizesQP&sizeBits&uint16(s) == 0 {
		return o.refuse(ErrNotOffered, fmt.Sprintf("atomic_size_qp 0x%x lacks arguments of %d bytes", c.SizesQP, s))
	}
	return nil
}

// String names the operations and sizes.
func (c Caps) String() string {
	if c.MaxAtomicSize() == 0 {
		return "no atomics"
	}
	var ops []string
	for i, n := range operationNames {
		if c.Operations>>i&1 == 1 {
			ops = append(ops, n)
		}
	}
	return fmt.Sprintf("%s; arguments of %s bytes; max_atomic_size %d", strings.Join(ops, " "), strings.Trim(fmt.Sprint(c.Sizes()), "[]"), c.MaxAtomicSize())
}
