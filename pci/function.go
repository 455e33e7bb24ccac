package pci

// Function is what sysfs shows of one PCI function at one moment. It holds no
// open file. Numbers the kernel does not offer are -1 where 0 would mean
// something, else 0; absent texts are "".
type Function struct {
	BDF BDF `json:"bdf"`
	// ID names the function; Vendor and Device are the raw ids.
	ID        ID     `json:"id"`
	Vendor    uint16 `json:"vendor"`
	Device    uint16 `json:"device"`
	SubVendor uint16 `json:"subvendor"`
	SubDevice uint16 `json:"subdevice"`
	Revision  uint8  `json:"revision"`
	// Class is the 24-bit class code: 0x020000 Ethernet, 0x020700 InfiniBand.
	Class uint32 `json:"class"`

	// Driver is the driver bound, "" for none.
	Driver string `json:"driver"`
	// DriverOverride is the only driver allowed to bind, "" for any.
	DriverOverride string `json:"driver_override"`

	// IOMMU is nil when the function is in no group.
	IOMMU *Group `json:"iommu,omitempty"`
	// Unit is the IOMMU in charge of the function, nil when sysfs names none.
	Unit *Unit `json:"iommu_unit,omitempty"`
	// VFIONode is "/dev/vfio/GROUP" and VFIOCdev "/dev/vfio/devices/vfioN" when
	// a VFIO driver has the function and the kernel offers them.
	VFIONode string `json:"vfio_node,omitempty"`
	VFIOCdev string `json:"vfio_cdev,omitempty"`
	// VFIO are those files as they stand in /dev, with what goes with them; nil
	// when no VFIO driver has the function.
	VFIO *VFIONodes `json:"vfio,omitempty"`

	// NUMANode is -1 when the platform does not say.
	NUMANode int  `json:"numa_node"`
	Link     Link `json:"link"`

	// IsVF: the function is a virtual function, known by its physfn link or,
	// inside a VM where that link is missing, by its device id.
	IsVF bool `json:"is_vf"`
	// PhysFn is the PF of a VF, nil when unknown. VFs are the VFs of a PF.
	PhysFn *BDF  `json:"physfn,omitempty"`
	VFs    []BDF `json:"virtfns,omitempty"`
	// NumVFs and TotalVFs are -1 when the function has no SR-IOV control.
	NumVFs   int `json:"sriov_numvfs"`
	TotalVFs int `json:"sriov_totalvfs"`

	Netdevs []Netdev `json:"netdevs,omitempty"`
	// Infiniband are the names of the function's RDMA devices ("mlx5_0").
	Infiniband []string `json:"infiniband,omitempty"`

	// PowerState is "D0", "D3hot", "D3cold" … or "unknown".
	PowerState string `json:"power_state"`
	// RuntimePM is the runtime power management state: "active", "suspended".
	RuntimePM string `json:"runtime_pm,omitempty"`
	// Enable is how many times the kernel has enabled the device, -1 unknown.
	Enable int `json:"enable"`
	// ResetMethods are what the kernel would try in order: "flr", "bus", …
	ResetMethods []string `json:"reset_methods,omitempty"`

	// BARs are the regions in use, by index; unused ones are left out.
	BARs []BAR `json:"bars,omitempty"`
	// ROMSize is the size of the expansion ROM in bytes, 0 for none.
	ROMSize uint64 `json:"rom_size,omitempty"`
	IRQ     int    `json:"irq"`
	// ConfigSize is the size of the configuration space: 256 or 4096 bytes.
	ConfigSize int `json:"config_size"`
	// Unreadable lists attributes that exist but could not be read, each with
	// the kernel's reason: a sign of a device in D3 or behind a dead link.
	Unreadable []string `json:"unreadable,omitempty"`
}

// IsMLX5 reports whether mlx5 drives this function.
func (f *Function) IsMLX5() bool { return f.ID.Kind == KindHCA }

// BAR0 gives the region of the initialization segment, nil when there is none.
func (f *Function) BAR0() *BAR {
	for i := range f.BARs {
		if f.BARs[i].Index == 0 {
			return &f.BARs[i]
		}
	}
	return nil
}

// Group is an IOMMU group: the unit in which functions are given to user space.
type Group struct {
	Number int `json:"number"`
	// Type is the kind of default domain: "DMA", "DMA-FQ", "identity", …
	Type string `json:"type,omitempty"`
	// NoIOMMU marks a group that VFIO made up in no-IOMMU mode.
	NoIOMMU bool `json:"no_iommu,omitempty"`
	// Members are all functions of the group, this one included, by address.
	Members []Member `json:"members"`
	// Reserved are IOVA ranges that must not be mapped.
	Reserved []ReservedRegion `json:"reserved,omitempty"`
}

// Member is a function of an IOMMU group.
type Member struct {
	BDF    BDF    `json:"bdf"`
	Driver string `json:"driver"`
	Class  uint32 `json:"class"`
	Vendor uint16 `json:"vendor"`
	Device uint16 `json:"device"`
	// VFIOCdev is its own file in /dev/vfio/devices, where it has one.
	VFIOCdev string `json:"vfio_cdev,omitempty"`
}

// Blocks reports whether this member's driver keeps the group from being given
// to user space. Members without driver, on a VFIO driver or pci-stub, and
// ports driven by pcieport do not (Linux drivers that set driver_managed_dma).
func (m Member) Blocks() bool {
	return m.Driver != "" && m.Driver != "pcieport" && m.Driver != "pci-stub" && !IsVFIO(m.Driver)
}

// Siblings are the members of a group other than b.
func (g *Group) Siblings(b BDF) []Member {
	var out []Member
	for _, m := range g.Members {
		if m.BDF != b {
			out = append(out, m)
		}
	}
	return out
}

// ReservedRegion is a range of IOVA with both ends included. Type "msi" is
// ordinary; "direct" (an RMRR of the firmware) makes VFIO refuse the group.
type ReservedRegion struct {
	Start uint64 `json:"start"`
	End   uint64 `json:"end"`
	Type  string `json:"type"`
}

// Link is the PCIe link; texts as the kernel words them ("8.0 GT/s PCIe"),
// widths in lanes, 0 when unknown.
type Link struct {
	CurrentSpeed string `json:"current_speed,omitempty"`
	CurrentWidth int    `json:"current_width,omitempty"`
	MaxSpeed     string `json:"max_speed,omitempty"`
	MaxWidth     int    `json:"max_width,omitempty"`
}

// Degraded reports whether the link runs below what the function could do.
func (l Link) Degraded() bool {
	return l.CurrentWidth > 0 && l.CurrentWidth < l.MaxWidth ||
		l.CurrentSpeed != "" && l.MaxSpeed != "" && gigatransfers(l.CurrentSpeed) < gigatransfers(l.MaxSpeed)
}

// Netdev is a network interface of the function, as seen from the network
// namespace in which sysfs was mounted.
type Netdev struct {
	Name      string `json:"name"`
	Up        bool   `json:"up"` // IFF_UP: administratively up
	OperState string `json:"operstate,omitempty"`
	// Master is the bond or bridge it belongs to.
	Master string `json:"master,omitempty"`
	// Uppers are interfaces stacked on it (bond, bridge, VLAN), to any depth:
	// they hold the routes when it holds none itself.
	Uppers []string `json:"uppers,omitempty"`
}

// BAR is one base address region.
type BAR struct {
	Index int `json:"index"`
	// Base is the bus address, 0 when none is assigned. Size is in bytes.
	Base         uint64 `json:"base"`
	Size         uint64 `json:"size"`
	IO           bool   `json:"io,omitempty"`
	Is64         bool   `json:"is64,omitempty"`
	Prefetchable bool   `json:"prefetchable,omitempty"`
}
