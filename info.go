package mlxvfio

import (
	"math/bits"

	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/queues"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// Info says what was found when the function came up, and what it holds now.
type Info struct {
	Device   vfio.DeviceInfo `json:"device"`
	VendorID uint16          `json:"vendor_id"`
	DeviceID uint16          `json:"device_id"`
	Revision uint8           `json:"revision"`
	Virtual  bool            `json:"virtual_function"`
	// Firmware is major.minor.subminor.
	Firmware string `json:"firmware"`
	Board    Board  `json:"board"`
	ISSI     uint16 `json:"issi"`
	// PortType is "IB" or "ETHERNET", Ports the physical ports of the device.
	PortType string `json:"port_type"`
	Ports    int    `json:"ports"`
	VHCAID   uint16 `json:"vhca_id"`
	// FrequencyKHz is the rate of the internal timer.
	FrequencyKHz uint32 `json:"frequency_khz"`
	// Events is true when commands complete by events.
	Events     bool            `json:"events"`
	Vectors    int             `json:"vectors"`
	EQs        []EQInfo        `json:"eqs"`
	UAR        uint32          `json:"uar"`
	Limits     Limits          `json:"limits"`
	Atomics    Atomics         `json:"atomics"`
	FWTracer   bool            `json:"firmware_tracer"`
	Teardowns  []string        `json:"teardowns"`
	Pages      PageLedger      `json:"pages"`
	DMA        vfio.SpaceStats `json:"dma"`
	CommandMax string          `json:"command_limit"`
}

// EQInfo describes one of the driver's event queues.
type EQInfo struct {
	Name    string   `json:"name"`
	EQN     uint8    `json:"eqn"`
	Entries int      `json:"entries"`
	Vector  uint16   `json:"vector"`
	Events  []string `json:"events"`
}

// Limits are how many objects of a kind the device has room for, as log2 where
// the name says so.
type Limits struct {
	LogQPs        uint8  `json:"log_qps"`
	LogCQs        uint8  `json:"log_cqs"`
	LogSRQs       uint8  `json:"log_srqs"`
	LogMKeys      uint8  `json:"log_mkeys"`
	LogPDs        uint8  `json:"log_pds"`
	EQs           int    `json:"eqs"`
	LogQPEntries  uint8  `json:"log_qp_entries"`
	LogCQEntries  uint8  `json:"log_cq_entries"`
	LogMessage    uint8  `json:"log_message_bytes"`
	MaxSendWQE    uint16 `json:"max_send_wqe_bytes"`
	MaxReceiveWQE uint16 `json:"max_receive_wqe_bytes"`
}

// Atomics sums up what the device offers of atomic operations. Sizes are bytes
// of an argument, ascending (capability type 3; Linux mlx5_ifc.h, atomic_caps).
type Atomics struct {
	Supported  bool     `json:"supported"`
	Operations []string `json:"operations,omitempty"`
	SizesQP    []int    `json:"sizes_qp,omitempty"`
	SizesDC    []int    `json:"sizes_dc,omitempty"`
	// MaxQP is HCA.MaxAtomicSize; MaxDC is the largest of SizesDC, 0 without any.
	MaxQP int `json:"max_qp"`
	MaxDC int `json:"max_dc"`
	// HostOrder says that 8-byte results arrive in host byte order.
	HostOrder bool `json:"host_order"`
}

// atomicOperations are the bits of atomic_operations.
var atomicOperations = []string{"CMP_SWAP", "FETCH_ADD", "MASKED_CMP_SWAP", "MASKED_FETCH_ADD"}

// MaxAtomicSize is the largest argument of an atomic operation on a QP in bytes, as
// the capabilities in force say (atomics.Caps.MaxAtomicSize); 0 if atomics are not
// supported.
func (h *HCA) MaxAtomicSize() int {
	c, err := h.AtomicCaps()
	if err != nil {
		return 0 // structures that were read are never too short
	}
	return c.MaxAtomicSize()
}

func (h *HCA) atomics() Atomics {
	c, ok := h.Cap(prm.CapAtomic)
	if !ok {
		return Atomics{}
	}
	v := prm.AsAtomicCaps(c.Current)
	a := Atomics{
		Supported: true, MaxQP: h.MaxAtomicSize(), HostOrder: v.AtomicReq8BEndiannessMode() == 1,
		SizesQP: sizes(v.AtomicSizeQP()), SizesDC: sizes(v.AtomicSizeDC()),
	}
	for i, name := range atomicOperations {
		if v.AtomicOperations()>>i&1 != 0 {
			a.Operations = append(a.Operations, name)
		}
	}
	if n := len(a.SizesDC); n > 0 {
		a.MaxDC = a.SizesDC[n-1]
	}
	return a
}

// sizes decodes a bitmap in which bit n stands for 2^n bytes.
func sizes(bitmap uint16) []int {
	var s []int
	for ; bitmap != 0; bitmap &= bitmap - 1 {
		s = append(s, 1<<bits.TrailingZeros16(bitmap))
	}
	return s
}

// Info sums the function up.
func (h *HCA) Info() Info {
	g := h.general()
	i := Info{
		Device: h.dev.Info(), VendorID: h.pci.Vendor, DeviceID: h.pci.Device, Revision: h.pci.Revision, Virtual: h.pci.virtual(),
		Firmware: h.firmware, Board: h.board, ISSI: h.issi,
		PortType: g.PortType().String(), Ports: int(g.NumPorts()), VHCAID: g.VHCAID(),
		FrequencyKHz: g.DeviceFrequencyKhz(),
		Events:       h.EventMode(), Vectors: len(h.vectors), UAR: h.uar.Index(),
		Limits: Limits{
			LogQPs: g.LogMaxQP(), LogCQs: g.LogMaxCQ(), LogSRQs: g.LogMaxSRQ(), LogMKeys: g.LogMaxMKey(), LogPDs: g.LogMaxPD(),
			EQs: maxEQs(g), LogQPEntries: g.LogMaxQPSz(), LogCQEntries: g.LogMaxCQSz(), LogMessage: g.LogMaxMsg(),
			MaxSendWQE: g.MaxWQESzSQ(), MaxReceiveWQE: g.MaxWQESzRQ(),
		},
		Atomics: h.atomics(), FWTracer: h.tracer, Teardowns: []string{TeardownRegular.String()},
		Pages: h.Ledger(), DMA: h.space.Stats(), CommandMax: h.conn.Timeout().String(),
	}
	if g.FastTeardown() {
		i.Teardowns = append(i.Teardowns, TeardownFast.String())
	}
	if g.ForceTeardown() {
		i.Teardowns = append(i.Teardowns, TeardownForced.String())
	}
	for _, q := range []*queues.EQ{h.cmdEQ, h.asyncEQ, h.pagesEQ} {
		if q == nil {
			continue
		}
		e := EQInfo{Name: q.Name(), EQN: q.Number(), Entries: 1 << q.LogSize(), Vector: q.Vector()}
		for _, t := range q.Mask().Types() {
			name, _ := queues.EventName(t)
			e.Events = append(e.Events, name)
		}
		i.EQs = append(i.EQs, e)
	}
	return i
}

// maxEQs: max_num_eqs is exact, log_max_eq holds where it is 0 (Linux eq.c).
func maxEQs(g *prm.CmdHCACap) int {
	if n := g.MaxNumEqs(); n != 0 {
		return int(n)
	}
	return 1 << g.LogMaxEQ()
}
