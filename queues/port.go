package queues

import (
	"context"
	"errors"
	"fmt"

	"github.com/mlxvfio/mlxvfio/cmdif"
	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// thePort is the only port a function of this family has for itself: functions
// with two are one per port since ConnectX-4.
const thePort = 1

// PortAddress is how others reach a function.
type PortAddress struct {
	Ethernet bool   `json:"ethernet"`
	Active   bool   `json:"active"`
	LID      uint16 `json:"lid"`
	GID      GID    `json:"gid"`
	MAC      MAC    `json:"mac"`
	// MTU is the largest IP packet on Ethernet in bytes, 0 on InfiniBand.
	MTU int `json:"mtu,omitempty"`
}

// QueryPort asks firmware for the function's addresses: on InfiniBand
// QUERY_HCA_VPORT_CONTEXT (0x762) and QUERY_HCA_VPORT_GID (0x764), on Ethernet
// QUERY_NIC_VPORT_CONTEXT (0x754); the state of the port by QUERY_VPORT_STATE
// (0x750).
func (d *Dev) QueryPort(ctx context.Context) (PortAddress, error) {
	if d.Caps.Ethernet {
		return d.queryEthernet(ctx)
	}
	in, out := make([]byte, prm.QueryHCAVportContextInSize), make([]byte, prm.QueryHCAVportContextOutSize)
	cmd := prm.AsQueryHCAVportContextIn(in)
	cmd.SetOpcode(prm.OpQueryHCAVportContext)
	cmd.SetPortNum(thePort)
	if err := d.exec(ctx, "ask for the LID", in, out); err != nil {
		return PortAddress{}, err
	}
	v := prm.AsQueryHCAVportContextOut(out).HCAVportContext()
	a := PortAddress{LID: v.LID(), Active: v.VportState() == prm.IBPortActive || v.PortState() == prm.IBPortActive}

	in, out = make([]byte, prm.QueryHCAVportGIDInSize), make([]byte, prm.QueryHCAVportGIDOutSize+len(a.GID))
	gid := prm.AsQueryHCAVportGIDIn(in)
	gid.SetOpcode(prm.OpQueryHCAVportGID)
	gid.SetPortNum(thePort)
	if err := d.exec(ctx, "ask for the GID", in, out); err != nil {
		return PortAddress{}, err
	}
	copy(a.GID[:], out[prm.QueryHCAVportGIDOutSize:])
	return a, nil
}

func (d *Dev) queryEthernet(ctx context.Context) (PortAddress, error) {
	v, err := d.nicVport(ctx)
	if err != nil {
		return PortAddress{}, err
	}
	in, out := make([]byte, prm.QueryVportStateInSize), make([]byte, prm.QueryVportStateOutSize)
	prm.AsQueryVportStateIn(in).SetOpcode(prm.OpQueryVportState)
	if err := d.exec(ctx, "ask for the state of the port", in, out); err != nil {
		return PortAddress{}, err
	}
	mac := v.PermanentAddress()
	a := PortAddress{
		Ethernet: true, MAC: macOf(mac.MACAddr47_32(), mac.MACAddr31_0()), MTU: int(v.MTU()),
		Active: prm.AsQueryVportStateOut(out).State() == vportUp,
	}
	a.GID = a.MAC.linkLocal()
	return a, nil
}

// vportUp is the state of a virtual port with a link (Linux vport.h).
const vportUp = 1

func (d *Dev) nicVport(ctx context.Context) (*prm.NicVportContext, error) {
	in, out := make([]byte, prm.QueryNicVportContextInSize), make([]byte, prm.QueryNicVportContextOutSize)
	prm.AsQueryNicVportContextIn(in).SetOpcode(prm.OpQueryNicVportContext)
	if err := d.exec(ctx, "ask for the MAC address", in, out); err != nil {
		return nil, err
	}
	return prm.AsQueryNicVportContextOut(out).NicVportContext(), nil
}

// RoCE versions of roce_addr_layout (Linux device.h).
const (
	roceVersion1 = 0
	roceVersion2 = 2
)

// RoCEAddress is an entry of the RoCE address table.
type RoCEAddress struct {
	Index   uint16 `json:"index"`
	GID     GID    `json:"gid"`
	MAC     MAC    `json:"mac"`
	VLAN    uint16 `json:"vlan,omitempty"` // 0 is none
	Version uint8  `json:"version"`        // 1 or 2; 0 is no entry
}

// EnableRoCE writes an entry of the RoCE address table (SET_ROCE_ADDRESS, 0x761)
// and lets the port run RoCE (roce_en of MODIFY_NIC_VPORT_CONTEXT, 0x755). A zero
// MAC is the function's own, a zero GID the link-local one of the MAC, a zero
// Version the newest the device has. Connections made afterwards use this entry.
func (d *Dev) EnableRoCE(ctx context.Context, a RoCEAddress) (RoCEAddress, error) {
	op := "enable RoCE"
	c := &d.Caps
	switch {
	case !c.Ethernet:
		return a, refuse(op, "", vfio.ErrNotSupported, "the port runs InfiniBand")
	case !c.RoCE:
		return a, refuse(op, "", vfio.ErrNotSupported, "the function lacks the capability roce")
	case over(int(a.Index)+1, int(c.RoCEAddresses)):
		return a, refuse(op, "Index", vfio.ErrRange, "%d; the table has %d entries", a.Index, c.RoCEAddresses)
	case a.Version > 2 || a.Version != 0 && c.RoCEVersions>>roceCode(a.Version)&1 == 0:
		return a, refuse(op, "Version", vfio.ErrNotSupported, "RoCE version %d; the device's bitmap is %#x (bit 0 version 1, bit 2 version 2)", a.Version, c.RoCEVersions)
	case a.VLAN >= 1<<12:
		return a, refuse(op, "VLAN", vfio.ErrRange, "%d; 4095 is the most", a.VLAN)
	}
	if a.Version == 0 {
		if a.Version = 2; c.RoCEVersions>>roceVersion2&1 == 0 {
			a.Version = 1
		}
	}
	if a.MAC == (MAC{}) {
		v, err := d.nicVport(ctx)
		if err != nil {
			return a, fmt.Errorf("%s: %w", op, err)
		}
		a.MAC = macOf(v.PermanentAddress().MACAddr47_32(), v.PermanentAddress().MACAddr31_0())
	}
	if a.GID.IsZero() {
		a.GID = a.MAC.linkLocal()
	}
	if err := d.setRoCEAddress(ctx, &a); err != nil {
		return a, err
	}
	if err := d.setRoCE(ctx, true); err != nil {
		return a, errors.Join(err, d.setRoCEAddress(ctx, &RoCEAddress{Index: a.Index}))
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.roce = a
	return a, nil
}

// roceCode is the value of a version in the layout, and its bit in the bitmap.
func roceCode(version uint8) uint8 {
	if version == 2 {
		return roceVersion2
	}
	return roceVersion1
}

// DisableRoCE takes back what EnableRoCE did. Without it, it does nothing.
func (d *Dev) DisableRoCE(ctx context.Context) error {
	a, ok := d.RoCE()
	if !ok {
		return nil
	}
	if err := errors.Join(d.setRoCE(ctx, false), d.setRoCEAddress(ctx, &RoCEAddress{Index: a.Index})); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.roce = RoCEAddress{}
	return nil
}

// RoCE is the entry that EnableRoCE wrote; false without one.
func (d *Dev) RoCE() (RoCEAddress, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.roce, d.roce.Version != 0
}

// setRoCEAddress writes an entry; one without a version deletes it.
func (d *Dev) setRoCEAddress(ctx context.Context, a *RoCEAddress) error {
	in, out := make([]byte, prm.SetRoceAddressInSize), make([]byte, prm.SetRoceAddressOutSize)
	cmd := prm.AsSetRoceAddressIn(in)
	cmd.SetOpcode(prm.OpSetRoceAddress)
	cmd.SetRoceAddressIndex(a.Index)
	cmd.SetVHCAPortNum(thePort)
	if a.Version != 0 {
		l := cmd.RoceAddress()
		copy(l.SourceL3Address(), a.GID[:])
		l.SetVlanValid(a.VLAN != 0)
		l.SetVlanID(a.VLAN)
		hi, lo := a.MAC.halves()
		l.SetSourceMAC47_32(hi)
		l.SetSourceMAC31_0(lo)
		if !a.GID.IPv4() {
			l.SetRoceL3Type(1)
		}
		l.SetRoceVersion(roceCode(a.Version))
	}
	return d.exec(ctx, fmt.Sprintf("write entry %d of the RoCE address table (%v, %v)", a.Index, a.GID, a.MAC), in, out)
}

// setRoCE switches roce_en.
func (d *Dev) setRoCE(ctx context.Context, on bool) error {
	in, out := make([]byte, prm.ModifyNicVportContextInSize), make([]byte, prm.ModifyNicVportContextOutSize)
	cmd := prm.AsModifyNicVportContextIn(in)
	cmd.SetOpcode(prm.OpModifyNicVportContext)
	cmd.FieldSelect().SetRoceEn(true)
	cmd.NicVportContext().SetRoceEn(on)
	return d.exec(ctx, fmt.Sprintf("set roce_en to %t", on), in, out)
}

// refusedByFirmware tells that firmware executed a command and said no.
func refusedByFirmware(err error) bool {
	var ce *cmdif.CommandError
	return errors.As(err, &ce)
}
