package health

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/cmdif"
	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/vfio"
	"github.com/mlxvfio/mlxvfio/vfio/vfiotest"
)

// hostileHW is a fakeHW between which and the driver a script stands: each access
// takes a byte of it, and that says whether the answer is the honest one. A script
// that is over begins again, or leaves the rest to the honest device.
type hostileHW struct {
	*fakeHW
	window *vfio.Window

	// Under fakeVSC.mu.
	script []byte
	at     int
	again  bool
	last   uint32
	limit  int // accesses; one more is a driver that loops
	config int // accesses to configuration space
	bar    int
	regs   int
	wrong  string // what no driver may do
	capOff int    // where the driver was told that the gateway is; 0 before
	ticket uint32 // written to the gateway's semaphore
	owed   bool   // the semaphore was last known to be ours
}

func newHostile(t *testing.T, script []byte, again bool, limit int) *hostileHW {
	h := &hostileHW{fakeHW: newFakeHW(t), script: script, again: again, limit: limit}
	ram := vfiotest.NewRAM(vfiotest.RAMOptions{OnRead: h.readBAR, OnWrite: h.writeBAR})
	d, err := vfio.NewDevice(ram, vfio.DeviceOptions{Memory: vfio.MemoryHeap})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	h.window, err = d.Window(vfio.RegionBAR0)
	require.NoError(t, err)
	return h
}

func (h *hostileHW) next() (b byte) {
	if h.at == len(h.script) && h.again {
		h.at = 0
	}
	if h.at < len(h.script) {
		b = h.script[h.at]
		h.at++
	}
	return b
}

func (h *hostileHW) accesses() int { return h.config + h.bar + h.regs }

// count is called with the lock held.
func (h *hostileHW) count(n *int) {
	*n++
	if h.accesses() > h.limit {
		panic(fmt.Sprintf("more than %d accesses (%d to configuration space, %d to BAR 0, %d registers)", h.limit, h.config, h.bar, h.regs))
	}
}

// twist is the answer to a read of a dword. fail: the access itself fails.
func (h *hostileHW) twist(x uint32) (y uint32, fail bool) {
	switch op := h.next(); op & 7 {
	case 2:
		x = allOnes
	case 3:
		x = 0
	case 4:
		x ^= 1 << (op >> 3)
	case 5:
		x = uint32(h.next())<<24 | uint32(h.next())<<16 | uint32(h.next())<<8 | uint32(h.next())
	case 6:
		x = h.last
	case 7:
		fail = op>>3 != 0
		x ^= 0x80 // a wrong answer where no access can fail
	}
	h.last = x
	return x, fail
}

func (h *hostileHW) readBAR(region int, off uint64, p []byte) {
	h.fakeHW.read(region, off, p)
	if len(p) != 4 {
		h.fakeVSC.mu.Lock()
		h.wrong = fmt.Sprintf("read of %d bytes at %#x of BAR 0", len(p), off)
		h.fakeVSC.mu.Unlock()
		return
	}
	h.fakeVSC.mu.Lock()
	defer h.fakeVSC.mu.Unlock()
	h.count(&h.bar)
	x, _ := h.twist(binary.BigEndian.Uint32(p))
	binary.BigEndian.PutUint32(p, x)
}

func (h *hostileHW) writeBAR(region int, off uint64, p []byte) {
	h.fakeVSC.mu.Lock()
	h.count(&h.bar)
	lost := h.next()&7 == 6
	if off != 0x14 || len(p) != 4 {
		h.wrong = fmt.Sprintf("write of %d bytes at %#x of BAR 0", len(p), off)
	}
	h.fakeVSC.mu.Unlock()
	if !lost {
		h.fakeHW.write(region, off, p)
	}
}

// ReadConfig twists a dword; of a longer read, bytes that the script names.
func (h *hostileHW) ReadConfig(off int, p []byte) error {
	h.fakeVSC.mu.Lock()
	h.count(&h.config)
	if off < 0 || off+len(p) > 256 || off%4 != 0 {
		h.wrong = fmt.Sprintf("read of %d bytes at %#x of configuration space", len(p), off)
	}
	// The honest gateway is where it is, wherever the driver was told to look.
	from := off
	if reg := off - h.capOff; h.capOff != 0 && reg >= vscControl && reg < vscLength {
		from = fakeVSCAt + reg
	}
	h.fakeVSC.mu.Unlock()
	if err := h.fakeHW.ReadConfig(from, p); err != nil {
		return err
	}
	h.fakeVSC.mu.Lock()
	defer h.fakeVSC.mu.Unlock()
	if len(p) != 4 {
		switch op := h.next(); op & 7 {
		case 2:
			for i := range p {
				p[i] = 0xff
			}
		case 4, 5:
			for range op >> 3 & 3 {
				p[int(h.next())%len(p)] = h.next()
			}
		case 7:
			return errFakeConfig
		}
		return nil
	}
	x, fail := h.twist(binary.LittleEndian.Uint32(p))
	if fail {
		return errFakeConfig
	}
	binary.LittleEndian.PutUint32(p, x)
	if h.capOff == 0 && off >= 0x40 && p[0] == vscCapID && p[2] >= vscLength && off+vscLength <= 256 {
		h.capOff = off
	}
	if h.capOff != 0 && off == h.capOff+vscSemaphore {
		// What once reads as another's is never ours again.
		if h.owed = h.ticket != 0 && x == h.ticket; !h.owed {
			h.ticket = 0
		}
	}
	return nil
}

// WriteConfig: the access fails, or is lost, or fails and has arrived.
func (h *hostileHW) WriteConfig(off int, p []byte) error {
	h.fakeVSC.mu.Lock()
	h.count(&h.config)
	op := h.next()
	reg := off - h.capOff
	switch {
	case h.capOff == 0 || len(p) != 4 || reg != vscControl && reg != vscSemaphore && reg != vscAddress && reg != vscData:
		h.wrong = fmt.Sprintf("write of %d bytes at %#x of configuration space", len(p), off)
	case reg == vscSemaphore:
		h.ticket = binary.LittleEndian.Uint32(p)
		h.owed = h.ticket != 0
	}
	h.fakeVSC.mu.Unlock()
	if op&7 == 6 {
		return nil
	}
	if op == 7 {
		return errFakeConfig
	}
	if err := h.fakeVSC.WriteConfig(fakeVSCAt+reg, p); err != nil {
		return err
	}
	if op&7 == 7 {
		return errFakeConfig
	}
	return nil
}

// register twists a register that was read, dword by dword as far as the script
// wants, or fails in one of the ways a command can.
func (h *hostileHW) register(ctx context.Context, img []byte) error {
	h.fakeVSC.mu.Lock()
	h.count(&h.regs)
	op := h.next()
	arg := h.next()
	h.fakeVSC.mu.Unlock()
	switch op & 15 {
	case 2:
		for i := range img {
			img[i] = 0xff
		}
	case 3:
		clear(img)
	case 4, 5, 6:
		h.fakeVSC.mu.Lock()
		defer h.fakeVSC.mu.Unlock()
		for range op >> 4 {
			img[int(h.next())%len(img)] = h.next()
		}
	case 7:
		return &cmdif.CommandError{Opcode: prm.OpAccessReg, Status: prm.CommandStatus(arg), Syndrome: uint32(arg) << 8}
	case 8:
		<-ctx.Done()
		return &cmdif.TimeoutError{Slot: int(int8(arg))}
	case 9:
		return &cmdif.ReplyError{}
	case 10:
		return errors.New("broken")
	}
	return nil
}

// hostileRegisters are the registers of such a device.
type hostileRegisters struct{ h *hostileHW }

func (r hostileRegisters) ReadRegister(ctx context.Context, id prm.RegisterID, img []byte) error {
	switch id {
	case prm.RegMfrl:
		if err := r.h.mfrl.ReadRegister(ctx, id, img); err != nil {
			return err
		}
	case prm.RegMcam:
		for i := range img {
			img[i] = 0xff
		}
	}
	return r.h.register(ctx, img)
}

func (r hostileRegisters) WriteRegister(ctx context.Context, id prm.RegisterID, img []byte) error {
	if err := r.h.mfrl.WriteRegister(ctx, id, img); err != nil {
		return err
	}
	return r.h.register(ctx, append([]byte(nil), img...))
}
