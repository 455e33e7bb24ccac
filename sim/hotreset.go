package sim

import (
	"fmt"
	"strings"

	"github.com/mlxvfio/mlxvfio/vfio"
)

var _ vfio.HotResetter = (*transport)(nil)

// HotResetInfo implements vfio.HotResetter: all functions of the chip share its
// slot. A function that nobody opened is not this process's.
func (t *transport) HotResetInfo() ([]vfio.HotResetFunction, error) {
	if err := t.begin("hot reset info"); err != nil {
		return nil, err
	}
	defer t.end()
	return t.hotResetInfo(), nil
}

func (t *transport) hotResetInfo() (l []vfio.HotResetFunction) {
	c := t.f.chip
	for _, g := range c.funcs {
		group := g.index
		if c.opts.SharedDomain {
			group = 0
		}
		owned := g.opener != nil || c.opts.SharedDomain
		if c.faults.has("hot-reset-refused") && g != t.f {
			owned = false
		}
		l = append(l, vfio.HotResetFunction{Name: g.name, Group: group, Self: g == t.f, Owned: owned})
	}
	if c.faults.has("hot-reset-refused") && len(l) == 1 {
		l = append(l, vfio.HotResetFunction{Name: fmt.Sprintf("sim:%s.%d", c.prof.name, 1), Group: 1})
	}
	return l
}

// HotReset implements vfio.HotResetter. Configuration space is saved and
// restored around it, as vfio-pci does; as the kernel, it refuses where a
// function of the slot is not this process's.
func (t *transport) HotReset() error {
	if err := t.begin("hot reset"); err != nil {
		return err
	}
	defer t.end()
	c := t.f.chip
	var foreign []string
	for _, f := range t.hotResetInfo() {
		if !f.Owned {
			foreign = append(foreign, f.Name)
		}
	}
	if len(foreign) > 0 {
		return &vfio.Error{Op: "hot reset", Target: t.f.name,
			Err:    fmt.Errorf("%w: it would also reset %s, which this process does not have", vfio.ErrBusy, strings.Join(foreign, ", ")),
			Remedy: "open the other functions of the slot too, or let their owner close them"}
	}
	saved := make([]config, len(c.funcs))
	for i, f := range c.funcs {
		saved[i] = f.cfg
	}
	c.slotReset(c.trigger(), "hot reset")
	for i, f := range c.funcs {
		f.cfg = saved[i]
		f.degradeLink()
	}
	return nil
}
