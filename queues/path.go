package queues

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// GID is a global identifier: an IPv6 address, or an IPv4 one mapped into it.
type GID [16]byte

// String writes it as an IPv6 address.
func (g GID) String() string { return netip.AddrFrom16(g).String() }

// IsZero tells whether it is not set.
func (g GID) IsZero() bool { return g == GID{} }

// IPv4 tells whether it is a mapped IPv4 address.
func (g GID) IPv4() bool { return netip.AddrFrom16(g).Is4In6() }

// MarshalText writes it as String does.
func (g GID) MarshalText() ([]byte, error) { return []byte(g.String()), nil }

// UnmarshalText reads what String writes.
func (g *GID) UnmarshalText(b []byte) error {
	a, err := netip.ParseAddr(string(b))
	if err != nil {
		return fmt.Errorf("read a GID: %w", err)
	}
	*g = a.As16()
	return nil
}

// MAC is an Ethernet address.
type MAC [6]byte

// String writes it with colons.
func (m MAC) String() string { return net.HardwareAddr(m[:]).String() }

// MarshalText writes it as String does.
func (m MAC) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText reads what String writes.
func (m *MAC) UnmarshalText(b []byte) error {
	a, err := net.ParseMAC(string(b))
	if err != nil {
		return fmt.Errorf("read a MAC address: %w", err)
	}
	if len(a) != len(m) {
		return fmt.Errorf("read a MAC address: %q has %d bytes, not %d: %w", b, len(a), len(m), vfio.ErrRange)
	}
	copy(m[:], a)
	return nil
}

// linkLocal is the GID that a MAC address stands for: fe80::/64 and the modified
// EUI-64 (RFC 4291 appendix A).
func (m MAC) linkLocal() GID {
	return GID{0: 0xfe, 1: 0x80, 8: m[0] ^ 2, 9: m[1], 10: m[2], 11: 0xff, 12: 0xfe, 13: m[3], 14: m[4], 15: m[5]}
}

func macOf(hi uint16, lo uint32) MAC {
	return MAC{byte(hi >> 8), byte(hi), byte(lo >> 24), byte(lo >> 16), byte(lo >> 8), byte(lo)}
}

func (m MAC) halves() (hi uint16, lo uint32) {
	return uint16(m[0])<<8 | uint16(m[1]), uint32(m[2])<<24 | uint32(m[3])<<16 | uint32(m[4])<<8 | uint32(m[5])
}

// Path is the way from a queue pair to its peer (qpc.primary_address_path;
// Linux mlx5_ifc.h, ads). On InfiniBand LID counts, and GID beyond the subnet; on
// Ethernet MAC and GID.
type Path struct {
	LID       uint16 `json:"lid,omitempty"`
	PathBits  uint8  `json:"path_bits,omitempty"` // low bits of the own LID
	SL        uint8  `json:"sl,omitempty"`        // service level; on Ethernet the priority
	StatRate  uint8  `json:"stat_rate,omitempty"`
	MAC       MAC    `json:"mac"`
	UDPSport  uint16 `json:"udp_sport,omitempty"`
	GRH       bool   `json:"grh,omitempty"` // global route header; Ethernet always has one
	GID       GID    `json:"gid"`
	SGIDIndex uint8  `json:"sgid_index,omitempty"`
	HopLimit  uint8  `json:"hop_limit,omitempty"`
	TClass    uint8  `json:"tclass,omitempty"`
	FlowLabel uint32 `json:"flow_label,omitempty"` // 20 bits
	// ForceLoopback keeps every packet in the device (ads.fl), where the
	// capabilities allow it.
	ForceLoopback bool `json:"force_loopback,omitempty"`
}

// check refuses what the context has no room for.
func (p *Path) check(op string) error {
	switch {
	case p.PathBits > 127:
		return refuse(op, "Path.PathBits", vfio.ErrRange, "%d; 127 is the most", p.PathBits)
	case p.SL > 15:
		return refuse(op, "Path.SL", vfio.ErrRange, "%d; 15 is the most", p.SL)
	case p.StatRate > 15:
		return refuse(op, "Path.StatRate", vfio.ErrRange, "%d; 15 is the most", p.StatRate)
	case p.FlowLabel >= 1<<20:
		return refuse(op, "Path.FlowLabel", vfio.ErrRange, "%#x has more than 20 bits", p.FlowLabel)
	}
	return nil
}

// fill writes the path into a context (Linux qp.c, mlx5_set_path).
func (p *Path) fill(a *prm.ADS, ethernet bool) {
	a.SetFl(p.ForceLoopback)
	a.SetStatRate(prm.StatRate(p.StatRate))
	if ethernet {
		hi, lo := p.MAC.halves()
		a.SetRmac47_32(hi)
		a.SetRmac31_0(lo)
		a.SetUdpSport(p.UDPSport)
		a.SetEthPrio(p.SL & 7)
		a.SetDscp(p.TClass >> 2)
	} else {
		a.SetRlid(p.LID)
		a.SetMlid(p.PathBits)
		a.SetSl(p.SL)
	}
	if p.GRH || ethernet {
		a.SetGrh(true)
		copy(a.RgidRip(), p.GID[:])
		a.SetSrcAddrIndex(p.SGIDIndex)
		a.SetHopLimit(p.HopLimit)
		a.SetTclass(p.TClass)
		a.SetFlowLabel(p.FlowLabel)
	}
}

// pathOf reads a path back.
func pathOf(a *prm.ADS, ethernet bool) Path {
	p := Path{ForceLoopback: a.Fl(), StatRate: uint8(a.StatRate())}
	if ethernet {
		p.MAC, p.UDPSport, p.SL = macOf(a.Rmac47_32(), a.Rmac31_0()), a.UdpSport(), a.EthPrio()
	} else {
		p.LID, p.PathBits, p.SL = a.Rlid(), a.Mlid(), a.Sl()
	}
	if a.Grh() {
		p.GRH, p.SGIDIndex, p.HopLimit, p.TClass, p.FlowLabel = true, a.SrcAddrIndex(), a.HopLimit(), a.Tclass(), a.FlowLabel()
		copy(p.GID[:], a.RgidRip())
	}
	return p
}

// mtuCode is the path_mtu of a size in bytes: 256, 512, 1024, 2048 or 4096.
func mtuCode(bytes int) (prm.PathMTU, bool) {
	for m := prm.PathMTU256Bytes; m <= prm.PathMTU4kBytes; m++ {
		if bytes == mtuBytes(m) {
			return m, true
		}
	}
	return 0, false
}

func mtuBytes(m prm.PathMTU) int {
	if m < prm.PathMTU256Bytes || m > prm.PathMTU4kBytes {
		return 0
	}
	return 128 << m
}
