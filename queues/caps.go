package queues

import (
	"math/bits"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// Caps are the limits and abilities of a function that queues go by, as
// QUERY_HCA_CAP states them after INIT_HCA. A limit of 0 is not known and not
// checked before a command is sent; firmware then has the last word alone.
type Caps struct {
	// ISSI is the interface step sequence id in force: from 1 on a shared
	// receive queue is an RMP (Linux qp.c, srq_cmd.c).
	ISSI uint16
	// Ethernet says that the ports run Ethernet, so that RDMA is RoCE.
	Ethernet bool
	// Ports is the number of ports.
	Ports uint8

	LogMaxQPSize  uint8 // log2 of the entries of a work queue; blocks of 64 bytes in a send queue
	LogMaxCQSize  uint8
	LogMaxSRQSize uint8
	LogMaxMessage uint8 // log2 of bytes
	LogMaxRegion  uint8 // log2 of the bytes of a memory key
	LogMinPage    uint8 // log2 of the smallest page of a memory key; 0 means 12
	LogReads      uint8 // log2 of outgoing RDMA reads and atomics at once
	LogReadsIn    uint8 // log2 of incoming ones
	MaxSendWQE    uint16
	MaxRecvWQE    uint16
	// OverrunIgnore: a CQ may be told not to mind being lapped (cq_oi).
	OverrunIgnore bool
	// CrossChannel: WAIT and SEND_EN exist (cd).
	CrossChannel bool
	// CQEVersion 1 puts the user index of a queue into its completions.
	CQEVersion uint8
	// BlueFlameSize is the size of one BlueFlame buffer in bytes, 0 without.
	BlueFlameSize int

	// AtomicOperations and AtomicSizes are the bitmaps atomic_operations (bits 0
	// to 3: C&S, F&A, masked C&S, masked F&A) and atomic_size_qp (bit n: 2^n
	// bytes). Both are 0 on a device without atomics.
	AtomicOperations uint16
	AtomicSizes      uint16
	// HostOrderReplies: 8-byte atomics return their value in host order.
	HostOrderReplies bool

	// RoCE: the function may run RoCE.
	RoCE bool
	// RoCEVersions has bit 0 for version 1 and bit 2 for version 2.
	RoCEVersions uint8
	// RoCEAddresses is the size of the RoCE address table.
	RoCEAddresses uint16
	// UDPPortMin and UDPPortMax bound the source port of RoCE version 2.
	UDPPortMin, UDPPortMax uint16
	// LoopbackRoCEOn and LoopbackRoCEOff: an RC queue pair may force loopback
	// (ads.fl) while RoCE is enabled, and while it is not.
	LoopbackRoCEOn, LoopbackRoCEOff bool
	// TimeStamps: qpc.ts_format may be something else than free running.
	TimeStamps bool
}

// CapsOf reads Caps from the capability structures of types general, atomic and
// RoCE, each current, 4096 bytes; atomic and roce are nil where the device has no
// such type.
func CapsOf(issi uint16, general, atomic, roce []byte) Caps {
	g := prm.AsCmdHCACap(general)
	c := Caps{
		ISSI: issi, Ethernet: g.PortType() == prm.PortTypeEthernet, Ports: g.NumPorts(),
		LogMaxQPSize: g.LogMaxQPSz(), LogMaxCQSize: g.LogMaxCQSz(), LogMaxSRQSize: g.LogMaxSRQSz(),
		LogMaxMessage: g.LogMaxMsg(), LogMaxRegion: g.LogMaxMrwSz(), LogMinPage: g.LogPgSz(),
		LogReads: g.LogMaxRaReqQP(), LogReadsIn: g.LogMaxRaResQP(),
		MaxSendWQE: g.MaxWQESzSQ(), MaxRecvWQE: g.MaxWQESzRQ(),
		OverrunIgnore: g.CQOi(), CrossChannel: g.Cd(), CQEVersion: g.CQEVersion(),
		RoCE:            g.Roce(),
		LoopbackRoCEOff: g.FlRcQPWhenRoceDisabled(),
	}
	if g.Bf() && g.LogBfRegSize() > 0 {
		c.BlueFlameSize = 1 << (g.LogBfRegSize() - 1)
	}
	if atomic != nil {
		a := prm.AsAtomicCaps(atomic)
		c.AtomicOperations, c.AtomicSizes = a.AtomicOperations(), a.AtomicSizeQP()
		c.HostOrderReplies = a.AtomicReq8BEndiannessMode() == 1
	}
	if roce != nil {
		r := prm.AsRoceCap(roce)
		c.RoCEVersions, c.RoCEAddresses = r.RoceVersion(), r.RoceAddressTableSize()
		c.UDPPortMin, c.UDPPortMax = r.RRoceMinSrcUdpPort(), r.RRoceMaxSrcUdpPort()
		c.LoopbackRoCEOn = r.FlRcQPWhenRoceEnabled()
		c.LoopbackRoCEOff = c.LoopbackRoCEOff || r.FlRcQPWhenRoceDisabled()
		c.TimeStamps = r.QPTsFormat() != 0
	}
	return c
}

// Bits of atomic_operations (Linux driver.h, MLX5_ATOMIC_OPS_*).
const (
	atomicCS       = 1 << 0
	atomicFA       = 1 << 1
	atomicMaskedCS = 1 << 2
	atomicMaskedFA = 1 << 3
	standardOps    = atomicCS | atomicFA
	extendedOps    = atomicMaskedCS | atomicMaskedFA
)

// AtomicMode is the atomic_mode of a queue pair that uses all the device has, by
// Linux's rule (qp.c, get_atomic_mode): with masked operations the
// largest size of the bitmap, but at least 8 bytes; with the plain ones alone
// IB_SPEC; none without atomics.
func (c *Caps) AtomicMode() prm.AtomicMode {
	switch {
	case c.AtomicOperations&extendedOps == extendedOps:
		n := bits.Len16(c.AtomicSizes&0x1ff) - 1
		return prm.AtomicMode(max(n, int(prm.AtomicModeUpTo8B)))
	case c.AtomicOperations&standardOps == standardOps:
		return prm.AtomicModeIBSpec
	}
	return prm.AtomicModeNone
}

// AtomicModeSize is the largest argument in bytes that a responder with this
// atomic_mode takes, 0 for none. It also bounds its atomic writes.
func AtomicModeSize(m prm.AtomicMode) int {
	switch {
	case m == prm.AtomicModeNone || m > prm.AtomicModeUpTo256B:
		return 0
	case m <= prm.AtomicModeUpTo8B:
		return 8
	}
	return 1 << m
}

// known tells whether the capabilities were read at all.
func (c *Caps) known() bool { return c.Ports != 0 }

// logMinPage is log2 of the smallest page of a memory key.
func (c *Caps) logMinPage() uint8 {
	if c.LogMinPage == 0 {
		return adapterPageShift
	}
	return c.LogMinPage
}

// over tells that v exceeds a limit that is known.
func over[T ~uint8 | ~uint16 | ~int](v, limit T) bool { return limit != 0 && v > limit }
