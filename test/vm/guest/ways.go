//go:build linux

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// The ways into VFIO: the character device of the function with an iommufd, the group with a container, and the group
// that has no IOMMU.

const (
	byCdev    = "iommufd"
	byGroup   = "type1"
	noIOMMU   = "noiommu"
	container = "/dev/vfio/vfio"

	iommufdNode = "/dev/iommu"
	noIOMMUMode = "/sys/module/vfio/parameters/enable_unsafe_noiommu_mode"
)

// cdevNode is the character device of the function, "" where this kernel gives it none.
func cdevNode(bdf string) string {
	found, err := filepath.Glob(sysfs(bdf, "vfio-dev", "vfio*", "dev"))
	if err != nil || len(found) != 1 {
		return ""
	}
	return "/dev/vfio/devices/" + filepath.Base(filepath.Dir(found[0]))
}

// nodesOf are the files below /dev of VFIO and the iommufd that a process has open, each once, in order.
func nodesOf(pid int) []string {
	fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil {
		return nil
	}
	var out []string
	for _, fd := range fds {
		if t, err := os.Readlink(fd); err == nil && (strings.HasPrefix(t, "/dev/vfio/") || t == iommufdNode) {
			out = append(out, t)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// nodesFor are the files that a way into VFIO needs, in order.
func nodesFor(way, bdf string) []string {
	var out []string
	switch way {
	case byCdev:
		out = []string{iommufdNode, cdevNode(bdf)}
	default:
		out = []string{container, groupNode(bdf)}
	}
	slices.Sort(out)
	return out
}

// hidden takes files away and returns what brings them back.
func hidden(nodes ...string) (restore func() error, err error) {
	var undo []func() error
	restore = func() (err error) {
		for _, f := range undo {
			err = errors.Join(err, f())
		}
		undo = nil
		return err
	}
	for _, n := range nodes {
		var st syscall.Stat_t
		if err := syscall.Stat(n, &st); err != nil {
			return restore, errors.Join(fmt.Errorf("%s: %w", n, err), restore())
		}
		if err := os.Remove(n); err != nil {
			return restore, errors.Join(err, restore())
		}
		undo = append(undo, func() error {
			if err := os.Remove(n); err != nil && !errors.Is(err, os.ErrNotExist) { // what a remedy has made
				return err
			}
			return syscall.Mknod(n, st.Mode, int(st.Rdev))
		})
	}
	return restore, nil
}

// via is b for a while on another way into VFIO; more words come after every verb.
func (b *bench) via(way string, words ...string) *bench {
	c := *b
	c.backend, c.words = way, words
	return &c
}

// holds checks that the program, while it has the function up, has the files of one way open and none of another.
func (b *bench) holds(name, bdf string, p *process) bool {
	got, want := nodesOf(p.cmd.Process.Pid), nodesFor(b.backend, bdf)
	return b.check(name, slices.Equal(got, want), "process %d has %v open, want %v", p.cmd.Process.Pid, got, want)
}

// ways: the way is the best one that there is unless another one is asked for, and whoever has the function by one of
// them is named to those who come by any.
func ways(b *bench) {
	bdf := b.bdfs[0]
	if !b.onVFIO(bdf) {
		return
	}
	if !b.check("nodes", cdevNode(bdf) != "" && exists(cdevNode(bdf)) && exists(iommufdNode) && exists(container) && exists(groupNode(bdf)),
		"cdev %q, group %q: this kernel must have all of them", cdevNode(bdf), groupNode(bdf)) {
		return
	}
	d, _ := b.doctor("doctor", bdf)
	b.check("doctor-way", d.backend == byCdev, "by %q", d.backend)
	if o, ok := b.works("list", "list", "--json"); ok {
		f := entry(o["functions"], "bdf", bdf)
		b.check("list-way", at(f, "backend") == byCdev && at(f, "ready") == true && at(f, "vfio", "cdev", "path") == cdevNode(bdf), "%s", brief(jsonText(f)))
	}
	for _, c := range []struct {
		name, way string
		words     []string
	}{
		{"chosen", byCdev, nil},
		{"auto", byCdev, []string{"--backend", "auto"}},
		{"iommufd", byCdev, []string{"--backend", byCdev}},
		{"type1", byGroup, []string{"--backend", byGroup}},
	} {
		by := b.via(c.way, c.words...)
		if !by.selftest(c.name, bdf) {
			continue
		}
		p, ok := by.holdUp(c.name+"-holder", bdf)
		if !ok {
			continue
		}
		by.holds(c.name+"-files", bdf, p)
		pid := strconv.Itoa(p.cmd.Process.Pid)
		for _, way := range []string{byCdev, byGroup} {
			o := b.via(way, "--backend", way).cli(c.name+"-busy-by-"+way, "selftest", bdf)
			b.check(c.name+"-busy-by-"+way, o.code == 3 && strings.Contains(o.stderr, "in use") && strings.Contains(o.stderr, pid) && p.alive(),
				"want status 3, \"in use\" and the pid %s; %v", pid, o)
		}
		d, _ := by.doctor(c.name+"-doctor-busy", bdf, "busy")
		holders, _ := at(d.find("busy"), "holders").([]any)
		b.check(c.name+"-doctor-pid", len(holders) == 1 && at(holders[0], "pid") == float64(p.cmd.Process.Pid), "%v, want %s", holders, pid)
		p.kill()
		b.released(c.name+"-released", bdf)
	}
	b.refuses("unknown", 2, "nosuch", "info", bdf, "--backend", "nosuch")
	b.refuses("not-without", 3, noIOMMU, "info", bdf, "--backend", noIOMMU, unsafeNoIOMMU) // this function has an IOMMU
}

// waysHidden: files that a container or a distribution does not have. The way that is left is taken, the other one is
// refused, and the doctor knows both before, with a remedy that brings the other one back.
func waysHidden(b *bench) {
	bdf := b.bdfs[0]
	if !b.onVFIO(bdf) {
		return
	}
	cdev, group := cdevNode(bdf), groupNode(bdf)
	for _, c := range []struct {
		name  string
		nodes []string // that are not there
		way   string   // that is left
		notes []string // of the doctor, of the way that lacks less where none is left
		other string
		lacks []string // what the doctor finds about the other way
	}{
		{"no-group", []string{group, container}, byCdev, nil, byGroup, []string{"container-missing", "node-missing"}},
		{"no-cdev", []string{cdev}, byGroup, []string{"iommufd-skipped"}, byCdev, []string{"cdev-missing"}},
		{"no-iommufd", []string{iommufdNode}, byGroup, []string{"iommufd-skipped"}, byCdev, []string{"iommufd-missing"}},
		{"group-only", []string{iommufdNode, cdev}, byGroup, []string{"iommufd-skipped"}, byCdev, []string{"cdev-missing", "iommufd-missing"}},
		{"none", []string{iommufdNode, cdev, group}, "", []string{"node-missing"}, byCdev, []string{"cdev-missing", "iommufd-missing"}},
	} {
		restore, err := hidden(c.nodes...)
		if !b.check(c.name+"-prepare", err == nil, "%v", errText(err)) {
			continue
		}
		b.doctor(c.name+"-doctor", bdf, c.notes...)
		if c.way == "" {
			b.refuses(c.name+"-refused", 3, "/dev/", "selftest", bdf)
		} else if by := b.via(c.way); by.selftestOnly(c.name+"-works", bdf) {
			if p, ok := by.holdUp(c.name+"-holder", bdf); ok {
				by.holds(c.name+"-files", bdf, p)
				p.kill()
			}
		}
		other := b.via(c.other, "--backend", c.other)
		o := other.cli(c.name+"-other", "selftest", bdf)
		b.check(c.name+"-other", o.code == 3 && slices.ContainsFunc(c.nodes, func(n string) bool { return strings.Contains(o.stderr, n) }),
			"want status 3 and one of %v; %v", c.nodes, o)
		if d, ok := other.doctor(c.name+"-other-doctor", bdf, c.lacks...); ok {
			for _, id := range c.lacks {
				other.obey(c.name+"-remedy-"+id, d.text(id, "remedy"))
			}
			other.doctor(c.name+"-other-again", bdf)
			other.selftestOnly(c.name+"-other-works", bdf)
		}
		err = restore()
		b.check(c.name+"-restored", err == nil, "%v", errText(err))
		b.released(c.name+"-released", bdf)
	}
	b.selftest("after", bdf)
}

func exists(path string) bool { _, err := os.Stat(path); return err == nil }

// testEnv is what a test binary with hardware tests is told: the function, and the way to it.
func (b *bench) testEnv(bdf string) []string {
	env := []string{"MLXVFIO_TEST_BDF=" + bdf, "MLXVFIO_TEST_BACKEND=" + b.backend}
	if b.backend == noIOMMU {
		env = append(env, "MLXVFIO_TEST_UNSAFE_NOIOMMU=1")
	}
	return env
}
