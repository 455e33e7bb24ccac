package queues

import (
	"context"
	"fmt"
	"math/bits"

	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// PeerInfo is what one end of a connection tells the other. It travels as JSON.
type PeerInfo struct {
	QPN uint32 `json:"qpn"`
	// PSN is the first packet sequence number it sends.
	PSN  uint32 `json:"psn"`
	IB   bool   `json:"ib"` // InfiniBand; else Ethernet
	LID  uint16 `json:"lid"`
	GID  GID    `json:"gid"`
	MAC  MAC    `json:"mac"`
	Port uint8  `json:"port"`
	// MTU is the largest path MTU it takes, in bytes.
	MTU int `json:"mtu"`
	// AtomicMode, AtomicWrites and MaxAtomicSize (in bytes) say what it does as a
	// responder: writes to it are atomic if AtomicWrites, up to MaxAtomicSize and
	// within an aligned block of that size.
	AtomicMode    prm.AtomicMode `json:"atomic_mode"`
	AtomicWrites  bool           `json:"atomic_writes"`
	MaxAtomicSize int            `json:"max_atomic_size"`
	// ReadsIn is the number of reads and atomics it works on at once.
	ReadsIn int `json:"reads_in"`
}

// ConnectOptions tune a connection. The zero value is good.
type ConnectOptions struct {
	// MTU in bytes; 0 is the smaller of what both ends take.
	MTU int
	// Reads and ReadsIn are the numbers of outgoing and incoming reads and atomics
	// at once, rounded down to a power of two; 0 is as many as both ends can.
	Reads, ReadsIn int
	// Retries after a time-out and RNRRetries after a receiver-not-ready answer; 0
	// is 7, which for RNRRetries is for ever; negative is none.
	Retries, RNRRetries int
	// AckTimeout is the code n of 4.096 µs << n; 0 is 14, 67 ms; negative is
	// never.
	AckTimeout int
	// MinRNR is the RNR NAK timer code it answers with; 0 is 12, 0.64 ms.
	MinRNR uint8
	// PKeyIndex is the entry of the P_Key table.
	PKeyIndex uint16
	// SL is the service level, on Ethernet the priority.
	SL uint8
	// GRH routes by GID also within an InfiniBand subnet.
	GRH bool
	// ForceLoopback keeps packets in the device. ConnectLoopback and ConnectPair
	// decide by themselves.
	ForceLoopback bool
}

const (
	defaultRetries    = 7
	defaultAckTimeout = 14
	defaultMinRNR     = 12
	defaultMTU        = 1024
	defaultHops       = 64
)

// Link is a connection as it was made.
type Link struct {
	Peer          PeerInfo `json:"peer"`
	MTU           int      `json:"mtu"`
	ForceLoopback bool     `json:"force_loopback"`
	// Note says why loopback was forced, or was not, and what the device answered.
	Note string `json:"note,omitempty"`
}

// Local is what the peer must know of this queue pair. On Ethernet it enables RoCE
// with the function's own address if EnableRoCE was not called.
func (q *QP) Local(ctx context.Context) (PeerInfo, error) {
	if !q.life.alive() {
		return PeerInfo{}, refuse(fmt.Sprintf("describe QP %#x", q.number), "", vfio.ErrClosed, "the queue pair was destroyed")
	}
	d := q.dev
	p := PeerInfo{
		QPN: q.number, PSN: q.o.PSN, IB: !d.Caps.Ethernet, Port: thePort, MTU: defaultMTU,
		AtomicMode: q.mode, AtomicWrites: q.writes, MaxAtomicSize: AtomicModeSize(q.mode), ReadsIn: 1 << min(d.Caps.LogReadsIn, maxLogReads),
	}
	if d.Caps.Ethernet {
		a, ok := d.RoCE()
		if !ok {
			var err error
			if a, err = d.EnableRoCE(ctx, RoCEAddress{}); err != nil {
				return PeerInfo{}, err
			}
		}
		p.GID, p.MAC = a.GID, a.MAC
		return p, nil
	}
	a, err := d.QueryPort(ctx)
	if err != nil {
		return PeerInfo{}, err
	}
	p.LID, p.GID = a.LID, a.GID
	return p, nil
}

// Connect brings an RC queue pair from RESET or INIT to RTS with a peer (the steps
// and fields of Linux qp.c). From then on the send queue applies the write rule
// of the peer: see SendQueue.SetPeerAtomic.
func (q *QP) Connect(ctx context.Context, peer PeerInfo, o ConnectOptions) error {
	op := fmt.Sprintf("connect QP %#x to QP %#x", q.number, peer.QPN)
	rtr, rts, err := q.plan(op, &peer, &o)
	if err != nil {
		return err
	}
	if q.State() == prm.QPStateRst {
		if err := q.ToInit(ctx, InitAttr{PKeyIndex: o.PKeyIndex}); err != nil {
			return fmt.Errorf("%s: %w", op, err)
		}
	}
	if err := q.ToRTR(ctx, rtr); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	if err := q.ToRTS(ctx, rts); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	if peer.AtomicWrites {
		q.SQ.SetPeerAtomic(peer.MaxAtomicSize)
	}
	q.link = Link{Peer: peer, MTU: rtr.MTU, ForceLoopback: rtr.Path.ForceLoopback}
	return nil
}

// plan turns options into attributes.
func (q *QP) plan(op string, peer *PeerInfo, o *ConnectOptions) (rtr RTRAttr, rts RTSAttr, err error) {
	c := &q.dev.Caps
	switch {
	case q.o.Type != RC:
		return rtr, rts, refuse(op, "", vfio.ErrNotSupported, "a %v queue pair has no peer; use Activate and AddressOf", q.o.Type)
	case peer.IB == c.Ethernet:
		return rtr, rts, refuse(op, "peer", vfio.ErrNotSupported, "one end runs InfiniBand, the other Ethernet")
	case c.Ethernet && peer.GID.IsZero():
		return rtr, rts, refuse(op, "peer.GID", ErrMissing, "an Ethernet peer is found by its GID and MAC; take both from its Local")
	case peer.MaxAtomicSize < 0 || peer.MaxAtomicSize&(peer.MaxAtomicSize-1) != 0:
		return rtr, rts, refuse(op, "peer.MaxAtomicSize", vfio.ErrRange, "%d is no power of two", peer.MaxAtomicSize)
	case o.Reads < 0 || o.ReadsIn < 0:
		return rtr, rts, refuse(op, "Reads", vfio.ErrRange, "%d and %d; at least one at once is needed", o.Reads, o.ReadsIn)
	case o.Retries > 7 || o.RNRRetries > 7 || o.AckTimeout > 31:
		return rtr, rts, refuse(op, "Retries", vfio.ErrRange, "%d retries, %d RNR retries and time-out %d; 7, 7 and 31 are the most", o.Retries, o.RNRRetries, o.AckTimeout)
	}
	rtr = RTRAttr{
		RemoteQPN: peer.QPN, RecvPSN: peer.PSN, MTU: o.MTU, LogReadsIn: logUpTo(o.ReadsIn, c.LogReadsIn), MinRNR: o.MinRNR,
		Path: Path{LID: peer.LID, MAC: peer.MAC, GID: peer.GID, GRH: o.GRH || c.Ethernet, HopLimit: defaultHops, SL: o.SL, ForceLoopback: o.ForceLoopback},
	}
	if rtr.MTU == 0 {
		if rtr.MTU = defaultMTU; peer.MTU != 0 {
			rtr.MTU = min(rtr.MTU, peer.MTU)
		}
	}
	if rtr.MinRNR == 0 {
		rtr.MinRNR = defaultMinRNR
	}
	if c.Ethernet {
		a, _ := q.dev.RoCE()
		rtr.Path.SGIDIndex = uint8(a.Index)
		rtr.Path.UDPSport = c.udpPort(q.number)
	}
	rts = RTSAttr{
		SendPSN: q.o.PSN, LogReads: logUpTo(o.Reads, c.LogReads),
		Retries: uint8(orDefault(o.Retries, defaultRetries)), RNRRetries: uint8(orDefault(o.RNRRetries, defaultRetries)),
		AckTimeout: uint8(orDefault(o.AckTimeout, defaultAckTimeout)),
	}
	if peer.ReadsIn > 0 {
		rts.LogReads = min(rts.LogReads, uint8(bits.Len(uint(peer.ReadsIn))-1))
	}
	return rtr, rts, nil
}

// logUpTo is log2 of n, rounded down, and at most the limit; 0 stands for the limit.
func logUpTo(n int, limit uint8) uint8 {
	limit = min(limit, maxLogReads)
	if n == 0 {
		return limit
	}
	return min(uint8(bits.Len(uint(n))-1), limit)
}

func orDefault(v, d int) int {
	switch {
	case v < 0:
		return 0
	case v == 0:
		return d
	}
	return v
}

// udpPort is the UDP source port of a queue pair: one of those the device has, so
// that networks spread queue pairs over their paths.
func (c *Caps) udpPort(qpn uint32) uint16 {
	lo, hi := uint32(c.UDPPortMin), uint32(c.UDPPortMax)
	if hi <= lo {
		lo, hi = 0xc000, 0xffff // Linux rdma_flow_label_to_udp_sport
	}
	return uint16(lo + qpn%(hi-lo+1))
}

// Link is the connection that was made last.
func (q *QP) Link() Link { return q.link }

// ConnectLoopback connects an RC queue pair to itself.
func (q *QP) ConnectLoopback(ctx context.Context, o ConnectOptions) error {
	return ConnectPair(ctx, q, q, o)
}

// ConnectPair connects two RC queue pairs with each other, which may be one and the
// same. On one device it forces loopback where packets would have no way: an
// InfiniBand port without a LID, an Ethernet port without a link; a device that
// does not offer that, or refuses it, is tried without. Link says what was done and
// what the device answered.
func ConnectPair(ctx context.Context, a, b *QP, o ConnectOptions) error {
	if a == nil || b == nil {
		return refuse("connect two queue pairs", "QP", ErrMissing, "give two, or the same one twice")
	}
	pa, err := a.Local(ctx)
	if err != nil {
		return err
	}
	pb, err := b.Local(ctx)
	if err != nil {
		return err
	}
	note := ""
	if a.dev == b.dev && !o.ForceLoopback {
		if o.ForceLoopback, note, err = a.dev.needsLoopback(ctx); err != nil {
			return err
		}
	}
	tryBoth := func(o ConnectOptions) error {
		if err := a.Connect(ctx, pb, o); err != nil || a == b {
			return err
		}
		return b.Connect(ctx, pa, o)
	}
	err = tryBoth(o)
	if refusedByFirmware(err) && o.ForceLoopback {
		note += fmt.Sprintf("; the device refused it (%v), so it was left out", err)
		o.ForceLoopback = false
		for _, q := range []*QP{a, b} {
			if err := q.Reset(ctx); err != nil {
				return err
			}
		}
		err = tryBoth(o)
	}
	a.link.Note, b.link.Note = note, note
	return err
}

// needsLoopback tells whether packets from a port to itself have to be kept in the
// device, and may be.
func (d *Dev) needsLoopback(ctx context.Context) (force bool, note string, err error) {
	a, err := d.QueryPort(ctx)
	if err != nil {
		return false, "", err
	}
	may, what := d.Caps.LoopbackRoCEOff, fmt.Sprintf("LID 0 (port active: %t)", a.Active)
	if d.Caps.Ethernet {
		may, what = d.Caps.LoopbackRoCEOn, "no link"
	}
	switch {
	case a.LID != 0, d.Caps.Ethernet && a.Active:
		return false, "", nil
	case !may:
		return false, what + ": the device does not offer forced loopback, tried without", nil
	}
	return true, what + ": loopback forced", nil
}

// Activate brings a UD queue pair from RESET to RTS. Datagrams that arrive must
// bear qkey.
func (q *QP) Activate(ctx context.Context, qkey uint32) error {
	if q.o.Type != UD {
		return refuse(fmt.Sprintf("activate QP %#x", q.number), "", vfio.ErrNotSupported, "an %v queue pair needs a peer; use Connect", q.o.Type)
	}
	if err := q.ToInit(ctx, InitAttr{QKey: qkey}); err != nil {
		return err
	}
	if err := q.ToRTR(ctx, RTRAttr{}); err != nil {
		return err
	}
	return q.ToRTS(ctx, RTSAttr{SendPSN: q.o.PSN})
}

// AddressOf is where datagrams of this queue pair's device to the peer go.
func (q *QP) AddressOf(ctx context.Context, peer PeerInfo, qkey uint32) (*Address, error) {
	o, err := q.AddressTo(ctx, peer, qkey)
	if err != nil {
		return nil, err
	}
	return NewAddress(o)
}

// AddressTo is what AddressOf makes an Address of, for those who want to change
// something: to route by GID within an InfiniBand subnet, for instance (GRH).
func (q *QP) AddressTo(ctx context.Context, peer PeerInfo, qkey uint32) (AddressOptions, error) {
	c := &q.dev.Caps
	o := AddressOptions{
		QPN: peer.QPN, QKey: qkey, LID: peer.LID, MAC: peer.MAC, GID: peer.GID,
		Ethernet: c.Ethernet, HopLimit: defaultHops,
	}
	if c.Ethernet {
		a, _ := q.dev.RoCE()
		o.SGIDIndex, o.UDPSport = uint8(a.Index), c.udpPort(q.number)
	} else if peer.LID == 0 {
		var err error
		if o.ForceLoopback, _, err = q.dev.needsLoopback(ctx); err != nil {
			return o, err
		}
	}
	return o, nil
}
