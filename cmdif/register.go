package cmdif

import (
	"context"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/mlxvfio/mlxvfio/initseg"
	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// AccessRegister is ACCESS_REG (0x805): it sends the register image in and
// receives the image back into out. The lengths are multiples of 4 and may
// differ; for a read, in carries the index fields (port, slot, instance).
func (c *Conn) AccessRegister(ctx context.Context, mode prm.AccessRegOpMod, id prm.RegisterID, argument uint32, in, out []byte) error {
	if len(in)%4 != 0 || len(out)%4 != 0 {
		return &MessageError{Opcode: prm.OpAccessReg, Rule: fmt.Sprintf("register image of %d bytes in, %d out; give multiples of 4", len(in), len(out))}
	}
	const header = prm.AccessRegisterInRegisterDataOffset
	r := newRequest(prm.AccessRegisterInStruct, header+len(in), prm.OpAccessReg, uint64(mode))
	r.w.Set("register_id", uint64(id)).Set("argument", uint64(argument))
	copy(r.buf[header:], in)
	reply, err := c.run(ctx, r, prm.AccessRegisterOutRegisterDataOffset+len(out))
	if err != nil {
		return fmt.Errorf("register %v (0x%x) %v: %w", id, uint16(id), mode, err)
	}
	copy(out, reply[prm.AccessRegisterOutRegisterDataOffset:])
	return nil
}

// ReadRegister reads a register into image, which carries the index fields on
// the way in.
func (c *Conn) ReadRegister(ctx context.Context, id prm.RegisterID, image []byte) error {
	return c.AccessRegister(ctx, prm.AccessRegRead, id, 0, image, image)
}

// WriteRegister writes a register; image receives what the device answers.
func (c *Conn) WriteRegister(ctx context.Context, id prm.RegisterID, image []byte) error {
	return c.AccessRegister(ctx, prm.AccessRegWrite, id, 0, image, image)
}

// SetHostEndianness writes register HOST_ENDIANNESS (0x7004) with this host's
// byte order. PFs only.
func (c *Conn) SetHostEndianness(ctx context.Context) error {
	var image [prm.RegisterHostEndiannessSize]byte
	var probe [2]byte
	binary.NativeEndian.PutUint16(probe[:], 1)
	prm.AsRegisterHostEndianness(image[:]).SetHe(probe[1] == 1)
	return c.WriteRegister(ctx, prm.RegHostEndianness, image[:])
}

// Timeouts are the limits for what a driver waits for besides commands.
type Timeouts struct {
	PCIToggle, HealthPoll, FullCRDump, FWReset, FlushOnError, PCISyncUpdate time.Duration
	Teardown, FSMReactivate, ReclaimPages, ReclaimVFsPages, ResetUnload     time.Duration
}

// DefaultTimeouts are Linux' limits for devices that state none (lib/tout.c).
func DefaultTimeouts() Timeouts {
	return Timeouts{
		PCIToggle:       initseg.DefaultPCIToggle,
		HealthPoll:      initseg.DefaultHealthPoll,
		FullCRDump:      initseg.DefaultFullCRDump,
		FWReset:         initseg.DefaultFWReset,
		FlushOnError:    initseg.DefaultFlushOnError,
		PCISyncUpdate:   initseg.DefaultPCISyncUpdate,
		Teardown:        initseg.DefaultTeardown,
		FSMReactivate:   initseg.DefaultFSMReactivate,
		ReclaimPages:    initseg.DefaultReclaimPages,
		ReclaimVFsPages: initseg.DefaultReclaimVFsPages,
		ResetUnload:     initseg.DefaultResetUnload,
	}
}

// QueryTimeouts reads register DTOR (0xc00e), for devices with capability dtor:
// the defaults, overridden where the device states a limit. As in Linux, two
// limits are sums of two fields. On error the defaults come back with it.
func (c *Conn) QueryTimeouts(ctx context.Context) (Timeouts, error) {
	t := DefaultTimeouts()
	var image [prm.DtorRegSize]byte
	if err := c.ReadRegister(ctx, prm.RegDtor, image[:]); err != nil {
		return t, err
	}
	r := prm.AsDtorReg(image[:])
	field := func(f *prm.DefaultTimeout) time.Duration {
		return initseg.DecodeTimeout(binary.BigEndian.Uint32(f[:]))
	}
	override := func(dst *time.Duration, f *prm.DefaultTimeout, more time.Duration) {
		if d := field(f); d != 0 {
			*dst = d + more
		}
	}
	override(&t.PCIToggle, r.PCIEToggleTO(), 0)
	override(&t.HealthPoll, r.HealthPollTO(), 0)
	override(&t.FullCRDump, r.FullCrdumpTO(), 0)
	override(&t.FWReset, r.FWResetTO(), field(r.PCIEToggleTO()))
	override(&t.FlushOnError, r.FlushOnErrTO(), 0)
	override(&t.PCISyncUpdate, r.PCISyncUpdateTO(), field(r.TearDownTO()))
	override(&t.Teardown, r.TearDownTO(), 0)
	override(&t.FSMReactivate, r.FsmReactivateTO(), 0)
	override(&t.ReclaimPages, r.ReclaimPagesTO(), 0)
	override(&t.ReclaimVFsPages, r.ReclaimVfsPagesTO(), 0)
	override(&t.ResetUnload, r.ResetUnloadTO(), 0)
	return t, nil
}
