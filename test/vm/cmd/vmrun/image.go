package main

import (
	"context"
	"os"
	"path/filepath"
)

// release is the kernel that machines run unless they name another; custom is the bench's own (test/vm/kernel), which
// has what distributions leave out.
const (
	release = "6.12"
	custom  = "custom"
)

// image is the initramfs, the same for every machine but for the kernel's modules, and the program under test.
type image struct {
	builder
	kernels  string // folder with a kernel for each release
	custom   string // folder with the bench's own kernel, "" without it
	cli      string // the program under test, a static binary that serves on the host and runs in the guest
	programs []byte
	initrds  map[string]string // by release
}

// build makes what all machines share.
func (img *image) build(ctx context.Context, programs, cliOnly bool) error {
	a := newArchive()
	for _, d := range []string{"dev", "proc", "sys", "tmp", "run", "var", "root", "bin"} {
		a.add(d, modeDir, nil)
	}
	a.node("dev/console", modeCharDev, nil, 5, 1)
	add := func(name, built string, err error) error {
		if err != nil {
			return err
		}
		b, err := os.ReadFile(built)
		if err != nil {
			return err
		}
		a.add(name, modeProgram, b)
		return nil
	}
	built, err := img.program(ctx, "guest", "./test/vm/guest")
	if err := add("init", built, err); err != nil {
		return err
	}
	if programs || cliOnly {
		img.cli, err = img.program(ctx, "mlxvfio", "./cmd/mlxvfio")
		if err := add("bin/mlxvfio", img.cli, err); err != nil {
			return err
		}
	}
	if programs {
		built, err := img.program(ctx, "probe", "./test/vm/probe")
		if err := add("bin/probe", built, err); err != nil {
			return err
		}
		for _, t := range guestTests {
			built, err := img.test(ctx, t)
			if err := add("bin/"+t.Name+".test", built, err); err != nil {
				return err
			}
		}
	}
	img.programs = a.bytes()
	return nil
}

// has says whether there is a kernel of the release.
func (img *image) has(release string) bool {
	_, err := img.kernel(release).image()
	return err == nil
}

func (img *image) kernel(release string) kernel {
	if release == custom {
		return kernel{dir: img.custom, builtIn: true}
	}
	return kernel{dir: filepath.Join(img.kernels, release)}
}

// bootable gives a kernel and the initramfs for it. The kernel unpacks archives that follow one another: the programs, and
// its own modules.
func (img *image) bootable(release string) (vmlinuz, initrd string, err error) {
	k := img.kernel(release)
	if vmlinuz, err = k.image(); err != nil {
		return "", "", err
	}
	if initrd, ok := img.initrds[release]; ok {
		return vmlinuz, initrd, nil
	}
	modules := newArchive()
	if err := k.pack(modules, guestModules); err != nil {
		return "", "", err
	}
	initrd = filepath.Join(img.dir, "initrd-"+release)
	if err := os.WriteFile(initrd, append(img.programs[:len(img.programs):len(img.programs)], modules.bytes()...), 0o644); err != nil {
		return "", "", err
	}
	img.initrds[release] = initrd
	return vmlinuz, initrd, nil
}
