package sim

import "github.com/mlxvfio/mlxvfio/internal/prm"

func init() {
	handle(prm.OpSetRoceAddress, onlyInit, 1, setRoceAddress).refuses(syndOK, syndRoceIndex)
	handle(prm.OpQueryRoceAddress, onlyInit, 1, queryRoceAddress).refuses(syndOK, syndRoceIndex)
}

// roceEntry finds an entry of the RoCE address table.
func (f *function) roceEntry(index uint16, port uint8) (*prm.RoceAddrLayout, synd) {
	switch {
	case int(index) >= len(f.roce):
		return nil, syndRoceIndex
	case port > 1:
		return nil, syndPort
	case f.chip.port != PortEth || !f.general().Roce():
		return nil, syndRoceOff
	}
	return &f.roce[index], syndOK
}

// setRoceAddress writes an entry; all zeros deletes it (Linux lib/gid.c,
// mlx5_core_roce_gid_set without a GID).
func setRoceAddress(f *function, c *call) synd {
	in := prm.AsSetRoceAddressIn(c.in)
	e, s := f.roceEntry(in.RoceAddressIndex(), in.VHCAPortNum())
	if s != syndOK {
		return s
	}
	a := in.RoceAddress()
	r := prm.AsRoceCap(f.caps.current(prm.CapRoce))
	// The capability counts layer 3 types from bit 1: IPv4 and IPv6.
	if *a != (prm.RoceAddrLayout{}) &&
		(r.RoceVersion()>>min(a.RoceVersion(), 7)&1 == 0 || a.RoceL3Type() > 1 || r.L3Type()>>(1+a.RoceL3Type())&1 == 0) {
		return syndRoceAddress
	}
	*e = *a
	return syndOK
}

func queryRoceAddress(f *function, c *call) synd {
	in := prm.AsQueryRoceAddressIn(c.in)
	e, s := f.roceEntry(in.RoceAddressIndex(), in.VHCAPortNum())
	if s != syndOK {
		return s
	}
	*prm.AsQueryRoceAddressOut(c.out).RoceAddress() = *e
	return syndOK
}
