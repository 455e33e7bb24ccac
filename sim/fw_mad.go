package sim

import (
	"encoding/binary"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// MAD_IFC asks the subnet management agent of the own port. The values are the
// InfiniBand specification's (volume 1, chapter 14).
const (
	madClassLID      = 0x01 // subnet management, LID routed
	madClassDirected = 0x81
	madGet           = 0x01
	madResponse      = 0x80

	madStatus    = 0x04 // offsets in a datagram
	madAttribute = 0x10
	madModifier  = 0x14
	madData      = 0x40

	madNoMethod    = 2 << 2 // status: method, or method with attribute, not supported
	madNoAttribute = 3 << 2
	madBadField    = 7 << 2

	attrNodeDescription = 0x10
	attrNodeInfo        = 0x11
	attrGUIDInfo        = 0x14
	attrPortInfo        = 0x15
	attrPKeyTable       = 0x16
)

// Bits of op_mod: leave M_Key and B_Key unchecked (Linux mad.c). The model has
// neither key.
const madOpMods = 1<<0 | 1<<1 | 1<<2 | 1<<3

func init() {
	handle(prm.OpMADIfc, onlyInit, madOpMods, madIfc).refuses(syndOK, syndPort)
}

func madIfc(f *function, c *call) synd {
	in := prm.AsMADIfcIn(c.in)
	if in.Port() != 1 {
		return syndPort
	}
	m := prm.AsMADIfcOut(c.out).ResponseMADPacket()
	copy(m, in.MAD())
	m[3] |= madResponse
	binary.BigEndian.PutUint16(m[madStatus:], f.subnetAgent(m))
	return syndOK
}

// subnetAgent answers a datagram in place and gives its status.
func (f *function) subnetAgent(m []byte) uint16 {
	if m[1] != madClassLID && m[1] != madClassDirected || m[3]&^madResponse != madGet {
		return madNoMethod
	}
	d := m[madData:][:64]
	clear(d)
	block := binary.BigEndian.Uint32(m[madModifier:])
	switch binary.BigEndian.Uint16(m[madAttribute:]) {
	case attrNodeDescription:
		copy(d, f.name)
	case attrNodeInfo:
		f.nodeInfo(d)
	case attrPortInfo:
		if block > 1 {
			return madBadField
		}
		f.portInfo(d)
	case attrGUIDInfo:
		if block >= uint32(f.gids()/8) {
			return madBadField
		}
		if block == 0 {
			binary.BigEndian.PutUint64(d, f.guid())
		}
	case attrPKeyTable:
		if block&0xffff >= uint32(f.pkeys()/32) {
			return madBadField
		}
		if block&0xffff == 0 {
			binary.BigEndian.PutUint16(d, defaultPKey)
		}
	default:
		return madNoAttribute
	}
	return 0
}

func (f *function) nodeInfo(d []byte) {
	d[0], d[1], d[2], d[3] = 1, 1, 1, 1 // base and class version, channel adapter, one port
	binary.BigEndian.PutUint64(d[4:], f.chip.systemGUID())
	binary.BigEndian.PutUint64(d[12:], f.guid())
	binary.BigEndian.PutUint64(d[20:], f.guid())
	binary.BigEndian.PutUint16(d[28:], uint16(f.pkeys()))
	binary.BigEndian.PutUint16(d[30:], f.chip.prof.deviceID)
	binary.BigEndian.PutUint32(d[36:], 1<<24|0x2c9) // local port, vendor
}

// portInfo: only what the model has a value for.
func (f *function) portInfo(d []byte) {
	state, phys := uint8(prm.IBPortDown), uint8(physPolling)
	if f.linkUp() {
		state, phys = uint8(prm.IBPortActive), physLinkUp
	}
	binary.BigEndian.PutUint64(d[8:], defaultPrefix)
	binary.BigEndian.PutUint16(d[16:], f.port.lid)
	binary.BigEndian.PutUint16(d[18:], ibSMLID)
	binary.BigEndian.PutUint32(d[20:], f.vport.capMask)
	d[28] = 1 // local port
	d[32] = state
	d[33] = phys<<4 | physPolling
	d[36] = ibMTU4K << 4 // of the neighbour
	d[41] = ibMTU4K      // most
	d[50] = byte(f.gids())
	d[51] = ibTimeout
}

const ibMTU4K = 5
