package pci

import (
	"errors"
	"fmt"
	"io/fs"
	"math/bits"
	"path/filepath"
	"strings"
	"syscall"
)

// config judges the configuration space. A function in D3cold is not asked: the
// read would wake it (Linux pci-sysfs.c, pci_config_pm_runtime_get), in D3hot
// it does not.
func (d *doctor) config() {
	name := d.attr("config")
	if len(d.f.Unreadable) > 0 {
		d.found(Unreadable, "dmesg | grep "+d.b.String(), "in %s: %s", d.dir, strings.Join(d.f.Unreadable, ", "))
	}
	if d.f.PowerState == "D3cold" {
		d.unseen("the configuration space: a read would wake the function")
		return
	}
	data, err := d.o.FS.ReadFile(name)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			d.found(Unreadable, "dmesg | grep "+d.b.String(), "%s: %s", name, errnoText(err))
		}
		return
	}
	if AllOnes(data) {
		d.found(AllOnesConfig, d.rescan(), "%s: %d bytes 0xff", name, ConfigHeaderSize)
		return
	}
	c, err := ParseConfig(data)
	if err == nil {
		d.cfg = c
	}
	switch {
	case err != nil:
		d.found(BadConfig, "lspci -xxxx -s "+d.b.String(), "%s: %v", name, err)
	case c.Truncated:
		d.unseen("capabilities in %s: run as root", name)
	case c.MSIX == nil:
		d.found(NoMSIX, "mlxvfio selftest "+d.b.String()+" --polled", "%s: %d capabilities, none with id 0x%02x", name, len(c.Caps), CapMSIX)
	}
}

// link: a slower or narrower link opens all the same.
func (d *doctor) link() {
	if l := d.f.Link; l.Degraded() {
		d.found(LinkDegraded, "lspci -vv -s "+d.b.String()+" | grep Lnk  # the slot, the riser or the seat of the card",
			"%s and current_link_width: %s x%d of %s x%d", d.attr("current_link_speed"), l.CurrentSpeed, l.CurrentWidth, l.MaxSpeed, l.MaxWidth)
	}
}

// payload compares what the function may send in one packet with what the port
// above takes (DevCtl, Max_Payload_Size). The kernel keeps them in step; a
// hypervisor that passes a function through, or a reset, may not.
func (d *doctor) payload() {
	if d.cfg == nil || d.cfg.PCIe == nil {
		return
	}
	link, err := d.o.FS.Readlink(d.dir)
	if err != nil {
		return
	}
	port, err := ParseBDF(filepath.Base(filepath.Dir(link)))
	if err != nil {
		return // on a root bus
	}
	name := filepath.Join(d.o.deviceDir(port), "config")
	data, err := d.o.FS.ReadFile(name)
	if err != nil {
		return
	}
	up, err := ParseConfig(data)
	if err != nil || up.PCIe == nil || d.cfg.PCIe.MaxPayload <= up.PCIe.MaxPayload || up.PCIe.MaxPayload < 128 {
		return
	}
	d.found(PayloadSize, fmt.Sprintf("setpci -s %s CAP_EXP+8.w=%x:e0", d.b, bits.Len(uint(up.PCIe.MaxPayload)/256)<<5),
		"%s: up to %d bytes a packet, %s: %d", d.attr("config"), d.cfg.PCIe.MaxPayload, name, up.PCIe.MaxPayload)
}

// resets: the attribute is there and empty where nothing can reset the function,
// or where somebody switched it off.
func (d *doctor) resets() {
	name := d.attr("reset_method")
	if data, err := d.o.FS.ReadFile(name); err == nil && strings.TrimSpace(string(data)) == "" {
		d.found(NoReset, "echo default > "+name, "%s is empty", name)
	}
}

// power tells sleep from trouble. Runtime power management suspends an idle
// function of vfio-pci, and one without driver, and an open or a bind resumes
// it; whatever else is in D3 stays there.
func (d *doctor) power() {
	state, pm := d.attr("power_state"), d.attr("power/runtime_status")
	switch {
	case d.f.RuntimePM == "error":
		d.found(StuckPower, d.rescan(), "%s is %s and %s is error", state, d.f.PowerState, pm)
	case !strings.HasPrefix(d.f.PowerState, "D3"):
	case d.f.RuntimePM == "suspended":
		d.found(Asleep, fmt.Sprintf("echo on > %s  # keeps it awake", d.attr("power/control")), "%s is %s and %s is suspended", state, d.f.PowerState, pm)
	default:
		d.found(StuckPower, d.rescan(), "%s is %s, and %s is %q, not suspended", state, d.f.PowerState, pm, d.f.RuntimePM)
	}
}

// bars: only BAR 0 is ever used.
func (d *doctor) bars() {
	name, bar := d.attr("resource"), d.f.BAR0()
	remedy := d.rescan() + "  # or boot with pci=realloc"
	switch {
	case bar == nil:
		d.found(NoBAR, remedy, "%s: no BAR 0", name)
	case bar.IO:
		d.found(NoBAR, remedy, "%s: BAR 0 is an I/O range", name)
	case bar.Base == 0:
		d.found(NoBAR, remedy, "%s: BAR 0 has %d bytes and address 0", name, bar.Size)
	}
}

// driver: who has the function, and what would stand in the way of a bind.
func (d *doctor) driver() {
	override := d.attr("driver_override")
	if d.f.Driver == "" && d.f.DriverOverride != vfioDriver && IsVFIO(d.f.DriverOverride) && !d.has(InterruptedBind) {
		d.found(OverrideSpelling, "mlxvfio bind "+d.b.String(), "%s is %s, there is a driver %s", override, d.f.DriverOverride, vfioDriver)
	}
	if IsVFIO(d.f.Driver) {
		if d.f.NumVFs > 0 {
			d.found(VFsOnVFIO, fmt.Sprintf("echo 0 > %s", d.attr("sriov_numvfs")), "%s is %d", d.attr("sriov_numvfs"), d.f.NumVFs)
		}
		return
	}
	if !d.has(InterruptedBind) {
		bind := "mlxvfio bind " + d.b.String()
		if d.way.Backend == BackendNoIOMMU && d.o.UnsafeNoIOMMU {
			bind += " --unsafe-noiommu"
		}
		if d.f.Driver == "" {
			d.found(NotBound, bind, "%s does not exist: the function has no driver", d.attr("driver"))
		} else {
			d.found(NotBound, bind, "%s is %s", d.attr("driver"), d.f.Driver)
		}
	}
	for _, u := range d.f.InUse(d.o) {
		d.found(u.Kind, u.Remedy, "%s", u.Reason)
	}
	switch err := d.o.FS.Access(override); {
	case err == nil, errors.Is(err, fs.ErrNotExist):
	case errors.Is(err, syscall.EROFS):
		d.found(SysfsReadOnly, "mount -o remount,rw "+d.o.SysRoot+"  # in a container: run it privileged, with the host's /sys",
			"%s: %s", override, errnoText(err))
	default:
		d.found(BindPermission, "sudo mlxvfio bind "+d.b.String(), "%s: %s", override, errnoText(err))
	}
}

// token: VFIO ties a VF to the user of its PF when that is with vfio-pci too
// (Linux vfio_pci_core.c, vfio_pci_validate_vf_token).
func (d *doctor) token() {
	if d.f.PhysFn == nil {
		return
	}
	link := filepath.Join(d.o.deviceDir(*d.f.PhysFn), "driver")
	if driver := linkBase(d.o.FS, link); IsVFIO(driver) {
		d.found(VFToken, "mlxvfio unbind "+d.f.PhysFn.String(), "%s is %s", link, driver)
	}
}
