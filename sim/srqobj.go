package sim

import "github.com/mlxvfio/mlxvfio/internal/prm"

// srqKind tells the three kinds of shared receive queue apart. They share one
// number space (mlx5_ib finds all three in one table).
type srqKind uint8

const (
	kindSRQ srqKind = iota
	kindRMP
	kindXRC
)

func (k srqKind) String() string { return [...]string{"SRQ", "RMP", "XRC SRQ"}[k] }

// srq is a shared receive queue of any kind. The commands are in fw_srq.go. The
// chip's lock guards it.
type srq struct {
	n      uint32
	uid    uint16
	kind   srqKind
	pd     uint32
	cq     *cq    // of an XRC SRQ, and of an SRQ that names one; else the QP's
	xrcd   uint32 // of an XRC SRQ
	domain *xrcd
	index  uint32 // user_index of an XRC SRQ
	wq     workQueue
	// linked: each entry begins with a next segment and entries are taken along
	// it; else in order.
	linked   bool
	rlkey    bool   // entries may use the reserved lkey
	limit    uint16 // limit event when fewer entries are left; 0 is off
	dbr      uint64 // bus address of the doorbell record
	mem, rec *umem  // user memory of buffer and doorbell record; nil: by address
	users    int    // QPs that receive from it
	failed   bool   // a catastrophic error: nothing is taken any more

	// The engine's own: how many entries it has taken (16 bits, like the record)
	// and, of a linked queue, the index of the next one.
	taken uint16
	next  uint16

	// What it was created with, for the query.
	srqc prm.SRQC
	rmpc prm.RMPC
	xrcc prm.XRCSRQC
}

// posted reads how many entries the driver has posted.
func (f *function) postedSRQ(s *srq) (uint16, bool) {
	v, ok := f.readRecord(s.dbr)
	return uint16(v), ok
}
