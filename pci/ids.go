package pci

import "fmt"

// VendorMellanox is the PCI vendor id of NVIDIA networking (Mellanox).
const VendorMellanox = 0x15b3

// Kind says what a function of vendor 0x15b3 is for.
type Kind string

const (
	// KindHCA is a function that mlx5 drives, physical or virtual.
	KindHCA Kind = "hca"
	// KindRecovery is a chip without running firmware: no initialization
	// segment, only the vendor-specific capability works; a driver must not bind.
	KindRecovery Kind = "flash-recovery"
	// KindMLX4 is a ConnectX … ConnectX-3 function, driven by mlx4.
	KindMLX4 Kind = "mlx4"
	// KindRelated is another function of an mlx5 chip or card: a PCIe bridge or
	// switch, a BlueField SoC or management function.
	KindRelated Kind = "related"
	// KindUnknown is an id of the vendor that no table here has.
	KindUnknown Kind = "unknown"
	// KindForeign is a function of another vendor.
	KindForeign Kind = "foreign"
)

// ID is what the id tables say about a device id of vendor 0x15b3.
//
// Sources: the mlx5_core_pci_table of Linux 6.12 core/main.c (equal to the
// table of rdma-core providers/mlx5/mlx5.c), pci.ids, mstflint
// dev_mgt/tools_dev_types.c for the hardware ids.
type ID struct {
	Device uint16 `json:"device"`
	Kind   Kind   `json:"kind"`
	// Name is the marketing name, "ConnectX-5".
	Name string `json:"name"`
	// Chip is the part family, "MT27800"; "" when no source names it.
	Chip string `json:"chip,omitempty"`
	// VF marks ids used by virtual functions.
	VF bool `json:"vf,omitempty"`
	// BlueField marks controllers that are part of a DPU.
	BlueField bool `json:"bluefield,omitempty"`
	// HWDevID is what the chip itself calls its type (MGIR.hw_info.hw_dev_id
	// and CR space 0xf0014 bits 15:0): the PCI id of the same chip in
	// flash-recovery mode. 0 when no source gives it.
	HWDevID uint16 `json:"hw_dev_id,omitempty"`
}

// hcaIDs are the 25 functions of the mlx5 table. From ConnectX-6 Dx on, every
// VF has the common id 0x101e.
var hcaIDs = []ID{
	{Device: 0x1011, Name: "Connect-IB", Chip: "MT27600", HWDevID: 0x1ff},
	{Device: 0x1012, Name: "Connect-IB VF", Chip: "MT27600", VF: true},
	{Device: 0x1013, Name: "ConnectX-4", Chip: "MT27700", HWDevID: 0x209},
	{Device: 0x1014, Name: "ConnectX-4 VF", Chip: "MT27700", VF: true},
	{Device: 0x1015, Name: "ConnectX-4 Lx", Chip: "MT27710", HWDevID: 0x20b},
	{Device: 0x1016, Name: "ConnectX-4 Lx VF", Chip: "MT27710", VF: true},
	{Device: 0x1017, Name: "ConnectX-5", Chip: "MT27800", HWDevID: 0x20d},
	{Device: 0x1018, Name: "ConnectX-5 VF", Chip: "MT27800", VF: true},
	{Device: 0x1019, Name: "ConnectX-5 Ex", Chip: "MT28800", HWDevID: 0x20d},
	{Device: 0x101a, Name: "ConnectX-5 Ex VF", Chip: "MT28800", VF: true},
	{Device: 0x101b, Name: "ConnectX-6", Chip: "MT28908", HWDevID: 0x20f},
	{Device: 0x101c, Name: "ConnectX-6 VF", Chip: "MT28908", VF: true},
	{Device: 0x101d, Name: "ConnectX-6 Dx", Chip: "MT2892", HWDevID: 0x212},
	{Device: 0x101e, Name: "ConnectX family mlx5Gen VF", VF: true},
	{Device: 0x101f, Name: "ConnectX-6 Lx", Chip: "MT2894", HWDevID: 0x216},
	{Device: 0x1021, Name: "ConnectX-7", Chip: "MT2910", HWDevID: 0x218},
	{Device: 0x1023, Name: "ConnectX-8", Chip: "CX8", HWDevID: 0x21e},
	{Device: 0x1025, Name: "ConnectX-9", Chip: "CX9", HWDevID: 0x224},
	{Device: 0x1027, Name: "ConnectX-10", Chip: "CX10"},
	{Device: 0x2101, Name: "ConnectX-10 NVLink-C2C", Chip: "CX10"},
	{Device: 0xa2d2, Name: "BlueField integrated ConnectX-5", Chip: "MT416842", BlueField: true, HWDevID: 0x211},
	{Device: 0xa2d3, Name: "BlueField integrated ConnectX-5 VF", Chip: "MT416842", BlueField: true, VF: true},
	{Device: 0xa2d6, Name: "BlueField-2 integrated ConnectX-6 Dx", Chip: "MT42822", BlueField: true, HWDevID: 0x214},
	{Device: 0xa2dc, Name: "BlueField-3 integrated ConnectX-7", Chip: "MT43244", BlueField: true, HWDevID: 0x21c},
	// mstflint gives BlueField-4 two hardware ids in two tables: none is claimed.
	{Device: 0xa2df, Name: "BlueField-4 integrated ConnectX-8", Chip: "BF4", BlueField: true},
}

var recoveryIDs = []ID{
	{Device: 0x01f6, Name: "ConnectX-3 flash recovery", Chip: "MT27500"},
	{Device: 0x01f8, Name: "ConnectX-3 Pro flash recovery", Chip: "MT27520"},
	{Device: 0x01ff, Name: "Connect-IB flash recovery", Chip: "MT27600"},
	{Device: 0x0209, Name: "ConnectX-4 flash recovery", Chip: "MT27700"},
	{Device: 0x020b, Name: "ConnectX-4 Lx flash recovery", Chip: "MT27710"},
	{Device: 0x020d, Name: "ConnectX-5 flash recovery", Chip: "MT28800"},
	{Device: 0x020f, Name: "ConnectX-6 flash recovery", Chip: "MT28908A0"},
	{Device: 0x0210, Name: "ConnectX-6 secure flash recovery", Chip: "MT28908A0"},
	{Device: 0x0211, Name: "BlueField flash recovery", Chip: "MT416842", BlueField: true},
	{Device: 0x0212, Name: "ConnectX-6 Dx flash recovery", Chip: "MT2892"},
	{Device: 0x0213, Name: "ConnectX-6 Dx secure flash recovery", Chip: "MT2892"},
	{Device: 0x0214, Name: "BlueField-2 flash recovery", Chip: "MT42822", BlueField: true},
	{Device: 0x0215, Name: "BlueField-2 secure flash recovery", Chip: "MT42822", BlueField: true},
	{Device: 0x0216, Name: "ConnectX-6 Lx flash recovery", Chip: "MT2894"},
	{Device: 0x0217, Name: "ConnectX-6 Lx secure flash recovery", Chip: "MT2894"},
	{Device: 0x0218, Name: "ConnectX-7 flash recovery", Chip: "MT2910"},
	{Device: 0x0219, Name: "ConnectX-7 secure flash recovery", Chip: "MT2910"},
	{Device: 0x021a, Name: "BlueField-3 Lx flash recovery", Chip: "MT43162", BlueField: true},
	{Device: 0x021b, Name: "BlueField-3 Lx secure flash recovery", Chip: "MT43162", BlueField: true},
	{Device: 0x021c, Name: "BlueField-3 flash recovery", Chip: "MT43244", BlueField: true},
	{Device: 0x021d, Name: "BlueField-3 secure flash recovery", Chip: "MT43244", BlueField: true},
	{Device: 0x021e, Name: "ConnectX-8 flash recovery", Chip: "CX8"},
	{Device: 0x021f, Name: "ConnectX-8 secure flash recovery", Chip: "CX8"},
	{Device: 0x0220, Name: "BlueField-4 flash recovery", Chip: "BF4", BlueField: true},
	{Device: 0x0221, Name: "BlueField-4 secure flash recovery", Chip: "BF4", BlueField: true},
	{Device: 0x0222, Name: "ConnectX-8 PCIe switch flash recovery", Chip: "CX8"},
	{Device: 0x0223, Name: "ConnectX-8 PCIe switch secure flash recovery (RMA)", Chip: "CX8"},
	{Device: 0x0224, Name: "ConnectX-9 flash recovery", Chip: "CX9"},
	{Device: 0x0225, Name: "ConnectX-9 secure flash recovery (RMA)", Chip: "CX9"},
	{Device: 0x0226, Name: "ConnectX-10 flash recovery", Chip: "CX10"},
	{Device: 0x0227, Name: "ConnectX-10 RMA", Chip: "CX10"},
	{Device: 0x0228, Name: "ConnectX-9 PCIe switch flash recovery", Chip: "CX9"},
	{Device: 0x0229, Name: "ConnectX-9 PCIe switch secure flash recovery (RMA)", Chip: "CX9"},
	{Device: 0x022a, Name: "ConnectX-11 flash recovery", Chip: "CX11"},
	{Device: 0x022b, Name: "ConnectX-11 RMA", Chip: "CX11"},
}

var relatedIDs = []ID{
	{Device: 0x1020, Name: "MT28860", Chip: "MT28860"},
	{Device: 0x1024, Name: "ConnectX-8 PCIe switch", Chip: "CX8"},
	{Device: 0x1028, Name: "ConnectX-10 trusted network control memory", Chip: "CX10"},
	// In pci.ids, not in the Linux 6.12 table: no driver here claims to know it.
	{Device: 0x1029, Name: "ConnectX-11", Chip: "CX11"},
	{Device: 0x102a, Name: "ConnectX-11 trusted network control memory", Chip: "CX11"},
	{Device: 0x1974, Name: "ConnectX-5 PCIe bridge", Chip: "MT28800"},
	{Device: 0x1976, Name: "ConnectX-6 PCIe bridge", Chip: "MT28908"},
	{Device: 0x1977, Name: "ConnectX-6 Dx PCIe bridge", Chip: "MT2892"},
	{Device: 0x1979, Name: "ConnectX-7 PCIe bridge", Chip: "MT2910"},
	{Device: 0x197d, Name: "ConnectX-8 PCIe bridge", Chip: "CX8"},
	{Device: 0x197e, Name: "ConnectX-9 PCIe bridge", Chip: "CX9"},
	{Device: 0x197f, Name: "ConnectX-10 PCIe bridge", Chip: "CX10"},
	{Device: 0x2020, Name: "ConnectX-6 Dx emulated PCIe bridge", Chip: "MT2892"},
	{Device: 0x2023, Name: "ConnectX-7 emulated PCIe bridge", Chip: "MT2910"},
	{Device: 0x2100, Name: "ConnectX-8 Data Direct interface", Chip: "CX8"},
	{Device: 0x2102, Name: "ConnectX-11 NVLink-C2C", Chip: "CX11"},
	{Device: 0xa2d0, Name: "BlueField SoC, crypto enabled", Chip: "MT416842", BlueField: true},
	{Device: 0xa2d1, Name: "BlueField SoC, crypto disabled", Chip: "MT416842", BlueField: true},
	{Device: 0xa2d4, Name: "BlueField-2 SoC, crypto enabled", Chip: "MT42822", BlueField: true},
	{Device: 0xa2d5, Name: "BlueField-2 SoC, crypto disabled", Chip: "MT42822", BlueField: true},
	{Device: 0xa2d7, Name: "BlueField-3 Lx SoC, crypto enabled", Chip: "MT43162", BlueField: true},
	{Device: 0xa2d8, Name: "BlueField-3 Lx SoC, crypto disabled", Chip: "MT43162", BlueField: true},
	{Device: 0xa2d9, Name: "BlueField-3 Lx integrated ConnectX-7", Chip: "MT43162", BlueField: true},
	{Device: 0xa2da, Name: "BlueField-3 SoC, crypto enabled", Chip: "MT43244", BlueField: true},
	{Device: 0xa2db, Name: "BlueField-3 SoC, crypto disabled", Chip: "MT43244", BlueField: true},
	{Device: 0xa2dd, Name: "BlueField-4 SoC, crypto enabled", Chip: "BF4", BlueField: true},
	{Device: 0xa2de, Name: "BlueField-4 SoC, crypto disabled", Chip: "BF4", BlueField: true},
	{Device: 0xc2d1, Name: "BlueField auxiliary communication channel", BlueField: true},
	{Device: 0xc2d2, Name: "BlueField SoC management interface", Chip: "MT416842", BlueField: true},
	{Device: 0xc2d3, Name: "BlueField-2 SoC management interface", Chip: "MT42822", BlueField: true},
	{Device: 0xc2d4, Name: "BlueField-3 Lx SoC management interface", Chip: "MT43162", BlueField: true},
	{Device: 0xc2d5, Name: "BlueField-3 SoC management interface", Chip: "MT43244", BlueField: true},
	{Device: 0xc2d6, Name: "BlueField-4 SoC management interface", Chip: "BF4", BlueField: true},
	{Device: 0xcaf1, Name: "ConnectX-4 CAPI function"},
}

// mlx4IDs are the cards people ask about most; pci.ids has the rest of the
// mlx4 range, which isMLX4 covers.
var mlx4IDs = []ID{
	{Device: 0x1002, Name: "ConnectX-2 VF", Chip: "MT25400", VF: true},
	{Device: 0x1003, Name: "ConnectX-3", Chip: "MT27500"},
	{Device: 0x1004, Name: "ConnectX-3 / ConnectX-3 Pro VF", Chip: "MT27500", VF: true},
	{Device: 0x1007, Name: "ConnectX-3 Pro", Chip: "MT27520"},
	{Device: 0x673c, Name: "ConnectX VPI", Chip: "MT25408"},
	{Device: 0x6750, Name: "ConnectX EN", Chip: "MT26448"},
}

// isMLX4 tells the remaining ids of the mlx4 generation: the MT275xx family
// and the first ConnectX chips (MT25408 … MT26488).
func isMLX4(device uint16) bool {
	return device >= 0x1002 && device <= 0x1010 || device >= 0x6340 && device <= 0x6778
}

var idTable = func() map[uint16]ID {
	m := make(map[uint16]ID, len(hcaIDs)+len(recoveryIDs)+len(relatedIDs)+len(mlx4IDs))
	for _, part := range []struct {
		kind Kind
		ids  []ID
	}{{KindHCA, hcaIDs}, {KindRecovery, recoveryIDs}, {KindRelated, relatedIDs}, {KindMLX4, mlx4IDs}} {
		for _, id := range part.ids {
			id.Kind = part.kind
			m[id.Device] = id
		}
	}
	return m
}()

// Lookup names a function. It always answers: an id that is in no table comes
// back with Kind KindUnknown and its number as name, another vendor's with
// KindForeign.
func Lookup(vendor, device uint16) ID {
	if vendor != VendorMellanox {
		return ID{Device: device, Kind: KindForeign, Name: "device of another vendor"}
	}
	if id, ok := idTable[device]; ok {
		return id
	}
	if isMLX4(device) {
		return ID{Device: device, Kind: KindMLX4, Name: fmt.Sprintf("ConnectX of the mlx4 generation (%04x)", device)}
	}
	return ID{Device: device, Kind: KindUnknown, Name: fmt.Sprintf("unknown Mellanox device %04x", device)}
}

// HCAs returns the ids that mlx5 drives, in table order. The slice is the
// caller's.
func HCAs() []ID {
	out := make([]ID, 0, len(hcaIDs))
	for _, id := range hcaIDs {
		id.Kind = KindHCA
		out = append(out, id)
	}
	return out
}
