package pci

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
)

// ErrorCounts are the error counters of a PCI Express function that the kernel
// keeps (Documentation/ABI/testing/sysfs-bus-pci-devices-aer_stats), by the kernel's
// names of the errors. The kernel's line with the total is among them.
type ErrorCounts struct {
	Correctable map[string]uint64 `json:"correctable"`
	NonFatal    map[string]uint64 `json:"nonfatal"`
	Fatal       map[string]uint64 `json:"fatal"`
}

// ReadErrorCounts reads the counters. It answers nil without an error for a function
// that has none: no AER capability, or AER belongs to the platform's firmware. It
// touches no register of the function.
func ReadErrorCounts(b BDF, opt Options) (*ErrorCounts, error) {
	o := opt.withDefaults()
	const op = "read AER counters"
	if !b.Valid() {
		return nil, failf(op, b, ErrBadBDF, "", "device at most 1f, function at most 7")
	}
	r := &attrs{fs: o.FS, dir: o.deviceDir(b)}
	c := &ErrorCounts{}
	found := 0
	for _, part := range []struct {
		file string
		m    *map[string]uint64
	}{{"aer_dev_correctable", &c.Correctable}, {"aer_dev_nonfatal", &c.NonFatal}, {"aer_dev_fatal", &c.Fatal}} {
		text := r.text(part.file)
		if text == "" {
			continue
		}
		m, err := parseErrorCounts(text)
		if err != nil {
			return nil, sysfsError(op, b, "parse", filepath.Join(r.dir, part.file), err)
		}
		*part.m = m
		found++
	}
	if len(r.bad) > 0 {
		return nil, failf(op, b, ErrIO, "", "%s", strings.Join(r.bad, "; "))
	}
	if found == 0 {
		return nil, nil
	}
	return c, nil
}

// parseErrorCounts reads lines of a name and a number.
func parseErrorCounts(text string) (map[string]uint64, error) {
	m := map[string]uint64{}
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) == 0 {
			continue
		}
		if len(f) != 2 {
			return nil, fmt.Errorf("%q is no name and number", strings.TrimSpace(line))
		}
		n, err := strconv.ParseUint(f[1], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("%q: %q is no number", f[0], f[1])
		}
		m[f[0]] = n
	}
	return m, nil
}
