package pci

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
)

// vmRemedy gives a guest an IOMMU that also remaps interrupts.
const vmRemedy = "qemu-system-x86_64 -machine q35,kernel-irqchip=split -device intel-iommu,intremap=on,caching-mode=on  # on the host, in front of the guest's other devices"

// guestIOMMU is how the hypervisor gives this guest an IOMMU: on x86, whose cpuinfo
// alone has flags, one that also remaps interrupts.
func (h *host) guestIOMMU() string {
	if strings.Contains("\n"+h.cpuinfo(), "\nflags") {
		return vmRemedy
	}
	return "qemu-system-aarch64 -machine virt,iommu=smmuv3  # on the host; other architectures: the IOMMU that their machine offers"
}

// iommu: no group, or one that VFIO made up.
func (d *doctor) iommu() {
	if d.f.guarded() {
		return
	}
	what, made := d.attr("iommu_group")+" does not exist", d.f.IOMMU != nil
	if made {
		what = filepath.Join(d.o.groupDir(fmt.Sprint(d.f.IOMMU.Number)), "name") + " is vfio-noiommu"
	}
	seen, remedy := d.h.whyNoIOMMU()
	switch {
	case d.o.UnsafeNoIOMMU && made:
		d.found(NoIOMMUMode, "mlxvfio unbind "+d.b.String()+"  # ends it", "%s; the kernel is tainted (U) until it boots", what)
		return
	case d.o.UnsafeNoIOMMU:
		d.found(NoIOMMUMode, remedy, "%s; %s; a bind with --unsafe-noiommu does without and taints the kernel", what, seen)
		return
	}
	if d.o.Backend == BackendNoIOMMU {
		remedy = "mlxvfio doctor " + d.b.String() + " --backend noiommu --unsafe-noiommu  # accepts that; better: " + remedy
	}
	d.found(NoIOMMU, remedy, "%s; %s", what, seen)
	if ok, how := d.h.virtual(); ok {
		d.found(VMWithoutIOMMU, d.h.guestIOMMU(), "%s", how)
	}
}

// whyNoIOMMU looks where the IOMMU is lost: firmware, command line or kernel.
func (h *host) whyNoIOMMU() (seen, remedy string) {
	groups := filepath.Join(h.o.SysRoot, "kernel/iommu_groups")
	if entries, err := h.o.FS.ReadDir(groups); err == nil {
		n := 0
		for _, e := range entries {
			if g, err := readGroupName(h.o, e.Name()); err == nil && g != "vfio-noiommu" {
				n++
			}
		}
		if n > 0 {
			return fmt.Sprintf("%s has %d groups of other functions: no IOMMU unit is in charge of this one", groups, n),
				"dmesg | grep -iE 'DMAR|AMD-Vi|iommu'  # firmware tells the kernel which unit has which device"
		}
	}
	cmdline := filepath.Join(h.o.ProcRoot, "cmdline")
	for _, word := range []string{"iommu=off", "intel_iommu=off", "amd_iommu=off"} {
		if h.lastWord(word) {
			return fmt.Sprintf("%s is empty; %s has %s", groups, cmdline, word),
				fmt.Sprintf("grubby --update-kernel=ALL --remove-args=%s  # Debian: /etc/default/grub, then update-grub; then boot", word)
		}
	}
	tables := filepath.Join(h.o.SysRoot, "firmware/acpi/tables")
	_, noTables := h.o.FS.Stat(tables)
	_, noDMAR := h.o.FS.Stat(filepath.Join(tables, "DMAR"))
	_, noIVRS := h.o.FS.Stat(filepath.Join(tables, "IVRS"))
	switch {
	case noTables != nil:
		return groups + " is empty", "dmesg | grep -iE 'iommu|smmu'"
	case noDMAR == nil && !h.lastWord("intel_iommu=on"):
		return fmt.Sprintf("%s is empty; firmware offers VT-d (%s/DMAR), %s does not have intel_iommu=on", groups, tables, cmdline),
			"grubby --update-kernel=ALL --args=intel_iommu=on  # Debian: /etc/default/grub, then update-grub; then boot"
	case noDMAR == nil:
		return fmt.Sprintf("%s is empty in spite of intel_iommu=on in %s", groups, cmdline), "dmesg | grep -i DMAR"
	case noIVRS == nil:
		return fmt.Sprintf("%s is empty; firmware offers AMD-Vi (%s/IVRS)", groups, tables), "dmesg | grep -i AMD-Vi"
	}
	name := "the IOMMU"
	switch cpu := h.cpuinfo(); {
	case strings.Contains(cpu, "GenuineIntel"):
		name = "VT-d"
	case strings.Contains(cpu, "AuthenticAMD"):
		name = "AMD-Vi (IOMMU)"
	}
	seen = fmt.Sprintf("%s is empty; firmware offers none (neither DMAR nor IVRS in %s)", groups, tables)
	if ok, _ := h.virtual(); ok { // what its firmware offers is the hypervisor's choice
		return seen, h.guestIOMMU()
	}
	return seen, fmt.Sprintf("systemctl reboot --firmware-setup  # turn on %s there", name)
}

func readGroupName(o Options, group string) (string, error) {
	if !validName(group) {
		return "", ErrBadConfig
	}
	a := &attrs{fs: o.FS, dir: o.groupDir(group)}
	return a.text("name"), nil
}

// group: who shares the fate of the function.
func (d *doctor) group() {
	g := d.f.IOMMU
	if g == nil || g.NoIOMMU {
		return
	}
	dir := filepath.Join(d.o.groupDir(fmt.Sprint(g.Number)), "devices")
	var block, share []Member
	var who, cmds []string
	for _, m := range g.Siblings(d.b) {
		switch {
		case m.Blocks():
			block = append(block, m)
			who = append(who, fmt.Sprintf("%s is with %s", m.BDF, m.Driver))
			if Lookup(m.Vendor, m.Device).Kind == KindHCA {
				cmd := "mlxvfio bind " + m.BDF.String()
				if d.f.Driver != "" && !IsVFIO(d.f.Driver) {
					cmd += " --force" // each of the two would wait for the other
				}
				cmds = append(cmds, cmd)
			} else {
				cmds = append(cmds, fmt.Sprintf("echo %s > %s", m.BDF, shellWord(filepath.Join(d.o.driverDir(m.Driver), "unbind"))))
			}
		case m.Class>>8 != classBridge:
			share = append(share, m)
		}
	}
	if len(block) > 0 {
		d.found(GroupNotViable, strings.Join(cmds, "; ")+"  # or a slot whose ports have ACS", "%s: %s", dir, strings.Join(who, ", ")).Siblings = block
		return
	}
	if len(share) > 0 {
		for _, m := range share {
			who = append(who, fmt.Sprintf("%s (%s)", m.BDF, nameOrNone(m.Driver)))
		}
		d.found(GroupShared, "lspci -vvv -s "+d.b.String()+" | grep -A2 'Access Control'  # ACS on every port in between makes groups of their own",
			"%s: %s", dir, strings.Join(who, ", ")).Siblings = share
	}
}

// classBridge is base class and subclass of a PCI-to-PCI bridge.
const classBridge = 0x0604

// reserved judges the group's reserved regions. "direct-relaxable" ones (of
// graphics and USB) do not stop VFIO, "direct" ones do.
func (d *doctor) reserved() {
	g := d.f.IOMMU
	if g == nil {
		return
	}
	path := filepath.Join(d.o.groupDir(fmt.Sprint(g.Number)), "reserved_regions")
	var direct, other []string
	for _, r := range g.Reserved {
		text := fmt.Sprintf("%#x-%#x %s", r.Start, r.End, r.Type)
		switch r.Type {
		case "direct":
			direct = append(direct, text)
		case "msi":
		default:
			other = append(other, text)
		}
	}
	if len(direct) > 0 {
		d.found(ReservedDirect, "dmesg | grep -iE 'RMRR|1:1'  # then turn off in the firmware setup what asks for it (management, shared memory), or use another slot",
			"%s: %s", path, strings.Join(direct, ", "))
	}
	if len(other) > 0 {
		d.found(ReservedOther, "cat "+path, "%s: %s", path, strings.Join(other, ", "))
	}
}

// width: VT-d tells how many bits of an address it translates (capability
// register, bits 21:16). Emulated units are often narrow.
func (d *doctor) width() {
	name := d.attr("iommu/intel-iommu/cap")
	data, err := d.o.FS.ReadFile(name)
	if err != nil {
		return
	}
	v, err := strconv.ParseUint(strings.TrimSpace(string(data)), 16, 64)
	if n := v>>16&0x3f + 1; err == nil && n < 48 {
		d.found(NarrowIOMMU, "cat "+name, "%s is %x: addresses of %d bits", name, v, n)
	}
}

// remapping looks at the interrupt controllers' names: on x86 those behind a
// remapping unit begin with IR- (Linux irq_remapping.c, io_apic.c). Elsewhere
// there is no IO-APIC, and nothing is claimed. Each way in has a switch of its
// own, a parameter of the module that refuses (Linux vfio_iommu_type1.c,
// iommufd/device.c). Where iommufd answers on /dev/vfio/vfio, it refuses when the
// group is asked for the function.
func (d *doctor) remapping() {
	if !d.f.guarded() || !d.h.notRemapped() {
		return
	}
	const name = "allow_unsafe_interrupts"
	module, call := typeModule, "VFIO_SET_IOMMU"
	switch {
	case d.way.Backend == BackendIOMMUFD:
		module, call = "iommufd", "VFIO_DEVICE_BIND_IOMMUFD"
	case d.h.container() == containerIOMMUFD:
		module, call = "iommufd", "VFIO_GROUP_GET_DEVICE_FD"
	}
	param := filepath.Join(d.o.SysRoot, "module", module, "parameters", name)
	seen := filepath.Join(d.o.ProcRoot, "interrupts") + ": IO-APIC, not IR-IO-APIC"
	for _, word := range []string{"intremap=off", "nointremap", "iommu=nointremap", "nox2apic"} {
		if d.h.lastWord(word) {
			seen += fmt.Sprintf("; %s has %s", filepath.Join(d.o.ProcRoot, "cmdline"), word)
		}
	}
	data, err := d.o.FS.ReadFile(param)
	if err == nil && strings.TrimSpace(string(data)) == "Y" {
		d.found(UnsafeRemapping, "echo N > "+param, "%s; %s is Y", seen, param)
		return
	}
	better := "x2APIC and interrupt remapping in the firmware setup"
	if d.f.Unit.virtio() {
		better = "an intel-iommu with intremap=on from the hypervisor"
	}
	remedy := "echo Y > " + param + "  # accepts that the device can forge interrupts; better: " + better
	if err != nil {
		remedy = "modprobe " + module + " " + name + "=1  # accepts that the device can forge interrupts; better: " + better
	}
	d.found(NoRemapping, remedy, "%s; %s is not Y: %s of %s answers EPERM", seen, param, call, d.f.Unit.kind())
	if d.f.Unit.virtio() {
		d.found(VirtioIOMMU, vmRemedy, "%s is %s, a device of driver %s", d.attr("iommu"), d.f.Unit.Name, d.f.Unit.Driver)
	}
}
