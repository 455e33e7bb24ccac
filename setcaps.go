package mlxvfio

import (
	"bytes"
	"context"
	"fmt"
	"math/bits"
	"os"
	"slices"
	"strings"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// CapRow is one line of the capability report: what the driver or its caller
// wanted of a field, what the device allows, and what came of it.
type CapRow struct {
	Type  prm.CapType `json:"type"`
	Field string      `json:"field"`
	// Requested is what is wanted; Before and Maximum what the device
	// said; Sent what SET_HCA_CAP carried; After what the device said once
	// initialized.
	Requested uint64 `json:"requested"`
	Before    uint64 `json:"before"`
	Maximum   uint64 `json:"maximum"`
	Sent      uint64 `json:"sent"`
	After     uint64 `json:"after"`
	// Done is one of "set", "clamped", "already", "not offered", "ignored".
	Done string `json:"done"`
	// Why says what the field is for.
	Why string `json:"why"`
	// Asked: the value is the caller's (Options.Capabilities), not the driver's.
	Asked bool `json:"asked,omitempty"`
}

// host is what the wishes of the driver depend on.
type host struct {
	pageShift uint8
	cacheLine int
	verify    bool // answers shall be signed
}

func thisHost(o *Options) host {
	return host{pageShift: uint8(bits.Len(uint(os.Getpagesize())) - 1), cacheLine: cacheLine(), verify: o.VerifyChecksums}
}

// cacheLine reads the size of a cache line from sysfs; 64 where it does not say.
func cacheLine() int {
	b, err := os.ReadFile("/sys/devices/system/cpu/cpu0/cache/index0/coherency_line_size")
	var n int
	if _, serr := fmt.Sscan(strings.TrimSpace(string(b)), &n); err != nil || serr != nil || n < 16 {
		return 64
	}
	return n
}

// wish is a field the driver wants to have a value. want answers false where the
// driver leaves the field alone.
type wish struct {
	field string
	why   string
	// exact marks a code or a switch: it is taken or left, never clamped to
	// something between.
	exact bool
	want  func(h host, cur, most *prm.CmdHCACap) (uint64, bool)
}

func always(v uint64) func(host, *prm.CmdHCACap, *prm.CmdHCACap) (uint64, bool) {
	return func(host, *prm.CmdHCACap, *prm.CmdHCACap) (uint64, bool) { return v, true }
}

// generalWishes follow Linux main.c (handle_hca_cap). Fields Linux sets and we
// leave: pci_sync_for_fw_update_event and its kin (this driver does not take
// part in a synchronized reset), mkey_by_name (memory keys are numbered by
// firmware), num_vhca_ports (no dual-port RoCE).
var generalWishes = []wish{
	{field: "pkey_table_size", why: "128 P_Keys are enough", want: always(0), exact: true},
	{field: "log_max_qp", why: "room for QPs without memory for all the device could have", want: always(18)},
	{field: "cmdif_checksum", why: "signatures of command answers", exact: true,
		want: func(h host, _, _ *prm.CmdHCACap) (uint64, bool) {
			if h.verify {
				return uint64(prm.ChecksumEnabled), true
			}
			return uint64(prm.ChecksumDisabled), true
		}},
	{field: "uar_4k", why: "4 KiB doorbell pages on a host with larger pages", exact: true,
		want: func(h host, _, _ *prm.CmdHCACap) (uint64, bool) { return 1, h.pageShift > 12 }},
	{field: "log_uar_page_sz", why: "the host's page size", exact: true,
		want: func(h host, _, _ *prm.CmdHCACap) (uint64, bool) { return uint64(h.pageShift - 12), true }},
	{field: "num_of_uars_per_page", why: "doorbell pages in a host page", exact: true,
		want: func(h host, _, most *prm.CmdHCACap) (uint64, bool) {
			return 1 << (h.pageShift - 12), h.pageShift > 12 && most.UAR4k()
		}},
	{field: "cache_line_128byte", why: "the host's cache line", exact: true,
		want: func(h host, _, most *prm.CmdHCACap) (uint64, bool) {
			if h.cacheLine >= 128 {
				return 1, most.CacheLine128byte()
			}
			return 0, most.CacheLine128byte()
		}},
	{field: "dct", why: "DC targets", want: always(1), exact: true},
	{field: "release_all_pages", why: "firmware may drop all pages of a function at once", want: always(1), exact: true},
	{field: "roce", why: "RoCE on Ethernet ports", exact: true,
		want: func(_ host, cur, _ *prm.CmdHCACap) (uint64, bool) { return 1, cur.RoceRwSupported() }},
}

// unbounded are fields whose maximum the device does not state: it reads 0 there.
var unbounded = map[string]bool{"log_uar_page_sz": true, "num_of_uars_per_page": true}

// clamp decides what to send for a wish. The maximum bounds quantities and
// switches alike; checksums off is always allowed.
func clamp(w wish, want, before, maximum uint64) (sent uint64, done string) {
	sent = want
	if want > maximum && !unbounded[w.field] {
		if w.exact {
			return before, "not offered"
		}
		sent = maximum
	}
	switch {
	case sent == before:
		return before, "already"
	case sent != want:
		return sent, "clamped"
	}
	return sent, "set"
}

// planGeneral writes the driver's wishes into next, which holds the current
// values, and reports each.
func planGeneral(h host, cur, maximum, next []byte) ([]CapRow, error) {
	c, m := prm.AsCmdHCACap(cur), prm.AsCmdHCACap(maximum)
	var rows []CapRow
	for _, w := range generalWishes {
		want, wanted := w.want(h, c, m)
		if !wanted {
			continue
		}
		row, err := planField(prm.CapGeneral, prm.CmdHCACapStruct, w, want, cur, maximum, next)
		if err != nil {
			return nil, err
		}
		rows = append(rows, row)
	}
	return rows, nil
}

func planField(t prm.CapType, s *prm.Struct, w wish, want uint64, cur, maximum, next []byte) (CapRow, error) {
	before, err := s.Get(cur, w.field)
	if err != nil {
		return CapRow{}, err
	}
	limit, err := s.Get(maximum, w.field)
	if err != nil {
		return CapRow{}, err
	}
	sent, done := clamp(w, want, before, limit)
	if sent != before {
		if err := s.Put(next, w.field, sent); err != nil {
			return CapRow{}, err
		}
	}
	return CapRow{Type: t, Field: w.field, Requested: want, Before: before, Maximum: limit, Sent: sent, Done: done, Why: w.why}, nil
}

// atomicWish: 8-byte atomics answer in host byte order where the device can
// (Linux main.c, handle_hca_cap_atomic).
var atomicWish = wish{field: "atomic_req_8B_endianness_mode", why: "8-byte atomics answer in host byte order", exact: true}

// roceWish: software chooses the UDP source port (Linux main.c, handle_hca_cap_roce).
var roceWish = wish{field: "sw_r_roce_src_udp_port", why: "software chooses the UDP source port", exact: true}

// upSetCaps sends SET_HCA_CAP for the types that can be set, starting from the
// current values. What the caller asks for comes before what the driver wants, and
// all of it is looked at before anything is sent.
func (h *HCA) upSetCaps(ctx context.Context) (string, error) {
	if err := h.checkCapRequests(); err != nil {
		return "", err
	}
	var rows []CapRow
	for _, t := range capTypes {
		c, ok := h.caps[t.t]
		if !ok {
			continue
		}
		next := bytes.Clone(c.Current)
		wished, err := h.planWishes(c, next)
		if err != nil {
			return "", err
		}
		asked, err := h.planRequests(c, next)
		if err != nil {
			return "", err
		}
		if err := h.setCap(ctx, c, next); err != nil {
			return "", err
		}
		rows = append(append(rows, wished...), asked...)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.capRows = rows
	changed := 0
	for _, r := range rows {
		if r.Sent != r.Before {
			changed++
		}
	}
	return fmt.Sprintf("%d fields changed", changed), nil
}

// planWishes writes what the driver wants of a type into next, and reports it but
// for the fields that the caller decides.
func (h *HCA) planWishes(c *Capability, next []byte) ([]CapRow, error) {
	var rows []CapRow
	var err error
	switch c.Type {
	case prm.CapGeneral:
		rows, err = planGeneral(thisHost(&h.o), c.Current, c.Maximum, next)
	case prm.CapAtomic:
		rows, err = planOne(c, atomicWish, prm.AsAtomicCaps(c.Maximum).SupportedAtomicReq8BEndiannessMode1(), next)
	case prm.CapRoce:
		rows, err = planOne(c, roceWish, prm.AsRoceCap(c.Maximum).SwRRoceSrcUdpPort(), next)
	}
	return slices.DeleteFunc(rows, func(r CapRow) bool {
		_, asked := h.request(r.Type, r.Field)
		return asked
	}), err
}

// planOne turns one switch on in next where the device offers it.
func planOne(c *Capability, w wish, offered bool, next []byte) ([]CapRow, error) {
	s := prm.CapStruct(c.Type)
	before, err := s.Get(c.Current, w.field)
	if err != nil {
		return nil, err
	}
	row := CapRow{Type: c.Type, Field: w.field, Requested: 1, Before: before, Sent: before, Why: w.why, Done: "not offered"}
	switch {
	case !offered:
	case before == 1:
		row.Maximum, row.Done = 1, "already"
	default:
		if err := s.Put(next, w.field, 1); err != nil {
			return nil, err
		}
		row.Maximum, row.Sent, row.Done = 1, 1, "set"
	}
	return []CapRow{row}, nil
}

func (h *HCA) setCap(ctx context.Context, c *Capability, next []byte) error {
	if bytes.Equal(next, c.Current) {
		return nil
	}
	return h.conn.SetHCACap(ctx, c.Type, next)
}

// settle fills in what became of the wishes, after INIT_HCA.
func (h *HCA) settle(before map[prm.CapType]*Capability) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i := range h.capRows {
		r := &h.capRows[i]
		c, ok := h.caps[r.Type]
		if !ok {
			c = before[r.Type]
		}
		if v, err := prm.CapStruct(r.Type).Get(c.Current, r.Field); err == nil {
			r.After = v
		}
		if r.Sent != r.Before && r.After != r.Sent {
			r.Done = "ignored"
		}
	}
}

// CapReport tells what the driver wanted of the capabilities and what came of it.
func (h *HCA) CapReport() []CapRow {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]CapRow(nil), h.capRows...)
}
