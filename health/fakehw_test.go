package health

import (
	"context"
	"encoding/binary"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/vfio"
	"github.com/mlxvfio/mlxvfio/vfio/vfiotest"
)

// fakeHW is a function with registers, a gateway and an owner, sick until a rung
// of at least heal has been done to it.
type fakeHW struct {
	*fakeVSC
	dev *vfio.Device

	mu    sync.Mutex
	start time.Time
	sick  bool
	heal  Rung

	ones     bool          // BAR 0 and configuration space read all ones
	stopped  bool          // the counter stands
	nic      uint32        // nic_interface
	boot     time.Time     // initializing until then
	dword1fc uint32        // without bit 31
	buffer   [64]byte      // health buffer
	swTime   time.Duration // of a software reset
	swNever  bool
	swAsked  int
	awayFor  time.Duration // all ones after a reset of any kind

	log []string // what was done to it, in order

	open, parked bool
	mastering    bool
	drainErr     error
	openErrs     []error
	mfrl         *fakeMFRL
}

// fakeMFRL is register MFRL.
type fakeMFRL struct {
	levels, types, method uint8
	state                 prm.MFRLResetState
	answer                prm.MFRLResetState // after the ack
	acks                  int
	started               bool
}

func newFakeHW(t *testing.T) *fakeHW {
	h := &fakeHW{fakeVSC: newFakeVSC(), start: time.Now(), dword1fc: 1 << 30, swTime: 100 * time.Millisecond, open: true, mastering: true}
	ram := vfiotest.NewRAM(vfiotest.RAMOptions{OnRead: h.read, OnWrite: h.write})
	d, err := vfio.NewDevice(ram, vfio.DeviceOptions{Memory: vfio.MemoryHeap})
	require.NoError(t, err)
	h.dev = d
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	return h
}

func (h *fakeHW) read(region int, off uint64, p []byte) {
	if region != vfio.RegionBAR0 || len(p) != 4 {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	var x uint32
	now := time.Now()
	switch {
	case off >= 0x200 && off < 0x240:
		x = binary.BigEndian.Uint32(h.buffer[off-0x200:])
	case off == 0x14:
		x = 0x12345000 | h.nic<<8
	case off == 0x1fc:
		x = h.dword1fc
		if now.Before(h.boot) {
			x |= 1 << 31
		}
	case off == 0x1010:
		x = uint32(now.Sub(h.start)/time.Millisecond)&CounterMask + 1
		if h.stopped {
			x = 0x777
		}
	case off == 0:
		x = 16 << 16
	}
	if h.ones {
		x = allOnes
	}
	binary.BigEndian.PutUint32(p, x)
}

func (h *fakeHW) write(region int, off uint64, p []byte) {
	if region != vfio.RegionBAR0 || off != 0x14 || len(p) != 4 {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if binary.BigEndian.Uint32(p)>>8&7 == 7 && !h.ones {
		h.log = append(h.log, "sw-reset")
		h.swAsked++
		h.nic = 7
		if !h.swNever {
			time.AfterFunc(h.swTime, func() { h.reset(RungSWReset); h.set(func() { h.nic = 1 }) })
		}
	}
}

func (h *fakeHW) set(f func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f()
}

// reset is what a rung does to the device.
func (h *fakeHW) reset(r Rung) {
	h.set(func() {
		if r >= RungFLR {
			h.nic = 0
		}
		if h.awayFor > 0 {
			h.ones = true
			time.AfterFunc(h.awayFor, func() { h.set(func() { h.ones = false }) })
		}
		if r >= h.heal {
			h.sick, h.stopped = false, false
			clear(h.buffer[:])
		}
	})
}

func (h *fakeHW) done(what string) { h.set(func() { h.log = append(h.log, what) }) }

// Config: all ones are seen there too.
func (h *fakeHW) ReadConfig(off int, p []byte) error {
	h.mu.Lock()
	ones := h.ones
	h.mu.Unlock()
	h.fakeVSC.mu.Lock()
	h.fakeVSC.ones = ones
	h.fakeVSC.mu.Unlock()
	return h.fakeVSC.ReadConfig(off, p)
}

// Drain, Park, Reopen: the owner.
func (h *fakeHW) Drain(ctx context.Context) error {
	h.done("drain")
	if h.drainErr != nil {
		h.parked = h.open
		h.mastering = false
		return h.drainErr
	}
	h.open, h.mastering = false, false
	return nil
}

func (h *fakeHW) Park(error) error {
	if h.open && !h.parked {
		h.done("park")
		h.parked, h.mastering = true, false
	}
	return nil
}

func (h *fakeHW) Reopen(ctx context.Context) error {
	h.done("reopen")
	if len(h.openErrs) > 0 {
		err := h.openErrs[0]
		h.openErrs = h.openErrs[1:]
		if err != nil {
			h.open = false
			return err
		}
	}
	h.set(func() {
		h.nic = 0
		if h.heal <= RungReopen {
			h.sick, h.stopped = false, false
			clear(h.buffer[:])
		}
	})
	h.open, h.parked, h.mastering = true, false, true
	return nil
}

func (h *fakeHW) target(t *testing.T) Target {
	w, err := h.dev.Window(vfio.RegionBAR0)
	require.NoError(t, err)
	return Target{
		Device: "fake", Window: w, Config: h, Lifecycle: h,
		Reset: func() error { h.done("flr"); h.reset(RungFLR); return nil },
		HotResetInfo: func() ([]vfio.HotResetFunction, error) {
			return []vfio.HotResetFunction{{Name: "fake", Self: true, Owned: true}, {Name: "other", Owned: true}}, nil
		},
		HotReset: func() error {
			h.done("hot-reset")
			r := RungHotReset
			if h.mfrl != nil && h.mfrl.state == prm.MFRLResetInProgress {
				r = RungMFRL
				h.mfrl.state = prm.MFRLResetIdle
			}
			h.reset(r)
			return nil
		},
		Registers: func(context.Context) (RegisterAccess, error) {
			if h.mfrl == nil {
				return nil, errors.New("no command interface")
			}
			return h.mfrl, nil
		},
	}
}

func (m *fakeMFRL) ReadRegister(_ context.Context, id prm.RegisterID, img []byte) error {
	if id != prm.RegMfrl {
		return errors.New("not MFRL")
	}
	v := prm.AsMfrlReg(img)
	v.SetResetLevel(m.levels)
	v.SetResetType(m.types)
	v.SetPCIResetReqMethod(m.method)
	v.SetResetState(m.state)
	return nil
}

func (m *fakeMFRL) WriteRegister(_ context.Context, id prm.RegisterID, img []byte) error {
	v := prm.AsMfrlReg(img)
	if id != prm.RegMfrl || v.ResetLevel() != 8 {
		return errors.New("not level 3")
	}
	switch {
	case v.PCISyncForFWUpdateStart():
		if v.RstTypeSel() != 0 || v.PCISyncForFWUpdateResp() != 0 {
			return errors.New("bad start")
		}
		m.started, m.state = true, prm.MFRLResetInNegotiation
	case v.PCISyncForFWUpdateResp() == 1:
		m.acks++
		m.state = m.answer
	default:
		return errors.New("neither start nor answer")
	}
	return nil
}

// sickWith makes it sick in one way.
func (h *fakeHW) sickWith(c Condition, heal Rung) {
	h.set(func() {
		h.sick, h.heal = true, heal
		switch c {
		case CounterStopped:
			h.stopped = true
		case FatalRFR, FatalCRR:
			h.stopped = true
			h.buffer[0x38], h.buffer[0x3d] = 0x80, 0x08
			if c == FatalCRR {
				h.buffer[0x38] |= 0x40
			}
		case SyndromeNonFatal:
			h.buffer[0x3d] = 0x10
		case NonFatalCRR:
			h.buffer[0x38], h.buffer[0x3d] = 0x40, 0x10
		case NICDisabled:
			h.nic = 1
		case NICSWReset:
			h.nic = 7
		case AllOnes:
			h.ones = true
		}
	})
}
