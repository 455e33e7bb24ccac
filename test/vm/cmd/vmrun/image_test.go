package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/mlxvfio/mlxvfio/internal/absent"
	"github.com/stretchr/testify/require"
)

// entry is one member of an archive as the kernel's unpacker reads it: by position, header fields in hexadecimal.
type entry struct {
	name              string
	mode, nlink, size int
	major, minor      int
	content           string
}

func unpackNewc(t *testing.T, b []byte) []entry {
	t.Helper()
	var out []entry
	for at := 0; ; {
		require.Equal(t, "070701", string(b[at:at+6]), "magic at %d", at)
		field := func(n int) int {
			v, err := strconv.ParseUint(string(b[at+6+8*n:at+14+8*n]), 16, 32)
			require.NoError(t, err)
			return int(v)
		}
		nameSize, size := field(11), field(6)
		name := string(b[at+110 : at+110+nameSize-1])
		require.Zero(t, b[at+110+nameSize-1], "the name ends in NUL and the NUL counts")
		data := (at + 110 + nameSize + 3) &^ 3
		e := entry{name, field(1), field(4), size, field(9), field(10), string(b[data : data+size])}
		if name == "TRAILER!!!" {
			return out
		}
		out = append(out, e)
		at = (data + size + 3) &^ 3
	}
}

func TestArchiveIsNewc(t *testing.T) {
	a := newArchive()
	a.node("dev/console", modeCharDev, nil, 5, 1)
	a.add("init", modeProgram, []byte("12345"))
	a.add("lib/modules/x.ko", modeFile, []byte("abc"))
	a.add("lib/modules", modeDir, nil) // there already
	b := a.bytes()
	require.Zero(t, len(b)%512)
	require.Equal(t, []entry{
		{"dev", modeDir, 2, 0, 0, 0, ""},
		{"dev/console", modeCharDev, 1, 0, 5, 1, ""},
		{"init", modeProgram, 1, 5, 0, 0, "12345"},
		{"lib", modeDir, 2, 0, 0, 0, ""},
		{"lib/modules", modeDir, 2, 0, 0, 0, ""},
		{"lib/modules/x.ko", modeFile, 1, 3, 0, 0, "abc"},
	}, unpackNewc(t, b))
}

func TestDependsOf(t *testing.T) {
	require.Equal(t, []string{"vfio_pci_core", "irqbypass"}, dependsOf("license=GPL\x00depends=vfio-pci-core,irqbypass\x00retpoline=Y\x00"))
	require.Empty(t, dependsOf("license=GPL\x00depends=\x00"))
	require.Empty(t, dependsOf("alias=depends=x\x00"))
}

func TestDependenciesRefusesWhatIsNoModule(t *testing.T) {
	_, err := dependencies([]byte("#!/bin/sh\n"))
	require.Error(t, err)
	self, err := os.ReadFile("/proc/self/exe")
	require.NoError(t, err)
	_, err = dependencies(self)
	require.ErrorContains(t, err, "not a kernel module")
}

// TestPackFetchedKernel packs the real modules, when the bench has been fetched.
func TestPackFetchedKernel(t *testing.T) {
	var k kernel
	for _, v := range []string{"vm", "judge"} {
		cache, err := os.UserCacheDir()
		require.NoError(t, err)
		k.dir = filepath.Join(cache, "mlxvfio", v, "kern", "6.12")
		if _, err := k.image(); err == nil {
			break
		}
	}
	if _, err := k.image(); err != nil {
		absent.Skip(t, "modules of a real kernel, packed", fmt.Sprintf("the bench was not fetched: %v", err))
	}
	a := newArchive()
	require.NoError(t, k.pack(a, []string{"vfio_pci"}))
	before := map[string]bool{}
	var table string
	for _, e := range unpackNewc(t, a.bytes()) {
		if e.name == "lib/modules.dep" {
			table = e.content
		}
	}
	require.Contains(t, table, "vfio_pci vfio_pci_core")
	for line := range strings.Lines(table) { // what a module needs stands before it
		f := strings.Fields(line)
		for _, dep := range f[1:] {
			require.True(t, before[dep], "%s comes after %s, which needs it", dep, f[0])
		}
		before[f[0]] = true
	}
	require.ErrorContains(t, k.pack(newArchive(), []string{"no_such_module"}), "no_such_module")
}
