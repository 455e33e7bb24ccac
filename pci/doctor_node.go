package pci

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// nodes judges the character devices that an open opens. They are looked at,
// not opened: the kernel gives a group to one opener only, and a look must not
// be in anybody's way.
func (d *doctor) nodes() {
	if !d.has(ModuleMissing) { // no module, no node
		d.container()
	}
	if d.f.VFIONode == "" {
		return
	}
	base := strings.TrimPrefix(d.f.VFIONode, "/dev/vfio/")
	path := filepath.Join(d.o.DevRoot, "vfio", base)
	number := filepath.Join(d.o.SysRoot, "class/vfio", base, "dev")
	want := ""
	if data, err := d.o.FS.ReadFile(number); err == nil {
		want = strings.TrimSpace(string(data))
	}
	mknod := "udevadm trigger --action=add --subsystem-match=vfio"
	if major, minor, ok := deviceNumber(want); ok {
		mknod = fmt.Sprintf("mknod -m 600 %s c %d %d", path, major, minor)
	}
	st, err := d.o.FS.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		d.found(NodeMissing, mknod+"  # in a container: pass "+path+" in", "%s does not exist, %s is %s", path, number, orNothing(want))
		return
	case err != nil:
		d.found(NodePermission, "sudo ls -l "+path, "%s: %s", path, errnoText(err))
		return
	}
	if have := nodeNumber(st); have != "" && want != "" && have != want {
		d.found(NodeStale, "rm "+path+"; "+mknod, "%s is device %s, %s is %s", path, have, number, want)
		return
	}
	if err := d.o.FS.Access(path); err != nil {
		d.found(NodePermission, "sudo chown \"$(id -u)\" "+path, "%s: %s", path, errnoText(err))
	}
}

func (d *doctor) container() {
	path := filepath.Join(d.o.DevRoot, "vfio/vfio")
	if _, err := d.o.FS.Stat(path); err != nil {
		// 10:196 is VFIO_MINOR of the misc devices (Linux miscdevice.h).
		d.found(ContainerMissing, fmt.Sprintf("mkdir -p %s; mknod -m 666 %s c 10 196  # in a container: pass it in", filepath.Dir(path), path), "%s: %s", path, errnoText(err))
		return
	}
	if err := d.o.FS.Access(path); err != nil {
		d.found(ContainerPermission, "sudo chmod 666 "+path, "%s: %s", path, errnoText(err))
	}
}

func orNothing(s string) string {
	if s == "" {
		return "not there either"
	}
	return s
}

// deviceNumber reads "240:5".
func deviceNumber(s string) (major, minor uint64, ok bool) {
	x, y, ok := strings.Cut(s, ":")
	if !ok {
		return 0, 0, false
	}
	major, e1 := strconv.ParseUint(x, 10, 32)
	minor, e2 := strconv.ParseUint(y, 10, 32)
	return major, minor, e1 == nil && e2 == nil
}

// nodeNumber is the number of a character device, "" for anything else.
func nodeNumber(st fs.FileInfo) string {
	sys, ok := st.Sys().(*syscall.Stat_t)
	if !ok || st.Mode()&fs.ModeCharDevice == 0 {
		return ""
	}
	return fmt.Sprintf("%d:%d", unix.Major(sys.Rdev), unix.Minor(sys.Rdev))
}

// holders: another process has the group.
func (d *doctor) holders() {
	if d.f.VFIONode == "" && d.f.VFIOCdev == "" {
		return
	}
	byNode, hidden := d.h.holders()
	if hidden > 0 {
		d.unseen("open files of %d processes: run as root", hidden)
	}
	hs := d.f.holdersIn(byNode)
	if len(hs) == 0 {
		return
	}
	var who, pids []string
	for _, h := range hs {
		who = append(who, fmt.Sprintf("process %d (%s) has %s open", h.PID, h.Comm, h.Node))
		pids = append(pids, strconv.Itoa(h.PID))
	}
	d.found(Busy, "kill "+strings.Join(pids, " "), "%s", strings.Join(who, ", ")).Holders = hs
}
