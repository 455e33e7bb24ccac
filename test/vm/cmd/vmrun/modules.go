package main

import (
	"bytes"
	"debug/elf"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// guestModules are loaded in the guest, or may be by a scenario; what they depend on comes along.
var guestModules = []string{"vfio_iommu_type1", "vfio_pci", "mlx5_core"}

// kernel is an unpacked Debian kernel package, or an image of our own that looks like one.
type kernel struct {
	dir     string
	builtIn bool // what the guest needs is in the image, and there are no modules
}

// image is the kernel's bootable file.
func (k kernel) image() (string, error) {
	found, err := filepath.Glob(filepath.Join(k.dir, "boot", "vmlinuz-*"))
	if err != nil {
		return "", err
	}
	if len(found) == 0 { // newer packages have it beside the modules
		if found, err = filepath.Glob(filepath.Join(k.dir, "usr/lib/modules/*/vmlinuz")); err != nil {
			return "", err
		}
	}
	if len(found) == 0 {
		return "", fmt.Errorf("no kernel below %s: run test/vm/fetch", k.dir)
	}
	return found[0], nil
}

// pack adds the modules and /lib/modules.dep, one line "name dependency..." for each. The unpacked package has no
// modules.dep (depmod runs at installation), so the dependencies come from the modules themselves.
func (k kernel) pack(a *archive, names []string) error {
	if k.builtIn {
		a.add("lib/modules.dep", modeFile, nil)
		return nil
	}
	files := map[string]string{}
	err := filepath.WalkDir(filepath.Join(k.dir, "usr/lib/modules"), func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name, _, ok := strings.Cut(d.Name(), ".ko"); ok && !d.IsDir() {
			files[moduleName(name)] = p
		}
		return nil
	})
	if err != nil {
		return err
	}
	var table strings.Builder
	packed := map[string]bool{}
	var add func(name string) error
	add = func(name string) error {
		if packed[name] {
			return nil
		}
		packed[name] = true
		p, ok := files[name]
		if !ok {
			return fmt.Errorf("module %s is not in %s", name, k.dir)
		}
		image, err := readModule(p)
		if err != nil {
			return err
		}
		deps, err := dependencies(image)
		if err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
		for _, d := range deps {
			if err := add(d); err != nil {
				return fmt.Errorf("needed by %s: %w", name, err)
			}
		}
		fmt.Fprintln(&table, strings.Join(append([]string{name}, deps...), " "))
		a.add("lib/modules/"+name+".ko", modeFile, image)
		return nil
	}
	for _, n := range names {
		if err := add(n); err != nil {
			return err
		}
	}
	a.add("lib/modules.dep", modeFile, []byte(table.String()))
	return nil
}

// moduleName is the kernel's own spelling of a module's file name.
func moduleName(file string) string { return strings.ReplaceAll(file, "-", "_") }

func readModule(p string) ([]byte, error) {
	switch filepath.Ext(p) {
	case ".ko":
		return os.ReadFile(p)
	case ".xz":
		b, err := exec.Command("xz", "--decompress", "--stdout", p).Output()
		if err != nil {
			return nil, fmt.Errorf("xz %s: %w (the program xz comes with xz-utils)", p, err)
		}
		return b, nil
	default:
		return nil, fmt.Errorf("%s: modules of this compression are not supported", p)
	}
}

// dependencies reads the depends= entry of a module's .modinfo section.
func dependencies(module []byte) ([]string, error) {
	f, err := elf.NewFile(bytes.NewReader(module))
	if err != nil {
		return nil, err
	}
	s := f.Section(".modinfo")
	if s == nil {
		return nil, fmt.Errorf("no .modinfo section: not a kernel module")
	}
	info, err := s.Data()
	if err != nil {
		return nil, err
	}
	return dependsOf(string(info)), nil
}

func dependsOf(modinfo string) []string {
	var out []string
	for entry := range strings.SplitSeq(modinfo, "\x00") {
		list, ok := strings.CutPrefix(entry, "depends=")
		if !ok || list == "" {
			continue
		}
		for d := range strings.SplitSeq(list, ",") {
			out = append(out, moduleName(d))
		}
	}
	return out
}
