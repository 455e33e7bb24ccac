package pci

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode"

	uroot "github.com/u-root/u-root/pkg/pci"
)

// List finds every function of vendor 0x15b3 (mlx5 functions and, with their
// Kind, the others), ordered by address. One function that cannot be read does
// not hide the rest: the functions that could be read come back together with
// an error that joins what went wrong.
func List(ctx context.Context, opt Options) ([]*Function, error) {
	o := opt.withDefaults()
	entries, err := o.FS.ReadDir(o.devicesDir())
	if err != nil {
		return nil, &Error{Op: "list", Err: fmt.Errorf("%w: %w", classify(err), err),
			Remedy: "mount -t sysfs sysfs /sys"}
	}
	var out []*Function
	var errs []error
	for _, e := range entries {
		if err := ctx.Err(); err != nil {
			return out, &Error{Op: "list", Err: fmt.Errorf("%w: %w", ErrInterrupted, err)}
		}
		b, err := ParseBDF(e.Name())
		if err != nil {
			continue // sysfs holds nothing else here
		}
		if v, err := readHex(o.FS, filepath.Join(o.deviceDir(b), "vendor"), 16); err != nil || v != VendorMellanox {
			if err != nil && !errors.Is(err, fs.ErrNotExist) { // gone between readdir and read: hot unplug
				errs = append(errs, sysfsError("list", b, "read", "vendor", err))
			}
			continue
		}
		f, err := inspect("list", b, o)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		out = append(out, f)
	}
	slices.SortFunc(out, func(x, y *Function) int { return x.BDF.Compare(y.BDF) })
	if len(errs) > 0 {
		return out, &Error{Op: "list", Err: errors.Join(errs...)}
	}
	return out, nil
}

// Inspect reads one function, of any vendor.
func Inspect(b BDF, opt Options) (*Function, error) {
	return inspect("inspect", b, opt.withDefaults())
}

func inspect(op string, b BDF, o Options) (*Function, error) {
	if !b.Valid() {
		return nil, failf(op, b, ErrBadBDF, "", "device at most 1f, function at most 7")
	}
	dir := o.deviceDir(b)
	if _, err := o.FS.Stat(dir); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, failf(op, b, ErrNotFound, "mlxvfio list", "%s does not exist", dir)
		}
		return nil, sysfsError(op, b, "stat", dir, err)
	}
	p, err := uroot.OnePCI(dir)
	if err != nil {
		return nil, sysfsError(op, b, "read", dir, err)
	}
	f := &Function{BDF: b, Vendor: p.Vendor, Device: p.Device, Class: p.Class, IRQ: int(p.IRQLine),
		ID: Lookup(p.Vendor, p.Device)}
	if f.BARs, f.ROMSize, err = parseResources(p.Resource); err != nil {
		return nil, sysfsError(op, b, "parse", filepath.Join(dir, "resource"), err)
	}
	r := &attrs{fs: o.FS, dir: dir}
	f.SubVendor = uint16(r.hex("subsystem_vendor", 16))
	f.SubDevice = uint16(r.hex("subsystem_device", 16))
	f.Revision = uint8(r.hex("revision", 8))
	f.DriverOverride = r.text("driver_override")
	if f.DriverOverride == "(null)" { // how the kernel prints none
		f.DriverOverride = ""
	}
	f.Driver = linkBase(o.FS, filepath.Join(dir, "driver"))
	f.NUMANode = r.num("numa_node", -1)
	f.Enable = r.num("enable", -1)
	f.PowerState = r.text("power_state")
	f.RuntimePM = r.text("power/runtime_status")
	f.ResetMethods = strings.Fields(r.text("reset_method"))
	f.NumVFs = r.num("sriov_numvfs", -1)
	f.TotalVFs = r.num("sriov_totalvfs", -1)
	f.Link = Link{
		CurrentSpeed: known(r.text("current_link_speed")), CurrentWidth: lanes(r.num("current_link_width", 0)),
		MaxSpeed: known(r.text("max_link_speed")), MaxWidth: lanes(r.num("max_link_width", 0)),
	}
	if st, err := o.FS.Stat(filepath.Join(dir, "config")); err == nil {
		f.ConfigSize = int(st.Size())
	}
	f.Infiniband = r.names("infiniband")
	f.Netdevs = netdevs(o, dir)
	relations(f, o, dir)
	if f.IOMMU, err = readGroup(o, dir); err != nil {
		return nil, sysfsError(op, b, "read", "iommu_group", err)
	}
	f.Unit = readUnit(o, dir)
	if IsVFIO(f.Driver) {
		vfioNodes(f, o, dir)
	}
	f.Unreadable = r.bad
	return f, nil
}

// attrs reads attribute files of one folder. A missing file is a kernel that
// does not offer it; any other failure is noted in bad and the attribute left
// out, because a device in D3 or behind a dead link fails some reads and must
// still be listed.
type attrs struct {
	fs  FS
	dir string
	bad []string
}

func (a *attrs) text(name string) string {
	data, err := a.fs.ReadFile(filepath.Join(a.dir, name))
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			a.bad = append(a.bad, name+": "+errnoText(err))
		}
		return ""
	}
	return strings.TrimSpace(string(data))
}

func (a *attrs) num(name string, none int) int {
	if s := a.text(name); s != "" {
		if v, err := strconv.Atoi(s); err == nil {
			return v
		}
	}
	return none
}

func (a *attrs) hex(name string, bits int) uint64 {
	v, err := strconv.ParseUint(strings.TrimPrefix(a.text(name), "0x"), 16, bits)
	if err != nil {
		return 0
	}
	return v
}

func (a *attrs) names(sub string) []string {
	entries, err := a.fs.ReadDir(filepath.Join(a.dir, sub))
	if err != nil {
		return nil
	}
	out := make([]string, 0, len(entries))
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

func readHex(fsys FS, name string, bits int) (uint64, error) {
	data, err := fsys.ReadFile(name)
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(strings.TrimPrefix(strings.TrimSpace(string(data)), "0x"), 16, bits)
}

// Flags of the third column of a resource file (Linux include/linux/ioport.h).
const (
	resIO       = 0x00000100
	resMem      = 0x00000200
	resPrefetch = 0x00002000
	resMem64    = 0x00100000
)

// parseResources reads the lines of a resource file: 0 … 5 are the BARs, 6 is
// the ROM, the rest belong to bridges and SR-IOV.
func parseResources(text string) (bars []BAR, rom uint64, err error) {
	for i, line := range strings.Split(strings.TrimSpace(text), "\n") {
		if i > 6 || strings.TrimSpace(line) == "" {
			break
		}
		base, limit, flags, err := uroot.BaseLimType(line)
		if err != nil {
			return nil, 0, fmt.Errorf("line %d: %w", i, err)
		}
		if flags&(resIO|resMem) == 0 {
			continue
		}
		if limit < base {
			return nil, 0, fmt.Errorf("line %d: end %#x before start %#x", i, limit, base)
		}
		size := limit - base + 1
		if i == 6 {
			rom = size
			break
		}
		bars = append(bars, BAR{Index: i, Base: base, Size: size, IO: flags&resIO != 0,
			Is64: flags&resMem64 != 0, Prefetchable: flags&resPrefetch != 0})
	}
	return bars, rom, nil
}

// relations fills in who is whose virtual function.
func relations(f *Function, o Options, dir string) {
	if pf, err := ParseBDF(linkBase(o.FS, filepath.Join(dir, "physfn"))); err == nil {
		f.PhysFn = &pf
	}
	f.IsVF = f.PhysFn != nil || f.ID.VF
	for i := 0; i < f.NumVFs || i == 0; i++ { // sriov_numvfs may be hidden, virtfn0 is not
		vf, err := ParseBDF(linkBase(o.FS, filepath.Join(dir, "virtfn"+strconv.Itoa(i))))
		if err != nil {
			break
		}
		f.VFs = append(f.VFs, vf)
	}
}

func readGroup(o Options, dir string) (*Group, error) {
	num := linkBase(o.FS, filepath.Join(dir, "iommu_group"))
	if num == "" {
		return nil, nil
	}
	n, err := strconv.Atoi(num)
	if err != nil || n < 0 {
		return nil, fmt.Errorf("iommu_group points to %q, not to a number", num)
	}
	gdir := o.groupDir(num)
	r := &attrs{fs: o.FS, dir: gdir}
	g := &Group{Number: n, Type: r.text("type"), NoIOMMU: r.text("name") == "vfio-noiommu"}
	for _, line := range strings.Split(r.text("reserved_regions"), "\n") {
		if x := strings.Fields(line); len(x) == 3 {
			start, e1 := strconv.ParseUint(x[0], 0, 64)
			end, e2 := strconv.ParseUint(x[1], 0, 64)
			if e1 == nil && e2 == nil {
				g.Reserved = append(g.Reserved, ReservedRegion{start, end, x[2]})
			}
		}
	}
	for _, name := range r.names("devices") {
		b, err := ParseBDF(name)
		if err != nil {
			continue // a platform device shares the group
		}
		m := &attrs{fs: o.FS, dir: o.deviceDir(b)}
		x := Member{BDF: b, Class: uint32(m.hex("class", 24)),
			Vendor: uint16(m.hex("vendor", 16)), Device: uint16(m.hex("device", 16)),
			Driver: linkBase(o.FS, filepath.Join(m.dir, "driver"))}
		if IsVFIO(x.Driver) {
			if name := cdevName(o, m.dir); name != "" {
				x.VFIOCdev = "/dev/vfio/devices/" + name
			}
		}
		g.Members = append(g.Members, x)
	}
	slices.SortFunc(g.Members, func(x, y Member) int { return x.BDF.Compare(y.BDF) })
	return g, nil
}

// known drops the kernel's words for "cannot tell".
func known(s string) string {
	if strings.HasPrefix(s, "Unknown") {
		return ""
	}
	return s
}

// lanes drops 0 and the kernel's 0xff for "unknown".
func lanes(n int) int {
	if n < 0 || n > 32 {
		return 0
	}
	return n
}

// gigatransfers reads the number in "8.0 GT/s PCIe".
func gigatransfers(s string) float64 {
	num, _, _ := strings.Cut(s, " ")
	v, err := strconv.ParseFloat(num, 64)
	if err != nil {
		return 0
	}
	return v
}

// errnoText is the operating system's reason without the path.
func errnoText(err error) string {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return pe.Err.Error()
	}
	return err.Error()
}

// classify maps an operating system error on a sentinel.
func classify(err error) error {
	switch {
	case errors.Is(err, fs.ErrPermission):
		return ErrPermission
	case errors.Is(err, fs.ErrNotExist):
		return ErrNotFound
	}
	return ErrIO
}

// shellWord makes a name one word of a shell's command line: remedies are
// pasted, often by root, and an interface may be called "x;reboot".
func shellWord(s string) string {
	safe := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("_./:@%+=,-", r)
	}
	if s != "" && s[0] != '-' && strings.IndexFunc(s, func(r rune) bool { return !safe(r) }) < 0 {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// printable keeps what another process chose, its name, from talking to the
// terminal.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, s)
}
