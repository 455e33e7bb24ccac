package health

import (
	"encoding/binary"
	"errors"
	"sync"
)

// fakeVSC is configuration space with the gateway in it, after the facts of
// mstflint and Linux pci_vsc.c: a counter that differs on each read, a semaphore
// that takes a value only while it is free, spaces with status and size, and an
// address register that moves on by itself.
type fakeVSC struct {
	mu     sync.Mutex
	cfg    [256]byte
	ticket uint32
	// noTicket: the ticket counter reads 0.
	noTicket bool
	sem      uint32
	space    uint16
	addr     uint32
	data     uint32
	spaces   map[uint16]*fakeSpace

	stuckFlag bool // accesses never end
	syndrome  bool // accesses end with the syndrome bit
	ones      bool // everything reads all ones

	reads, writes int
	// failAt makes the n-th access from now fail.
	failAt int
	// arrives: a write that fails has been done all the same.
	arrives bool
	// wrongSpace: the control register shows another space than was written.
	wrongSpace bool
	freed      int // writes of 0 to the semaphore
	tried      int // writes to the software-reset semaphore while it is held
	onRead     func(reg int)
}

type fakeSpace struct {
	size  uint32 // 0: not stated
	words map[uint32]uint32
	holes map[uint32]uint32 // address → next address
	// semaphore behaviour of an address: a value is taken only while it is 0
	sticky map[uint32]bool
	stuck  bool // the next address never moves
}

const fakeVSCAt = 0xc0

var errFakeConfig = errors.New("config access failed")

func newFakeVSC() *fakeVSC {
	f := &fakeVSC{spaces: map[uint16]*fakeSpace{
		0x2: {words: map[uint32]uint32{0xf0014: 0x20d}},
		0x7: {size: 64, words: map[uint32]uint32{}, holes: map[uint32]uint32{8: 24}},
		0xa: {words: map[uint32]uint32{}, sticky: map[uint32]bool{0x20: true}},
	}}
	for i := uint32(0); i < 64; i += 4 {
		f.spaces[7].words[i] = 0xc0de0000 | i
	}
	binary.LittleEndian.PutUint32(f.cfg[0:], 0x101715b3)
	f.cfg[6] = 1 << 4
	f.cfg[0x34] = 0x60
	copy(f.cfg[0x60:], []byte{0x10, 0x9c})
	copy(f.cfg[0x9c:], []byte{0x11, fakeVSCAt})
	copy(f.cfg[fakeVSCAt:], []byte{0x09, 0, 0x18, 0})
	return f
}

func (f *fakeVSC) tick() error {
	if f.failAt > 0 {
		if f.failAt--; f.failAt == 0 {
			return errFakeConfig
		}
	}
	return nil
}

func (f *fakeVSC) ReadConfig(off int, p []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reads++
	if f.onRead != nil {
		f.onRead(off - fakeVSCAt)
	}
	if err := f.tick(); err != nil {
		return err
	}
	if f.ones {
		for i := range p {
			p[i] = 0xff
		}
		return nil
	}
	if off < fakeVSCAt+4 || off >= fakeVSCAt+0x18 {
		copy(p, f.cfg[off:])
		return nil
	}
	var x uint32
	switch off - fakeVSCAt {
	case vscControl:
		x = uint32(f.space)
		if s := f.spaces[f.space]; s != nil {
			x |= 1 << 29
			if s.size != 0 {
				x |= 1 << 28
				f.addr = s.size // the size appears where the address is
			}
		}
		if f.syndrome {
			x |= 5 << 24
		}
		if f.wrongSpace {
			x ^= 1
		}
	case vscCounter:
		f.ticket++
		x = f.ticket
		if f.noTicket {
			x = 0
		}
	case vscSemaphore:
		x = f.sem
	case vscAddress:
		x = f.addr
	case vscData:
		x = f.data
	}
	binary.LittleEndian.PutUint32(p, x)
	return nil
}

func (f *fakeVSC) WriteConfig(off int, p []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.writes++
	err := f.tick()
	if err != nil && !f.arrives {
		return err
	}
	x := binary.LittleEndian.Uint32(p)
	switch off - fakeVSCAt {
	case vscControl:
		f.space = uint16(x)
	case vscSemaphore:
		if x == 0 {
			f.freed++
		}
		if x == 0 || f.sem == 0 {
			f.sem = x
		}
	case vscData:
		f.data = x
	case vscAddress:
		f.access(x)
	default:
		return errors.New("write to an unexpected place")
	}
	return err
}

func (f *fakeVSC) access(x uint32) {
	f.addr = x
	s := f.spaces[f.space]
	if f.stuckFlag || s == nil {
		return
	}
	at := x & vscAddrMask
	if x&vscFlag != 0 {
		if s.sticky[at] && s.words[at] != 0 && f.data != 0 {
			f.tried++
		}
		if !s.sticky[at] || f.data == 0 || s.words[at] == 0 {
			s.words[at] = f.data
		}
		f.addr = at
	} else {
		f.data = s.words[at]
		next := at + 4
		if n, ok := s.holes[at]; ok {
			next = n
		}
		if s.stuck {
			next = at
		}
		f.addr = next | vscFlag
	}
	if f.syndrome {
		f.addr |= vscSyndrome
	}
}

func (f *fakeVSC) semaphores() (gateway, swReset uint32) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.sem, f.spaces[0xa].words[swResetSemaphore]
}
