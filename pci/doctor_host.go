package pci

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// host is what is the same for all functions, read once.
type host struct {
	o Options

	cmd, cpu *string
	devices  *string
	serves   *containerOf
	scanned  bool
	nodes    map[string][]Holder
	hidden   int
}

func (h *host) proc(name string) string {
	data, err := h.o.FS.ReadFile(filepath.Join(h.o.ProcRoot, name))
	if err != nil {
		return ""
	}
	return string(data)
}

func (h *host) cpuinfo() string {
	if h.cpu == nil {
		s := h.proc("cpuinfo")
		h.cpu = &s
	}
	return *h.cpu
}

// lastWord reports whether the kernel command line has the word, and no later
// one for the same key that differs.
func (h *host) lastWord(word string) bool {
	if h.cmd == nil {
		s := h.proc("cmdline")
		h.cmd = &s
	}
	key, _, _ := strings.Cut(word, "=")
	has := false
	for _, w := range strings.Fields(*h.cmd) {
		if k, _, _ := strings.Cut(w, "="); k == key {
			has = w == word
		}
	}
	return has
}

// virtual reports whether this is a virtual machine, and what says so.
func (h *host) virtual() (bool, string) {
	for line := range strings.Lines(h.cpuinfo()) {
		if flags, ok := strings.CutPrefix(line, "flags"); ok {
			for _, f := range strings.Fields(flags) {
				if f == "hypervisor" {
					return true, filepath.Join(h.o.ProcRoot, "cpuinfo") + " has the flag hypervisor"
				}
			}
			return false, ""
		}
	}
	a := &attrs{fs: h.o.FS, dir: filepath.Join(h.o.SysRoot, "class/dmi/id")} // no such flag: not x86
	if v := a.text("sys_vendor"); v == "QEMU" {
		return true, filepath.Join(a.dir, "sys_vendor") + " is QEMU"
	}
	return false, ""
}

// layered: the root of this process is put together from layers, a container's.
func (h *host) layered() bool {
	for line := range strings.Lines(h.proc("self/mountinfo")) {
		before, after, ok := strings.Cut(line, " - ") // Linux proc_pid_mountinfo(5)
		if f := strings.Fields(before); ok && len(f) > 4 && f[4] == "/" {
			return strings.HasPrefix(after, "overlay ") || strings.HasPrefix(after, "fuse-overlayfs ") || strings.HasPrefix(after, "fuse.fuse-overlayfs ")
		}
	}
	return false
}

// notRemapped: there is an IO-APIC, and it is not behind a remapping unit.
func (h *host) notRemapped() bool {
	t := h.proc("interrupts")
	return strings.Contains(t, " IO-APIC") && !strings.Contains(t, " IR-IO-APIC")
}

func (h *host) holders() (map[string][]Holder, int) {
	if !h.scanned {
		h.nodes, h.hidden = holdersByNode(h.o)
		h.scanned = true
	}
	return h.nodes, h.hidden
}

// modules: in sysfs the driver has a minus sign and the module an underscore.
// A driver that is built in has no module folder, so the driver is looked for;
// vfio_iommu_type1 has parameters and hence always a folder. With iommufd, which
// may answer on /dev/vfio/vfio too, there is no further module: vfio itself needs
// it and has loaded it.
func (d *doctor) modules() {
	var missing, load []string
	look := func(path, module string) {
		if _, err := d.o.FS.Stat(path); err != nil {
			missing, load = append(missing, path), append(load, module)
		}
	}
	if !IsVFIO(d.f.Driver) { // else vfio-pci or a variant driver has the function
		look(d.o.driverDir(vfioDriver), "vfio-pci")
	}
	if d.way.Backend == BackendType1 {
		folder := filepath.Join(d.o.SysRoot, "module", typeModule)
		if _, err := d.o.FS.Stat(folder); err != nil {
			switch d.h.container() {
			case containerVFIO:
				look(folder, typeModule)
			case containerUnknown:
				look(folder, typeModule)
				d.unseen("%s: whether iommufd answers on %s, which then needs no %s", filepath.Join(d.o.ProcRoot, "kallsyms"), d.o.devFile(containerPath), typeModule)
			case containerIOMMUFD:
			}
		}
	}
	if len(missing) > 0 {
		d.found(ModuleMissing, "modprobe -a "+strings.Join(load, " "), "not there: %s", strings.Join(missing, ", "))
	}
}

// What a bring-up pins in bytes: the smallest firmware seen takes 4 MiB of 6
// MiB, the largest 50.3 MiB of 54.
const (
	memlockLeast = 6 << 20
	memlockLarge = 64 << 20
)

// Capabilities (Linux uapi/linux/capability.h).
const (
	capIPCLock  = 14
	capSysRawIO = 17
	capSysAdmin = 21
)

// capable reports whether the kernel grants this process a capability, and what
// says so. VFIO asks for those of the initial user namespace: root of another
// one, as in a rootless container, has them in CapEff and does not have them.
func (h *host) capable(bit uint) (bool, string) {
	caps, ok := statusField(h.proc("self/status"), "CapEff:")
	if v, err := strconv.ParseUint(caps, 16, 64); !ok || err != nil || v>>bit&1 == 0 {
		return false, fmt.Sprintf("%s: CapEff %s", filepath.Join(h.o.ProcRoot, "self/status"), caps)
	}
	// The initial namespace maps all ids onto themselves (Linux user_namespaces(7)).
	if m := strings.Fields(h.proc("self/uid_map")); len(m) > 0 && !slices.Equal(m, []string{"0", "0", "4294967295"}) {
		return false, fmt.Sprintf("%s is %q: CapEff %s holds in a user namespace only", filepath.Join(h.o.ProcRoot, "self/uid_map"), strings.Join(m, " "), caps)
	}
	return true, ""
}

// memlock does the sum that the kernel does for every mapping: what is pinned
// already and what a bring-up adds, against the soft limit. type1 adds to what
// the process has locked; iommufd to what the user has pinned, which shows
// nowhere (Linux iommufd/pages.c). Without IOMMU nothing is mapped.
func (d *doctor) memlock() {
	if d.way.Backend == BackendNoIOMMU {
		return
	}
	if ok, _ := d.h.capable(capIPCLock); ok {
		return
	}
	status, limits := d.h.proc("self/status"), d.h.proc("self/limits")
	soft, hard, ok := memlockLimits(limits)
	if !ok || soft == unlimited {
		return
	}
	var locked uint64
	byUser := d.way.Backend == BackendIOMMUFD
	if kb, ok := statusField(status, "VmLck:"); ok && !byUser {
		if v, err := strconv.ParseUint(kb, 10, 64); err == nil {
			locked = v << 10
		}
	}
	id, need := MemlockSmall, uint64(memlockLarge)+locked
	switch {
	case soft >= need:
		return
	case soft >= memlockLeast+locked:
		id = MemlockTight
	}
	remedy := fmt.Sprintf("ulimit -l %d  # KiB; in a systemd unit LimitMEMLOCK=%d", need>>10, need)
	if hard < need {
		remedy = fmt.Sprintf("sudo prlimit --memlock=%d:%d --pid $$  # in a systemd unit LimitMEMLOCK=%d", need, need, need)
	}
	counted := fmt.Sprintf("%d are locked", locked)
	if byUser {
		counted = "what the user's other processes have pinned counts too"
	}
	d.found(id, remedy, "%s: Max locked memory %d bytes, %s; a bring-up takes %d bytes or more, with large firmware %d",
		filepath.Join(d.o.ProcRoot, "self/limits"), soft, counted, uint64(memlockLeast), uint64(memlockLarge))
}

// unlimited is the number for that word.
const unlimited = ^uint64(0)

// memlockLimits finds the soft and the hard limit in /proc/self/limits.
func memlockLimits(text string) (soft, hard uint64, ok bool) {
	for line := range strings.Lines(text) {
		rest, ok := strings.CutPrefix(line, "Max locked memory")
		if f := strings.Fields(rest); ok && len(f) >= 2 {
			var err [2]error
			soft, err[0] = limit(f[0])
			hard, err[1] = limit(f[1])
			return soft, hard, err[0] == nil && err[1] == nil
		}
	}
	return 0, 0, false
}

func limit(s string) (uint64, error) {
	if s == "unlimited" {
		return unlimited, nil
	}
	return strconv.ParseUint(s, 10, 64)
}

// statusField is the first word behind a name in /proc/self/status.
func statusField(text, name string) (string, bool) {
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, name); ok {
			if f := strings.Fields(rest); len(f) > 0 {
				return f[0], true
			}
		}
	}
	return "", false
}

// secureBootVar is the UEFI variable: four bytes of attributes, then the value.
const secureBootVar = "firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"

// lockdown names what is restricted, and that this way is not.
func (d *doctor) lockdown() {
	path := filepath.Join(d.o.SysRoot, "kernel/security/lockdown")
	if data, err := d.o.FS.ReadFile(path); err == nil {
		for _, mode := range []string{"integrity", "confidentiality"} {
			if strings.Contains(string(data), "["+mode+"]") {
				if d.way.Backend == BackendNoIOMMU {
					_, remedy := d.h.whyNoIOMMU()
					d.found(NoIOMMULockdown, remedy, "%s: [%s]", path, mode)
				}
				d.found(Lockdown, "mlxvfio info "+d.b.String()+"  # through VFIO; sysfs:"+d.b.String()+" is refused", "%s: [%s]", path, mode)
			}
		}
	}
	path = filepath.Join(d.o.SysRoot, secureBootVar)
	if data, err := d.o.FS.ReadFile(path); err == nil && len(data) == 5 && data[4] == 1 {
		d.found(SecureBoot, "mokutil --sb-state", "%s is 1", path)
	}
}
