package cmdif

import (
	"bytes"
	"context"
	"fmt"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// Function names whose resources a command is about. The zero value is the
// function itself; on a PF, n+1 is VF n (Linux pagealloc.c).
type Function struct {
	ID          uint16 `json:"id"`
	EmbeddedCPU bool   `json:"embedded_cpu"` // as the device delivered it
}

// leastOut is the shortest reply accepted: the inline part.
const leastOut = inlineSize

// request is the input of a command, being filled through its descriptor so that
// a value too wide for its field is refused before anything is sent.
type request struct {
	buf []byte
	w   *prm.Writer
}

// newRequest begins an input of n bytes laid out as s.
func newRequest(s *prm.Struct, n int, op prm.Opcode, opMod uint64) request {
	buf := make([]byte, n)
	return request{buf, prm.Write(buf, s).Set("opcode", uint64(op)).Set("op_mod", opMod)}
}

func (r request) function(f Function) request {
	r.w.SetBool("embedded_cpu_function", f.EmbeddedCPU).Set("function_id", uint64(f.ID))
	return r
}

// run sends the request and gives a reply of n bytes, at least the inline part.
func (c *Conn) run(ctx context.Context, r request, n int) ([]byte, error) {
	if err := r.w.Err(); err != nil {
		return nil, fmt.Errorf("%s: not sent: %w", opcodeOf(r.buf), err)
	}
	out := make([]byte, max(n, leastOut))
	return out, c.Exec(ctx, r.buf, out)
}

// EnableHCA is ENABLE_HCA (0x104), the first command.
func (c *Conn) EnableHCA(ctx context.Context, f Function) error {
	_, err := c.run(ctx, newRequest(prm.EnableHCAInStruct, prm.EnableHCAInSize, prm.OpEnableHCA, 0).function(f), prm.EnableHCAOutSize)
	return err
}

// DisableHCA is DISABLE_HCA (0x105), the last command.
func (c *Conn) DisableHCA(ctx context.Context, f Function) error {
	_, err := c.run(ctx, newRequest(prm.DisableHCAInStruct, prm.DisableHCAInSize, prm.OpDisableHCA, 0).function(f), prm.DisableHCAOutSize)
	return err
}

// ISSI is the interface step sequence id.
type ISSI struct {
	Current   uint16
	Supported uint32 // bit i: ISSI i is supported
}

// Has tells whether ISSI n is supported.
func (i ISSI) Has(n int) bool { return n >= 0 && n < 32 && i.Supported>>n&1 != 0 }

// QueryISSI is QUERY_ISSI (0x10a). Firmware without it refuses with
// prm.StatusBadOp: ISSI 0 holds then (Linux fw.c).
func (c *Conn) QueryISSI(ctx context.Context) (ISSI, error) {
	out, err := c.run(ctx, newRequest(prm.QueryISSIInStruct, prm.QueryISSIInSize, prm.OpQueryISSI, 0), prm.QueryISSIOutSize)
	if err != nil {
		return ISSI{}, err
	}
	v := prm.AsQueryISSIOut(out)
	return ISSI{Current: v.CurrentISSI(), Supported: v.SupportedISSIDw0()}, nil
}

// SetISSI is SET_ISSI (0x10b), after ENABLE_HCA and before any other command
// but QUERY_ISSI.
func (c *Conn) SetISSI(ctx context.Context, issi int) error {
	r := newRequest(prm.SetISSIInStruct, prm.SetISSIInSize, prm.OpSetISSI, 0)
	r.w.Set("current_issi", uint64(issi))
	_, err := c.run(ctx, r, prm.SetISSIOutSize)
	return err
}

// CapMode chooses which value of a capability is meant.
type CapMode uint8

// Modes of QUERY_HCA_CAP (Linux device.h, HCA_CAP_OPMOD_GET_*).
const (
	CapMaximum CapMode = 0
	CapCurrent CapMode = 1
)

func (m CapMode) String() string {
	if m == CapMaximum {
		return "maximum"
	}
	return "current"
}

// CapSize is the size in bytes of a capability structure as it travels.
const CapSize = prm.QueryHCACapOutSize - 0x10

// QueryHCACap is QUERY_HCA_CAP (0x100): the 4096 bytes of the capability
// structure of type t (prm.CapStruct describes it). Which types exist is for the
// general capabilities to say; devices answer zeros or refuse the others.
func (c *Conn) QueryHCACap(ctx context.Context, t prm.CapType, mode CapMode) ([]byte, error) {
	r := newRequest(prm.QueryHCACapInStruct, prm.QueryHCACapInSize, prm.OpQueryHCACap, uint64(t)<<1|uint64(mode))
	out, err := c.run(ctx, r, prm.QueryHCACapOutSize)
	if err != nil {
		return nil, fmt.Errorf("query %v capabilities %v: %w", mode, t, err)
	}
	return prm.AsQueryHCACapOut(out).Capability()[:], nil
}

// SetHCACap is SET_HCA_CAP (0x109), between SET_ISSI and INIT_HCA: the wanted
// capability structure of type t, up to 4096 bytes, begun from the current
// values and changed only where it is writable, to values within the maximum.
func (c *Conn) SetHCACap(ctx context.Context, t prm.CapType, capability []byte) error {
	r := newRequest(prm.SetHCACapInStruct, prm.SetHCACapInSize, prm.OpSetHCACap, uint64(t)<<1)
	r.w.SetBytes("capability", capability)
	if _, err := c.run(ctx, r, prm.SetHCACapOutSize); err != nil {
		return fmt.Errorf("set capabilities %v: %w", t, err)
	}
	return nil
}

// InitHCA is INIT_HCA (0x102). owner, if not nil, is the software owner id, for
// devices with capability sw_owner_id.
func (c *Conn) InitHCA(ctx context.Context, owner *[4]uint32) error {
	n := prm.InitHCAInSize
	if owner == nil {
		n = inlineSize // the id is all that lies behind the inline part
	}
	r := newRequest(prm.InitHCAInStruct, n, prm.OpInitHCA, 0)
	if owner != nil {
		for i, v := range owner {
			r.w.Set(fmt.Sprintf("sw_owner_id[%d]", i), uint64(v))
		}
	}
	_, err := c.run(ctx, r, prm.InitHCAOutSize)
	return err
}

// TeardownError says that firmware executed TEARDOWN_HCA and reports state
// "failed": another profile has to be tried.
type TeardownError struct{ Profile prm.TeardownProfile }

func (e *TeardownError) Error() string {
	return fmt.Sprintf("TEARDOWN_HCA %v: firmware reports state failed; tear down gracefully, or reset the function", e.Profile)
}

// TeardownHCA is TEARDOWN_HCA (0x103). After the profiles force and
// prepare-fast no event comes any more, so they are polled in any mode; they
// need capabilities force_teardown and fast_teardown, and answer *TeardownError
// when firmware could not do it.
func (c *Conn) TeardownHCA(ctx context.Context, p prm.TeardownProfile) error {
	r := newRequest(prm.TeardownHCAInStruct, prm.TeardownHCAInSize, prm.OpTeardownHCA, 0)
	if err := r.w.Set("profile", uint64(p)).Err(); err != nil {
		return err
	}
	send := c.Exec
	if p != prm.TeardownGraceful {
		send = c.ExecPolled
	}
	out := make([]byte, prm.TeardownHCAOutSize)
	if err := send(ctx, r.buf, out); err != nil {
		return err
	}
	if prm.AsTeardownHCAOut(out).State() {
		return &TeardownError{p}
	}
	return nil
}

// Adapter is what QUERY_ADAPTER tells about the board.
type Adapter struct {
	IEEEVendorID uint32
	VSDVendorID  uint16
	VSD          []byte // 208 bytes, vendor specific
	PSID         string // board id, such as "MT_2150110033"
}

// QueryAdapter is QUERY_ADAPTER (0x101).
func (c *Conn) QueryAdapter(ctx context.Context) (Adapter, error) {
	out, err := c.run(ctx, newRequest(prm.QueryAdapterInStruct, prm.QueryAdapterInSize, prm.OpQueryAdapter, 0), prm.QueryAdapterOutSize)
	if err != nil {
		return Adapter{}, err
	}
	v := prm.AsQueryAdapterOut(out).QueryAdapterStruct()
	psid, _, _ := bytes.Cut(v.VsdContdPsid(), []byte{0})
	return Adapter{
		IEEEVendorID: v.IeeeVendorID(),
		VSDVendorID:  v.VsdVendorID(),
		VSD:          v.Vsd(),
		PSID:         string(psid),
	}, nil
}

// SetDriverVersion is SET_DRIVER_VERSION (0x10d), for devices with capability
// driver_version: at most 63 bytes of text, such as "Linux,mlx5_core,6.12.0".
func (c *Conn) SetDriverVersion(ctx context.Context, version string) error {
	if len(version) > 63 {
		return &MessageError{Opcode: prm.OpSetDriverVersion, Rule: fmt.Sprintf("driver_version of %d bytes; 63 and a zero fit", len(version))}
	}
	r := newRequest(prm.SetDriverVersionInStruct, prm.SetDriverVersionInSize, prm.OpSetDriverVersion, 0)
	r.w.SetBytes("driver_version", []byte(version))
	_, err := c.run(ctx, r, prm.SetDriverVersionOutSize)
	return err
}

// NOP is NOP (0x80d): it shows that firmware answers.
func (c *Conn) NOP(ctx context.Context) error {
	_, err := c.run(ctx, newRequest(prm.NopInStruct, prm.NopInSize, prm.OpNop, 0), prm.NopOutSize)
	return err
}
