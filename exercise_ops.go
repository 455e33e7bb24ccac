package mlxvfio

import (
	"context"
	"fmt"

	"github.com/mlxvfio/mlxvfio/atomics"
	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/queues"
)

// opcodeKey is an operation on a transport service.
type opcodeKey struct {
	service queues.QPType
	opcode  prm.WQEOpcode
}

// exerciseOpcodes are the operations that this driver has builders for, as far as
// one side can start them alone.
var exerciseOpcodes = []opcodeKey{
	{queues.RC, prm.WQENop},
	{queues.RC, prm.WQESend},
	{queues.RC, prm.WQESendImm},
	{queues.RC, prm.WQERdmaWrite},
	{queues.RC, prm.WQERdmaWriteImm},
	{queues.RC, prm.WQERdmaRead},
	{queues.RC, prm.WQEAtomicCS},
	{queues.RC, prm.WQEAtomicFA},
	{queues.RC, prm.WQEAtomicMaskedCS},
	{queues.RC, prm.WQEAtomicMaskedFA},
	{queues.RC, prm.WQESendEn},
	{queues.RC, prm.WQEWait},
	{queues.UD, prm.WQESend},
	{queues.UD, prm.WQESendImm},
}

// OpcodeCount says how often an operation was done.
type OpcodeCount struct {
	Service string `json:"service"` // "RC" or "UD"
	Opcode  string `json:"opcode"`
	// Done counts the operations that the device completed with success and whose
	// effect on memory was right.
	Done int `json:"done"`
	// Note says why it cannot be done on this device; "" where it can.
	Note string `json:"note,omitempty"`
}

// Opcodes tells, for every operation, how often it was done so far, or why this
// device cannot do it.
func (x *Exerciser) Opcodes() []OpcodeCount {
	var out []OpcodeCount
	for _, k := range exerciseOpcodes {
		out = append(out, OpcodeCount{Service: k.service.String(), Opcode: k.opcode.String(), Done: x.done[k], Note: x.lacks(k)})
	}
	return out
}

// count notes what a CQE says was done.
func (x *Exerciser) count(c *queues.Completion) {
	if c.Recv() {
		return
	}
	k := opcodeKey{queues.RC, c.SendOpcode}
	if x.datagrams != nil && c.QPN == x.datagrams.Number() {
		k.service = queues.UD
	}
	x.done[k]++
}

// notHere begins what is said about an operation that a device does not have.
const notHere = "not supported by this device: "

// lacks says which capability is missing for an operation, "" if none is.
func (x *Exerciser) lacks(k opcodeKey) string {
	switch k.opcode {
	case prm.WQEAtomicCS, prm.WQEAtomicFA, prm.WQEAtomicMaskedCS, prm.WQEAtomicMaskedFA:
		for _, f := range atomics.Assume(x.caps).Forms {
			if f.Opcode == k.opcode {
				return ""
			}
		}
		return fmt.Sprintf(notHere+"atomic_operations %#x, atomic_size_qp %#x", x.caps.Operations, x.caps.SizesQP)
	case prm.WQEWait, prm.WQESendEn:
		if !x.from.hca.queues.Caps.CrossChannel {
			return notHere + "capability cd is 0"
		}
	}
	if k.service == queues.UD {
		for _, d := range []*DataPath{x.from, x.to} {
			if !prm.AsCmdHCACap(d.hca.currentCap(prm.CapGeneral)).Ud() {
				return notHere + "capability ud is 0"
			}
		}
	}
	return ""
}

// nopRounds is how often Nops goes round the ring of the send queue.
const nopRounds = 2

// Nops posts operations that do nothing but complete in their turn: one by one,
// twice round the ring, and in batches of which the last one completes.
func (x *Exerciser) Nops(ctx context.Context) (string, error) {
	sq, n := x.a.SQ, 0
	for range nopRounds * sq.Size() {
		if _, err := x.do(ctx, false, func(wrid uint64) error { return sq.Nop(wrid, queues.Signalled) }); err != nil {
			return "", fmt.Errorf("NOP: %w", err)
		}
		n++
	}
	for batch := 2; batch <= sq.Size(); batch *= 2 {
		_, err := x.do(ctx, false, func(wrid uint64) error {
			for range batch - 1 {
				if err := sq.Nop(wrid, 0); err != nil {
					return err
				}
			}
			return sq.Nop(wrid, queues.Signalled)
		})
		switch {
		case err != nil:
			return "", fmt.Errorf("%d NOPs with one completion: %w", batch, err)
		case sq.Free() != sq.Size():
			return "", fmt.Errorf("%d NOPs with one completion: %d blocks of the send queue are still in use", batch, sq.Size()-sq.Free())
		}
		n += batch
	}
	return fmt.Sprintf("%d operations, alone and in batches, memory as it was", n), x.compare("NOP")
}

// crossRounds is how often CrossChannel holds and lets go.
const crossRounds = 8

// CrossChannel lets one send queue hold another: WRITEs of a slave stay where they
// are until a master enables them (SEND_EN), and a third queue waits for their
// completions (WAIT). A device without cross-channel queues is told in the answer.
func (x *Exerciser) CrossChannel(ctx context.Context) (string, error) {
	if note := x.lacks(opcodeKey{queues.RC, prm.WQEWait}); note != "" {
		return note, nil
	}
	cq, err := x.from.addCQ(ctx, "cross-channel")
	if err != nil {
		return "", err
	}
	var master, slave, waiter *queues.QP
	for _, e := range []struct {
		q **queues.QP
		o queues.QPOptions
	}{
		{&master, queues.QPOptions{Name: "master", CrossMaster: true}},
		{&slave, queues.QPOptions{Name: "slave", CrossSlave: true, SendCQ: cq}},
		{&waiter, queues.QPOptions{Name: "waiter", CrossMaster: true}},
	} {
		if *e.q, err = x.from.QP(ctx, e.o); err != nil {
			return "", err
		}
		peer, err := x.to.QP(ctx, queues.QPOptions{Name: "peer of the " + e.o.Name})
		if err != nil {
			return "", err
		}
		if err := queues.ConnectPair(ctx, *e.q, peer, queues.ConnectOptions{}); err != nil {
			return "", err
		}
	}
	for round := range crossRounds {
		if err := x.cross(ctx, cq, master, slave, waiter, uint32(round+1)); err != nil {
			return "", fmt.Errorf("round %d: %w", round+1, err)
		}
	}
	return fmt.Sprintf("%d WRITEs held back, enabled by another queue, and waited for by a third", crossRounds), nil
}

// cross is one round; the slave has then completed so many WQEs.
func (x *Exerciser) cross(ctx context.Context, cq *queues.CQ, master, slave, waiter *queues.QP, total uint32) error {
	const n = 8
	src, dst := x.place(n), x.rng.IntN(exerciseRoom/n)*n
	r, f := x.far.Remote(dst), queues.Signalled
	if !atomics.WriteIsAtomic(r.Addr, n, slave.SQ.PeerAtomic()) {
		f |= queues.NonAtomic
	}
	if err := slave.SQ.Write(uint64(total), f, x.near.SGE(src, n), r); err != nil {
		return err
	}
	slave.SQ.Ring()
	x.wrid++
	waiting := x.wrid
	if err := waiter.SQ.Wait(waiting, queues.Signalled, cq.Number(), total); err != nil {
		return err
	}
	waiter.SQ.Ring()

	// The device is at work, and does neither.
	nop := func(wrid uint64) error { return master.SQ.Nop(wrid, queues.Signalled) }
	if _, err := x.doOn(ctx, master, false, nop); err != nil {
		return fmt.Errorf("NOP of the master: %w", err)
	}
	if len(x.early) > 0 {
		return fmt.Errorf("WAIT for completion %d of CQN %#x was over before that completion was there", total, cq.Number())
	}
	var c [2]queues.Completion
	switch got, err := cq.Poll(c[:]); {
	case err != nil:
		return err
	case got > 0:
		return fmt.Errorf("a WRITE of the slave, QP %#x, completed before SEND_EN had enabled it", slave.Number())
	}
	if err := x.compare("a WRITE that no SEND_EN has enabled"); err != nil {
		return err
	}

	enable := func(wrid uint64) error {
		return master.SQ.SendEnable(wrid, queues.Signalled, slave.Number(), uint32(slave.SQ.Index()))
	}
	if _, err := x.doOn(ctx, master, false, enable); err != nil {
		return fmt.Errorf("SEND_EN: %w", err)
	}
	if _, err := x.await(ctx, waiting); err != nil {
		return fmt.Errorf("WAIT: %w", err)
	}
	got, err := cq.Poll(c[:])
	switch {
	case err != nil:
		return err
	case got == 1 && !c[0].OK():
		return cq.Err(&c[0])
	case got != 1 || c[0].WRID != uint64(total):
		return fmt.Errorf("WAIT for completion %d of CQN %#x is over, and that CQ has %d completions (wrid %d)", total, cq.Number(), got, c[0].WRID)
	}
	x.count(&c[0])
	copy(x.wantFar[dst:], x.wantNear[src:src+n])
	return x.compare("a WRITE that SEND_EN has enabled")
}
