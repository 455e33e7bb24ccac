package pci

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Use is one reason not to take a function away from whoever has it.
type Use struct {
	// Reason is the fact, "netdev eth0 is up".
	Reason string `json:"reason"`
	// Remedy is the command that ends this use.
	Remedy string `json:"remedy"`
	// Kind is the finding of the doctor that this is.
	Kind FindingID `json:"kind"`
}

// InUse tells why the host would miss the function: a netdev that is up, is
// part of a bond or bridge or (itself or stacked on) holds a route, or enabled
// VFs. Empty means nobody would notice. Only the network namespace of the
// procfs and sysfs mounts is visible.
func (f *Function) InUse(opt Options) []Use {
	o := opt.withDefaults()
	var out []Use
	routes := routesByDevice(o)
	for _, n := range f.Netdevs {
		if n.Up {
			out = append(out, Use{"netdev " + n.Name + " is up", "ip link set dev " + shellWord(n.Name) + " down", NetdevUp})
		}
		if n.Master != "" {
			out = append(out, Use{"netdev " + n.Name + " is part of " + n.Master, "ip link set dev " + shellWord(n.Name) + " nomaster", NetdevMember})
		}
		for _, name := range append([]string{n.Name}, n.Uppers...) {
			if r := routes[name]; len(r) > 0 {
				out = append(out, Use{fmt.Sprintf("netdev %s holds %s", name, summary(r)), "ip route flush dev " + shellWord(name), NetdevRoutes})
			}
		}
	}
	if f.NumVFs > 0 {
		out = append(out, Use{fmt.Sprintf("VFs are enabled (sriov_numvfs is %d)", f.NumVFs),
			"echo 0 > " + filepath.Join(o.deviceDir(f.BDF), "sriov_numvfs"), VFsEnabled})
	}
	return out
}

// summary keeps a message on one line: three routes, the default ones first.
func summary(routes []string) string {
	slices.SortStableFunc(routes, func(a, b string) int {
		return strings.Compare(strings.TrimPrefix(a, "default"), strings.TrimPrefix(b, "default"))
	})
	const show = 3
	s := "route " + strings.Join(routes[:min(show, len(routes))], ", ")
	if more := len(routes) - show; more > 0 {
		s += fmt.Sprintf(" and %d more", more)
	}
	return s
}

// netdevs reads the interfaces of a function and of its sub-functions.
func netdevs(o Options, dir string) []Netdev {
	dirs := []string{dir}
	if entries, err := o.FS.ReadDir(dir); err == nil {
		for _, e := range entries {
			// Sub-functions are auxiliary devices below the PF (Linux sf/dev).
			if strings.HasPrefix(e.Name(), "mlx5_core.sf.") {
				dirs = append(dirs, filepath.Join(dir, e.Name()))
			}
		}
	}
	var out []Netdev
	for _, d := range dirs {
		a := &attrs{fs: o.FS, dir: d}
		for _, name := range a.names("net") {
			if !validName(name) {
				continue
			}
			n := &attrs{fs: o.FS, dir: filepath.Join(d, "net", name)}
			out = append(out, Netdev{Name: name, Up: n.hex("flags", 32)&1 != 0, // IFF_UP
				OperState: n.text("operstate"),
				Master:    linkBase(o.FS, filepath.Join(n.dir, "master")), Uppers: uppers(o, name)})
		}
	}
	return out
}

// uppers follows the upper_* links of an interface. The visited list bounds the
// walk whatever the links say.
func uppers(o Options, name string) []string {
	var seen []string
	queue := []string{name}
	for len(queue) > 0 {
		cur := queue[0]
		queue = queue[1:]
		entries, err := o.FS.ReadDir(filepath.Join(o.SysRoot, "class/net", cur))
		if err != nil {
			continue
		}
		for _, e := range entries {
			up, ok := strings.CutPrefix(e.Name(), "upper_")
			if ok && validName(up) && up != name && !slices.Contains(seen, up) {
				seen = append(seen, up)
				queue = append(queue, up)
			}
		}
	}
	return seen
}

// Route flags (Linux uapi/linux/route.h, ipv6_route.h).
const (
	rtfUp     = 0x0001
	rtfReject = 0x0200
	rtfLocal  = 0x80000000
)

// routesByDevice reads both routing tables of procfs. Entries the kernel makes
// by itself for every interface (local, link-local, multicast) do not count.
func routesByDevice(o Options) map[string][]string {
	out := map[string][]string{}
	if data, err := o.FS.ReadFile(filepath.Join(o.ProcRoot, "net/route")); err == nil {
		for _, line := range strings.Split(string(data), "\n") {
			if dev, route, ok := ipv4Route(strings.Fields(line)); ok {
				out[dev] = append(out[dev], route)
			}
		}
	}
	if data, err := o.FS.ReadFile(filepath.Join(o.ProcRoot, "net/ipv6_route")); err == nil {
		for _, line := range strings.Split(string(data), "\n") {
			if dev, route, ok := ipv6Route(strings.Fields(line)); ok {
				out[dev] = append(out[dev], route)
			}
		}
	}
	return out
}

// ipv4Route reads one line of /proc/net/route: Iface Destination Gateway Flags
// RefCnt Use Metric Mask …; addresses are host-order words of network-order
// bytes, so on a little-endian machine the last digit pair is the first octet.
func ipv4Route(f []string) (dev, route string, ok bool) {
	if len(f) < 8 {
		return "", "", false
	}
	dst, e1 := strconv.ParseUint(f[1], 16, 32)
	flags, e2 := strconv.ParseUint(f[3], 16, 32)
	mask, e3 := strconv.ParseUint(f[7], 16, 32)
	if e1 != nil || e2 != nil || e3 != nil || flags&rtfUp == 0 || flags&rtfReject != 0 {
		return "", "", false // the heading, or a route that leads nowhere
	}
	if mask == 0 {
		return f[0], "default", true
	}
	bits := 0
	for m := mask; m != 0; m &= m - 1 {
		bits++
	}
	return f[0], fmt.Sprintf("%d.%d.%d.%d/%d", byte(dst), byte(dst>>8), byte(dst>>16), byte(dst>>24), bits), true
}

// ipv6Route reads one line of /proc/net/ipv6_route: destination, its prefix
// length, source, its prefix length, next hop, metric, references, use, flags,
// device; all numbers hexadecimal.
func ipv6Route(f []string) (dev, route string, ok bool) {
	if len(f) < 10 || len(f[0]) != 32 {
		return "", "", false
	}
	plen, e1 := strconv.ParseUint(f[1], 16, 8)
	flags, e2 := strconv.ParseUint(f[8], 16, 32)
	if e1 != nil || e2 != nil || flags&rtfUp == 0 || flags&(rtfReject|rtfLocal) != 0 {
		return "", "", false
	}
	if strings.HasPrefix(f[0], "ff") || strings.HasPrefix(f[0], "fe80") {
		return "", "", false
	}
	if plen == 0 {
		return f[9], "default (IPv6)", true
	}
	var a strings.Builder
	for i := 0; i < 32; i += 4 {
		if i > 0 {
			a.WriteByte(':')
		}
		a.WriteString(f[0][i : i+4])
	}
	return f[9], fmt.Sprintf("%s/%d", a.String(), plen), true
}

// Holder is a process that has a VFIO device node open. Node is that node, or the
// address of a function whose group the process has open no more.
type Holder struct {
	PID  int    `json:"pid"`
	Comm string `json:"comm"`
	Node string `json:"node"`
}

// Holders finds the processes that have the function's VFIO group or character
// device open. Processes of other users show only to root; nothing found is
// therefore no proof for anyone else.
func (f *Function) Holders(opt Options) []Holder {
	if f.VFIONode == "" && f.VFIOCdev == "" {
		return nil
	}
	byNode, _ := holdersByNode(opt.withDefaults())
	return f.holdersIn(byNode)
}

// holdersIn picks the function's holders, one entry a process.
func (f *Function) holdersIn(byNode map[string][]Holder) []Holder {
	var out []Holder
	for _, node := range []string{f.VFIONode, f.VFIOCdev, f.BDF.String()} {
		for _, h := range byNode[node] {
			if node != "" && !slices.ContainsFunc(out, func(x Holder) bool { return x.PID == h.PID }) {
				out = append(out, h)
			}
		}
	}
	return out
}

func validBDF(s string) bool {
	_, err := ParseBDF(s)
	return err == nil
}

// Users says in a few words who can use the function as it is.
func (f *Function) Users() string {
	b := f.BDF.String()
	switch {
	case f.ID.Kind != KindHCA:
		return ""
	case IsVFIO(f.Driver):
		return "programs that use VFIO; the kernel's network and RDMA, and DPDK's mlx5 driver, see it again after mlxvfio unbind " + b
	case f.Driver == "mlx5_core":
		return "the kernel's network and RDMA, rdma-core and DPDK's mlx5 driver; programs that use VFIO after mlxvfio bind " + b
	case f.Driver == "":
		return "nobody, until a driver has it"
	}
	return "whoever uses the driver " + f.Driver
}

// vfioDevice is how /proc names the file that the kernel gives for a function of
// an open group. Kernels from late 2025 on tell in fdinfo which function it is.
// Such a file keeps the group open when the process has closed the group's own.
const vfioDevice = "anon_inode:[vfio-device]"

// deviceOf reads which function such a file is of, "" when the kernel does not
// say; the answer stands for a node in a table of holders.
func deviceOf(o Options, fdinfo string) string {
	data, err := o.FS.ReadFile(fdinfo)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(data)) {
		if path, ok := strings.CutPrefix(line, "vfio-device-syspath:"); ok {
			if b, err := ParseBDF(filepath.Base(strings.TrimSpace(path))); err == nil {
				return b.String()
			}
		}
	}
	return ""
}

// holdersByNode finds every process that has a file below /dev/vfio open, or a
// function whose group it has closed, and how many processes did not let us look.
func holdersByNode(o Options) (byNode map[string][]Holder, hidden int) {
	byNode = map[string][]Holder{}
	procs, err := o.FS.ReadDir(o.ProcRoot)
	if err != nil {
		return byNode, 0
	}
	for _, p := range procs {
		pid, err := strconv.Atoi(p.Name())
		if err != nil {
			continue
		}
		dir := filepath.Join(o.ProcRoot, p.Name())
		fds, err := o.FS.ReadDir(filepath.Join(dir, "fd"))
		if err != nil {
			if errors.Is(err, fs.ErrPermission) {
				hidden++
			}
			continue // gone, or not ours to see
		}
		seen := map[string]bool{}
		for _, fd := range fds {
			target, err := o.FS.Readlink(filepath.Join(dir, "fd", fd.Name()))
			if target == vfioDevice {
				target = deviceOf(o, filepath.Join(dir, "fdinfo", fd.Name()))
			}
			if err != nil || target == "" || !strings.HasPrefix(target, "/dev/vfio/") && !validBDF(target) || seen[target] {
				continue
			}
			seen[target] = true
			a := &attrs{fs: o.FS, dir: dir}
			byNode[target] = append(byNode[target], Holder{PID: pid, Comm: printable(a.text("comm")), Node: target})
		}
	}
	return byNode, hidden
}
