package mlxvfio

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"runtime"
	"strings"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// Stages from INIT_HCA to the doorbell page.

// upInit initializes firmware. A device that can tell software owners apart gets
// a random id, as from Linux.
func (h *HCA) upInit(ctx context.Context) (string, error) {
	var owner *[4]uint32
	if h.general().SwOwnerID() {
		var b [16]byte
		if _, err := rand.Read(b[:]); err != nil {
			return "", fmt.Errorf("make a software owner id: %w", err)
		}
		owner = new([4]uint32)
		for i := range owner {
			owner[i] = binary.BigEndian.Uint32(b[4*i:])
		}
	}
	return "", h.conn.InitHCA(ctx, owner)
}

func (h *HCA) downInit(ctx context.Context, live bool) error {
	if !live {
		return nil
	}
	return h.conn.TeardownHCA(ctx, prm.TeardownGraceful)
}

// driverVersion is what firmware is told about us: system, driver, version.
var driverVersion = runtime.GOOS + ",mlxvfio,1.000.000000"

func (h *HCA) upDriverVersion(ctx context.Context) (string, error) {
	if !h.general().DriverVersion() {
		return "skipped: no such capability", nil
	}
	if err := h.conn.SetDriverVersion(ctx, driverVersion); err != nil {
		return optional(err)
	}
	return driverVersion, nil
}

// Board identifies the adapter.
type Board struct {
	// PSID is the parameter set id of the board: what firmware images are
	// matched against.
	PSID         string `json:"psid"`
	IEEEVendorID uint32 `json:"ieee_vendor_id"`
	VSDVendorID  uint16 `json:"vsd_vendor_id"`
}

func (h *HCA) upQueryAdapter(ctx context.Context) (string, error) {
	a, err := h.conn.QueryAdapter(ctx)
	if err != nil {
		return "", err
	}
	h.board = Board{PSID: strings.TrimRight(a.PSID, " "), IEEEVendorID: a.IEEEVendorID, VSDVendorID: a.VSDVendorID}
	return "PSID " + h.board.PSID, nil
}

// upRegisters asks which management registers exist. Linux asks for events of
// the firmware tracer only where its registers are (fw_tracer.c, eq.c).
func (h *HCA) upRegisters(ctx context.Context) (string, error) {
	if !h.general().McamReg() {
		return "skipped: no register MCAM", nil
	}
	reg := make([]byte, prm.McamRegSize)
	if err := h.conn.ReadRegister(ctx, prm.RegMcam, reg); err != nil {
		return optional(err)
	}
	h.tracer = prm.AsMcamReg(reg).MngAccessRegCapMask().AccessRegs().TracerRegisters() != 0
	if h.tracer {
		return "firmware tracer", nil
	}
	return "no firmware tracer", nil
}
