package queues

import (
	"fmt"

	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// AddressOptions say where a datagram goes. On InfiniBand LID (and, beyond the
// subnet, GID) count; on Ethernet MAC and GID.
type AddressOptions struct {
	QPN  uint32 // the receiving queue pair
	QKey uint32
	// SL is the service level; on Ethernet its low 3 bits are the priority.
	SL       uint8
	StatRate uint8
	// ForceLoopback keeps the message in the device (av.fl).
	ForceLoopback bool
	PathBits      uint8  // low bits of the source LID, 7 bits
	LID           uint16 // InfiniBand
	UDPSport      uint16 // Ethernet: UDP source port
	MAC           [6]byte
	// Ethernet says which of the two this is.
	Ethernet bool

	// GRH adds a global route header; an Ethernet message always has one.
	GRH       bool
	GID       [16]byte
	SGIDIndex uint8
	FlowLabel uint32 // 20 bits
	HopLimit  uint8
	TClass    uint8
}

// Address is an address vector, ready to be copied into datagram WQEs (Linux qp.h,
// mlx5_av). It is only read by posts, so any number of queues may share one.
type Address struct {
	seg [prm.WQEDatagramSegSize]byte
}

// datagramUnits is the size of a datagram segment in 16-byte units.
const datagramUnits = prm.WQEDatagramSegSize / wqeUnit

// NewAddress lays an address out as the device reads it.
func NewAddress(o AddressOptions) (*Address, error) {
	switch {
	case o.QPN >= 1<<24:
		return nil, fmt.Errorf("make an address vector: QP number %#x has more than 24 bits: %w", o.QPN, vfio.ErrRange)
	case o.FlowLabel >= 1<<20:
		return nil, fmt.Errorf("make an address vector: flow label %#x has more than 20 bits: %w", o.FlowLabel, vfio.ErrRange)
	case o.SL > 15, o.StatRate > 15, o.PathBits > 127:
		return nil, fmt.Errorf("make an address vector: service level %d, rate %d and path bits %d must be below 16, 16 and 128: %w", o.SL, o.StatRate, o.PathBits, vfio.ErrRange)
	}
	a := &Address{}
	av := prm.AsWQEDatagramSeg(a.seg[:]).Av()
	b := av.Base()
	b.SetQkey(o.QKey)
	b.SetExt(true)
	b.SetDqpDCT(o.QPN)
	b.SetStatRate(o.StatRate)
	b.SetFl(o.ForceLoopback)
	b.SetMlid(o.PathBits)
	if o.Ethernet {
		b.SetSl(o.SL & 7 << 1)
		b.SetUdpSport(o.UDPSport)
		copy(av.Rmac(), o.MAC[:])
	} else {
		b.SetSl(o.SL)
		b.SetRlid(o.LID)
	}
	if o.GRH || o.Ethernet {
		av.SetGrh(true)
		copy(av.Rgid(), o.GID[:])
		av.SetSgidIndex(o.SGIDIndex)
		av.SetFlowLabel(o.FlowLabel)
		av.SetHopLimit(o.HopLimit)
		av.SetTclass(o.TClass)
	}
	return a, nil
}

// address writes the datagram segment behind the control segment.
func (b *builder) address(to *Address) {
	if to == nil {
		return
	}
	for i := range datagramUnits {
		*b.at(1 + i) = [wqeUnit]byte(to.seg[i*wqeUnit:])
	}
}
