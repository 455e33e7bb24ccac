package sim

import (
	"bytes"
	"slices"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// capBytes is the size of one capability type.
const capBytes = prm.QueryHCACapOutSize - inlineBytes

func init() {
	handle(prm.OpQueryHCACap, fromISSI, anyOpMod, queryHCACap).refuses(syndOK, syndFunctionID)
	handle(prm.OpSetHCACap, onlyISSI, anyOpMod, setHCACap).refuses(syndOK, syndCapAboveMax)
}

// capSet holds capability types; a type that is missing reads as zeros.
type capSet map[prm.CapType][]byte

var noCaps [capBytes]byte

func (s capSet) get(t prm.CapType) []byte {
	if b, ok := s[t]; ok {
		return b
	}
	return noCaps[:]
}

// capabilities are a function's: the maxima and what is in force. Both begin as
// the profile's and are shared with it until something is set.
type capabilities struct{ max, cur capSet }

func (k *capabilities) reset(c *Chip) {
	k.max = c.prof.caps(c.port).max
	k.cur = make(capSet, len(k.max))
	for t, b := range c.prof.caps(c.port).cur {
		k.cur[t] = b
	}
}

func (k *capabilities) current(t prm.CapType) []byte { return k.cur.get(t) }

// capType splits the op_mod of both commands: type << 1, and bit 0 for current
// values. A type that has no name does not exist.
func capType(opMod uint16) (t prm.CapType, cur, ok bool) {
	t = prm.CapType(opMod >> 1)
	_, ok = prm.CapTypeEnum.Value(uint64(t))
	return t, opMod&1 != 0, ok
}

func queryHCACap(f *function, c *call) synd {
	t, cur, ok := capType(c.opMod)
	if !ok {
		return syndCapType
	}
	if s := self(prm.AsQueryHCACapIn(c.in).FunctionID()); s != syndOK {
		return s
	}
	b := f.caps.max.get(t)
	if cur {
		b = f.caps.cur.get(t)
	}
	copy(c.out[inlineBytes:], b)
	return syndOK
}

// writable lists the fields that SET_HCA_CAP changes; everything else in its
// input is ignored: Linux sends zeros beside the endianness mode of the atomic
// capabilities. The fields are those that Linux main.c (handle_hca_cap and the
// functions beside it) and rdma-core mlx5_vfio.c write.
var writable = map[prm.CapType][]string{
	prm.CapGeneral: {
		"log_max_qp", "pkey_table_size", "cmdif_checksum", "log_uar_page_sz", "uar_4k", "num_of_uars_per_page",
		"cache_line_128byte", "dct", "roce", "mkey_by_name", "release_all_pages", "num_vhca_ports",
		"log_max_current_uc_list", "disable_link_up", "max_num_eqs", "ece_support", "num_total_dynamic_vf_msix",
		"pci_sync_for_fw_update_event", "pci_sync_for_fw_update_with_driver_unload", "pcie_reset_using_hotreset_method",
	},
	prm.CapAtomic:   {"atomic_req_8B_endianness_mode"},
	prm.CapRoce:     {"sw_r_roce_src_udp_port", "qp_ooo_transmit_default"},
	prm.CapGeneral2: {"sw_vhca_id_valid"},
}

// ODP's per-transport support bits, writable as a whole (Linux main.c,
// handle_hca_cap_odp): the transport and the memory page fault scheme.
var writableODP = [][2]int{{0x10, 0x24}, {0x50, 0x64}}

func setHCACap(f *function, c *call) synd {
	t, cur, ok := capType(c.opMod)
	if !ok || cur {
		return syndCapType
	}
	if s := self(prm.AsSetHCACapIn(c.in).FunctionID()); s != syndOK {
		return s
	}
	if f.fw.ledger.len() < f.chip.prof.bootPages {
		return syndBootPages
	}
	want, most := c.in[inlineBytes:], f.caps.max.get(t)
	next := slices.Clone(f.caps.cur.get(t))
	layout := prm.CapStruct(t)
	for _, name := range writable[t] {
		v, err := layout.Get(want, name)
		if err != nil {
			continue // not in this layout: nothing to set
		}
		m := mustGet(layout, most, name)
		switch {
		case t == prm.CapGeneral && name == "roce" && !prm.AsCmdHCACap(most).RoceRwSupported():
			continue // read-only without roce_rw_supported
		case t == prm.CapAtomic:
			m = 0
			if prm.AsAtomicCaps(most).SupportedAtomicReq8BEndiannessMode1() {
				m = 1
			}
		}
		if v > m {
			return syndCapAboveMax
		}
		mustPut(layout, next, name, v)
	}
	if t == prm.CapODP {
		for _, r := range writableODP {
			for i := r[0]; i < r[1]; i++ {
				if want[i]&^most[i] != 0 {
					return syndCapAboveMax
				}
				next[i] = want[i]
			}
		}
	}
	if !bytes.Equal(next, f.caps.cur.get(t)) {
		f.caps.cur[t] = next
	}
	return syndOK
}

// mustGet and mustPut are for field names of this package's own tables, which a
// test checks against the layouts.
func mustGet(s *prm.Struct, b []byte, name string) uint64 {
	v, err := s.Get(b, name)
	if err != nil {
		panic(err)
	}
	return v
}

func mustPut(s *prm.Struct, b []byte, name string, v uint64) {
	if err := s.Put(b, name, v); err != nil {
		panic(err)
	}
}
