//go:build linux

package main

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// config is a function's configuration space as the kernel shows it.
type config []byte

func readConfig(bdf string) (config, error) {
	c, err := os.ReadFile(sysfs(bdf, "config"))
	if err == nil && len(c) < 256 {
		err = fmt.Errorf("%s: %d bytes of configuration space", bdf, len(c))
	}
	return c, err
}

// capability finds one by id, 0 if there is none.
func (c config) capability(id byte) int {
	for at, n := int(c[0x34])&^3, 0; at >= 0x40 && n < 48; at, n = int(c[at+1])&^3, n+1 {
		if c[at] == id {
			return at
		}
	}
	return 0
}

// extended says whether there is an extended capability.
func (c config) extended(id uint16) bool {
	for at, n := 0x100, 0; at >= 0x100 && at+4 <= len(c) && n < 960; n++ {
		head := binary.LittleEndian.Uint32(c[at:])
		if head != 0 && uint16(head) == id {
			return true
		}
		at = int(head>>20) &^ 3
	}
	return false
}

const (
	capExpress   = 0x10
	extCapErrors = 0x0001
)

// linkText is what the kernel must make of the link's speed and width: PCIe capability, link capabilities at 12 and status
// at 18, speed in bits 3:0 and width in bits 9:4.
func linkText(speed, width uint16) (string, string) {
	names := []string{"", "2.5 GT/s PCIe", "5.0 GT/s PCIe", "8.0 GT/s PCIe", "16.0 GT/s PCIe", "32.0 GT/s PCIe", "64.0 GT/s PCIe"}
	if int(speed) >= len(names) || speed == 0 {
		return "Unknown", strconv.Itoa(int(width))
	}
	return names[speed], strconv.Itoa(int(width))
}

// upstream is the port above a function.
func upstream(bdf string) string {
	path, err := filepath.EvalSymlinks(sysfs(bdf))
	if err != nil {
		return ""
	}
	return filepath.Base(filepath.Dir(path))
}

// pciState: what a monitor reads of PCIe beside the registers, as this kernel has it: the link's attributes, of the function
// and of the port above it, are what configuration space says, and the error counters are there exactly where the function
// has advanced error reporting.
func pciState(b *bench) {
	bdf := b.bdfs[0]
	for name, f := range map[string]string{"function": bdf, "port": upstream(bdf)} {
		c, err := readConfig(f)
		at := 0
		if err == nil {
			at = c.capability(capExpress)
		}
		if !b.check(name+"/express", err == nil && at > 0, "%s: PCIe capability at %#x, %v", f, at, errText(err)) {
			continue
		}
		can, is := binary.LittleEndian.Uint32(c[at+12:]), binary.LittleEndian.Uint16(c[at+18:])
		speed, width := linkText(is&0xf, is>>4&0x3f)
		most, widest := linkText(uint16(can&0xf), uint16(can>>4&0x3f))
		got := []string{readFile(sysfs(f, "current_link_speed")), readFile(sysfs(f, "current_link_width")), readFile(sysfs(f, "max_link_speed")), readFile(sysfs(f, "max_link_width"))}
		want := []string{speed, width, most, widest}
		b.check(name+"/link", fmt.Sprint(got) == fmt.Sprint(want), "sysfs %q, configuration space %q (link status %#04x)", got, want, is)
		has := c.extended(extCapErrors)
		b.counters(name, f, has)
	}
}

// counters looks at the error counters of a function.
func (b *bench) counters(name, f string, has bool) {
	for kind, total := range map[string]string{"correctable": "TOTAL_ERR_COR", "nonfatal": "TOTAL_ERR_NONFATAL", "fatal": "TOTAL_ERR_FATAL"} {
		text, err := os.ReadFile(sysfs(f, "aer_dev_"+kind))
		if !has {
			b.check(name+"/aer-"+kind, os.IsNotExist(err), "no advanced error reporting, so no file: %v %q", errText(err), text)
			continue
		}
		if err == nil {
			err = judgeCounters(string(text), total)
		}
		b.check(name+"/aer-"+kind, err == nil, "%v: %q", errText(err), text)
	}
}

// judgeCounters wants what readers of these files rely on: a name and a number in each line, and the sum of all under total.
func judgeCounters(text, total string) error {
	var sum, said uint64
	n, totals := 0, 0
	for line := range strings.Lines(text) {
		i := strings.LastIndexByte(strings.TrimSpace(line), ' ')
		if i <= 0 {
			return fmt.Errorf("line %q has no number", line)
		}
		v, err := strconv.ParseUint(strings.TrimSpace(line[i:]), 10, 64)
		if err != nil {
			return fmt.Errorf("line %q: %w", line, err)
		}
		if line[:i] == total {
			said = v
			totals++
			continue
		}
		sum += v
		n++
	}
	if n < 6 || totals != 1 || sum != said {
		return fmt.Errorf("%d counters with the sum %d, %d lines of %s that say %d", n, sum, totals, total, said)
	}
	return nil
}
