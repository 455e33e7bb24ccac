package pci

import "slices"

// FindingID names a kind of finding; programs may rely on it.
type FindingID string

// What the doctor can find. The catalogue below says what each means.
const (
	NotMLX5       FindingID = "not-mlx5"
	MLX4          FindingID = "mlx4"
	FlashRecovery FindingID = "flash-recovery"

	AllOnesConfig FindingID = "all-ones"
	BadConfig     FindingID = "bad-config"
	NoMSIX        FindingID = "no-msix"
	Unreadable    FindingID = "unreadable"
	StuckPower    FindingID = "stuck-power"
	Asleep        FindingID = "asleep"
	NoBAR         FindingID = "bar-unassigned"
	LinkDegraded  FindingID = "link-degraded"
	PayloadSize   FindingID = "payload-size"
	NoReset       FindingID = "no-reset"

	NoIOMMU         FindingID = "no-iommu"
	NoIOMMUMode     FindingID = "noiommu-mode"
	VMWithoutIOMMU  FindingID = "vm-without-iommu"
	GroupNotViable  FindingID = "group-not-viable"
	GroupShared     FindingID = "group-shared"
	ReservedDirect  FindingID = "reserved-direct"
	ReservedOther   FindingID = "reserved-regions"
	NarrowIOMMU     FindingID = "narrow-iommu"
	NoRemapping     FindingID = "no-interrupt-remapping"
	UnsafeRemapping FindingID = "unsafe-interrupts"
	VirtioIOMMU     FindingID = "virtio-iommu"

	NoIOMMUNotBuilt FindingID = "noiommu-not-built"
	NoRawIO         FindingID = "noiommu-rawio"
	NoPagemap       FindingID = "noiommu-pagemap"
	NoHugePages     FindingID = "noiommu-huge-pages"
	NoIOMMULockdown FindingID = "noiommu-lockdown"
	NoIOMMULeft     FindingID = "noiommu-left-on"
	NoIOMMUOn       FindingID = "noiommu-on"
	NoIOMMUOff      FindingID = "noiommu-off"

	ModuleMissing FindingID = "module-missing"
	BackendAbsent FindingID = "backend-absent"

	InterruptedBind   FindingID = "interrupted-bind"
	InterruptedUnbind FindingID = "interrupted-unbind"
	JournalBad        FindingID = "journal-unreadable"
	JournalOld        FindingID = "journal-stale"
	JournalLeft       FindingID = "journal-left"

	NotBound         FindingID = "not-bound"
	OverrideSpelling FindingID = "override-spelling"
	BindPermission   FindingID = "bind-permission"
	SysfsReadOnly    FindingID = "sysfs-read-only"
	NetdevUp         FindingID = "netdev-up"
	NetdevMember     FindingID = "netdev-member"
	NetdevRoutes     FindingID = "netdev-routes"
	VFsEnabled       FindingID = "vfs-enabled"
	VFsOnVFIO        FindingID = "vfs-on-vfio"
	VFToken          FindingID = "vf-needs-token"

	ContainerMissing    FindingID = "container-missing"
	ContainerPermission FindingID = "container-permission"
	NodeMissing         FindingID = "node-missing"
	NodeStale           FindingID = "node-stale"
	NodePermission      FindingID = "node-permission"
	CdevMissing         FindingID = "cdev-missing"
	CdevStale           FindingID = "cdev-stale"
	CdevPermission      FindingID = "cdev-permission"
	IOMMUFDMissing      FindingID = "iommufd-missing"
	IOMMUFDStale        FindingID = "iommufd-stale"
	IOMMUFDPermission   FindingID = "iommufd-permission"
	IOMMUFDSkipped      FindingID = "iommufd-skipped"
	Busy                FindingID = "busy"
	MemlockSmall        FindingID = "memlock"
	MemlockTight        FindingID = "memlock-tight"

	Lockdown   FindingID = "lockdown"
	SecureBoot FindingID = "secure-boot"
)

// FindingInfo is what a kind of finding means.
type FindingInfo struct {
	ID       FindingID `json:"id"`
	Severity Severity  `json:"severity"`
	// Machine marks findings about the machine or the calling process.
	Machine bool `json:"machine,omitempty"`
	// Title is the finding in a few words.
	Title string `json:"title"`
	// Why says why it matters.
	Why string `json:"why"`
	// Need is what an open needs, for a table cell; only findings that block have it.
	Need string `json:"need,omitempty"`

	never bool // no command changes it
}

// Findings is the catalogue of everything the doctor can find, in the order in
// which an open meets it. The slice is the caller's.
func Findings() []FindingInfo { return slices.Clone(findings) }

var findings = []FindingInfo{
	{ID: NotMLX5, Severity: Blocks, Need: "not an mlx5 function", never: true, Title: "not a ConnectX function",
		Why: "only functions of the mlx5 table have the command interface that this driver speaks"},
	{ID: MLX4, Severity: Blocks, Need: "mlx4 card", never: true, Title: "a card of the mlx4 generation",
		Why: "ConnectX to ConnectX-3 have another command interface"},
	{ID: FlashRecovery, Severity: Blocks, Need: "firmware in its flash", Title: "the chip is in flash-recovery mode",
		Why: "no firmware runs, there is no initialization segment; a driver must not bind"},
	{ID: AllOnesConfig, Severity: Blocks, Need: "a device that answers", Title: "the configuration space reads all ones",
		Why: "the function is gone, without power, or behind a dead link"},
	{ID: BadConfig, Severity: Warning, Title: "the configuration space contradicts itself",
		Why: "capabilities behind the broken place are not found, by the kernel neither"},
	{ID: NoMSIX, Severity: Blocks, Need: "MSI-X or --polled", Title: "no MSI-X capability",
		Why: "mlx5 has no other interrupts; without them completions and events must be polled"},
	{ID: Unreadable, Severity: Warning, Title: "attributes of the function cannot be read",
		Why: "a function in D3cold or behind a dead link fails such reads"},
	{ID: StuckPower, Severity: Blocks, Need: "power", Title: "the function does not come out of low power",
		Why: "its registers cannot be reached, and nothing is going to wake it"},
	{ID: Asleep, Severity: Note, Title: "the function sleeps",
		Why: "the kernel suspends an idle function; an open wakes it, and until then its BARs read nothing"},
	{ID: LinkDegraded, Severity: Note, Title: "the link is slower or narrower than the function",
		Why: "everything works, and transfers take longer"},
	{ID: PayloadSize, Severity: Warning, Title: "the function sends larger packets than the port above takes",
		Why: "the port answers a packet that is too large with an error, at the first DMA that is long enough; then the device looks dead"},
	{ID: NoReset, Severity: Warning, Title: "the kernel has no way to reset the function",
		Why: "what the last user left, an open then finds; and a device that is stuck cannot be recovered"},
	{ID: NoBAR, Severity: Blocks, Need: "an address for BAR 0", Title: "BAR 0 has no address",
		Why: "the initialization segment and the doorbells are in BAR 0"},
	{ID: NoIOMMU, Severity: Blocks, Need: "an IOMMU", Title: "the function is in no IOMMU group",
		Why: "nothing would keep the device from writing anywhere in memory; VFIO refuses that"},
	{ID: VMWithoutIOMMU, Severity: Note, Machine: true, Title: "a virtual machine without an IOMMU of its own",
		Why: "a guest sees an IOMMU only when its hypervisor offers one"},
	{ID: NoIOMMUMode, Severity: Warning, Title: "no-IOMMU mode",
		Why: "the device can write anywhere in memory"},
	{ID: GroupNotViable, Severity: Blocks, Need: "its group's other functions off their drivers", Title: "the IOMMU group is not viable",
		Why: "functions of a group can reach each other's memory: VFIO gives all of it or nothing. Bridges with pcieport do not count"},
	{ID: GroupShared, Severity: Note, Title: "the IOMMU group has other functions",
		Why: "without ACS between them they are not isolated from each other, and one user must have them all"},
	{ID: ReservedDirect, Severity: Blocks, Need: "no RMRR on it", Title: "firmware reserves memory for the function (RMRR, direct)",
		Why: "the platform's firmware wants DMA of this function mapped one to one; the kernel then refuses it to user space"},
	{ID: ReservedOther, Severity: Note, Title: "reserved ranges of I/O addresses",
		Why: "DMA memory is never mapped there; the driver's allocator leaves them out"},
	{ID: NarrowIOMMU, Severity: Note, Title: "the IOMMU translates fewer than 48 bits of an address",
		Why: "emulated units have 39 often; the driver's allocator takes what the kernel offers, programs that choose addresses by themselves fail with EINVAL"},
	{ID: NoRemapping, Severity: Blocks, Machine: true, Need: "interrupt remapping", Title: "interrupts are not remapped",
		Why: "a device could forge interrupts with plain writes; VFIO refuses with EPERM: type1 when the group gets its IOMMU (VFIO_SET_IOMMU), iommufd when the function is bound to it (VFIO_DEVICE_BIND_IOMMUFD, and VFIO_GROUP_GET_DEVICE_FD where it answers on /dev/vfio/vfio)"},
	{ID: UnsafeRemapping, Severity: Warning, Machine: true, Title: "interrupts are not remapped, and that is allowed",
		Why: "the device can forge interrupts of the host"},
	{ID: VirtioIOMMU, Severity: Note, Title: "a virtio-iommu is in charge of the function",
		Why: "a virtio-iommu translates memory accesses and nothing else: on x86 a write to the interrupt window stays a plain write that it does not judge, so no machine with it remaps interrupts, and the hypervisor must offer another IOMMU for that"},
	{ID: NoIOMMUNotBuilt, Severity: Blocks, Machine: true, Need: "a kernel with VFIO_NOIOMMU", Title: "the kernel is built without no-IOMMU mode",
		Why: "vfio-pci then takes no function that has no IOMMU"},
	{ID: NoRawIO, Severity: Blocks, Machine: true, Need: "CAP_SYS_RAWIO", Title: "the process lacks CAP_SYS_RAWIO",
		Why: "who opens a function that no IOMMU guards can read and write all memory, so the kernel wants this capability, whatever the file's owner"},
	{ID: NoPagemap, Severity: Blocks, Machine: true, Need: "physical addresses", Title: "physical addresses are hidden from the process",
		Why: "without an IOMMU the device is told physical addresses, and /proc/self/pagemap shows 0 for each without CAP_SYS_ADMIN"},
	{ID: NoHugePages, Severity: Blocks, Machine: true, Need: "huge pages", Title: "too few huge pages of 2 MiB are free",
		Why: "without an IOMMU memory must be contiguous for the device by itself, and must not move: only reserved huge pages are both"},
	{ID: NoIOMMULockdown, Severity: Warning, Machine: true, Title: "the kernel is locked down, and no IOMMU guards it",
		Why: "mainline kernels let no-IOMMU mode be, although it undoes what a lockdown promises; kernels that carry a check for it refuse the open with EPERM"},
	{ID: NoIOMMUOff, Severity: Blocks, Machine: true, Need: "no-IOMMU mode on", Title: "no-IOMMU mode was turned off under the function",
		Why: "the kernel asks for the mode at the bind and again at each open; vfio-pci keeps the function, and nobody can open it"},
	{ID: NoIOMMULeft, Severity: Warning, Machine: true, Title: "no-IOMMU mode was left on and no function needs it",
		Why: "any function without IOMMU that gets vfio-pci is unguarded as long as it is on"},
	{ID: NoIOMMUOn, Severity: Note, Machine: true, Title: "no-IOMMU mode is on",
		Why: "any function without IOMMU that gets vfio-pci is unguarded; mlxvfio turns the mode on at a bind --unsafe-noiommu and off at the last unbind, but leaves alone what others turned on"},
	{ID: ModuleMissing, Severity: Blocks, Machine: true, Need: "modprobe", Title: "a VFIO module is not loaded",
		Why: "vfio-pci is the driver to bind, vfio_iommu_type1 makes the mappings where an open goes by the group; where iommufd makes them, by itself or behind /dev/vfio/vfio, it is not needed"},
	{ID: BackendAbsent, Severity: Blocks, Need: "another --backend", Title: "the way in that was asked for does not exist",
		Why: "a kernel offers the function's own file (iommufd), its group's (type1) or both, and a group without IOMMU only where there is none"},
	{ID: JournalBad, Severity: Warning, Title: "the journal of a bind is damaged",
		Why: "bind and unbind refuse to work without knowing the original driver"},
	{ID: InterruptedBind, Severity: Blocks, Need: "unbind (a bind was cut off)", Title: "a bind was cut off half-way",
		Why: "the function is between two drivers; the journal knows the way back, and bind would complete the way there"},
	{ID: InterruptedUnbind, Severity: Warning, Title: "an unbind was cut off half-way",
		Why: "the function is with vfio-pci still, but not by its driver_override"},
	{ID: JournalLeft, Severity: Note, Title: "a journal was left over",
		Why: "the function is as it was before the bind; only the file remains"},
	{ID: JournalOld, Severity: Note, Title: "a journal of another device",
		Why: "the card in this slot was exchanged; the next bind overwrites it"},
	{ID: NotBound, Severity: Blocks, Need: "bind", Title: "the function is not with vfio-pci",
		Why: "user space can open only what a VFIO driver has"},
	{ID: OverrideSpelling, Severity: Warning, Title: "driver_override names no driver",
		Why: "the module is vfio_pci, the driver vfio-pci; with the wrong one no driver takes the function"},
	{ID: BindPermission, Severity: Blocks, Need: "root", Title: "this process may not bind",
		Why: "bind writes to sysfs"},
	{ID: SysfsReadOnly, Severity: Blocks, Need: "a writable /sys", Title: "sysfs is mounted read-only",
		Why: "bind writes to sysfs; containers often have it read-only"},
	{ID: NetdevUp, Severity: Blocks, Need: "its interface down", Title: "a network interface of the function is up",
		Why: "bind refuses to take a function away that the host uses"},
	{ID: NetdevMember, Severity: Blocks, Need: "its interface out of the bond or bridge", Title: "a network interface is part of a bond or bridge",
		Why: "bind refuses to take a function away that the host uses"},
	{ID: NetdevRoutes, Severity: Blocks, Need: "its routes moved", Title: "a network interface holds routes",
		Why: "bind refuses to take a function away that the host uses; this may be the way you are logged in"},
	{ID: VFsEnabled, Severity: Blocks, Need: "its VFs off", Title: "virtual functions are enabled",
		Why: "they go when their physical function leaves its driver"},
	{ID: VFsOnVFIO, Severity: Warning, Title: "virtual functions of a function with vfio-pci are enabled",
		Why: "the kernel trusts them only to users that share a VF token with whoever has this function"},
	{ID: VFToken, Severity: Blocks, Need: "its PF off vfio-pci", Title: "the physical function is with vfio-pci",
		Why: "a user of the PF controls its VFs: the kernel gives a VF only for a VF token, which this driver has none of"},
	{ID: ContainerMissing, Severity: Blocks, Machine: true, Need: "/dev/vfio/vfio", Title: "/dev/vfio/vfio is missing",
		Why: "it is where a container of DMA mappings is opened"},
	{ID: ContainerPermission, Severity: Blocks, Machine: true, Need: "permission", Title: "no permission on /dev/vfio/vfio",
		Why: "it is where a container of DMA mappings is opened"},
	{ID: NodeMissing, Severity: Blocks, Need: "its /dev/vfio node", Title: "the group's file in /dev/vfio is missing",
		Why: "udev or devtmpfs makes it; into a container it must be passed"},
	{ID: NodeStale, Severity: Blocks, Need: "its /dev/vfio node", Title: "the group's file in /dev/vfio is another device's",
		Why: "a node that was made by hand or passed into a container outlived its group"},
	{ID: NodePermission, Severity: Blocks, Need: "permission", Title: "no permission on the group's file in /dev/vfio",
		Why: "the kernel makes it for root"},
	{ID: CdevMissing, Severity: Blocks, Need: "its /dev/vfio/devices node", Title: "the function's file in /dev/vfio/devices is missing",
		Why: "udev or devtmpfs makes it; into a container it must be passed, and there is no other way here"},
	{ID: CdevStale, Severity: Blocks, Need: "its /dev/vfio/devices node", Title: "the function's file in /dev/vfio/devices is another device's",
		Why: "the numbers of vfioN change with every bind; a node that was made by hand or passed into a container does not follow"},
	{ID: CdevPermission, Severity: Blocks, Need: "permission", Title: "no permission on the function's file in /dev/vfio/devices",
		Why: "the kernel makes it for root, and there is no other way here"},
	{ID: IOMMUFDMissing, Severity: Blocks, Machine: true, Need: "/dev/iommu", Title: "/dev/iommu is missing",
		Why: "it is where the DMA mappings of a function's own file are made"},
	{ID: IOMMUFDStale, Severity: Blocks, Machine: true, Need: "/dev/iommu", Title: "/dev/iommu is another device's",
		Why: "its minor number is drawn when the module is loaded; a node made by hand or passed into a container does not follow"},
	{ID: IOMMUFDPermission, Severity: Blocks, Machine: true, Need: "permission", Title: "no permission on /dev/iommu",
		Why: "the kernel makes it for root"},
	{ID: IOMMUFDSkipped, Severity: Note, Title: "iommufd is offered and not used",
		Why: "the kernel has the newer way in, this process does not reach all of it, and an open goes by the group instead; both do the same for this driver"},
	{ID: Busy, Severity: Blocks, Need: "its other user gone", Title: "another process has the function open",
		Why: "a group is opened once and a function's own file bound once, each keeps the other out, and the functions of a group have one owner"},
	{ID: MemlockSmall, Severity: Blocks, Machine: true, Need: "memlock", Title: "RLIMIT_MEMLOCK is too small",
		Why: "every page that is mapped for DMA is pinned and counts against it, unless the process has CAP_IPC_LOCK; type1 counts it for the process, iommufd for the user, with all of the user's processes"},
	{ID: MemlockTight, Severity: Warning, Machine: true, Title: "RLIMIT_MEMLOCK may be too small",
		Why: "how many pages firmware asks for is known only when it runs; some take fifty megabytes"},
	{ID: Lockdown, Severity: Note, Machine: true, Title: "the kernel is locked down",
		Why: "BARs cannot be mapped through sysfs and modules must be signed; VFIO works all the same"},
	{ID: SecureBoot, Severity: Note, Machine: true, Title: "Secure Boot is on",
		Why: "many kernels then refuse unsigned modules and lock themselves down"},
}

// catalogue finds the meaning of an id.
var catalogue = func() map[FindingID]FindingInfo {
	m := make(map[FindingID]FindingInfo, len(findings))
	for _, f := range findings {
		m[f.ID] = f
	}
	return m
}()
