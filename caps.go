package mlxvfio

import (
	"context"
	"errors"
	"fmt"

	"github.com/mlxvfio/mlxvfio/cmdif"
	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// CapSize is the size of a capability structure on the wire, in bytes.
const CapSize = cmdif.CapSize

// Capability is one capability type as the device answered it. The slices are
// CapSize bytes in the PRM's layout (prm.CapStruct names the fields) and must
// not be changed.
type Capability struct {
	Type    prm.CapType
	Current []byte
	Maximum []byte
	// PowerOn are the current values before the first SET_HCA_CAP of this bring-up:
	// those of a function that was just reset, unless Options.SkipReset. Only the
	// types that SET_HCA_CAP changes are read then: general, atomic, RoCE, and those
	// of Options.Capabilities; nil for the others.
	PowerOn []byte
}

// Get reads a field of the current values by its PRM name.
func (c *Capability) Get(field string) (uint64, error) {
	s := prm.CapStruct(c.Type)
	if s == nil {
		return 0, fmt.Errorf("capability type %v has no layout here; read the raw bytes", c.Type)
	}
	return s.Get(c.Current, field)
}

// capType is a capability type and the general capability that says it exists
// (Linux fw.c, mlx5_query_hca_caps).
type capType struct {
	t    prm.CapType
	gate func(g *prm.CmdHCACap) bool
}

var capTypes = []capType{
	{prm.CapGeneral, func(*prm.CmdHCACap) bool { return true }},
	{prm.CapEthernetOffloads, (*prm.CmdHCACap).EthNetOffloads},
	{prm.CapODP, (*prm.CmdHCACap).Pg},
	{prm.CapAtomic, (*prm.CmdHCACap).Atomic},
	{prm.CapRoce, (*prm.CmdHCACap).Roce},
	{prm.CapIpoibOffloads, (*prm.CmdHCACap).IpoibBasicOffloads},
	{prm.CapIpoibEnhancedOffloads, (*prm.CmdHCACap).IpoibEnhancedOffloads},
	{prm.CapFlowTable, func(g *prm.CmdHCACap) bool { return g.NicFlowTable() || g.IpoibEnhancedOffloads() }},
	{prm.CapEswitchFlowTable, (*prm.CmdHCACap).EswitchManager},
	{prm.CapEswitch, (*prm.CmdHCACap).EswitchManager},
	{prm.CapQos, (*prm.CmdHCACap).Qos},
	{prm.CapDebug, (*prm.CmdHCACap).Debug},
	{prm.CapDevMem, (*prm.CmdHCACap).DeviceMemory},
	{prm.CapTls, func(g *prm.CmdHCACap) bool { return g.TlsTx() || g.TlsRx() }},
	{prm.CapDevEvent, (*prm.CmdHCACap).EventCap},
	{prm.CapIpsec, (*prm.CmdHCACap).IpsecOffload},
	{prm.CapCrypto, (*prm.CmdHCACap).Crypto},
	{prm.CapGeneral2, (*prm.CmdHCACap).HCACap2},
	{prm.CapPortSelection, (*prm.CmdHCACap).PortSelectionCap},
	{prm.CapAdvVirtualization, (*prm.CmdHCACap).AdvVirtualization},
}

// queryCap reads one capability type, maximum and current.
func (h *HCA) queryCap(ctx context.Context, t prm.CapType) error {
	maximum, err := h.conn.QueryHCACap(ctx, t, cmdif.CapMaximum)
	if err != nil {
		return err
	}
	current, err := h.conn.QueryHCACap(ctx, t, cmdif.CapCurrent)
	if err != nil {
		return err
	}
	c := &Capability{Type: t, Current: current, Maximum: maximum}
	h.mu.Lock()
	defer h.mu.Unlock()
	if before, ok := h.caps[t]; ok {
		c.PowerOn = before.PowerOn
	}
	h.caps[t] = c
	return nil
}

// upQueryCaps reads what set-caps starts from.
func (h *HCA) upQueryCaps(ctx context.Context) (string, error) {
	if err := h.queryCap(ctx, prm.CapGeneral); err != nil {
		return "", err
	}
	g := h.general()
	n := 1
	for _, c := range []capType{{prm.CapAtomic, (*prm.CmdHCACap).Atomic}, {prm.CapRoce, (*prm.CmdHCACap).Roce}} {
		if !c.gate(g) {
			continue
		}
		if err := h.queryCap(ctx, c.t); err != nil {
			return "", err
		}
		n++
	}
	for _, c := range capTypes {
		if _, have := h.caps[c.t]; have || !h.requested(c.t) || !c.gate(g) {
			continue
		}
		if err := h.queryCap(ctx, c.t); err != nil {
			return "", err
		}
		n++
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range h.caps {
		c.PowerOn = c.Current
	}
	return fmt.Sprintf("%d types", n), nil
}

// upQueryCapsAgain reads every type the device has: values change at INIT_HCA. A
// type that firmware refuses although its gate is set is left out and said so;
// only the general type is indispensable.
func (h *HCA) upQueryCapsAgain(ctx context.Context) (string, error) {
	before := map[prm.CapType]*Capability{}
	for t, c := range h.caps {
		before[t] = c
	}
	refused := 0
	if err := h.queryCap(ctx, prm.CapGeneral); err != nil {
		return "", err
	}
	g := h.general()
	for _, c := range capTypes[1:] {
		if !c.gate(g) {
			h.mu.Lock()
			delete(h.caps, c.t)
			h.mu.Unlock()
			continue
		}
		err := h.queryCap(ctx, c.t)
		var ce *cmdif.CommandError
		if errors.As(err, &ce) {
			refused++
			h.log.Warn("capability type not readable", "op", "query-caps-again", "type", c.t.String(), "error", err)
			continue
		}
		if err != nil {
			return "", err
		}
	}
	h.settle(before)
	note := fmt.Sprintf("%d types", len(h.caps))
	if refused > 0 {
		note += fmt.Sprintf(", %d refused", refused)
	}
	return note, nil
}

// general views the current general capabilities.
func (h *HCA) general() *prm.CmdHCACap {
	h.mu.Lock()
	defer h.mu.Unlock()
	return prm.AsCmdHCACap(h.caps[prm.CapGeneral].Current)
}

// Cap is the capability type t as read last; false if the device does not have
// it. Safe for concurrent use.
func (h *HCA) Cap(t prm.CapType) (*Capability, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	c, ok := h.caps[t]
	return c, ok
}

// currentCap is the current structure of a type, nil if the device does not have
// it.
func (h *HCA) currentCap(t prm.CapType) []byte {
	c, ok := h.Cap(t)
	if !ok {
		return nil
	}
	return c.Current
}

// Caps lists the capability types that were read, in the order of their numbers.
func (h *HCA) Caps() []*Capability {
	h.mu.Lock()
	defer h.mu.Unlock()
	var cs []*Capability
	for _, c := range capTypes {
		if have, ok := h.caps[c.t]; ok {
			cs = append(cs, have)
		}
	}
	return cs
}
