package queues

import (
	"errors"
	"fmt"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// Sizes of the send queue (Linux qp.h).
const (
	// WQEBB is the building block of a send queue: a WQE takes 1 to 16 of them.
	WQEBB = 64
	// wqeUnit is what ctrl.ds counts.
	wqeUnit = 16
	// maxDS is the largest ctrl.ds, a 6-bit field (ruling W4).
	maxDS = 63
	// MinWQEBytes is the largest WQE of a fixed form: a masked compare-and-swap of 8
	// bytes. No device is known to take less.
	MinWQEBytes = 5 * wqeUnit
	// MaxWQEBytes is the largest WQE any device takes: 63 units of 16 bytes.
	MaxWQEBytes = maxDS * wqeUnit
)

// Flags of one WQE. The low byte is the byte of the control segment that holds
// fence, completion mode and solicited event, as it stands (Linux qp.h,
// mlx5_wqe_ctrl_seg).
type Flags uint16

// Flags of one WQE; the fence values exclude each other.
const (
	// Signalled asks for a completion. Without it the WQE is retired by the
	// completion of a later one.
	Signalled = Flags(prm.CompletionModeAlways) << 2
	// SignalledEvent is Signalled, and raises a completion event even if the CQ
	// is not armed for it (completion mode 3).
	SignalledEvent = Flags(prm.CompletionModeAlwaysAndEQE) << 2
	// Solicited marks the message so that its receiver's CQ raises an event
	// also when armed for solicited ones only.
	Solicited Flags = 1 << 1
	// Fence starts the WQE after all earlier reads, atomics and local
	// operations of this queue have completed (fence mode 4; ruling W7).
	Fence = Flags(prm.FenceSmallAndReads) << 5
	// FenceReads waits for earlier reads and atomics only (fence mode 2).
	FenceReads = Flags(prm.FenceReads) << 5
	// FenceLocal waits for earlier local operations only (fence mode 1).
	FenceLocal = Flags(prm.FenceInitiatorSmall) << 5
	// StrongOrder waits for everything before it (fence mode 3).
	StrongOrder = Flags(prm.FenceStrongOrdering) << 5
	// NonAtomic lets an RDMA WRITE pass that the peer would not carry out
	// atomically (see SendQueue.SetPeerAtomic).
	NonAtomic Flags = 1 << 8

	ctrlFlags Flags = 0xff
)

// SGE is a piece of local memory: Len bytes at the address Addr of the memory
// key LKey. An empty one is left out of the WQE (ruling W3).
type SGE struct {
	Addr uint64
	Len  uint32
	LKey uint32
}

// Remote is the peer's memory: the address Addr of its memory key RKey.
type Remote struct {
	Addr uint64
	RKey uint32
}

// Why a WQE was not posted; found with errors.Is. ErrQueueFull and vfio.ErrClosed
// come as they are, the others inside a *PostError.
var (
	// ErrQueueFull: the queue has no room for the WQE.
	ErrQueueFull = errors.New("the work queue is full and the WQE was not posted; poll its CQ first, and ask for a completion at least once a queue length")
	// ErrNotAtomicWrite: the peer would not carry out this write atomically.
	ErrNotAtomicWrite = errors.New("the write is not atomic at the peer")
	// ErrTooLong: the WQE exceeds what a WQE of this queue can hold.
	ErrTooLong = errors.New("the WQE is too long")
	// ErrUnaligned: the target of an atomic is not aligned to its size.
	ErrUnaligned = errors.New("the target is not aligned to the size of the operation")
	// ErrOperand: an operand or length does not fit the operation.
	ErrOperand = errors.New("the operand does not fit")
)

// PostError says which WQE was refused before it was posted, and why. The queue
// is as it was.
type PostError struct {
	QPN    uint32
	Opcode prm.WQEOpcode
	Recv   bool   // a receive WQE; Opcode means nothing
	Detail string // the numbers, and the remedy
	Err    error  // one of the sentinels above
}

// Error gives operation, queue, numbers and remedy in one line.
func (e *PostError) Error() string {
	op := "receive"
	if !e.Recv {
		op = e.Opcode.String()
	}
	return fmt.Sprintf("post %s on QP %#x: %v: %s", op, e.QPN, e.Err, e.Detail)
}

// Unwrap gives the sentinel to errors.Is.
func (e *PostError) Unwrap() error { return e.Err }
