package sim

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// TestDelivery: an entry or mailbox that is malformed is not executed and comes
// back with its delivery status.
func TestDelivery(t *testing.T) {
	r := newRaw(t, Options{Profile: "cx5"}).to(phaseISSI)
	// A SET_HCA_CAP has 8 input mailboxes, a QUERY_HCA_CAP 8 output mailboxes.
	set := func() []byte {
		in := cmd(prm.OpSetHCACap, 0, 0x1010)
		copy(in[16:], r.chip.prof.caps(PortIB).cur[prm.CapGeneral])
		return in
	}
	query := func() []byte { return cmd(prm.OpQueryHCACap, 0, 16) }
	// nth gives mailbox n of the chain that an entry field points to.
	nth := func(e *prm.CmdQueueEntry, field, n int) *prm.CmdIfBox {
		at := binary.BigEndian.Uint64(e[field:])
		for range n {
			b := prm.AsCmdIfBox(r.bytes(at, prm.CmdIfBoxSize))
			at = uint64(b.NextPointer63_32())<<32 | uint64(b.NextPointer31_10())<<10
		}
		return prm.AsCmdIfBox(r.bytes(at, prm.CmdIfBoxSize))
	}
	const in, out = 0x08, 0x30
	for _, c := range []struct {
		name  string
		input []byte
		room  int
		spoil func(e *prm.CmdQueueEntry)
		want  prm.DeliveryStatus
	}{
		{"fine in", set(), 16, func(*prm.CmdQueueEntry) {}, prm.DeliveryOK},
		{"fine out", query(), 0x1010, func(*prm.CmdQueueEntry) {}, prm.DeliveryOK},
		{"type", query(), 0x1010, func(e *prm.CmdQueueEntry) { e.SetType(6) }, prm.DeliveryCmdDescrErr},
		{"reserved byte 1", query(), 0x1010, func(e *prm.CmdQueueEntry) { e[1] = 1 }, prm.DeliveryReservedNotClearErr},
		{"reserved byte 0x3e", query(), 0x1010, func(e *prm.CmdQueueEntry) { e[0x3e] = 1 }, prm.DeliveryReservedNotClearErr},
		{"no header in", cmd(prm.OpNop, 0, 16), 16, func(e *prm.CmdQueueEntry) { e.SetInputLength(7) }, prm.DeliveryInLengthErr},
		{"no header out", cmd(prm.OpNop, 0, 16), 16, func(e *prm.CmdQueueEntry) { e.SetOutputLength(7) }, prm.DeliveryOutLengthErr},
		{"huge input", set(), 16, func(e *prm.CmdQueueEntry) { e.SetInputLength(1 << 31) }, prm.DeliveryInLengthErr},
		{"huge output", query(), 0x1010, func(e *prm.CmdQueueEntry) { e.SetOutputLength(1 << 31) }, prm.DeliveryOutLengthErr},
		{"input alignment", set(), 16, func(e *prm.CmdQueueEntry) { e[in+7] |= 4 }, prm.DeliveryInPtrAlignErr},
		{"output alignment", query(), 0x1010, func(e *prm.CmdQueueEntry) { e[out+7] |= 4 }, prm.DeliveryOutPtrAlignErr},
		{"no input mailbox", set(), 16, func(e *prm.CmdQueueEntry) { clear(e[in : in+8]) }, prm.DeliveryInLengthErr},
		{"no output mailbox", query(), 0x1010, func(e *prm.CmdQueueEntry) { clear(e[out : out+8]) }, prm.DeliveryOutLengthErr},
		{"input longer than the chain", set(), 16, func(e *prm.CmdQueueEntry) { e.SetInputLength(0x1010 + 512) }, prm.DeliveryInLengthErr},
		{"output longer than the chain", query(), 0x1010, func(e *prm.CmdQueueEntry) { e.SetOutputLength(0x1010 + 512) }, prm.DeliveryOutLengthErr},
		{"chain longer than the input", set(), 16, func(e *prm.CmdQueueEntry) { e.SetInputLength(0x1010 - 512) }, prm.DeliveryOK},
		{"token in", set(), 16, func(e *prm.CmdQueueEntry) { nth(e, in, 7).SetToken(0) }, prm.DeliveryTokenErr},
		{"token out", query(), 0x1010, func(e *prm.CmdQueueEntry) { nth(e, out, 7).SetToken(0) }, prm.DeliveryTokenErr},
		{"token of the entry", set(), 16, func(e *prm.CmdQueueEntry) { e.SetToken(e.Token() + 1) }, prm.DeliveryTokenErr},
		{"block number in", set(), 16, func(e *prm.CmdQueueEntry) { nth(e, in, 3).SetBlockNumber(4) }, prm.DeliveryBadBlockNumErr},
		{"block number out", query(), 0x1010, func(e *prm.CmdQueueEntry) { nth(e, out, 3).SetBlockNumber(2) }, prm.DeliveryBadBlockNumErr},
		{"reserved bytes of a mailbox", set(), 16, func(e *prm.CmdQueueEntry) { nth(e, in, 0)[0x22f] = 1 }, prm.DeliveryReservedNotClearErr},
		{"next pointer alignment", set(), 16, func(e *prm.CmdQueueEntry) { nth(e, in, 0)[0x236] |= 2 }, prm.DeliveryReservedNotClearErr},
		{"mailbox that is not mapped", set(), 16, func(e *prm.CmdQueueEntry) { e[in+2] = 1 }, prm.DeliveryFWErr},
		{"signatures while checksums are off", set(), 16, func(e *prm.CmdQueueEntry) {
			e.SetSignature(0)
			nth(e, in, 0).SetSignature(0)
			nth(e, in, 0).SetCtrlSignature(0)
		}, prm.DeliveryOK},
	} {
		t.Run(c.name, func(t *testing.T) {
			r.next = 32 << 20
			before := r.chip.Counters(0)
			e := r.entry(1, c.input, c.room)
			c.spoil(e)
			r.ring(1)
			require.True(t, r.done(1))
			require.Equal(t, c.want, e.Status())
			after := r.chip.Counters(0)
			inline := e.CommandOutputInlineData()
			switch {
			case c.want != prm.DeliveryOK:
				require.Equal(t, make([]byte, 16), inline, "no output")
				require.Equal(t, before.DeliveryErrors+1, after.DeliveryErrors)
				require.Equal(t, before.CommandsFailed, after.CommandsFailed, "not executed")
			case c.name == "chain longer than the input":
				require.Equal(t, byte(prm.StatusBadInpLen), inline[0], "executed, on the length it was told")
			default:
				require.Zero(t, inline[0], "executed")
			}
		})
	}
}

// TestTokenZero: rdma-core leaves tokens and signatures zero everywhere.
func TestTokenZero(t *testing.T) {
	r := newRaw(t, Options{}).to(phaseISSI)
	r.token = 255
	e := r.entry(0, cmd(prm.OpQueryHCACap, 0, 16), 0x1010)
	require.EqualValues(t, 1, e.Token())
	at := binary.BigEndian.Uint64(e[0x30:])
	e.SetToken(0)
	for at != 0 {
		b := prm.AsCmdIfBox(r.bytes(at, prm.CmdIfBoxSize))
		b.SetToken(0)
		at = uint64(b.NextPointer63_32())<<32 | uint64(b.NextPointer31_10())<<10
	}
	r.ring(0)
	d, out := r.reply(0)
	require.Equal(t, prm.DeliveryOK, d)
	require.Equal(t, r.chip.prof.caps(PortIB).max[prm.CapGeneral], out[16:])
}

// TestChecksums: once a driver has turned checksums on, inputs are verified from
// INIT_HCA on and outputs come back signed.
func TestChecksums(t *testing.T) {
	r := newRaw(t, Options{}).to(phaseISSI)
	in := cmd(prm.OpSetHCACap, 0, 0x1010)
	copy(in[16:], r.chip.prof.caps(PortIB).cur[prm.CapGeneral])
	prm.AsCmdHCACap(in[16:]).SetCmdifChecksum(checksumsEnabled)
	r.ok(in, 16)
	r.give(prm.QueryPagesInit)
	r.ok(cmd(prm.OpInitHCA, 0, 16), 16)

	e := r.entry(0, cmd(prm.OpQueryHCACap, 0, 16), 0x1010)
	r.ring(0)
	d, _ := r.reply(0)
	require.Equal(t, prm.DeliveryOK, d)
	require.EqualValues(t, 0xfe, xor(e[:]), "signed as if ownership were still 1")
	at := binary.BigEndian.Uint64(e[0x30:])
	for n := 0; at != 0; n++ {
		b := prm.AsCmdIfBox(r.bytes(at, prm.CmdIfBoxSize))
		require.True(t, signedBlock(b), "output mailbox %d", n)
		at = uint64(b.NextPointer63_32())<<32 | uint64(b.NextPointer31_10())<<10
	}
	e = r.entry(0, cmd(prm.OpNop, 0, 16), 16)
	e.SetSignature(e.Signature() ^ 1)
	r.ring(0)
	d, _ = r.reply(0)
	require.Equal(t, prm.DeliverySignatureErr, d)
	e = r.entry(0, cmd(prm.OpQueryHCACap, 0, 16), 0x1010)
	prm.AsCmdIfBox(r.bytes(binary.BigEndian.Uint64(e[0x30:]), prm.CmdIfBoxSize)).SetCtrlSignature(0)
	r.ring(0)
	d, _ = r.reply(0)
	require.Equal(t, prm.DeliverySignatureErr, d)
}

// TestSlots: all slots work at once, those not owned by the device are left alone.
func TestSlots(t *testing.T) {
	r := newRaw(t, Options{}).to(phaseISSI)
	for s := range queueSlots {
		r.entry(s, cmd(prm.OpNop, 0, 16), 16)
	}
	r.write(0x18, 0xffff_ffff)
	for s := range queueSlots {
		require.True(t, r.done(s), "slot %d", s)
	}
	before := r.chip.Counters(0)
	r.write(0x18, 1<<7)
	after := r.chip.Counters(0)
	require.Equal(t, before.Commands, after.Commands)
	require.Equal(t, before.DoorbellsIgnored+1, after.DoorbellsIgnored)
}
