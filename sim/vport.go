package sim

import (
	"encoding/binary"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// IB attributes of the port: choices within what IB allows. The capability mask
// must select bit 16, connection management: mlx5_ib's set_port_caps_atomic
// changes nothing otherwise.
const (
	physPolling   = 2 // IB PortPhysicalState
	physLinkUp    = 5
	ibSMLID       = 100
	ibTimeout     = 18
	defaultPKey   = 0xffff
	defaultPrefix = 0xfe80 << 48
	allIndexes    = 0xffff

	// Trap, AutomaticMigration, SLMapping, SystemImageGUID, ExtendedSpeeds,
	// CommunicationManagement, VendorClass, ClientReregistration (IB PortInfo
	// CapabilityMask bits 2, 5, 6, 11, 14, 16, 24, 25).
	ibCapMask   = 1<<2 | 1<<5 | 1<<6 | 1<<11 | 1<<14 | ibCapCM | 1<<24 | 1<<25
	ibCapCM     = 1 << 16
	vportDown   = 0
	vportUp     = 1
	vportAuto   = 2
	vnicVport   = 0 // op_mod of QUERY_VPORT_STATE
	eswVport    = 1
	uplinkVport = 2
)

func init() {
	const states = 1<<vnicVport | 1<<eswVport | 1<<uplinkVport
	handle(prm.OpQueryHCAVportContext, onlyInit, 1, queryHCAVport).refuses(syndOK, syndPort)
	handle(prm.OpModifyHCAVportContext, onlyInit, 1, modifyHCAVport).refuses(syndOK, syndPort)
	handle(prm.OpQueryHCAVportGID, onlyInit, 1, queryGID).needs(queryGIDMin).refuses(syndOK, syndTableIndex)
	handle(prm.OpQueryHCAVportPkey, onlyInit, 1, queryPKey).needs(queryPKeyMin).refuses(syndOK, syndTableIndex)
	handle(prm.OpQueryVportState, onlyInit, states, queryVportState).refuses(syndOK, syndVport)
	handle(prm.OpModifyVportState, onlyInit, states, modifyVportState).refuses(syndOK, syndVportState)
	handle(prm.OpQueryNicVportContext, onlyInit, 1, queryNICVport).refuses(syndOK, syndVport)
	handle(prm.OpModifyNicVportContext, onlyInit, 1, modifyNICVport).refuses(syndOK, syndVport)
}

// vport is the function's own virtual port; there are no others.
type vport struct {
	admin   uint8
	capMask uint32 // IB PortInfo CapabilityMask
	nic     prm.NicVportContext
}

func (f *function) resetVport() {
	f.vport = vport{admin: vportAuto, capMask: ibCapMask}
	n := &f.vport.nic
	n.SetMTU(1500 + 22)
	n.SetSystemImageGUID(f.chip.systemGUID())
	n.SetPortGUID(f.guid())
	n.SetNodeGUID(f.guid())
	n.PermanentAddress().SetMACAddr47_32(uint16(f.mac() >> 32))
	n.PermanentAddress().SetMACAddr31_0(uint32(f.mac()))
}

// ownVport checks the addressing of a vport command.
func ownVport(other bool, number uint16, port uint8) synd {
	switch {
	case other || number != 0:
		return syndVport
	case port > 1:
		return syndPort
	}
	return syndOK
}

func queryHCAVport(f *function, c *call) synd {
	in := prm.AsQueryHCAVportContextIn(c.in)
	if s := ownVport(in.OtherVport(), in.VportNumber(), in.PortNum()); s != syndOK {
		return s
	}
	v := prm.AsQueryHCAVportContextOut(c.out).HCAVportContext()
	v.SetHasSmi(true)
	v.SetPortPhysicalState(physPolling)
	v.SetPortState(prm.IBPortDown)
	if f.linkUp() {
		v.SetPortPhysicalState(physLinkUp)
		v.SetPortState(prm.IBPortActive)
	}
	v.SetVportState(v.PortState())
	v.SetSystemImageGUID(f.chip.systemGUID())
	v.SetPortGUID(f.guid())
	v.SetNodeGUID(f.guid())
	v.SetCapMask1(f.vport.capMask)
	v.SetCapMask1FieldSelect(ibCapMask)
	v.SetLID(f.port.lid)
	v.SetSmLID(ibSMLID)
	v.SetSubnetTimeout(ibTimeout)
	return syndOK
}

// modifyHCAVport changes the port's capability mask, as far as the query's
// cap_mask1_field_select offers it. GUIDs and the state policy, which field_select
// names, belong to a virtual function's host and cannot be changed here.
func modifyHCAVport(f *function, c *call) synd {
	in := prm.AsModifyHCAVportContextIn(c.in)
	if s := ownVport(in.OtherVport(), in.VportNumber(), in.PortNum()); s != syndOK {
		return s
	}
	v := in.HCAVportContext()
	sel := v.CapMask1FieldSelect()
	if v.FieldSelect() != 0 || sel&^ibCapMask != 0 || v.CapMask2FieldSelect() != 0 {
		return syndVportField
	}
	f.vport.capMask = f.vport.capMask&^sel | v.CapMask1()&sel
	return syndOK
}

// gids and pkeys are the sizes of the tables, from the codes in force.
func (f *function) gids() int {
	return 8 << min(prm.AsCmdHCACap(f.caps.current(prm.CapGeneral)).GIDTableSize(), 4)
}

func (f *function) pkeys() int {
	return 128 << min(prm.AsCmdHCACap(f.caps.current(prm.CapGeneral)).PkeyTableSize(), 5)
}

// span turns an index into the entries it asks for.
func span(index uint16, size int) (first, n int, s synd) {
	switch {
	case index == allIndexes:
		return 0, size, syndOK
	case int(index) >= size:
		return 0, 0, syndTableIndex
	}
	return int(index), 1, syndOK
}

func queryGIDMin(f *function, c *call) (in, out int) {
	_, n, _ := span(prm.AsQueryHCAVportGIDIn(c.in).GIDIndex(), f.gids())
	return prm.QueryHCAVportGIDInSize, prm.QueryHCAVportGIDOutSize + n*16
}

func queryGID(f *function, c *call) synd {
	in := prm.AsQueryHCAVportGIDIn(c.in)
	if s := ownVport(in.OtherVport(), in.VportNumber(), in.PortNum()); s != syndOK {
		return s
	}
	first, n, s := span(in.GIDIndex(), f.gids())
	if s != syndOK {
		return s
	}
	prm.AsQueryHCAVportGIDOut(c.out).SetGidsNum(uint16(n))
	if first == 0 {
		g := c.out[prm.QueryHCAVportGIDOutSize:]
		binary.BigEndian.PutUint64(g, defaultPrefix)
		binary.BigEndian.PutUint64(g[8:], f.guid())
	}
	return syndOK
}

func queryPKeyMin(f *function, c *call) (in, out int) {
	_, n, _ := span(prm.AsQueryHCAVportPkeyIn(c.in).PkeyIndex(), f.pkeys())
	return prm.QueryHCAVportPkeyInSize, prm.QueryHCAVportPkeyOutSize + n*prm.PkeySize
}

func queryPKey(f *function, c *call) synd {
	in := prm.AsQueryHCAVportPkeyIn(c.in)
	if s := ownVport(in.OtherVport(), in.VportNumber(), in.PortNum()); s != syndOK {
		return s
	}
	first, _, s := span(in.PkeyIndex(), f.pkeys())
	if s != syndOK {
		return s
	}
	if first == 0 {
		prm.AsPkey(c.out[prm.QueryHCAVportPkeyOutSize:]).SetPkey(defaultPKey)
	}
	return syndOK
}

func queryVportState(f *function, c *call) synd {
	in := prm.AsQueryVportStateIn(c.in)
	if s := ownVport(in.OtherVport(), in.VportNumber(), 0); s != syndOK {
		return s
	}
	out := prm.AsQueryVportStateOut(c.out)
	out.SetAdminState(f.vport.admin)
	out.SetState(vportDown)
	if f.vport.admin == vportUp || f.vport.admin == vportAuto && f.linkUp() {
		out.SetState(vportUp)
	}
	return syndOK
}

func modifyVportState(f *function, c *call) synd {
	in := prm.AsModifyVportStateIn(c.in)
	if s := ownVport(in.OtherVport(), in.VportNumber(), 0); s != syndOK {
		return s
	}
	if in.AdminState() > vportAuto {
		return syndVportState
	}
	f.vport.admin = in.AdminState()
	return syndOK
}

func queryNICVport(f *function, c *call) synd {
	in := prm.AsQueryNicVportContextIn(c.in)
	if s := ownVport(in.OtherVport(), in.VportNumber(), 0); s != syndOK {
		return s
	}
	v := prm.AsQueryNicVportContextOut(c.out).NicVportContext()
	*v = f.vport.nic
	v.SetAllowedListType(in.AllowedListType())
	return syndOK
}

// modifyNICVport changes the fields that field_select names. Address lists,
// affiliation and inline mode need the Ethernet data path, which the model does
// not have: selecting them is refused.
func modifyNICVport(f *function, c *call) synd {
	in := prm.AsModifyNicVportContextIn(c.in)
	if s := ownVport(in.OtherVport(), in.VportNumber(), 0); s != syndOK {
		return s
	}
	sel, from, to := in.FieldSelect(), in.NicVportContext(), &f.vport.nic
	if sel.AddressesList() || sel.Affiliation() || sel.MinInline() {
		return syndVportField
	}
	if sel.RoceEn() {
		to.SetRoceEn(from.RoceEn())
	}
	if sel.MTU() {
		to.SetMTU(from.MTU())
	}
	if sel.DisableUcLocalLb() {
		to.SetDisableUcLocalLb(from.DisableUcLocalLb())
	}
	if sel.DisableMcLocalLb() {
		to.SetDisableMcLocalLb(from.DisableMcLocalLb())
	}
	if sel.NodeGUID() {
		to.SetNodeGUID(from.NodeGUID())
	}
	if sel.PortGUID() {
		to.SetPortGUID(from.PortGUID())
	}
	if sel.Promisc() {
		to.SetPromiscUc(from.PromiscUc())
		to.SetPromiscMc(from.PromiscMc())
		to.SetPromiscAll(from.PromiscAll())
	}
	if sel.PermanentAddress() {
		*to.PermanentAddress() = *from.PermanentAddress()
	}
	if sel.ChangeEvent() {
		to.SetArmChangeEvent(from.ArmChangeEvent())
		to.SetEventOnMTU(from.EventOnMTU())
		to.SetEventOnPromiscChange(from.EventOnPromiscChange())
		to.SetEventOnVlanChange(from.EventOnVlanChange())
		to.SetEventOnMcAddressChange(from.EventOnMcAddressChange())
		to.SetEventOnUcAddressChange(from.EventOnUcAddressChange())
	}
	return syndOK
}

// systemGUID is the system image GUID: the first function's.
func (c *Chip) systemGUID() uint64 { return c.funcs[0].guid() }
