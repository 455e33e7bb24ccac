package pci

import "path/filepath"

// Name is what a function is called and who drives it.
type Name struct {
	BDF    BDF
	ID     ID     // what its ids mean
	Driver string // "" where none is bound
}

// Names finds the vendor's functions as List does, ordered by address, but reads
// only what the kernel holds in memory: ids and the driver's name. It touches no
// device, which may be asleep, gone or hung, and skips what it cannot read: it is
// for completion and menus, where an answer at once is worth more than a reason.
func Names(opt Options) []Name {
	o := opt.withDefaults()
	entries, err := o.FS.ReadDir(o.devicesDir())
	if err != nil {
		return nil
	}
	var names []Name
	for _, e := range entries { // sorted by name, which is by address
		b, err := ParseBDF(e.Name())
		if err != nil {
			continue
		}
		dir := o.deviceDir(b)
		if v, err := readHex(o.FS, filepath.Join(dir, "vendor"), 16); err != nil || v != VendorMellanox {
			continue
		}
		d, err := readHex(o.FS, filepath.Join(dir, "device"), 16)
		if err != nil {
			continue
		}
		names = append(names, Name{BDF: b, ID: Lookup(VendorMellanox, uint16(d)), Driver: linkBase(o.FS, filepath.Join(dir, "driver"))})
	}
	return names
}
