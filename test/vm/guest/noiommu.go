//go:build linux

package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	unsafeNoIOMMU  = "--unsafe-noiommu"
	noIOMMUWarning = "unsafe: no IOMMU guards" // of every open

	// what Linux says and does (vfio/group.c): the group is made at the bind, and each open is logged
	noIOMMUTaint  = "Adding kernel taint for vfio-noiommu group"
	noIOMMUOpened = "vfio-noiommu device opened by user"
	taintUser     = 1 << 6
)

func tainted() int {
	n, err := strconv.Atoi(readFile("/proc/sys/kernel/tainted"))
	if err != nil {
		return -1
	}
	return n
}

// noIOMMUBind: nothing goes without the word that says that it is unsafe, and nothing before the administrator has said
// so to the kernel either.
func noIOMMUBind(b *bench) {
	bdf := b.bdfs[0]
	if err := unbindByHand(bdf); !b.check("prepare", err == nil && groupOf(bdf) == "", "%v, group %q", errText(err), groupOf(bdf)) {
		return
	}
	untouched := func(name string) {
		b.check(name, driverOf(bdf) == "" && noOverride(bdf) && len(journals(bdf)) == 0 && tainted()&taintUser == 0, "%s, %v, tainted %#x",
			driverState(bdf), journals(bdf), tainted())
	}
	plain := b.via(noIOMMU)
	plain.words = nil
	plain.doctor("doctor-plain", bdf, "no-iommu", "not-bound", "vm-without-iommu")
	plain.refuses("bind-plain", 3, unsafeNoIOMMU, "bind", bdf)
	untouched("bind-plain-untouched")
	b.expect(noIOMMUTaint)
	o := b.cli("bind", "bind", bdf)
	if !b.check("bind", o.ok() && strings.Contains(o.stderr, "no IOMMU guards"), "%v", o) {
		return
	}
	b.check("driver", driverOf(bdf) == "vfio-pci" && len(journals(bdf)) == 1, "%s, %v", driverState(bdf), journals(bdf))
	b.check("node", strings.Contains(groupNode(bdf), "noiommu") && exists(groupNode(bdf)) && cdevNode(bdf) == "", "%s", groupNode(bdf))
	b.check("tainted", tainted()&taintUser != 0, "/proc/sys/kernel/tainted is %#x: the kernel remembers", tainted())
	// the kernel asks for its mode again when the function is opened
	if !b.check("mode-stays", readFile(noIOMMUMode) == "Y", "%s is %q: nothing can be opened", noIOMMUMode, readFile(noIOMMUMode)) {
		if err := sysfsWrite(noIOMMUMode, "Y"); err != nil {
			b.check("mode", false, "%v", err)
		}
	}
	plain.refuses("info-plain", 3, unsafeNoIOMMU, "info", bdf)
	plain.refuses("selftest-plain", 3, unsafeNoIOMMU, "selftest", bdf)
	plain.refuses("backend-plain", 3, unsafeNoIOMMU, "info", bdf, "--backend", noIOMMU)
	for _, way := range []string{byGroup, byCdev} {
		b.refuses("not-by-"+way, 3, "IOMMU", "info", bdf, "--backend", way)
	}
	before, err := b.counter(bdf, "commands")
	b.check("nobody-opened", err == nil && before == 0, "%v commands: %v", before, errText(err))
	b.released("released", bdf)
}

// noIOMMULoud: whoever opens is told, and the files are those of the group.
func noIOMMULoud(b *bench) {
	bdf := b.bdfs[0]
	b.doctor("doctor", bdf, "noiommu-mode")
	o := b.cli("selftest", "selftest", bdf)
	b.check("selftest", o.ok() && strings.Contains(o.stderr, noIOMMUWarning), "%v", o)
	p, ok := b.holdUp("holder", bdf)
	if !ok {
		return
	}
	b.holds("files", bdf, p)
	second := b.cli("busy", "selftest", bdf)
	b.check("busy", second.code == 3 && strings.Contains(second.stderr, strconv.Itoa(p.cmd.Process.Pid)) && p.alive(), "want status 3 and the pid %d; %v", p.cmd.Process.Pid, second)
	p.kill()
	b.released("released", bdf)

	// the kernel asks for its mode at every open
	mode := readFile(noIOMMUMode)
	err := sysfsWrite(noIOMMUMode, "N")
	b.check("mode-off", err == nil, "%v", errText(err))
	b.refuses("mode-off-refused", 3, noIOMMUMode, "info", bdf)
	err = sysfsWrite(noIOMMUMode, mode)
	b.check("mode-again", err == nil && mode == "Y", "it was %q; %v", mode, errText(err))

	// and memory that stays where it is must be there
	const pages = "/proc/sys/vm/nr_hugepages"
	had := readFile(pages)
	err = sysfsWrite(pages, "0")
	b.check("no-pages", err == nil && readFile(pages) == "0", "%v, %s of %s", errText(err), readFile(pages), had)
	b.doctor("no-pages-doctor", bdf, "noiommu-huge-pages", "noiommu-mode")
	b.refuses("no-pages-refused", 1, "nr_hugepages", "selftest", bdf)
	err = sysfsWrite(pages, had)
	b.check("pages-again", err == nil && readFile(pages) == had, "%v, %s of %s", errText(err), readFile(pages), had)
	b.released("no-pages-released", bdf)
}

// noIOMMUMoved: the kernel compacts its memory, which moves pages to other places, while data moves to the places that
// the device was told. The device must never meet a page of somebody else's.
func noIOMMUMoved(b *bench) {
	bdf := b.bdfs[0]
	before := migrated()
	stop := make(chan struct{})
	var churn sync.WaitGroup
	churn.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			scatter()
			if err := os.WriteFile("/proc/sys/vm/compact_memory", []byte("1"), 0); err != nil {
				b.check("compact", false, "%v", err)
				return
			}
			time.Sleep(20 * time.Millisecond)
		}
	})
	b.litmus("litmus", byInterrupt, bdf)
	b.selftest("selftest", bdf)
	close(stop)
	churn.Wait()
	after := migrated()
	b.check("moved", before >= 0 && after > before, "%d pages were moved before, %d after: the kernel must have moved some", before, after)
}

// migrated is how many pages the kernel has moved.
func migrated() int {
	for line := range strings.Lines(readFile("/proc/vmstat")) {
		var n int
		if _, err := fmt.Sscanf(line, "pgmigrate_success %d", &n); err == nil {
			return n
		}
	}
	return -1
}

// scatter leaves memory in pieces: files of a few pages each, every second one taken away again.
func scatter() {
	dir, err := os.MkdirTemp("/tmp", "scatter")
	if err != nil {
		return
	}
	defer func() { _ = os.RemoveAll(dir) }() // a failure leaves files in a machine that is off soon
	page := make([]byte, 3*4096)
	for round := range 2 {
		for i := range 256 {
			name := fmt.Sprintf("%s/%d", dir, i)
			switch {
			case round == 0:
				err = os.WriteFile(name, page, 0o600)
			case i%2 == 0:
				err = os.Remove(name)
			}
			if err != nil {
				return
			}
		}
	}
	if err := os.WriteFile("/proc/sys/vm/compact_memory", []byte("1"), 0); err != nil {
		return
	}
}
