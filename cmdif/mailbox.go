package cmdif

import (
	"encoding/binary"
	"fmt"
	"sync"

	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/vfio"
)

const (
	inlineSize = 16   // message bytes in the entry itself
	boxData    = 512  // message bytes in a mailbox
	boxAlign   = 1024 // granularity of a mailbox's next pointer
	slabBoxes  = 32   // mailboxes made at once
	ctrlFrom   = 0x200
	ctrlTo     = 0x23e // ctrl_signature covers ctrlFrom … here
	bodyTo     = 0x23f // signature covers 0 … here
)

// box is one mailbox: 576 bytes of DMA memory at a multiple of 1024.
type box struct {
	mem  []byte
	iova uint64
}

func (b *box) view() *prm.CmdIfBox { return prm.AsCmdIfBox(b.mem) }

// boxes tells how many mailboxes a message of n bytes needs beside the entry.
func boxes(n int) int { return max(0, n-inlineSize+boxData-1) / boxData }

// boxPool keeps mailboxes for reuse; it grows and is freed as a whole.
type boxPool struct {
	space *vfio.AddressSpace

	mu    sync.Mutex
	free  []*box // last in, first out: warm ones first
	slabs []*vfio.Buffer
	total int
}

// take appends n mailboxes to dst. It allocates only when the pool runs dry.
func (p *boxPool) take(dst []*box, n int) ([]*box, error) {
	if n == 0 {
		return dst, nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.free) < n {
		if err := p.grow(n - len(p.free)); err != nil {
			return dst, err
		}
	}
	rest := len(p.free) - n
	dst = append(dst, p.free[rest:]...)
	clear(p.free[rest:])
	p.free = p.free[:rest]
	return dst, nil
}

// give takes mailboxes back; the device no longer knows their addresses.
func (p *boxPool) give(bs []*box) {
	if len(bs) == 0 {
		return
	}
	p.mu.Lock()
	p.free = append(p.free, bs...)
	p.mu.Unlock()
}

func (p *boxPool) grow(n int) error {
	n = (n + slabBoxes - 1) / slabBoxes * slabBoxes
	buf, err := p.space.Alloc(n*boxAlign, vfio.BufferOptions{Align: 4096, Name: "command mailboxes"})
	if err != nil {
		return fmt.Errorf("allocate %d command mailboxes: %w", n, err)
	}
	p.slabs = append(p.slabs, buf)
	p.total += n
	made := make([]box, n)
	mem := buf.Bytes()
	for i := range made {
		off := i * boxAlign
		made[i] = box{mem: mem[off : off+prm.CmdIfBoxSize : off+prm.CmdIfBoxSize], iova: buf.IOVA() + uint64(off)}
	}
	for i := n - 1; i >= 0; i-- { // first ones on top
		p.free = append(p.free, &made[i])
	}
	return nil
}

// counts tells how many mailboxes exist and how many are in use.
func (p *boxPool) counts() (total, used int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.total, p.total - len(p.free)
}

// release frees all memory; nothing may be in use by the device any more.
func (p *boxPool) release() []error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	for _, b := range p.slabs {
		if err := b.Free(); err != nil {
			errs = append(errs, err)
		}
	}
	p.slabs, p.free, p.total = nil, nil, 0
	return errs
}

// link makes a chain out of bs: zeroed, filled with data (empty for an output),
// numbered from 0, marked with the token and signed.
func link(bs []*box, token uint8, data []byte) {
	for i, b := range bs {
		n := copy(b.mem[:boxData], data)
		data = data[n:]
		clear(b.mem[n:])
		v := b.view()
		if i+1 < len(bs) {
			next := bs[i+1].iova
			v.SetNextPointer63_32(uint32(next >> 32))
			v.SetNextPointer31_10(uint32(next) >> 10)
		}
		v.SetBlockNumber(uint32(i))
		v.SetToken(token)
		v.SetCtrlSignature(^xor8(b.mem[ctrlFrom:ctrlTo]))
		v.SetSignature(^xor8(b.mem[:bodyTo]))
	}
}

// unlink copies the payload of an output chain to dst.
func unlink(bs []*box, dst []byte) {
	for _, b := range bs {
		n := copy(dst, b.mem[:boxData])
		dst = dst[n:]
	}
}

// xor8 is the XOR of all bytes.
func xor8(b []byte) byte {
	var x uint64
	for len(b) >= 8 {
		x ^= binary.NativeEndian.Uint64(b)
		b = b[8:]
	}
	x ^= x >> 32
	x ^= x >> 16
	x ^= x >> 8
	s := byte(x)
	for _, v := range b {
		s ^= v
	}
	return s
}
