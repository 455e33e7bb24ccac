package health

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/mlxvfio/mlxvfio/vfio"
)

// ConfigSpace is PCI configuration space; *vfio.Device has one.
type ConfigSpace interface {
	ReadConfig(off int, p []byte) error
	WriteConfig(off int, p []byte) error
}

// Space is an address space behind the gateway (names: mstflint mtcr_com_defs.h).
type Space uint16

// Address spaces.
const (
	SpaceICMDExt       Space = 0x1
	SpaceCR            Space = 0x2 // configuration registers
	SpaceICMD          Space = 0x3
	SpaceNoDNICSegment Space = 0x4
	SpaceExpansionROM  Space = 0x5
	SpaceNDCR          Space = 0x6
	SpaceScanCR        Space = 0x7 // configuration registers that are safe to scan
	SpaceSemaphore     Space = 0xa
	SpaceRecovery      Space = 0xc
	SpaceMAC           Space = 0xf
	SpacePCIICMD       Space = 0x101
	SpacePCICR         Space = 0x102
	SpacePCIAllICMD    Space = 0x103
	SpacePCIScanCR     Space = 0x107
	SpacePCISemaphore  Space = 0x10a
)

var spaceNames = map[Space]string{
	SpaceICMDExt: "ICMD_EXT", SpaceCR: "CR_SPACE", SpaceICMD: "ICMD", SpaceNoDNICSegment: "NODNIC_INIT_SEG",
	SpaceExpansionROM: "EXPANSION_ROM", SpaceNDCR: "ND_CRSPACE", SpaceScanCR: "SCAN_CRSPACE", SpaceSemaphore: "SEMAPHORE",
	SpaceRecovery: "RECOVERY", SpaceMAC: "MAC", SpacePCIICMD: "PCI_ICMD", SpacePCICR: "PCI_CR_SPACE",
	SpacePCIAllICMD: "PCI_ALL_ICMD", SpacePCIScanCR: "PCI_SCAN_CRSPACE", SpacePCISemaphore: "PCI_GLOBAL_SEMAPHORE",
}

// String is the name and the number.
func (s Space) String() string {
	if n, ok := spaceNames[s]; ok {
		return fmt.Sprintf("%s (%#x)", n, uint16(s))
	}
	return fmt.Sprintf("%#x", uint16(s))
}

// KnownSpaces lists the spaces that have names, ascending.
func KnownSpaces() []Space {
	return []Space{SpaceICMDExt, SpaceCR, SpaceICMD, SpaceNoDNICSegment, SpaceExpansionROM, SpaceNDCR, SpaceScanCR, SpaceSemaphore,
		SpaceRecovery, SpaceMAC, SpacePCIICMD, SpacePCICR, SpacePCIAllICMD, SpacePCIScanCR, SpacePCISemaphore}
}

// Registers of the capability, from its start (Linux lib/pci_vsc.h).
const (
	vscControl   = 0x04 // 15:0 space, 27:24 syndrome code, 28 size valid, 31:29 status
	vscCounter   = 0x08 // another value on each read
	vscSemaphore = 0x0c // 0: free
	vscAddress   = 0x10 // 29:0 address, 30 syndrome, 31 flag
	vscData      = 0x14
	vscLength    = 0x18

	vscFlag     = 1 << 31
	vscSyndrome = 1 << 30
	vscAddrMask = 1<<30 - 1

	vscCapID = 0x09
)

// Patience of the gateway (Linux pci_vsc.c): tries, and the pause between them.
const (
	vscTries = 2048
	vscPause = time.Millisecond
	// vscSpin tries of an access pass between two pauses.
	vscSpin = 16
)

// VSC is the gateway in configuration space through which physical functions
// reach address spaces of the device beside its BARs, even when firmware is dead.
// A semaphore in the device, which every function and tool honours, makes its
// users take turns; With takes and gives it. It is safe for concurrent use:
// users in this process take turns before they ask the device.
type VSC struct {
	cfg ConfigSpace
	cap int

	mu chan struct{} // holds one token: whoever has it may use the registers
}

// OpenVSC finds the capability. It writes nothing. The error wraps ErrNoVSC, or
// vfio.ErrGone if configuration space reads all ones.
func OpenVSC(cfg ConfigSpace) (*VSC, error) {
	v := &VSC{cfg: cfg, mu: make(chan struct{}, 1)}
	fail := func(err error, detail, remedy string) (*VSC, error) {
		return nil, &VSCError{Op: "find it", Err: err, Detail: detail, Remedy: remedy}
	}
	var head [64]byte
	if err := cfg.ReadConfig(0, head[:]); err != nil {
		return fail(err, "", "")
	}
	if binary.LittleEndian.Uint16(head[0:]) == 0xffff {
		return fail(vfio.ErrGone, "", "check the slot and the power state; rescan the bus")
	}
	if binary.LittleEndian.Uint16(head[6:])>>4&1 == 0 {
		return fail(ErrNoVSC, "no capability list", "only physical functions have one")
	}
	at := int(head[0x34] &^ 3)
	for n := 0; at >= 0x40 && n < 48; n++ {
		var h [4]byte
		if err := cfg.ReadConfig(at, h[:]); err != nil {
			return fail(err, "", "")
		}
		if h[0] == 0xff {
			break
		}
		if h[0] == vscCapID && h[2] >= vscLength && at+vscLength <= 256 {
			v.cap = at
			return v, nil
		}
		at = int(h[1] &^ 3)
	}
	return fail(ErrNoVSC, "", "only physical functions have one")
}

// Offset is where the capability is in configuration space.
func (v *VSC) Offset() int { return v.cap }

func (v *VSC) get(reg int) (uint32, error) {
	var b [4]byte
	err := v.cfg.ReadConfig(v.cap+reg, b[:])
	return binary.LittleEndian.Uint32(b[:]), err
}

func (v *VSC) put(reg int, x uint32) error {
	var b [4]byte
	binary.LittleEndian.PutUint32(b[:], x)
	return v.cfg.WriteConfig(v.cap+reg, b[:])
}

// With takes the gateway, selects a space, runs f, and gives the gateway back on
// every path, whatever f or ctx does. f must not keep the Gateway. The error is
// that of f, or a *VSCError: ErrGatewayHeld after about 2048 tries a
// millisecond apart or when ctx ends first, ErrSpaceUnsupported, vfio.ErrGone.
func (v *VSC) With(ctx context.Context, space Space, f func(*Gateway) error) error {
	return v.hold(ctx, func(g *Gateway) error {
		if err := g.Select(space); err != nil {
			return err
		}
		return f(g)
	})
}

// hold is With without a space.
func (v *VSC) hold(ctx context.Context, f func(*Gateway) error) (err error) {
	if ctx.Err() != nil {
		return &VSCError{Op: "lock", Err: context.Cause(ctx)}
	}
	select {
	case v.mu <- struct{}{}:
		defer func() { <-v.mu }()
	case <-ctx.Done():
		return &VSCError{Op: "lock", Err: fmt.Errorf("%w: %w", ErrGatewayHeld, context.Cause(ctx)), Detail: "by this process"}
	}
	ticket, err := v.lock(ctx)
	if err != nil {
		return err
	}
	defer func() {
		if e := v.unlock(ticket); e != nil {
			err = errors.Join(err, e)
		}
	}()
	return f(&Gateway{v: v})
}

// lock takes the device's semaphore and answers the ticket that it holds now.
func (v *VSC) lock(ctx context.Context) (uint32, error) {
	fail := func(err error, holder uint32) (uint32, error) {
		e := &VSCError{Op: "lock", Err: err}
		if holder != 0 {
			e.Detail = fmt.Sprintf("semaphore reads %#x", holder)
			e.Remedy = "end the tool that uses it (mstflint, another driver); a holder that was killed keeps it until the device is reset"
		}
		return 0, e
	}
	p := pauser{}
	defer p.stop()
	var holder uint32
	noTicket := false
	for range vscTries {
		held, err := v.get(vscSemaphore)
		if err != nil {
			return fail(err, 0)
		}
		if held == 0 {
			ticket, err := v.get(vscCounter)
			if err != nil {
				return fail(err, 0)
			}
			if ticket == ^uint32(0) {
				return fail(vfio.ErrGone, 0)
			}
			if ticket == 0 {
				noTicket = true
				continue // 0 means free: another ticket, please
			}
			noTicket = false
			if err := v.put(vscSemaphore, ticket); err != nil {
				// It may have arrived all the same.
				return fail(errors.Join(err, v.unlock(ticket)), 0)
			}
			if held, err = v.get(vscSemaphore); err != nil {
				return fail(errors.Join(err, v.unlock(ticket)), 0)
			}
			if held == ticket {
				return ticket, nil
			}
		}
		if held == ^uint32(0) {
			return fail(vfio.ErrGone, 0)
		}
		holder = held
		if err := p.pause(ctx, vscPause); err != nil {
			return fail(fmt.Errorf("%w: %w", ErrGatewayHeld, err), holder)
		}
	}
	if noTicket {
		return 0, &VSCError{Op: "lock", Err: ErrGatewayTimeout, Detail: "the ticket counter keeps reading 0"}
	}
	return fail(ErrGatewayHeld, holder)
}

// unlock frees the semaphore if it is still ours: a reset frees it by itself,
// and what another owner holds is not ours to free.
func (v *VSC) unlock(ticket uint32) error {
	held, err := v.get(vscSemaphore)
	switch {
	case err != nil:
		// Unread, it is freed on the word of our ticket.
		return &VSCError{Op: "unlock", Err: errors.Join(err, v.put(vscSemaphore, 0))}
	case held == ticket:
		err := v.put(vscSemaphore, 0)
		if err == nil {
			return nil
		}
		e := &VSCError{Op: "unlock", Err: err, Detail: "a second try went through"}
		if v.put(vscSemaphore, 0) != nil { // it costs nothing
			e.Detail, e.Remedy = "", "reset the device if other tools find the gateway held"
		}
		return e
	case held == 0, held == ^uint32(0):
		return nil
	}
	return &VSCError{Op: "unlock", Err: ErrGatewayLost, Detail: fmt.Sprintf("semaphore reads %#x, not our ticket %#x", held, ticket),
		Remedy: "what was read meanwhile cannot be trusted: read it again"}
}

// Spaces asks which of the known spaces the device offers, and how large those
// are that say so (bytes; 0 where the device does not say).
func (v *VSC) Spaces(ctx context.Context) (map[Space]uint32, error) {
	have := map[Space]uint32{}
	err := v.hold(ctx, func(g *Gateway) error {
		for _, s := range KnownSpaces() {
			switch err := g.Select(s); {
			case err == nil:
				have[s] = g.size
			case !errors.Is(err, ErrSpaceUnsupported):
				return err
			}
		}
		return nil
	})
	return have, err
}

// Read reads one dword of a space. addr is a multiple of 4.
func (v *VSC) Read(ctx context.Context, s Space, addr uint32) (x uint32, err error) {
	err = v.With(ctx, s, func(g *Gateway) error {
		x, err = g.Read(ctx, addr)
		return err
	})
	return x, err
}

// Write writes one dword of a space. addr is a multiple of 4.
func (v *VSC) Write(ctx context.Context, s Space, addr, x uint32) error {
	return v.With(ctx, s, func(g *Gateway) error { return g.Write(ctx, addr, x) })
}

// ReadBlock fills dst with the dwords of a space from addr on; see Gateway.Scan
// for holes, which read as 0 and are counted.
func (v *VSC) ReadBlock(ctx context.Context, s Space, addr uint32, dst []uint32) (holes int, err error) {
	clear(dst)
	err = v.With(ctx, s, func(g *Gateway) error {
		n := 0
		err := g.Scan(ctx, addr, uint64(addr)+4*uint64(len(dst)), func(at, x uint32) error {
			dst[(at-addr)/4] = x
			n++
			return nil
		})
		holes = len(dst) - n
		return err
	})
	return holes, err
}

// pauser waits, or until a context is over. One timer serves all pauses.
type pauser struct{ t *time.Timer }

func (p *pauser) pause(ctx context.Context, d time.Duration) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if p.t == nil {
		p.t = time.NewTimer(d)
	} else {
		p.t.Reset(d)
	}
	select {
	case <-p.t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (p *pauser) stop() {
	if p.t != nil {
		p.t.Stop()
	}
}
