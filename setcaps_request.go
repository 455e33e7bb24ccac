package mlxvfio

import (
	"errors"
	"fmt"
	"slices"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// CapRequest asks the bring-up to give a capability a value of the caller's
// choice, before INIT_HCA.
type CapRequest struct {
	Type prm.CapType
	// Field is the PRM's name of the field in the structure of the type.
	Field string
	Value uint64
}

// String is the form of the command line.
func (r CapRequest) String() string { return fmt.Sprintf("%v.%s=%d", r.Type, r.Field, r.Value) }

// Why a request can be impossible.
var (
	// ErrCapUnknown: the type has no layout, or no such number in it.
	ErrCapUnknown = errors.New("no such capability")
	// ErrCapValue: the field cannot hold the value.
	ErrCapValue = errors.New("the field cannot hold the value")
	// ErrCapTwice: two requests for one field.
	ErrCapTwice = errors.New("it is requested twice")
	// ErrCapOwned: the driver's own work depends on the field.
	ErrCapOwned = errors.New("the driver depends on it")
	// ErrCapMissing: this device does not have the type, or says that the field is
	// read-only.
	ErrCapMissing = errors.New("this device does not offer it")
	// ErrCapAboveMax: the device states a smaller maximum.
	ErrCapAboveMax = errors.New("above the device's maximum")
)

// CapRequestError refuses a request for a capability. Nothing was sent for it, nor
// for any other field.
type CapRequestError struct {
	Request CapRequest
	// Err is one of the ErrCap errors; Detail says the rest.
	Err    error
	Detail string
}

// Error is one line.
func (e *CapRequestError) Error() string {
	s := fmt.Sprintf("request %v is refused: %v", e.Request, e.Err)
	if e.Detail != "" {
		s += ": " + e.Detail
	}
	return s + "; nothing was set"
}

// Unwrap gives the ErrCap error.
func (e *CapRequestError) Unwrap() error { return e.Err }

// ownedCaps are fields that the driver sets to what its own code relies on.
var ownedCaps = map[string]string{
	"log_uar_page_sz":      "it follows from the host's page size, and so does where doorbells lie",
	"uar_4k":               "it follows from the host's page size, and so does where doorbells lie",
	"num_of_uars_per_page": "it follows from the host's page size, and so does where doorbells lie",
	"cmdif_checksum":       "Options.VerifyChecksums sets it, and the command queue goes by it",
}

// CheckCapRequests refuses what no device could be asked: unknown fields, values
// that do not fit, fields that belong to the driver, and a field named twice. It
// touches no device. The error is a *CapRequestError.
func CheckCapRequests(requests []CapRequest) error {
	type name struct {
		t prm.CapType
		f string
	}
	seen := map[name]bool{}
	for _, r := range requests {
		refuse := func(err error, detail string) error { return &CapRequestError{r, err, detail} }
		s := prm.CapStruct(r.Type)
		if s == nil {
			return refuse(ErrCapUnknown, fmt.Sprintf("capability type %v has no layout here", r.Type))
		}
		var room [CapSize]byte
		var we *prm.WidthError
		err := s.Put(room[:], r.Field, r.Value)
		switch {
		case errors.As(err, &we):
			return refuse(ErrCapValue, we.Error())
		case err != nil:
			return refuse(ErrCapUnknown, err.Error())
		}
		if why, ok := ownedCaps[r.Field]; ok && r.Type == prm.CapGeneral {
			return refuse(ErrCapOwned, why)
		}
		if seen[name{r.Type, r.Field}] {
			return refuse(ErrCapTwice, "")
		}
		seen[name{r.Type, r.Field}] = true
	}
	return nil
}

// checkCapRequests refuses what this device cannot be asked, by the maxima that
// were read. Every request is looked at before the first SET_HCA_CAP.
func (h *HCA) checkCapRequests() error {
	for _, r := range h.o.Capabilities {
		refuse := func(err error, format string, args ...any) error {
			return &CapRequestError{r, err, fmt.Sprintf(format, args...)}
		}
		c, ok := h.caps[r.Type]
		if !ok {
			return refuse(ErrCapMissing, "it has no capabilities of type %v", r.Type)
		}
		limit, err := capLimit(c, r.Field)
		if err != nil {
			return err
		}
		roce := r.Type == prm.CapGeneral && r.Field == "roce"
		switch before, err := c.Get(r.Field); {
		case err != nil:
			return err
		case roce && before != r.Value && !prm.AsCmdHCACap(c.Maximum).RoceRwSupported():
			return refuse(ErrCapMissing, "roce_rw_supported is 0, so it stays %d", before)
		case r.Value > limit:
			return refuse(ErrCapAboveMax, "the maximum is %d, the current value %d", limit, before)
		}
	}
	return nil
}

// capLimit is the largest value that a field may be given. The endianness mode's
// is stated by a field of its own.
func capLimit(c *Capability, field string) (uint64, error) {
	if c.Type == prm.CapAtomic && field == atomicWish.field {
		if prm.AsAtomicCaps(c.Maximum).SupportedAtomicReq8BEndiannessMode1() {
			return 1, nil
		}
		return 0, nil
	}
	return prm.CapStruct(c.Type).Get(c.Maximum, field)
}

// request finds the caller's wish for a field.
func (h *HCA) request(t prm.CapType, field string) (CapRequest, bool) {
	for _, r := range h.o.Capabilities {
		if r.Type == t && r.Field == field {
			return r, true
		}
	}
	return CapRequest{}, false
}

// requested tells whether the caller wants something of a type.
func (h *HCA) requested(t prm.CapType) bool {
	return slices.ContainsFunc(h.o.Capabilities, func(r CapRequest) bool { return r.Type == t })
}

// planRequests writes the caller's values for a type into next and reports each.
func (h *HCA) planRequests(c *Capability, next []byte) ([]CapRow, error) {
	s := prm.CapStruct(c.Type)
	var rows []CapRow
	for _, r := range h.o.Capabilities {
		if r.Type != c.Type {
			continue
		}
		before, err := s.Get(c.Current, r.Field)
		if err != nil {
			return nil, err
		}
		limit, err := capLimit(c, r.Field)
		if err != nil {
			return nil, err
		}
		if err := s.Put(next, r.Field, r.Value); err != nil {
			return nil, err
		}
		row := CapRow{Type: c.Type, Field: r.Field, Requested: r.Value, Before: before, Maximum: limit, Sent: r.Value,
			Done: "set", Why: "the caller's request", Asked: true}
		if r.Value == before {
			row.Done = "already"
		}
		rows = append(rows, row)
	}
	return rows, nil
}
