package mlxvfio

import (
	"context"
	"fmt"

	"github.com/mlxvfio/mlxvfio/atomics"
	"github.com/mlxvfio/mlxvfio/queues"
)

// Sends sends messages of many sizes, from memory, from two pieces, and inline,
// with and without immediate data, and receives each. It answers what it did.
func (x *Exerciser) Sends(ctx context.Context) (string, error) {
	var t tally
	for _, n := range exerciseSizes {
		for _, form := range []string{"SEND", "SEND with immediate", "SEND of two pieces"} {
			if err := x.send(ctx, form, n); err != nil {
				return "", err
			}
			t.add(n)
		}
	}
	for _, n := range inlineSizes {
		if err := x.send(ctx, "inline SEND", n); err != nil {
			return "", err
		}
		t.add(n)
	}
	return t.String(), nil
}

func (x *Exerciser) send(ctx context.Context, form string, n int) error {
	src, dst := x.place(n), x.place(n+64) // room that must stay as it is
	op := fmt.Sprintf("%s of %d bytes to offset %d", form, n, dst)
	imm := x.rng.Uint32()
	data := append([]byte(nil), x.wantNear[src:src+n]...)
	if err := x.take(dst, n+64); err != nil {
		return err
	}
	c, err := x.do(ctx, true, func(wrid uint64) error {
		switch form {
		case "SEND with immediate":
			return x.a.SQ.SendImm(wrid, queues.Signalled, imm, x.near.SGE(src, n))
		case "SEND of two pieces":
			k := n / 3
			return x.a.SQ.SendV(wrid, queues.Signalled, []queues.SGE{x.near.SGE(src, k), x.near.SGE(src+k, n-k)})
		case "inline SEND":
			return x.a.SQ.SendInline(wrid, queues.Signalled, data)
		}
		return x.a.SQ.Send(wrid, queues.Signalled, x.near.SGE(src, n))
	})
	switch {
	case err != nil:
		return fmt.Errorf("%s: %w", op, err)
	case int(c.ByteLen) != n:
		return fmt.Errorf("%s: its receive completion says %d bytes", op, c.ByteLen)
	case c.HasImm() != (form == "SEND with immediate") || c.HasImm() && c.Imm != imm:
		return fmt.Errorf("%s: immediate data %#x was sent, the receive completion has %t %#x", op, imm, c.HasImm(), c.Imm)
	}
	copy(x.wantFar[dst:], data)
	return x.compare(op)
}

// Writes does RDMA WRITEs of many sizes to many places, as Sends does, and
// WRITEs with immediate data.
func (x *Exerciser) Writes(ctx context.Context) (string, error) {
	var t tally
	for _, n := range exerciseSizes {
		for _, form := range []string{"RDMA WRITE", "RDMA WRITE with immediate", "RDMA WRITE of two pieces"} {
			if err := x.write(ctx, form, n); err != nil {
				return "", err
			}
			t.add(n)
		}
	}
	for _, n := range inlineSizes {
		if err := x.write(ctx, "inline RDMA WRITE", n); err != nil {
			return "", err
		}
		t.add(n)
	}
	return t.String(), nil
}

func (x *Exerciser) write(ctx context.Context, form string, n int) error {
	src, dst := x.place(n), x.place(n)
	op := fmt.Sprintf("%s of %d bytes to offset %d", form, n, dst)
	imm, r, f := x.rng.Uint32(), x.far.Remote(dst), queues.Signalled
	if !atomics.WriteIsAtomic(r.Addr, n, x.a.SQ.PeerAtomic()) {
		f |= queues.NonAtomic
	}
	data := append([]byte(nil), x.wantNear[src:src+n]...)
	withImm := form == "RDMA WRITE with immediate"
	if withImm {
		if err := x.take(0, 8); err != nil { // consumed, not written
			return err
		}
	}
	c, err := x.do(ctx, withImm, func(wrid uint64) error {
		switch form {
		case "RDMA WRITE with immediate":
			return x.a.SQ.WriteImm(wrid, f, imm, x.near.SGE(src, n), r)
		case "RDMA WRITE of two pieces":
			k := n / 3
			return x.a.SQ.WriteV(wrid, f, []queues.SGE{x.near.SGE(src, k), x.near.SGE(src+k, n-k)}, r)
		case "inline RDMA WRITE":
			return x.a.SQ.WriteInline(wrid, f, data, r)
		}
		return x.a.SQ.Write(wrid, f, x.near.SGE(src, n), r)
	})
	switch {
	case err != nil:
		return fmt.Errorf("%s: %w", op, err)
	case withImm && (!c.HasImm() || c.Imm != imm):
		return fmt.Errorf("%s: immediate data %#x was sent, the receive completion has %t %#x", op, imm, c.HasImm(), c.Imm)
	}
	copy(x.wantFar[dst:], data)
	return x.compare(op)
}

// Reads does RDMA READs of many sizes, into one piece of memory and into two.
func (x *Exerciser) Reads(ctx context.Context) (string, error) {
	var t tally
	for _, n := range exerciseSizes {
		for _, pieces := range []int{1, 2} {
			src, dst := x.place(n), x.place(n)
			op := fmt.Sprintf("RDMA READ of %d bytes from offset %d into %d pieces at offset %d", n, src, pieces, dst)
			_, err := x.do(ctx, false, func(wrid uint64) error {
				if pieces == 2 {
					k := n / 3
					return x.a.SQ.ReadV(wrid, queues.Signalled, []queues.SGE{x.near.SGE(dst, k), x.near.SGE(dst+k, n-k)}, x.far.Remote(src))
				}
				return x.a.SQ.Read(wrid, queues.Signalled, x.near.SGE(dst, n), x.far.Remote(src))
			})
			if err != nil {
				return "", fmt.Errorf("%s: %w", op, err)
			}
			copy(x.wantNear[dst:], x.wantFar[src:src+n])
			if err := x.compare(op); err != nil {
				return "", err
			}
			t.add(n)
		}
	}
	return t.String(), nil
}
