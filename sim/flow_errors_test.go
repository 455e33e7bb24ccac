package sim

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// flaw is one way to fail: what is posted, and who hears what.
type flaw struct {
	name  string
	tune  func(r *raw, a, b *end) // before they are connected
	do    func(r *raw, a, b *end, m *region)
	send  prm.CQESyndrome // on the requester; 0: none
	recv  prm.CQESyndrome // on the responder's receive queue; 0: none
	event prm.EventType   // of the responder; 0: none
	alive bool            // the responder goes on
}

const (
	sLen     = prm.CQESyndLocalLengthErr
	sOp      = prm.CQESyndLocalQPOpErr
	sProt    = prm.CQESyndLocalProtErr
	sFlush   = prm.CQESyndWrFlushErr
	sResp    = prm.CQESyndBadRespErr
	sAccess  = prm.CQESyndLocalAccessErr
	sRInval  = prm.CQESyndRemoteInvalReqErr
	sRAccess = prm.CQESyndRemoteAccessErr
	sROp     = prm.CQESyndRemoteOpErr
	sRetry   = prm.CQESyndTransportRetryExcErr
	sRNR     = prm.CQESyndRNRRetryExcErr
)

// one posts a single entry.
func one(w func(m *region) wqe) func(*raw, *end, *end, *region) {
	return func(_ *raw, a, _ *end, m *region) { a.post(w(m)) }
}

func write(segs ...[]byte) wqe { return wqe{op: prm.WQERdmaWrite, segs: segs} }

// otherKey is a key like m's with something changed.
func otherKey(m *region, set func(k *prm.MKC)) *region {
	return &region{m.r, m.at, m.n, m.r.createKey(m.r.keyInput(m.at, m.n, set))}
}

// remotely is an entry towards memory under another key.
func remotely(op prm.WQEOpcode, set func(k *prm.MKC)) func(*raw, *end, *end, *region) {
	return one(func(m *region) wqe {
		k := otherKey(m, set)
		switch op {
		case prm.WQEAtomicFA:
			return wqe{op: op, segs: [][]byte{k.remote(0), operands(8, 1, 0), m.ptr(64, 8)}}
		default:
			return wqe{op: op, segs: [][]byte{k.remote(0), m.ptr(64, 8)}}
		}
	})
}

// locally is a WRITE whose data lies under another key.
func locally(set func(k *prm.MKC)) func(*raw, *end, *end, *region) {
	return one(func(m *region) wqe { return write(m.remote(0), otherKey(m, set).ptr(64, 8)) })
}

func faAt(off int, size int, mod uint8) func(m *region) wqe {
	return func(m *region) wqe {
		return wqe{op: prm.WQEAtomicMaskedFA, mod: mod, segs: [][]byte{m.remote(off), operands(size, make([]uint64, 2*max(1, size/8))...), m.ptr(1024, size)}}
	}
}

func flaws() []flaw {
	otherPD := func(r *raw) uint32 {
		return binary.BigEndian.Uint32(r.ok(valid(prm.OpAllocPD), 16)[8:])
	}
	away := func(m *region, n int) []byte { // memory that no mapping holds
		k := otherKey(m, nil)
		in := m.r.keyInput(m.at, m.n, nil)
		binary.BigEndian.PutUint64(in[prm.CreateMKeyInSize:], 0x9_0000_0000)
		k.key = m.r.createKey(in)
		return k.ptr(0, n)
	}
	awayRemote := func(m *region) []byte {
		in := m.r.keyInput(m.at, m.n, nil)
		binary.BigEndian.PutUint64(in[prm.CreateMKeyInSize:], 0x9_0000_0000)
		k := &region{m.r, m.at, m.n, m.r.createKey(in)}
		return k.remote(0)
	}
	closed := func(bit byte) func(*raw, *end, *end) {
		return func(_ *raw, _, b *end) { b.access &^= bit }
	}
	mode := func(x prm.AtomicMode) func(*raw, *end, *end) {
		return func(_ *raw, _, b *end) { b.mode = x }
	}
	fa := func(m *region) wqe {
		return wqe{op: prm.WQEAtomicFA, segs: [][]byte{m.remote(0), operands(8, 1, 0), m.ptr(64, 8)}}
	}
	return []flaw{
		// The entry itself.
		{name: "unknown opcode", do: one(func(m *region) wqe { return wqe{op: 0x3e} }), send: sOp, alive: true},
		{name: "opcode the model does not carry out", do: one(func(m *region) wqe { return wqe{op: prm.WQEUMR} }), send: sOp, alive: true},
		{name: "opmod where there is none", do: one(func(m *region) wqe { return wqe{op: prm.WQESend, mod: 1} }), send: sOp, alive: true},
		{name: "no operands", do: one(func(m *region) wqe { return wqe{op: prm.WQEAtomicCS, segs: [][]byte{m.remote(0)}} }), send: sOp, alive: true},
		{name: "no address", do: one(func(m *region) wqe { return wqe{op: prm.WQERdmaWrite} }), send: sOp, alive: true},
		{name: "operand size of 512", do: one(func(m *region) wqe {
			return wqe{op: prm.WQEAtomicMaskedFA, mod: 15, segs: [][]byte{m.remote(0), operands(8, 1, 0), m.ptr(64, 8)}}
		}), send: sOp, alive: true},
		{name: "inline data to read into", do: one(func(m *region) wqe {
			return wqe{op: prm.WQERdmaRead, segs: [][]byte{m.remote(0), inlineSeg([]byte("xy"))}}
		}), send: sOp, alive: true},
		{name: "inline data beyond the entry", do: one(func(m *region) wqe {
			s := inlineSeg([]byte("xy"))
			s[3] = 200
			return write(m.remote(0), s)
		}), send: sOp, alive: true},
		{name: "reserved fence", do: one(func(m *region) wqe { return wqe{op: prm.WQENop, fm: 5} }), send: sOp, alive: true},
		{name: "index of another entry", do: func(r *raw, a, _ *end, m *region) {
			a.fill(wqe{op: prm.WQENop})
			r.bytes(a.sqAt(0), 64)[2] = 9
			a.ring()
		}, send: sOp, alive: true},
		{name: "number of another QP", do: func(r *raw, a, _ *end, m *region) {
			a.fill(wqe{op: prm.WQENop})
			r.bytes(a.sqAt(0), 64)[6] ^= 1
			a.ring()
		}, send: sOp, alive: true},
		{name: "no units at all", do: func(r *raw, a, _ *end, m *region) {
			a.fill(wqe{op: prm.WQENop})
			r.bytes(a.sqAt(0), 64)[7] = 0
			a.ring()
		}, send: sOp, alive: true},
		{name: "more units than posted", do: func(r *raw, a, _ *end, m *region) {
			a.fill(wqe{op: prm.WQENop})
			r.bytes(a.sqAt(0), 64)[7] = 5
			a.ring()
		}, send: sOp, alive: true},
		{name: "message longer than the QP sends", tune: func(_ *raw, a, _ *end) {
			a.tune = func(op prm.Opcode, x *prm.QPC) { x.SetLogMsgMax(6) }
		}, do: one(func(m *region) wqe { return write(m.remote(0), m.ptr(64, 65)) }), send: sLen, alive: true},
		{name: "answer of another length than the operand", do: one(func(m *region) wqe {
			return wqe{op: prm.WQEAtomicFA, segs: [][]byte{m.remote(0), operands(8, 1, 0), m.ptr(64, 4)}}
		}), send: sLen, alive: true},
		{name: "piece of no length, which is 2 GiB", do: one(func(m *region) wqe { return write(m.remote(0), m.ptr(64, 0)) }), send: sLen, alive: true,
			tune: func(_ *raw, a, _ *end) { a.tune = func(op prm.Opcode, x *prm.QPC) { x.SetLogMsgMax(20) } }},

		// Local memory.
		{name: "local key of another variant", do: one(func(m *region) wqe {
			k := *m
			k.key ^= 1
			return write(m.remote(0), k.ptr(64, 8))
		}), send: sProt, alive: true},
		{name: "no such local key", do: one(func(m *region) wqe {
			k := *m
			k.key += 0x100
			return write(m.remote(0), k.ptr(64, 8))
		}), send: sProt, alive: true},
		{name: "local key of another PD", do: func(r *raw, a, _ *end, m *region) {
			pd := otherPD(r)
			locally(func(k *prm.MKC) { k.SetPD(pd) })(r, a, nil, m)
		}, send: sProt, alive: true},
		{name: "local key for another QP", do: locally(func(k *prm.MKC) { k.SetQPN(0x777) }), send: sProt, alive: true},
		{name: "local key that may not be read", do: locally(func(k *prm.MKC) { k.SetLr(false) }), send: sProt, alive: true},
		{name: "free local key", do: locally(func(k *prm.MKC) { k.SetFree(true); k.SetUMREn(true) }), send: sProt, alive: true},
		{name: "below the local key", do: one(func(m *region) wqe { return write(m.remote(0), m.ptr(-1, 8)) }), send: sProt, alive: true},
		{name: "beyond the local key", do: one(func(m *region) wqe { return write(m.remote(0), m.ptr(m.n-7, 8)) }), send: sProt, alive: true},
		{name: "reserved lkey on a QP that may not", do: one(func(m *region) wqe {
			k := *m
			k.key = reservedLKey
			return write(m.remote(0), k.ptr(64, 8))
		}), send: sProt, alive: true},
		{name: "local memory unmapped", do: one(func(m *region) wqe { return write(m.remote(0), away(m, 8)) }), send: sProt, alive: true},
		{name: "answer where nothing may be written", do: one(func(m *region) wqe {
			return wqe{op: prm.WQERdmaRead, segs: [][]byte{m.remote(0), otherKey(m, func(k *prm.MKC) { k.SetLw(false) }).ptr(64, 8)}}
		}), send: sProt, alive: true},

		// The peer's memory.
		{name: "remote key of another variant", do: one(func(m *region) wqe {
			k := *m
			k.key ^= 1
			return write(k.remote(0), m.ptr(64, 8))
		}), send: sRAccess, event: prm.EventWQAccessError},
		{name: "remote key of another PD", do: func(r *raw, a, _ *end, m *region) {
			pd := otherPD(r)
			remotely(prm.WQERdmaWrite, func(k *prm.MKC) { k.SetPD(pd) })(r, a, nil, m)
		}, send: sRAccess, event: prm.EventWQAccessError},
		{name: "remote key for another QP", do: remotely(prm.WQERdmaRead, func(k *prm.MKC) { k.SetQPN(0x777) }), send: sRAccess, event: prm.EventWQAccessError},
		{name: "WRITE without the right", do: remotely(prm.WQERdmaWrite, func(k *prm.MKC) { k.SetRw(false) }), send: sRAccess, event: prm.EventWQAccessError},
		{name: "READ without the right", do: remotely(prm.WQERdmaRead, func(k *prm.MKC) { k.SetRr(false) }), send: sRAccess, event: prm.EventWQAccessError},
		{name: "atomic without the right", do: remotely(prm.WQEAtomicFA, func(k *prm.MKC) { k.SetA(false) }), send: sRAccess, event: prm.EventWQAccessError},
		{name: "free remote key", do: remotely(prm.WQERdmaWrite, func(k *prm.MKC) { k.SetFree(true); k.SetUMREn(true) }), send: sRAccess, event: prm.EventWQAccessError},
		{name: "beyond the remote key", do: one(func(m *region) wqe { return write(m.remote(m.n-7), m.ptr(64, 8)) }), send: sRAccess, event: prm.EventWQAccessError},
		{name: "below the remote key", do: one(func(m *region) wqe { return write(m.remote(-8), m.ptr(64, 16)) }), send: sRAccess, event: prm.EventWQAccessError},
		{name: "round the end of addresses", do: one(func(m *region) wqe { return write(m.remote(-int(m.at)-4), m.ptr(64, 8)) }), send: sRAccess, event: prm.EventWQAccessError},
		{name: "reserved lkey as a remote key", tune: nil, do: one(func(m *region) wqe {
			k := *m
			k.key = reservedLKey
			return write(k.remote(0), m.ptr(64, 8))
		}), send: sRAccess, event: prm.EventWQAccessError},
		{name: "WRITE with immediate without the right", do: func(r *raw, a, b *end, m *region) {
			b.postRecv(m.ptr(0, 64))
			k := otherKey(m, func(k *prm.MKC) { k.SetRw(false) })
			a.post(wqe{op: prm.WQERdmaWriteImm, segs: [][]byte{k.remote(0), m.ptr(64, 8)}})
		}, send: sRAccess, recv: sAccess},
		{name: "remote memory unmapped for WRITE", do: one(func(m *region) wqe { return write(awayRemote(m), m.ptr(64, 8)) }), send: sROp, event: prm.EventWQCatasError},
		{name: "remote memory unmapped for READ", do: one(func(m *region) wqe {
			return wqe{op: prm.WQERdmaRead, segs: [][]byte{awayRemote(m), m.ptr(64, 8)}}
		}), send: sROp, event: prm.EventWQCatasError},
		{name: "remote memory unmapped for an atomic", do: one(func(m *region) wqe {
			return wqe{op: prm.WQEAtomicFA, segs: [][]byte{awayRemote(m), operands(8, 1, 0), m.ptr(64, 8)}}
		}), send: sROp, event: prm.EventWQCatasError},
		{name: "remote memory unmapped for a WRITE with immediate", do: func(r *raw, a, b *end, m *region) {
			b.postRecv(m.ptr(0, 64))
			a.post(wqe{op: prm.WQERdmaWriteImm, segs: [][]byte{awayRemote(m), m.ptr(64, 8)}})
		}, send: sROp, recv: sAccess},

		// What the peer's QP allows.
		{name: "QP closed for WRITE", tune: closed(2), do: one(func(m *region) wqe { return write(m.remote(0), m.ptr(64, 8)) }), send: sRInval, event: prm.EventWQInvalReqError},
		{name: "QP closed for READ", tune: closed(4), do: one(func(m *region) wqe {
			return wqe{op: prm.WQERdmaRead, segs: [][]byte{m.remote(0), m.ptr(64, 8)}}
		}), send: sRInval, event: prm.EventWQInvalReqError},
		{name: "QP closed for atomics", tune: closed(1), do: one(fa), send: sRInval, event: prm.EventWQInvalReqError},
		{name: "atomics off", tune: mode(prm.AtomicModeNone), do: one(fa), send: sRInval, event: prm.EventWQInvalReqError},
		{name: "masked in mode 1", tune: mode(prm.AtomicModeIBSpec), do: one(faAt(0, 8, 9)), send: sRInval, event: prm.EventWQInvalReqError},
		{name: "4 bytes in mode 2", tune: mode(prm.AtomicModeOnly8B), do: one(faAt(0, 4, 8)), send: sRInval, event: prm.EventWQInvalReqError},
		{name: "16 bytes in mode 3", tune: mode(prm.AtomicModeUpTo8B), do: one(faAt(0, 16, 10)), send: sRInval, event: prm.EventWQInvalReqError},
		{name: "256 bytes in mode 7", tune: mode(prm.AtomicModeUpTo128B), do: one(faAt(0, 256, 14)), send: sRInval, event: prm.EventWQInvalReqError},
		{name: "unaligned 8 bytes", do: one(func(m *region) wqe {
			return wqe{op: prm.WQEAtomicFA, segs: [][]byte{m.remote(4), operands(8, 1, 0), m.ptr(64, 8)}}
		}), send: sRInval, event: prm.EventWQInvalReqError},
		{name: "unaligned 4 bytes", do: one(faAt(2, 4, 8)), send: sRInval, event: prm.EventWQInvalReqError},
		{name: "unaligned 32 bytes", do: one(faAt(16, 32, 11)), send: sRInval, event: prm.EventWQInvalReqError},

		// Receiving.
		{name: "message longer than its entry", do: func(r *raw, a, b *end, m *region) {
			b.postRecv(m.ptr(0, 8))
			a.post(wqe{op: prm.WQESend, segs: [][]byte{m.ptr(64, 9)}})
		}, send: sRInval, recv: sLen},
		{name: "long message longer than its entry", do: func(r *raw, a, b *end, m *region) {
			b.postRecv(m.ptr(0, 2047))
			a.post(wqe{op: prm.WQESend, segs: [][]byte{m.ptr(4096, 2048)}})
		}, send: sRInval, recv: sLen},
		{name: "entry without the right", do: func(r *raw, a, b *end, m *region) {
			b.postRecv(otherKey(m, func(k *prm.MKC) { k.SetLw(false) }).ptr(0, 64))
			a.post(wqe{op: prm.WQESend, segs: [][]byte{m.ptr(64, 9)}})
		}, send: sROp, recv: sProt},
		{name: "entry's memory unmapped", do: func(r *raw, a, b *end, m *region) {
			b.postRecv(away(m, 64))
			a.post(wqe{op: prm.WQESend, segs: [][]byte{m.ptr(64, 9)}})
		}, send: sROp, recv: sProt},
		{name: "nothing posted, not forever", tune: func(_ *raw, a, _ *end) { a.rnr = 2 },
			do: one(func(m *region) wqe { return wqe{op: prm.WQESend, segs: [][]byte{m.ptr(64, 9)}} }), send: sRNR, alive: true},

		// Transport.
		{name: "the peer is in RST", do: func(r *raw, a, b *end, m *region) {
			r.ok(number(prm.Op2RstQP, b.n), 16)
			a.post(write(m.remote(0), m.ptr(64, 8)))
		}, send: sRetry, alive: true},
		{name: "the peer does not exist", do: func(r *raw, a, b *end, m *region) {
			r.ok(number(prm.OpDestroyQP, b.n), 16)
			a.post(wqe{op: prm.WQERdmaRead, segs: [][]byte{m.remote(0), m.ptr(64, 8)}})
		}, send: sRetry, alive: true},
		{name: "nobody has that LID", tune: func(_ *raw, a, _ *end) {
			a.tune = func(op prm.Opcode, x *prm.QPC) { x.PrimaryAddressPath().SetRlid(0x77) }
		}, do: one(fa), send: sRetry, alive: true},
		{name: "the peer expects another sender", tune: func(_ *raw, _, b *end) {
			b.tune = func(op prm.Opcode, x *prm.QPC) { x.PrimaryAddressPath().SetRlid(0x77) }
		}, do: one(fa), send: sRetry, alive: true},
		{name: "the peer expects other PSNs", tune: func(_ *raw, a, _ *end) {
			a.tune = func(op prm.Opcode, x *prm.QPC) {
				if op == prm.OpRtr2RtsQP {
					x.SetNextSendPSN(0x500)
				}
			}
		}, do: one(fa), send: sRetry, alive: true},
		{name: "answers of the wrong kind", do: func(r *raw, a, _ *end, m *region) {
			r.fault("bad-response", "")
			a.post(fa(m))
		}, send: sResp, alive: true},
		{name: "READ answers of the wrong kind", do: func(r *raw, a, _ *end, m *region) {
			r.fault("bad-response", "")
			a.post(wqe{op: prm.WQERdmaRead, segs: [][]byte{m.remote(0), m.ptr(64, 8)}})
		}, send: sResp, alive: true},
	}
}

// TestCompletionSyndromes: every syndrome by causes that a driver or peer can have; the
// failed entry is named, what is behind it is flushed, the QP is in error, and the
// peer too where it is its error.
func TestCompletionSyndromes(t *testing.T) {
	seen := map[prm.CQESyndrome]bool{}
	for _, x := range flaws() {
		t.Run(x.name, func(t *testing.T) {
			r := newFlow(t, Options{})
			r.allEvents()
			a, b := r.newEnd(prm.QPTypeRC, nil), r.newEnd(prm.QPTypeRC, nil)
			if x.tune != nil {
				x.tune(r, a, b)
			}
			connect(a, b)
			m := r.region(16384, nil)
			before := slices.Clone(m.bytes())
			r.async()
			x.do(r, a, b, m)
			first := uint16(0)
			r.chip.Advance(200 * time.Millisecond)
			a.post(wqe{op: prm.WQENop, quiet: true}, wqe{op: prm.WQESend, segs: [][]byte{m.ptr(0, 8)}})
			e := a.send.bad(prm.CQEReqErr, x.send)
			require.Equal(t, first, e.WQECounter())
			require.Equal(t, a.n, e.QPN())
			require.NotZero(t, e.VendorErrSynd())
			for _, op := range []prm.WQEOpcode{prm.WQENop, prm.WQESend} {
				f := a.send.bad(prm.CQEReqErr, sFlush)
				require.Equal(t, op, f.SWQEOpcode(), "flushed in order, unsignalled ones too")
			}
			a.send.none()
			require.Equal(t, prm.QPStateErr, a.state())
			if x.recv != 0 {
				b.recv.bad(prm.CQERespErr, x.recv)
			}
			b.recv.none()
			if q, ok := r.chip.funcs[0].qps.get(b.n); ok && !x.alive {
				require.Equal(t, prm.QPStateErr, q.state)
			} else if ok {
				require.NotEqual(t, prm.QPStateErr, q.state)
			}
			var want []prm.EventType
			if x.event != 0 {
				want = append(want, x.event)
			}
			require.Equal(t, want, r.async())
			if x.recv != sLen && x.send != sResp {
				require.True(t, bytes.Equal(before, m.bytes()), "no memory is touched")
			}
			seen[x.send], seen[x.recv] = true, true
		})
	}
	for _, s := range prm.CQESyndromeEnum.Values {
		switch v := prm.CQESyndrome(s.Value); v {
		case prm.CQESyndWrFlushErr: // behind every other
		case prm.CQESyndMwBindErr, prm.CQESyndRemoteAbortedErr: // see Rulings: nothing here can cause them
			require.False(t, seen[v], v)
		default:
			require.True(t, seen[v], "%s has a cause", v)
		}
	}
}
