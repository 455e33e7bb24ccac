package queues_test

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/queues"
)

// Random keys over scattered pages, any start, page size and rights, and accesses at
// their edges from both sides: what a key gives is done to the bytes it stands for and
// to no others; what it does not give ends with the syndrome of the side that was
// wrong, and changes nothing, or of a READ no more than the part that the key gives.
func TestMKeyEdges(t *testing.T) {
	l := newLink(newBench(t, "sim:cx5"), queues.QPOptions{}, queues.ConnectOptions{})
	ctx := t.Context()
	rnd := rand.New(rand.NewPCG(31, 1))
	const whole = linkHalf
	mirror := fill(l.bmem, 0, whole, 3)
	seen := map[string]int{}
	for round := range 500 {
		shift := uint8(12)
		if l.bmem.IOVA()&(1<<13-1) == 0 {
			shift += uint8(rnd.IntN(2))
		}
		var pages []uint64
		for _, i := range rnd.Perm(whole >> shift) {
			pages = append(pages, l.bmem.IOVA()+uint64(i)<<shift)
		}
		o := queues.MKeyOptions{PD: l.pd, Pages: pages, LogPageSize: shift, Access: queues.Access(rnd.IntN(16))}
		if o.Access&(queues.RemoteWrite|queues.RemoteAtomic) != 0 {
			o.Access |= queues.LocalWrite
		}
		o.Offset = rnd.Uint64N(whole - 1)
		o.Length = 1 + rnd.Uint64N(whole-o.Offset)
		switch rnd.IntN(3) {
		case 0: // the page's own place in the address space
			o.Start = rnd.Uint64N(1<<40)<<shift | o.Offset&(1<<shift-1)
		case 1: // up to the last address there is
			o.Length = (whole-o.Offset)&^(1<<shift-1) | (1<<shift-o.Offset)&(1<<shift-1)
			o.Start = -o.Length
			if o.Length == 0 || o.Start&(1<<shift-1) != o.Offset&(1<<shift-1) {
				continue
			}
		}
		if o.Start == 0 {
			o.ZeroBased = o.Offset&(1<<shift-1) == 0
		}
		k, err := l.dev.CreateMKey(ctx, o)
		require.NoError(t, err, "%+v", o)
		// byteAt is where the byte i of the key lies in the buffer.
		byteAt := func(i uint64) uint64 {
			i += o.Offset
			return pages[i>>shift] - l.bmem.IOVA() + i&(1<<shift-1)
		}
		for range 3 {
			n := 1 + rnd.Uint64N(100)
			if rnd.IntN(3) == 0 {
				n = 1 + rnd.Uint64N(5000)
			}
			atomic := rnd.IntN(4) == 0
			// near one of the ends, or anywhere
			off := rnd.Uint64N(o.Length + 20)
			switch rnd.IntN(3) {
			case 0:
				off = rnd.Uint64N(8) - 4
			case 1:
				off = o.Length - n + rnd.Uint64N(8) - 4
			}
			addr := k.Start() + off
			if atomic {
				n = 8
				addr &^= 7
				off = addr - k.Start()
			}
			inside := off < o.Length && n <= o.Length-off
			local := rnd.IntN(3) == 0 && !atomic // the key is the poster's own
			need, verb := queues.RemoteWrite, rnd.IntN(2)
			var want prm.CQESyndrome
			data := make([]byte, n)
			for i := range data {
				data[i] = byte(rnd.Uint32())
			}
			mem := func() []byte { // what the key shows
				p := make([]byte, n)
				for i := range p {
					p[i] = mirror[byteAt(off+uint64(i))]
				}
				return p
			}
			store := func() {
				for i := range data {
					mirror[byteAt(off+uint64(i))] = data[i]
				}
			}
			own := l.akey.SGE(0, uint32(n))
			there := queues.SGE{Addr: addr, Len: uint32(n), LKey: k.Key()}
			check := func() {}
			switch {
			case atomic:
				need = queues.RemoteAtomic
				add := rnd.Uint64()
				require.NoError(t, l.a.SQ.FetchAdd(1, queues.Signalled, own, queues.Remote{Addr: addr, RKey: k.Key()}, add))
				if inside && o.Access&need != 0 {
					binary.LittleEndian.PutUint64(data, binary.LittleEndian.Uint64(mem())+add)
					store()
				}
			case verb == 0 && local: // into b's own key: a READ by b of a's memory
				need = queues.LocalWrite
				l.amem.CopyIn(0, data)
				require.NoError(t, l.b.SQ.Read(1, queues.Signalled, there, l.akey.Remote(0)))
				if inside && o.Access&need != 0 {
					store()
				}
			case local: // out of b's own key: a WRITE by b to a's memory
				need = 0
				if inside {
					want := mem()
					check = func() { require.Equal(t, want, at(l.amem, 0, int(n))) }
				}
				require.NoError(t, l.b.SQ.Write(1, queues.Signalled|queues.NonAtomic, there, l.akey.Remote(0)))
			case verb == 0:
				l.amem.CopyIn(0, data)
				require.NoError(t, l.a.SQ.Write(1, queues.Signalled|queues.NonAtomic, own, queues.Remote{Addr: addr, RKey: k.Key()}))
				if inside && o.Access&need != 0 {
					store()
				}
			default:
				need = queues.RemoteRead
				if inside && o.Access&need != 0 {
					want := mem()
					check = func() { require.Equal(t, want, at(l.amem, 0, int(n))) }
				}
				require.NoError(t, l.a.SQ.Read(1, queues.Signalled, own, queues.Remote{Addr: addr, RKey: k.Key()}))
			}
			given := inside && o.Access&need == need
			switch {
			case given:
			case local:
				want = prm.CQESyndLocalProtErr
			default:
				want = prm.CQESyndRemoteAccessErr
			}
			cq, q := l.acq, l.a
			if local {
				cq, q = l.bcq, l.b
			}
			q.SQ.Ring()
			c := l.next(cq)
			require.Equal(t, want, c.Syndrome, "round %d: %d bytes at %#x, local %v, verb %d, atomic %v, key %+v", round, n, off, local, verb, atomic, o)
			if given {
				check()
				seen["given"]++
			} else {
				seen[want.String()]++
			}
			got := at(l.bmem, 0, whole)
			if local && verb == 0 && o.Access&need != 0 { // of a READ what came before the key ended may be there
				for i := off; i < o.Length && i-off < n; i++ {
					mirror[byteAt(i)] = got[byteAt(i)]
				}
			}
			if !bytes.Equal(mirror, got) {
				i := 0
				for mirror[i] == got[i] {
					i++
				}
				t.Fatalf("round %d: byte %#x differs: %d bytes at %#x, local %v, verb %d, atomic %v, key %+v", round, i, n, off, local, verb, atomic, o)
			}
			if !given {
				require.NoError(t, l.a.Reset(ctx))
				require.NoError(t, l.b.Reset(ctx))
				require.NoError(t, queues.ConnectPair(ctx, l.a, l.b, queues.ConnectOptions{}))
			}
		}
		require.NoError(t, k.Destroy(ctx))
	}
	for _, end := range []string{"given", prm.CQESyndLocalProtErr.String(), prm.CQESyndRemoteAccessErr.String()} {
		require.Greater(t, seen[end], 100, "%s: %v", end, seen)
	}
	require.Len(t, seen, 3)
	t.Log(seen)
}
