package vfio

import "fmt"

// HotResetter is what a Transport may offer beside its verbs: a reset of
// everything that shares the function's slot or bus, for functions that cannot be
// brought back alone. Errors are as a Transport's; ErrNotSupported where the
// platform cannot.
type HotResetter interface {
	// HotResetInfo lists the functions that a hot reset would reset, the
	// function itself among them. It changes nothing.
	HotResetInfo() ([]HotResetFunction, error)
	// HotReset resets all of them. The caller has made sure that nobody works
	// with the others: what they do is lost.
	HotReset() error
}

// HotResetFunction is a function that a hot reset would hit.
type HotResetFunction struct {
	// Name is the PCI address, or the model's name of the function.
	Name string `json:"name"`
	// Group is its IOMMU group, −1 where that is not known.
	Group int `json:"group"`
	// Self is the function that was asked.
	Self bool `json:"self"`
	// Owned says that this process has the function's group open, so that the
	// kernel lets it be reset.
	Owned bool `json:"owned"`
}

// The verbs of HotResetter, which not every Transport has: Verbs does not list
// them.
const (
	VerbHotResetInfo Verb = "hot-reset-info"
	VerbHotReset     Verb = "hot-reset"
)

// hotResetter finds what t offers.
func hotResetter(t Transport, name string) (HotResetter, error) {
	if h, ok := t.(HotResetter); ok {
		return h, nil
	}
	return nil, &Error{Op: "hot reset", Target: name, Err: fmt.Errorf("%w: this transport has none", ErrNotSupported)}
}

// HotResetInfo lists the functions that HotReset would reset.
func (d *Device) HotResetInfo() ([]HotResetFunction, error) {
	h, err := hotResetter(d.t, d.info.Name)
	if err != nil {
		return nil, err
	}
	return h.HotResetInfo()
}

// HotReset resets the function and all others of its slot or bus; see
// HotResetter. As after Reset, DMA mappings and vectors stay, and the errors that
// the Windows kept are gone.
func (d *Device) HotReset() error {
	h, err := hotResetter(d.t, d.info.Name)
	if err != nil {
		return err
	}
	if err := h.HotReset(); err != nil {
		return err
	}
	d.forgetErrors()
	d.log.Info("slot reset", "op", "hot-reset")
	return nil
}

// forgetErrors drops what the Windows kept.
func (d *Device) forgetErrors() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, w := range d.windows {
		if w != nil {
			w.err.Store(nil)
		}
	}
}

// HotResetInfo implements HotResetter over what is beneath, if it does.
func (h *hooked) HotResetInfo() (list []HotResetFunction, err error) {
	r, err := hotResetter(h.t, "")
	if err != nil {
		return nil, err
	}
	err = h.around(Call{Verb: VerbHotResetInfo}, nil, func() error {
		list, err = r.HotResetInfo()
		return err
	})
	if err != nil {
		return nil, err
	}
	return list, nil
}

// HotReset implements HotResetter over what is beneath, if it does.
func (h *hooked) HotReset() error {
	r, err := hotResetter(h.t, "")
	if err != nil {
		return err
	}
	return h.around(Call{Verb: VerbHotReset}, nil, r.HotReset)
}
