package sim

import (
	"encoding/binary"

	"github.com/mlxvfio/mlxvfio/vfio"
)

// Access to host memory through memory keys: the check of the key, the
// translation, and the copy word by word.

// right is what an access needs of a key.
type right uint8

const (
	needLocalRead right = iota
	needLocalWrite
	needRemoteRead
	needRemoteWrite
	needRemoteAtomic
)

// memResult says how an access ended.
type memResult uint8

const (
	memOK    memResult = iota
	memKey             // no such key, a free one, another PD or QP, no right
	memRange           // outside the key
	memDMA             // the key allows it, the I/O address space does not
)

// accessor is in whose name memory is accessed: the queue's PD and number, and
// whether the reserved lkey may be used.
type accessor struct {
	pd, qpn uint32
	rlkey   bool
}

func (q *qp) accessor() accessor { return accessor{q.pd, q.n, q.rlkey} }

// maxIndirect is how many indirect keys may lie behind one another.
const maxIndirect = 4

// reservedKey is what the reserved lkey stands for: all bus addresses.
var reservedKey = mkey{key: reservedLKey, mode: modePA, all: true, localRead: true, localWrite: true}

func (k *mkey) allows(need right) bool {
	switch need {
	case needLocalRead:
		return k.localRead
	case needLocalWrite:
		return k.localWrite
	case needRemoteRead:
		return k.remoteRead
	case needRemoteWrite:
		return k.remoteWrite
	}
	return k.remoteRMW
}

// keyFor finds a key by its whole number, index and variant, and checks that it
// allows the access.
func (f *function) keyFor(a accessor, key uint32, need right, va, n uint64) (*mkey, memResult) {
	if key == reservedLKey && a.rlkey && need <= needLocalWrite {
		return &reservedKey, memOK
	}
	k, ok := f.mkeys.get(key >> 8)
	switch {
	case !ok || k.key != key || k.free || k.pd != a.pd || k.qpn != anyQP && k.qpn != a.qpn || !k.allows(need):
		return nil, memKey
	case k.all:
		return k, memOK
	case va < k.start || n > k.length || va-k.start > k.length-n:
		return nil, memRange
	}
	return k, memOK
}

// page translates an address under a direct key and tells how many bytes follow
// it in one piece. Entry 0 is the page of start_addr, as mlx5_ib and rdma-core fill
// the list.
func (k *mkey) page(va uint64) (iova, run uint64, ok bool) {
	if k.mode == modePA {
		return va, ^uint64(0), true
	}
	i := va>>k.shift - k.start>>k.shift
	if i >= uint64(len(k.pages)) {
		return 0, 0, false
	}
	in := va & (1<<k.shift - 1)
	return k.pages[i] | in, 1<<k.shift - in, true
}

// entry finds the entry of an indirect key that holds the byte at off, and where
// in it.
func (k *mkey) entry(off uint64) (l *klm, in uint64, ok bool) {
	if k.mode == modeKSM {
		i := off >> k.shift
		if i >= uint64(len(k.klms)) {
			return nil, 0, false
		}
		return &k.klms[i], off & (1<<k.shift - 1), true
	}
	for i := range k.klms {
		l = &k.klms[i]
		if off < l.size {
			return l, off, true
		}
		off -= l.size
	}
	return nil, 0, false
}

// localNeed is what an indirect key's own keys are asked for: remote rights are
// checked where the peer's key says (a ruling).
func localNeed(need right) right {
	if need == needLocalRead || need == needRemoteRead {
		return needLocalRead
	}
	return needLocalWrite
}

// copyKey moves p from or to the memory at va under k, which the caller has
// checked.
func (f *function) copyKey(a accessor, k *mkey, need right, va uint64, p []byte, depth int) memResult {
	write := localNeed(need) == needLocalWrite
	for len(p) > 0 {
		n := uint64(len(p))
		if k.mode >= modeKLMs {
			l, in, ok := k.entry(va - k.start)
			if !ok {
				return memRange
			}
			n = min(n, l.size-in)
			if r := f.copyMem(a, l.key, localNeed(need), l.addr+in, p[:n], depth+1); r != memOK {
				return r
			}
		} else {
			iova, run, ok := k.page(va)
			if !ok {
				return memRange
			}
			n = min(n, run)
			if !f.dmaData(iova, p[:n], write) {
				return memDMA
			}
		}
		va, p = va+n, p[n:]
	}
	return memOK
}

// copyMem checks and moves: p from or to the memory at va under key. Nothing of
// no length is checked.
func (f *function) copyMem(a accessor, key uint32, need right, va uint64, p []byte, depth int) memResult {
	if len(p) == 0 {
		return memOK
	}
	if depth > maxIndirect {
		return memKey
	}
	k, r := f.keyFor(a, key, need, va, uint64(len(p)))
	if r != memOK {
		return r
	}
	return f.copyKey(a, k, need, va, p, depth)
}

// place translates n bytes at va under k that lie in one piece, as the target of
// an atomic does.
func (f *function) place(a accessor, k *mkey, need right, va, n uint64) (iova uint64, r memResult) {
	for depth := 0; k.mode >= modeKLMs; depth++ {
		l, in, ok := k.entry(va - k.start)
		if !ok || in+n > l.size {
			return 0, memRange
		}
		if depth == maxIndirect {
			return 0, memKey
		}
		va = l.addr + in
		if k, r = f.keyFor(a, l.key, localNeed(need), va, n); r != memOK {
			return 0, r
		}
	}
	iova, run, ok := k.page(va)
	if !ok || n > run {
		return 0, memRange
	}
	return iova, memOK
}

// wordCopy is the longest access that always goes word by word: a write of up to
// this many bytes leaves no torn word even to the host's processors. Longer ones
// are copied at once, except under the race detector.
const wordCopy = 1024

// dmaData copies host memory to p, or p to host memory, in whole aligned words
// of 8 bytes, each one access: what shares a word with the ends of p is left as
// it is, and who watches a word sees it old or new. False when the access failed.
func (f *function) dmaData(iova uint64, p []byte, write bool) bool {
	head := int(iova & 7)
	n := (head + len(p) + 7) &^ 7
	return f.dma(iova&^7, n, write, func(m vfio.Mem, done int) {
		switch from := done - head; { // byte of p at the first byte of m
		case from < 0:
			moveWords(m, p[:min(len(p), m.Len()-head)], head, write)
		default:
			moveWords(m, p[from:min(len(p), from+m.Len())], 0, write)
		}
	})
}

// moveWords moves p to or from the bytes of m that begin at in, below 8. m is
// whole words.
func moveWords(m vfio.Mem, p []byte, in int, write bool) {
	off := 0
	if in > 0 || len(p) < 8 {
		k := min(8-in, len(p))
		moveBytes(m, 0, in, p[:k], write)
		off, p = 8, p[k:]
	}
	if k := len(p) &^ 7; k > wordCopy && !raceDetector {
		if write {
			m.CopyIn(off, p[:k])
		} else {
			m.CopyOut(off, p[:k])
		}
		off, p = off+k, p[k:]
	}
	for ; len(p) >= 8; off, p = off+8, p[8:] {
		if write {
			m.Store64(off, binary.NativeEndian.Uint64(p))
		} else {
			binary.NativeEndian.PutUint64(p, m.Load64(off))
		}
	}
	if len(p) > 0 {
		moveBytes(m, off, 0, p, write)
	}
}

// moveBytes moves p to or from bytes in to in+len(p) of the word at off.
func moveBytes(m vfio.Mem, off, in int, p []byte, write bool) {
	var b [8]byte
	for {
		was := m.Load64(off)
		binary.NativeEndian.PutUint64(b[:], was)
		if !write {
			copy(p, b[in:])
			return
		}
		copy(b[in:], p)
		if m.CompareAndSwap64(off, was, binary.NativeEndian.Uint64(b[:])) {
			return
		}
	}
}

// sge is a piece of a scatter or gather list: memory, or bytes of the WQE itself.
type sge struct {
	addr   uint64 // inline: byte of the WQE
	n      uint32
	key    uint32
	inline bool
}

// moveList moves p from or to the list, beginning off bytes into it. raw is the
// WQE that inline pieces lie in.
func (f *function) moveList(a accessor, l []sge, raw []byte, off uint64, p []byte, write bool) memResult {
	need := needLocalRead
	if write {
		need = needLocalWrite
	}
	for i := range l {
		s := &l[i]
		if off >= uint64(s.n) {
			off -= uint64(s.n)
			continue
		}
		k := min(uint64(s.n)-off, uint64(len(p)))
		if s.inline {
			copy(p[:k], raw[s.addr+off:])
		} else if r := f.copyMem(a, s.key, need, s.addr+off, p[:k], 0); r != memOK {
			return r
		}
		if p = p[k:]; len(p) == 0 {
			return memOK
		}
		off = 0
	}
	return memRange
}
