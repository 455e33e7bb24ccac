package sim

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// TestRefusals walks the whole table of refusals through a real command queue.
func TestRefusals(t *testing.T) {
	inPhase := map[phase]*raw{}
	at := func(p phase) *raw {
		if inPhase[p] == nil {
			inPhase[p] = newRaw(t, Options{Profile: "cx5"}).to(p)
		}
		return inPhase[p]
	}
	situations := map[Situation]int{}
	for _, row := range Refusals() {
		name := fmt.Sprintf("%s/%s", row.Opcode, row.Situation)
		situations[row.Situation]++
		require.NotEqual(t, prm.StatusOK, row.Status, name)
		require.NotEmpty(t, row.Text, name)
		require.Equal(t, row.Text, SyndromeText(row.Code), name)

		var r *raw
		in, room := valid(row.Opcode), minOut(row.Opcode)
		switch row.Situation {
		case BeforeEnable:
			r = at(phaseOff)
		case BeforeISSI:
			r = at(phaseEnabled)
		case BeforeInit:
			r = at(phaseISSI)
		case AfterInit:
			r = at(phaseInit)
		case AfterTeardown:
			r = at(phaseTornDown)
		case ReservedOpcode:
			r = at(phaseInit)
			for _, op := range []prm.Opcode{0, 0x106, 0xcff, 0xffff} {
				s, y := r.status(cmd(op, 0, 16), 16)
				require.Equal(t, row.Status, s, "opcode %#x", op)
				require.EqualValues(t, row.Code, y, "opcode %#x", op)
			}
			continue
		default:
			r = at(possible(row.Opcode))
			switch row.Situation {
			case InputShort:
				in = in[:max(prm.CommandByOpcode(row.Opcode).MinIn, 16)-4]
			case OutputShort:
				room -= 4
			case UnknownOpMod:
				binary.BigEndian.PutUint16(in[6:], 0xfe)
			case FreedObject:
				require.Contains(t, freed, row.Opcode, name)
				in = freed[row.Opcode](r)
			case AboveMaximum:
				require.Contains(t, above, row.Opcode, name)
				in = above[row.Opcode](r)
			}
		}
		before := r.chip.State(0)
		s, y := r.status(in, room)
		require.Equal(t, row.Status, s, name)
		require.EqualValues(t, row.Code, y, "%s: %s", name, SyndromeText(uint32(y)))
		after := r.chip.State(0)
		require.Equal(t, before, after, "%s: a refused command changes nothing", name)
	}
	require.Len(t, situations, 11, "every column has cells")

	// A command that has a name but no row.
	s, y := at(phaseInit).status(cmd(prm.OpCreateXrq, 0, 16), 16)
	require.Equal(t, prm.StatusBadOp, s)
	require.Equal(t, syndNotModelled, y)
}

// TestSyndromes: the list is complete, each with a status and a text of its own.
func TestSyndromes(t *testing.T) {
	texts := map[string]bool{}
	for s := syndNotEnabled; s < syndEnd; s++ {
		e, ok := syndromes[s]
		require.True(t, ok, "syndrome %#x", uint32(s))
		require.NotEqual(t, prm.StatusOK, e.Status, "%#x", uint32(s))
		require.False(t, texts[e.Text], "%q twice", e.Text)
		texts[e.Text] = true
	}
	require.Len(t, Syndromes(), len(syndromes))
	require.Empty(t, SyndromeText(0x1234))
}

// valid is an input of a command with everything in it that its length needs.
func valid(op prm.Opcode) []byte {
	h := handlers[op]
	if h == nil {
		return cmd(op, 0, 16)
	}
	opMod := uint16(0)
	if h.opMods != anyOpMod {
		opMod = uint16(bits.TrailingZeros64(h.opMods))
	}
	n := prm.CommandByOpcode(op).MinIn
	switch op {
	case prm.OpCreateEQ, prm.OpCreateCQ, prm.OpCreateQP, prm.OpCreateSRQ, prm.OpCreateXRCSRQ, prm.OpCreateRMP:
		n += 8 // one page
	}
	in := cmd(op, opMod, max(n, 16))
	if op == prm.OpAccessReg {
		in = cmd(op, regRead, 0x90)
		prm.AsAccessRegisterIn(in).SetRegisterID(prm.RegNodeDesc)
	}
	return in
}

func minOut(op prm.Opcode) int {
	switch op {
	case 0, prm.OpCreateSQ, prm.OpModifySQ, prm.OpDestroySQ:
		return 16
	case prm.OpQueryHCAVportGID:
		return 16 + 16 // one GID
	case prm.OpQueryHCAVportPkey:
		return 16 + 4 // one P_Key
	}
	return prm.CommandByOpcode(op).MinOut
}

// possible is a phase in which a command works, INIT if it does.
func possible(op prm.Opcode) phase {
	for _, p := range []phase{phaseInit, phaseISSI, phaseEnabled, phaseOff, phaseTornDown} {
		if handlers[op].phases[p] == syndOK {
			return p
		}
	}
	panic(op)
}

// number puts v into the low bytes of the dword at byte 8, where most commands
// name their object.
func number(op prm.Opcode, v uint32) []byte {
	in := valid(op)
	binary.BigEndian.PutUint32(in[8:], v)
	return in
}

// gone creates an object, frees it and gives its number.
func gone(r *raw, alloc, free prm.Opcode) uint32 {
	out := r.ok(valid(alloc), 16)
	n := binary.BigEndian.Uint32(out[8:])
	r.ok(number(free, n), 16)
	return n
}

func goneEQ(r *raw) uint32 {
	r.uar = prm.AsAllocUAROut(r.ok(cmd(prm.OpAllocUAR, 0, 16), 16)).UAR()
	n, _ := r.createEQ(4, 0, 0)
	r.ok(number(prm.OpDestroyEQ, n), 16)
	r.ok(number(prm.OpDeallocUAR, r.uar), 16)
	return n
}

func goneMKey(r *raw) uint32 {
	pd := binary.BigEndian.Uint32(r.ok(valid(prm.OpAllocPD), 16)[8:])
	in := valid(prm.OpCreateMKey)
	prm.AsCreateMKeyIn(in).MemoryKeyMKeyEntry().SetPD(pd)
	n := binary.BigEndian.Uint32(r.ok(in, 16)[8:])
	s, y := r.status(number(prm.OpDeallocPD, pd), 16)
	require.Equal(r.t, prm.StatusResBusy, s)
	require.Equal(r.t, syndPDBusy, y)
	r.ok(number(prm.OpDestroyMKey, n), 16)
	r.ok(number(prm.OpDeallocPD, pd), 16)
	return n
}

func goneUCTX(r *raw) uint32 { return gone(r, prm.OpCreateUCTX, prm.OpDestroyUCTX) }

func umemInput(uid uint16) []byte {
	in := make([]byte, prm.CreateUMEMInSize+8)
	copy(in, cmd(prm.OpCreateUMEM, 0, prm.CreateUMEMInSize))
	m := prm.AsCreateUMEMIn(in)
	m.SetUID(uid)
	m.UMEM().SetNumOfMTT(1)
	return in
}

var freed = map[prm.Opcode]func(*raw) []byte{
	prm.OpCreateEQ: func(r *raw) []byte {
		n := gone(r, prm.OpAllocUAR, prm.OpDeallocUAR)
		in := valid(prm.OpCreateEQ)
		prm.AsCreateEQIn(in).EQContextEntry().SetUARPage(n)
		return in
	},
	prm.OpDestroyEQ:  func(r *raw) []byte { return number(prm.OpDestroyEQ, goneEQ(r)) },
	prm.OpQueryEQ:    func(r *raw) []byte { return number(prm.OpQueryEQ, goneEQ(r)) },
	prm.OpGenEQE:     func(r *raw) []byte { return number(prm.OpGenEQE, goneEQ(r)) },
	prm.OpDeallocUAR: func(r *raw) []byte { return number(prm.OpDeallocUAR, gone(r, prm.OpAllocUAR, prm.OpDeallocUAR)) },
	prm.OpDeallocPD:  func(r *raw) []byte { return number(prm.OpDeallocPD, gone(r, prm.OpAllocPD, prm.OpDeallocPD)) },
	prm.OpDeallocTransportDomain: func(r *raw) []byte {
		return number(prm.OpDeallocTransportDomain, gone(r, prm.OpAllocTransportDomain, prm.OpDeallocTransportDomain))
	},
	prm.OpCreateMKey: func(r *raw) []byte {
		in := valid(prm.OpCreateMKey)
		prm.AsCreateMKeyIn(in).MemoryKeyMKeyEntry().SetPD(gone(r, prm.OpAllocPD, prm.OpDeallocPD))
		return in
	},
	prm.OpQueryMKey:   func(r *raw) []byte { return number(prm.OpQueryMKey, goneMKey(r)) },
	prm.OpDestroyMKey: func(r *raw) []byte { return number(prm.OpDestroyMKey, goneMKey(r)) },
	prm.OpCreateUMEM:  func(r *raw) []byte { return umemInput(uint16(goneUCTX(r))) },
	prm.OpDestroyUMEM: func(r *raw) []byte {
		n := binary.BigEndian.Uint32(r.ok(umemInput(0), 16)[8:])
		r.ok(number(prm.OpDestroyUMEM, n), 16)
		return number(prm.OpDestroyUMEM, n)
	},
	prm.OpDestroyUCTX: func(r *raw) []byte { return number(prm.OpDestroyUCTX, goneUCTX(r)) },
	prm.OpCreateCQ: func(r *raw) []byte {
		in := valid(prm.OpCreateCQ)
		x := prm.AsCreateCQIn(in).CQContext()
		x.SetCEQNOrApuElement(goneEQ(r))
		return in
	},
	prm.OpQueryCQ:   goneCQ(prm.OpQueryCQ),
	prm.OpModifyCQ:  goneCQ(prm.OpModifyCQ),
	prm.OpDestroyCQ: goneCQ(prm.OpDestroyCQ),
	prm.OpCreateQP: func(r *raw) []byte {
		in := r.qpInput(prm.QPTypeRC)
		prm.AsCreateQPIn(in).QPC().SetPD(gone(r, prm.OpAllocPD, prm.OpDeallocPD))
		return in
	},
	prm.OpQueryQP:     goneQP(prm.OpQueryQP),
	prm.OpDestroyQP:   goneQP(prm.OpDestroyQP),
	prm.OpRst2InitQP:  goneQP(prm.OpRst2InitQP),
	prm.OpInit2InitQP: goneQP(prm.OpInit2InitQP),
	prm.OpInit2RtrQP:  goneQP(prm.OpInit2RtrQP),
	prm.OpRtr2RtsQP:   goneQP(prm.OpRtr2RtsQP),
	prm.OpRts2RtsQP:   goneQP(prm.OpRts2RtsQP),
	prm.OpSqerr2RtsQP: goneQP(prm.OpSqerr2RtsQP),
	prm.OpSqdRtsQP:    goneQP(prm.OpSqdRtsQP),
	prm.Op2ErrQP:      goneQP(prm.Op2ErrQP),
	prm.Op2RstQP:      goneQP(prm.Op2RstQP),
	prm.OpCreateSRQ:   gonePDOf(prm.OpCreateSRQ),
	prm.OpQuerySRQ:    goneSRQ(prm.OpQuerySRQ),
	prm.OpDestroySRQ:  goneSRQ(prm.OpDestroySRQ),
	prm.OpArmRQ:       goneSRQ(prm.OpArmRQ),
	prm.OpQueryXRCSRQ: goneSRQ(prm.OpQueryXRCSRQ),
	prm.OpArmXRCSRQ:   goneSRQ(prm.OpArmXRCSRQ),
	prm.OpModifyRMP:   goneSRQ(prm.OpModifyRMP),
	prm.OpQueryRMP:    goneSRQ(prm.OpQueryRMP),
	prm.OpDestroyRMP:  goneSRQ(prm.OpDestroyRMP),
	prm.OpCreateRMP:   gonePDOf(prm.OpCreateRMP),
	prm.OpCreateXRCSRQ: func(r *raw) []byte {
		in := r.srqInput(prm.OpCreateXRCSRQ, 2)
		prm.AsCreateXRCSRQIn(in).XRCSRQContextEntry().SetXRCD(gone(r, prm.OpAllocXRCD, prm.OpDeallocXRCD))
		return in
	},
	prm.OpDestroyXRCSRQ: goneSRQ(prm.OpDestroyXRCSRQ),
	prm.OpCreateSQ: func(r *raw) []byte {
		in := r.sqInput()
		binary.BigEndian.PutUint32(in[sqContext+8:], 0x999)
		return in
	},
	prm.OpModifySQ:  goneSQ(prm.OpModifySQ),
	prm.OpDestroySQ: goneSQ(prm.OpDestroySQ),
	prm.OpDeallocXRCD: func(r *raw) []byte {
		return number(prm.OpDeallocXRCD, gone(r, prm.OpAllocXRCD, prm.OpDeallocXRCD))
	},
	prm.OpDeallocQCounter: func(r *raw) []byte {
		return number(prm.OpDeallocQCounter, gone(r, prm.OpAllocQCounter, prm.OpDeallocQCounter))
	},
	prm.OpQueryQCounter: func(r *raw) []byte {
		in := valid(prm.OpQueryQCounter)
		prm.AsQueryQCounterIn(in).SetCounterSetID(uint8(gone(r, prm.OpAllocQCounter, prm.OpDeallocQCounter)))
		return in
	},
}

// sqInput is CREATE_SQ of four blocks.
func (r *raw) sqInput() []byte {
	r.data()
	if r.cq == nil {
		r.cq = r.createCQ(4, nil)
	}
	in := cmd(prm.OpCreateSQ, 0, sqInBytes+8)
	binary.BigEndian.PutUint32(in[sqContext+8:], r.cq.n)
	w := prm.AsWQ(in[sqWQ:])
	w.SetWQType(prm.WQTypeCyclic)
	w.SetLogWQSz(2)
	w.SetLogWQStride(6)
	w.SetPD(r.pd)
	w.SetUARPage(r.uar)
	w.SetDBRAddr(r.alloc(8, 8))
	clear(r.bytes(w.DBRAddr(), 8))
	binary.BigEndian.PutUint64(in[sqInBytes:], r.page())
	return in
}

func goneSQ(op prm.Opcode) func(*raw) []byte {
	return func(r *raw) []byte {
		n := binary.BigEndian.Uint32(r.ok(r.sqInput(), 16)[8:])
		r.ok(number(prm.OpDestroySQ, n), 16)
		return sqStep(op, n, sqRST, sqRDY)
	}
}

// sqStep is a command on a send queue; MODIFY_SQ with its two states.
func sqStep(op prm.Opcode, n uint32, from, to byte) []byte {
	in := cmd(op, 0, sqInBytes)
	binary.BigEndian.PutUint32(in[8:], n)
	in[8] |= from << 4
	in[sqContext+1] = to << 4
	return in
}

func goneCQ(op prm.Opcode) func(*raw) []byte {
	return func(r *raw) []byte {
		n := r.createCQ(4, nil).n
		r.ok(number(prm.OpDestroyCQ, n), 16)
		return number(op, n)
	}
}

func goneQP(op prm.Opcode) func(*raw) []byte {
	return func(r *raw) []byte {
		n := r.createQP(prm.QPTypeRC, nil)
		r.ok(number(prm.OpDestroyQP, n), 16)
		return number(op, n)
	}
}

func goneSRQ(op prm.Opcode) func(*raw) []byte {
	return func(r *raw) []byte {
		n := binary.BigEndian.Uint32(r.ok(r.srqInput(prm.OpCreateSRQ, 2), 16)[8:])
		r.ok(number(prm.OpDestroySRQ, n), 16)
		return number(op, n)
	}
}

func gonePDOf(op prm.Opcode) func(*raw) []byte {
	return func(r *raw) []byte {
		in := r.srqInput(op, 2)
		pd := gone(r, prm.OpAllocPD, prm.OpDeallocPD)
		if op == prm.OpCreateRMP {
			prm.AsCreateRMPIn(in).Ctx().WQ().SetPD(pd)
		} else {
			prm.AsCreateSRQIn(in).SRQContextEntry().SetPD(pd)
		}
		return in
	}
}

// overLimit creates a shared receive queue of four entries and arms it at four.
func overLimit(create, arm prm.Opcode, set func(in []byte)) func(*raw) []byte {
	return func(r *raw) []byte {
		n := binary.BigEndian.Uint32(r.ok(r.srqInput(create, 2), 16)[8:])
		in := number(arm, n)
		set(in)
		return in
	}
}

// inState makes an input for a QP that is where the command begins.
func inState(op prm.Opcode, s prm.QPState, set func(x *prm.QPC)) func(*raw) []byte {
	return func(r *raw) []byte {
		n := r.createQP(prm.QPTypeRC, nil)
		r.qpTo(n, s)
		in := r.qpStep(op, n)
		set(prm.AsRst2InitQPIn(in).QPC())
		return in
	}
}

func functionID(op prm.Opcode) func(*raw) []byte {
	return func(*raw) []byte { return number(op, 1) }
}

func with(op prm.Opcode, set func(in []byte)) func(*raw) []byte {
	return func(*raw) []byte {
		in := valid(op)
		set(in)
		return in
	}
}

var above = map[prm.Opcode]func(*raw) []byte{
	prm.OpEnableHCA:   functionID(prm.OpEnableHCA),
	prm.OpDisableHCA:  functionID(prm.OpDisableHCA),
	prm.OpQueryPages:  functionID(prm.OpQueryPages),
	prm.OpManagePages: functionID(prm.OpManagePages),
	prm.OpQueryHCACap: functionID(prm.OpQueryHCACap),
	prm.OpSetISSI:     with(prm.OpSetISSI, func(in []byte) { prm.AsSetISSIIn(in).SetCurrentISSI(2) }),
	prm.OpTeardownHCA: with(prm.OpTeardownHCA, func(in []byte) { prm.AsTeardownHCAIn(in).SetProfile(3) }),
	prm.OpSetHCACap: with(prm.OpSetHCACap, func(in []byte) {
		prm.AsCmdHCACap(in[16:]).SetLogMaxQP(24)
	}),
	prm.OpCreateEQ: func(r *raw) []byte {
		in := valid(prm.OpCreateEQ)
		prm.AsCreateEQIn(in).EQContextEntry().SetLogEQSize(23)
		prm.AsCreateEQIn(in).EQContextEntry().SetLogPageSize(17)
		return in
	},
	prm.OpCreateMKey: func(r *raw) []byte {
		in := valid(prm.OpCreateMKey)
		m := prm.AsCreateMKeyIn(in).MemoryKeyMKeyEntry()
		if r.pd == 0 {
			r.pd = binary.BigEndian.Uint32(r.ok(valid(prm.OpAllocPD), 16)[8:])
		}
		m.SetPD(r.pd)
		m.SetAccessMode4_2(7)
		return in
	},
	prm.OpCreateUMEM: func(*raw) []byte {
		in := umemInput(0)
		prm.AsCreateUMEMIn(in).UMEM().SetPageOffset(4096)
		return in
	},
	prm.OpCreateUCTX:            with(prm.OpCreateUCTX, func(in []byte) { prm.AsCreateUCTXIn(in).UCTX().SetCap(4) }),
	prm.OpAccessReg:             with(prm.OpAccessReg, func(in []byte) { prm.AsAccessRegisterIn(in).SetRegisterID(0xffff) }),
	prm.OpQueryHCAVportContext:  with(prm.OpQueryHCAVportContext, func(in []byte) { prm.AsQueryHCAVportContextIn(in).SetPortNum(2) }),
	prm.OpModifyHCAVportContext: with(prm.OpModifyHCAVportContext, func(in []byte) { prm.AsModifyHCAVportContextIn(in).SetPortNum(2) }),
	prm.OpQueryHCAVportGID:      with(prm.OpQueryHCAVportGID, func(in []byte) { prm.AsQueryHCAVportGIDIn(in).SetGIDIndex(8) }),
	prm.OpQueryHCAVportPkey:     with(prm.OpQueryHCAVportPkey, func(in []byte) { prm.AsQueryHCAVportPkeyIn(in).SetPkeyIndex(128) }),
	prm.OpQueryVportState:       with(prm.OpQueryVportState, func(in []byte) { prm.AsQueryVportStateIn(in).SetVportNumber(1) }),
	prm.OpModifyVportState:      with(prm.OpModifyVportState, func(in []byte) { prm.AsModifyVportStateIn(in).SetAdminState(3) }),
	prm.OpQueryNicVportContext:  with(prm.OpQueryNicVportContext, func(in []byte) { prm.AsQueryNicVportContextIn(in).SetVportNumber(1) }),
	prm.OpCreateCQ: func(r *raw) []byte {
		r.data()
		in := valid(prm.OpCreateCQ)
		x := prm.AsCreateCQIn(in).CQContext()
		x.SetCEQNOrApuElement(r.eqn)
		x.SetUARPage(r.uar)
		x.SetLogCQSize(23)
		return in
	},
	prm.OpCreateQP: func(r *raw) []byte {
		in := r.qpInput(prm.QPTypeRC)
		prm.AsCreateQPIn(in).QPC().SetLogRQStride(7)
		return in
	},
	prm.OpCreateSQ: func(r *raw) []byte {
		in := r.sqInput()
		prm.AsWQ(in[sqWQ:]).SetLogWQSz(16)
		return in
	},
	prm.OpModifySQ: func(r *raw) []byte {
		return sqStep(prm.OpModifySQ, binary.BigEndian.Uint32(r.ok(r.sqInput(), 16)[8:]), sqRST, 7)
	},
	prm.OpRst2InitQP: inState(prm.OpRst2InitQP, prm.QPStateRst, func(x *prm.QPC) { x.PrimaryAddressPath().SetVHCAPortNum(2) }),
	prm.OpInit2RtrQP: inState(prm.OpInit2RtrQP, prm.QPStateInit, func(x *prm.QPC) { x.SetMTU(6) }),
	prm.OpRtr2RtsQP:  inState(prm.OpRtr2RtsQP, prm.QPStateRtr, func(x *prm.QPC) { x.SetLogSraMax(5) }),
	prm.OpCreateSRQ: func(r *raw) []byte {
		in := r.srqInput(prm.OpCreateSRQ, 2)
		prm.AsCreateSRQIn(in).SRQContextEntry().SetLogRQStride(7)
		return in
	},
	prm.OpCreateXRCSRQ: func(r *raw) []byte {
		in := r.srqInput(prm.OpCreateXRCSRQ, 2)
		prm.AsCreateXRCSRQIn(in).XRCSRQContextEntry().SetLogRQStride(7)
		return in
	},
	prm.OpCreateRMP: func(r *raw) []byte {
		in := r.srqInput(prm.OpCreateRMP, 2)
		prm.AsCreateRMPIn(in).Ctx().WQ().SetLogWQSz(31)
		return in
	},
	prm.OpArmRQ:     overLimit(prm.OpCreateSRQ, prm.OpArmRQ, func(in []byte) { prm.AsArmRQIn(in).SetLwm(4) }),
	prm.OpArmXRCSRQ: overLimit(prm.OpCreateXRCSRQ, prm.OpArmXRCSRQ, func(in []byte) { prm.AsArmXRCSRQIn(in).SetLwm(4) }),
	prm.OpModifyRMP: overLimit(prm.OpCreateRMP, prm.OpModifyRMP, func(in []byte) {
		prm.AsModifyRMPIn(in).SetRMPState(uint8(prm.RMPStateRdy))
		prm.AsModifyRMPIn(in).Bitmask().SetLwm(true)
		prm.AsModifyRMPIn(in).Ctx().WQ().SetLwm(4)
	}),
	prm.OpSetRoceAddress:      with(prm.OpSetRoceAddress, func(in []byte) { prm.AsSetRoceAddressIn(in).SetRoceAddressIndex(0x100) }),
	prm.OpQueryRoceAddress:    with(prm.OpQueryRoceAddress, func(in []byte) { prm.AsQueryRoceAddressIn(in).SetRoceAddressIndex(0x100) }),
	prm.OpMADIfc:              with(prm.OpMADIfc, func(in []byte) { prm.AsMADIfcIn(in).SetPort(2) }),
	prm.OpConfigIntModeration: with(prm.OpConfigIntModeration, func(in []byte) { prm.AsConfigIntModerationIn(in).SetIntVector(64) }),
	prm.OpModifyNicVportContext: with(prm.OpModifyNicVportContext, func(in []byte) {
		prm.AsModifyNicVportContextIn(in).SetVportNumber(1)
	}),
}
