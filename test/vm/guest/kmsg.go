//go:build linux

package main

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// record is one line of the kernel's log.
type record struct {
	level int
	usec  uint64
	text  string
}

// kernelLog reads the log from where it was opened. Reads never block.
type kernelLog struct{ fd int }

// watchLog sees what the kernel logs from now on.
func watchLog() *kernelLog {
	l := openLog()
	if l.fd >= 0 {
		const seekEnd = 2
		if _, err := syscall.Seek(l.fd, 0, seekEnd); err != nil {
			fmt.Println("guest: /dev/kmsg:", err)
		}
	}
	return l
}

func openLog() *kernelLog {
	// not os.Open: its poller would make Read wait for the next record
	fd, err := syscall.Open("/dev/kmsg", syscall.O_RDONLY|syscall.O_NONBLOCK|syscall.O_CLOEXEC, 0)
	if err != nil {
		fmt.Println("guest: /dev/kmsg:", err)
		fd = -1
	}
	return &kernelLog{fd}
}

func (l *kernelLog) close() {
	if l.fd >= 0 {
		_ = syscall.Close(l.fd) // read only: nothing can be lost
		l.fd = -1
	}
}

// read returns the records since the last call.
func (l *kernelLog) read() []record {
	var out []record
	buf := make([]byte, 16<<10) // one record a read
	for l.fd >= 0 {
		n, err := syscall.Read(l.fd, buf)
		switch {
		case errors.Is(err, syscall.EPIPE), errors.Is(err, syscall.EINTR): // EPIPE: records were overwritten, go on with the oldest
			continue
		case err != nil || n <= 0:
			return out
		}
		if r, ok := parseRecord(string(buf[:n])); ok {
			out = append(out, r)
		}
	}
	return out
}

// parseRecord reads "priority,sequence,microseconds,flags;text"; lines that follow hold key=value pairs of the device.
func parseRecord(s string) (record, bool) {
	head, text, ok := strings.Cut(s, ";")
	f := strings.Split(head, ",")
	if !ok || len(f) < 3 {
		return record{}, false
	}
	pri, err := strconv.Atoi(f[0])
	if err != nil || pri>>3 != 0 { // another facility: written by a program
		return record{}, false
	}
	usec, err := strconv.ParseUint(f[2], 10, 64)
	if err != nil {
		return record{}, false
	}
	text, _, _ = strings.Cut(text, "\n")
	return record{pri & 7, usec, text}, true
}

func wholeLog() string {
	l := openLog()
	defer l.close()
	var b strings.Builder
	for _, r := range l.read() {
		fmt.Fprintf(&b, "<%d>[%5d.%06d] %s\n", r.level, r.usec/1e6, r.usec%1e6, r.text)
	}
	return b.String()
}

// without takes the expected complaints out of c, and tells which of them never came.
func without(c, expected []string) (rest, missing []string) {
	seen := map[string]bool{}
	for _, line := range c {
		i := slices.IndexFunc(expected, func(e string) bool { return strings.Contains(line, e) })
		if i < 0 {
			rest = append(rest, line)
			continue
		}
		seen[expected[i]] = true
	}
	for _, e := range expected {
		if !seen[e] {
			missing = append(missing, e)
		}
	}
	return rest, missing
}

var (
	// what a kernel prints only when something broke, whoever was the cause
	broke = regexp.MustCompile(`BUG: |Oops: |WARNING: |Call Trace|general protection|refcount_t|soft lockup|blocked for more than|Out of memory`)
	// the subsystems under test
	ours = regexp.MustCompile(`vfio|DMAR|iommu|mlx5|pcieport|\b15b3\b`)
	// at a level that looks bad, yet part of a healthy life: the mlx5_core of this kernel on a plain function
	harmless = regexp.MustCompile(`tainting kernel|module verification failed|PTM is not supported|Failed to get valid vendor specific ID|fw query isn't supported`)
)

// complaints are the lines a good device and a good driver do not cause: oopses and stalls of any kind, warnings and
// errors of the subsystems under test, and every line of the IOMMU about a fault.
func complaints(log []record) []string {
	var out []string
	for _, r := range log {
		const warning, debugging = 4, 7
		bad := broke.MatchString(r.text) ||
			r.level <= warning && ours.MatchString(r.text) ||
			r.level < debugging && strings.Contains(r.text, "DMAR") && strings.Contains(r.text, "ault")
		if bad && !harmless.MatchString(r.text) {
			out = append(out, fmt.Sprintf("<%d> %s", r.level, r.text))
		}
	}
	return out
}
