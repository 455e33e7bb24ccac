package atomics

import (
	"encoding/binary"
	"testing"
)

// FuzzOp: any operation is refused, or encoded so that the software responder does
// exactly what the oracle does. Neither ever panics.
func FuzzOp(f *testing.F) {
	f.Add(uint8(0), uint16(1), uint64(3), uint8(0), []byte{1, 2, 3})
	f.Add(uint8(7), uint16(256), uint64(256), uint8(1), []byte{0xff})
	f.Add(uint8(2), uint16(2), uint64(3), uint8(0), []byte{})
	f.Add(uint8(6), uint16(8), ^uint64(0), uint8(1), []byte{9})
	f.Fuzz(func(t *testing.T, kind uint8, size uint16, addr uint64, order uint8, data []byte) {
		at := 0
		word := func() uint64 {
			var b [8]byte
			for i := range b {
				if len(data) > 0 {
					b[i] = data[at%len(data)]
				}
				at++
			}
			return binary.LittleEndian.Uint64(b[:])
		}
		op := Op{Kind: Kind(kind), Size: int(size), Addr: addr}
		words := func() []uint64 {
			ws := make([]uint64, size/8)
			for i := range ws {
				ws[i] = word()
			}
			return ws
		}
		compare, masks, boundary := op.Kind.uses()
		switch {
		case size > 8:
			op.Wide = &Wide{Value: words()}
			if compare {
				op.Wide.Compare = words()
			}
			if masks {
				op.Wide.CompareMask, op.Wide.SwapMask = words(), words()
			}
			if boundary {
				op.Wide.Boundary = words()
			}
		default:
			// Some operands overflow: the mask is as wide as the next size.
			m := fieldMask(int(size) + 1)
			op.Value = word() & m
			if compare {
				op.Compare = word() & m
			}
			if masks {
				op.CompareMask, op.SwapMask = word()&m, word()&m
			}
			if boundary {
				op.Boundary = word() & m
			}
		}
		o := Order(order % 3)
		var r Request
		err := op.Encode(&r, o)
		const room = 1024
		base := addr &^ 511
		mem := make([]byte, room)
		for i := range mem {
			mem[i] = byte(word())
		}
		want := append([]byte(nil), mem...)
		res, err2 := Apply(want, base, &op, o)
		if (err == nil) != (err2 == nil) {
			t.Fatalf("encode: %v; apply: %v", err, err2)
		}
		if err != nil {
			return
		}
		var reply [256]byte
		if err := r.Execute(mem[r.Addr-base:][:r.Size], o, reply[:], BigEndian); err != nil {
			t.Fatal(err)
		}
		if string(mem) != string(want) {
			t.Fatal("the masks do something else than the operation")
		}
		if size <= 8 && r.Extract(reply[:], BigEndian) != res.Old {
			t.Fatal("the old value is another one")
		}
		if r.Matched(reply[:], BigEndian) != res.Stored {
			t.Fatal("stored or not is another answer")
		}
	})
}
