package queues

import (
	"encoding/hex"
	"fmt"
	"math/bits"
	"strings"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// Completion is what a CQE says, put together with what was posted.
type Completion struct {
	// WRID is the number the WQE was posted with.
	WRID uint64
	// QPN is the queue pair it was posted on.
	QPN uint32
	// ByteLen is the number of bytes received, read, or returned by an atomic.
	// Of other send WQEs it means nothing.
	ByteLen uint32
	// SendOpcode is the operation that completed; of receives it means nothing.
	SendOpcode prm.WQEOpcode
	// Opcode is the kind of completion.
	Opcode prm.CQEOpcode
	// Syndrome is the reason of a failure, 0 for success.
	Syndrome prm.CQESyndrome
	// Vendor is the vendor syndrome of a failure.
	Vendor uint8

	// What follows is about received messages; of send WQEs it may hold anything.

	// Bits hold more facts about a receive.
	Bits CompletionBits
	// RemoteLID is the sender's LID; on Ethernet two bytes of its MAC address.
	RemoteLID uint16
	// Imm is the immediate data of a received message, or the memory key it
	// invalidated.
	Imm uint32
	// RemoteQPN is the sender of a datagram.
	RemoteQPN uint32
}

// success makes c one of a send WQE: w has the send opcode in its low 32 bits, and
// nothing else there. What is written as parts of a word the compiler stores as one;
// with sent three stores are all.
func (c *Completion) success(w uint64) {
	c.SendOpcode, c.Opcode, c.Syndrome, c.Vendor = prm.WQEOpcode(w), prm.CQEOpcode(w>>8), prm.CQESyndrome(w>>16), uint8(w>>24)
}

// sent says of a success what it was. n is the byte count and who, in its upper half,
// the number of the queue pair, both as they lie in the entry: one swap is for both.
func (c *Completion) sent(wrid, who uint64, n uint32) {
	c.WRID = wrid
	v := bits.ReverseBytes64(who | uint64(n))
	c.QPN, c.ByteLen = uint32(v), uint32(v>>32)
}

// CompletionBits are facts about a received message.
type CompletionBits uint8

// Facts about a received message.
const (
	// HasGRH: a global route header was received; of a datagram it takes the
	// first 40 bytes of the buffer.
	HasGRH CompletionBits = 1 << iota
	// WasSolicited: the sender had set Solicited.
	WasSolicited
)

// OK tells success.
func (c *Completion) OK() bool { return c.Syndrome == 0 }

// Recv tells the completion of a receive WQE.
func (c *Completion) Recv() bool {
	return c.Opcode >= prm.CQERespWrImm && c.Opcode <= prm.CQERespSendInv || c.Opcode == prm.CQERespErr
}

// HasImm tells that Imm is immediate data.
func (c *Completion) HasImm() bool {
	return c.Opcode == prm.CQERespWrImm || c.Opcode == prm.CQERespSendImm
}

// Invalidated tells that Imm is the memory key the message invalidated.
func (c *Completion) Invalidated() bool { return c.Opcode == prm.CQERespSendInv }

// Flushed tells that the WQE was not carried out because its queue pair was in
// error: the first completion that failed otherwise has the reason.
func (c *Completion) Flushed() bool { return c.Syndrome == prm.CQESyndWrFlushErr }

// CompletionError is a WQE that failed: what it was, and why. CQRing.Err makes
// one of a Completion.
type CompletionError struct {
	QPN  uint32
	WRID uint64
	// Recv says that it is a receive WQE; then Opcode means nothing.
	Recv   bool
	Opcode prm.WQEOpcode
	// Syndrome and VendorError are the device's reason.
	Syndrome    prm.CQESyndrome
	VendorError uint8
	// HWSyndrome and HWSyndromeType are two more bytes some firmware fills.
	HWSyndrome, HWSyndromeType uint8
	// Index is the WQE index.
	Index uint16
	// WQE is a copy of the failed WQE, taken when its completion was polled; of
	// a flushed one it is nil.
	WQE []byte
	// Flushed counts the WQEs of the queue pair that were flushed after this one,
	// as far as this CQ had reported them when the error was made.
	Flushed uint32
	// First is the failure that made the queue pair flush; only a flushed WQE
	// has one, and only if this CQ reported it.
	First *CompletionError
}

// Error gives operation, queue, syndrome and remedy in one line.
func (e *CompletionError) Error() string {
	var b strings.Builder
	if e.Recv {
		fmt.Fprintf(&b, "receive (wrid %#x) on QP %#x", e.WRID, e.QPN)
	} else {
		fmt.Fprintf(&b, "%s (wrid %#x) on QP %#x", e.Opcode, e.WRID, e.QPN)
	}
	if e.Syndrome == prm.CQESyndWrFlushErr {
		b.WriteString(" was flushed")
		if e.First != nil {
			fmt.Fprintf(&b, "; the queue pair failed before: %v", e.First)
		} else {
			b.WriteString(": the queue pair went to error before it was carried out")
		}
		return b.String()
	}
	fmt.Fprintf(&b, " failed: syndrome %#x %s", uint8(e.Syndrome), e.Syndrome)
	if t := e.Syndrome.Text(); t != "" {
		fmt.Fprintf(&b, " (%s)", t)
	}
	fmt.Fprintf(&b, ", vendor syndrome %#x", e.VendorError)
	if t := VendorErrorText(e.VendorError); t != "" {
		fmt.Fprintf(&b, " (%s)", t)
	}
	if e.HWSyndrome|e.HWSyndromeType != 0 {
		fmt.Fprintf(&b, ", hardware syndrome %#x type %#x", e.HWSyndrome, e.HWSyndromeType)
	}
	if s := e.Summary(); s != "" {
		fmt.Fprintf(&b, "; WQE %#x: %s", e.Index, s)
	}
	if e.Flushed > 0 {
		fmt.Fprintf(&b, "; %d more flushed", e.Flushed)
	}
	if r := remedies[e.Syndrome]; r != "" {
		b.WriteString("; ")
		b.WriteString(r)
	}
	return b.String()
}

// Unwrap gives the failure behind a flush.
func (e *CompletionError) Unwrap() error {
	if e.First == nil {
		return nil
	}
	return e.First
}

// Is matches any CompletionError with the same syndrome, so that errors.Is finds
// a syndrome: errors.Is(err, &CompletionError{Syndrome: …}).
func (e *CompletionError) Is(target error) bool {
	t, ok := target.(*CompletionError)
	return ok && t.Syndrome == e.Syndrome && t.QPN == 0 && t.WQE == nil
}

// VendorErrorText says what a vendor syndrome means, "" if no source tells.
// Vendors document none but this one (mlx5dv.h, UCX).
func VendorErrorText(v uint8) string {
	if v == 0x93 {
		return "page fault of on-demand paging"
	}
	return ""
}

// remedies say what usually is to be looked at.
var remedies = map[prm.CQESyndrome]string{
	prm.CQESyndLocalLengthErr:       "compare the length with the receive buffer of the peer and with the largest message of the queue pair",
	prm.CQESyndLocalQPOpErr:         "check that the queue pair's type, state and capabilities allow the operation, and the WQE dump",
	prm.CQESyndLocalProtErr:         "check lkey, address and length against the local memory key, its protection domain and its access rights",
	prm.CQESyndMwBindErr:            "check that the memory key allows windows and belongs to the same protection domain",
	prm.CQESyndBadRespErr:           "both ends must agree on packet sequence numbers and MTU; connect again",
	prm.CQESyndLocalAccessErr:       "check the access rights of the memory the peer wrote to",
	prm.CQESyndRemoteInvalReqErr:    "check that the responder enables the operation (rre, rwe, rae, atomic_mode), its read/atomic depth, and the alignment of the target",
	prm.CQESyndRemoteAccessErr:      "check rkey, address and length against the responder's memory key, its protection domain and its access rights",
	prm.CQESyndRemoteOpErr:          "look at the responder: its queue pair failed while it worked on the request",
	prm.CQESyndTransportRetryExcErr: "the peer does not answer: check link, address path, its queue pair number and state",
	prm.CQESyndRNRRetryExcErr:       "the peer posts too few receive WQEs, or raise rnr_retry",
	prm.CQESyndRemoteAbortedErr:     "the responder aborted the operation; look at its queue pair",
}

// Summary is the failed WQE in one line, its segments as name{field=value …}.
func (e *CompletionError) Summary() string {
	var b strings.Builder
	for _, s := range e.Segments() {
		if b.Len() > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(s.String())
	}
	return b.String()
}

// Segments is the failed WQE taken apart.
func (e *CompletionError) Segments() []Segment {
	if e.Recv {
		return DecodeRecvWQE(e.WQE)
	}
	return DecodeWQE(e.WQE)
}

// Hex is the failed WQE as hex digits, for explain.
func (e *CompletionError) Hex() string { return hex.EncodeToString(e.WQE) }
