package sim

import (
	"github.com/mlxvfio/mlxvfio/internal/prm"
)

const (
	inlineBytes  = 16  // of input and of output inside the entry
	mailboxBytes = 512 // payload of one mailbox
	mailboxCtrl  = 0x200
	mailboxAlign = 1 << 10 // granularity of the next pointer
	headAlign    = 1 << 9  // granularity of the pointers in the entry

	// maxChain bounds a message so that a broken chain ends: 1 MiB of payload,
	// thirty times the largest seen on hardware (16 + 8 × 12,868 bytes).
	maxChain = 2048
)

// blocks is the number of mailboxes a message of n bytes needs.
func blocks(n uint32) int {
	if n <= inlineBytes {
		return 0
	}
	return int((n - inlineBytes + mailboxBytes - 1) / mailboxBytes)
}

// xor is the exclusive or of all bytes; a signed area and its check byte give 0xff.
func xor(b []byte) byte {
	var x byte
	for _, v := range b {
		x ^= v
	}
	return x
}

// checkBlock checks what every mailbox of a chain must satisfy: number, token
// and zeroed reserved fields.
func checkBlock(m *prm.CmdIfBox, number int, token byte) prm.DeliveryStatus {
	switch {
	case m.Token() != token:
		return prm.DeliveryTokenErr
	case m.BlockNumber() != uint32(number):
		return prm.DeliveryBadBlockNumErr
	}
	for _, b := range m[mailboxCtrl:0x230] {
		if b != 0 {
			return prm.DeliveryReservedNotClearErr
		}
	}
	if m[0x23c] != 0 || m[0x237] != 0 || m[0x236]&3 != 0 {
		return prm.DeliveryReservedNotClearErr
	}
	return prm.DeliveryOK
}

// signedBlock tells whether both check bytes of a mailbox fit.
func signedBlock(m *prm.CmdIfBox) bool {
	return xor(m[mailboxCtrl:0x23f]) == 0xff && xor(m[:]) == 0xff
}

// chain walks the mailboxes of a message of n bytes from head: it checks each,
// gives it to use and appends its address to addrs. Mailboxes beyond the message
// are not looked at: drivers reuse longer chains (Linux cmd.c keeps a cache).
// lengthErr is the status of a chain that ends early, alignErr of a pointer out
// of alignment.
func (f *function) chain(head uint64, n uint32, token byte, verify bool, lengthErr, alignErr prm.DeliveryStatus,
	addrs []uint64, use func(i int, m *prm.CmdIfBox)) ([]uint64, prm.DeliveryStatus) {
	need := blocks(n)
	if need > maxChain {
		return addrs, lengthErr
	}
	if head%headAlign != 0 {
		return addrs, alignErr
	}
	m := &f.box
	for i, at := 0, head; i < need; i++ {
		if at == 0 {
			return addrs, lengthErr
		}
		if !f.dmaRead(at, m[:]) {
			return addrs, prm.DeliveryFWErr
		}
		if s := checkBlock(m, i, token); s != prm.DeliveryOK {
			return addrs, s
		}
		if verify && !signedBlock(m) {
			return addrs, prm.DeliverySignatureErr
		}
		addrs = append(addrs, at)
		if use != nil {
			use(i, m)
		}
		at = uint64(m.NextPointer63_32())<<32 | uint64(m.NextPointer31_10())<<10
	}
	return addrs, prm.DeliveryOK
}

// storeBlock writes payload into mailbox i of the output chain. The rest of the
// mailbox is the driver's; check bytes are written only where sign asks for it.
func (f *function) storeBlock(at uint64, payload []byte, sign, breakToken bool) bool {
	if !sign && !breakToken {
		return f.dmaWrite(at, payload)
	}
	m := &f.box
	if !f.dmaRead(at, m[:]) {
		return false
	}
	copy(m.MailboxData(), payload)
	if breakToken {
		m.SetToken(m.Token() ^ 0xff)
	}
	if sign {
		m.SetCtrlSignature(0)
		m.SetCtrlSignature(^xor(m[mailboxCtrl:0x23e]))
		m.SetSignature(0)
		m.SetSignature(^xor(m[:0x23f]))
	}
	return f.dmaWrite(at, m[:])
}
