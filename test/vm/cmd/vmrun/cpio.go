package main

import (
	"bytes"
	"fmt"
	"path"
)

// archive is an initramfs in the making: an uncompressed "newc" cpio (Linux
// Documentation/driver-api/early-userspace/buffer-format.rst). Parent folders appear by themselves.
type archive struct {
	buf   bytes.Buffer
	inode int
	have  map[string]bool
}

// file types and permissions of an entry, as in stat(2)
const (
	modeDir     = 0o040755
	modeFile    = 0o100644
	modeProgram = 0o100755
	modeCharDev = 0o020600
)

func newArchive() *archive { return &archive{inode: 1, have: map[string]bool{".": true}} }

// add appends an entry; the name is relative to the root.
func (a *archive) add(name string, mode int, content []byte) { a.node(name, mode, content, 0, 0) }

func (a *archive) node(name string, mode int, content []byte, major, minor int) {
	name = path.Clean(name)
	if a.have[name] {
		return
	}
	a.add(path.Dir(name), modeDir, nil)
	a.have[name] = true
	a.record(name, mode, content, major, minor)
}

func (a *archive) record(name string, mode int, content []byte, major, minor int) {
	links := 1
	if mode == modeDir {
		links = 2
	}
	fmt.Fprintf(&a.buf, "070701")
	for _, v := range []int{
		a.inode, mode, 0 /* uid */, 0 /* gid */, links, 0 /* mtime */, len(content),
		0, 0 /* device the file is on */, major, minor, len(name) + 1, 0, /* checksum: none in this format */
	} {
		fmt.Fprintf(&a.buf, "%08X", v)
	}
	a.inode++
	a.buf.WriteString(name + "\x00")
	a.align(4)
	a.buf.Write(content)
	a.align(4)
}

func (a *archive) align(n int) {
	if rest := a.buf.Len() % n; rest != 0 {
		a.buf.Write(make([]byte, n-rest))
	}
}

// bytes ends the archive and returns it.
func (a *archive) bytes() []byte {
	a.record("TRAILER!!!", 0, nil, 0, 0)
	a.align(512)
	return a.buf.Bytes()
}
