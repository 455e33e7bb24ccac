//go:build linux

package main

import (
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
)

// at walks into a decoded JSON object; nil where there is nothing.
func at(o any, path ...string) any {
	for _, name := range path {
		m, ok := o.(map[string]any)
		if !ok {
			return nil
		}
		o = m[name]
	}
	return o
}

// entry is the element of a JSON array whose field has the value.
func entry(list any, field, value string) map[string]any {
	elements, _ := list.([]any)
	for _, e := range elements {
		if m, ok := e.(map[string]any); ok && m[field] == value {
			return m
		}
	}
	return nil
}

// list: the program sees what sysfs shows.
func list(b *bench) {
	if o, ok := b.works("list", "list", "--json"); ok {
		for _, bdf := range b.bdfs {
			f := entry(o["functions"], "bdf", bdf)
			b.check("lists-"+bdf, strings.HasPrefix(fmt.Sprint(at(f, "id", "name")), "ConnectX-") && at(f, "driver") == driverOf(bdf) &&
				fmt.Sprint(at(f, "iommu", "number")) == groupOf(bdf), "driver %q, group %q; %s", driverOf(bdf), groupOf(bdf), brief(jsonText(f)))
		}
	}
	b.refuses("no-function", 3, "0000:ff:1f.7", "info", "0000:ff:1f.7")
	b.refuses("no-device", 2, "not-a-device", "info", "not-a-device")
	b.refuses("no-model", 2, "nosuch", "info", "sim:nosuch")
}

// info: what the device says of itself, through VFIO and, behind any driver's back, through sysfs.
func info(b *bench) {
	bdf := b.bdfs[0]
	if !b.onVFIO(bdf) {
		return
	}
	for name, dev := range map[string]string{"info": bdf, "info-short": strings.TrimPrefix(bdf, "0000:")} {
		o, ok := b.works(name, "info", dev, "--json")
		if !ok {
			continue
		}
		b.sameFirmware(name, bdf, o)
		eqs, _ := at(o, "hca", "eqs").([]any)
		b.check(name+"-hca", at(o, "backend") == b.backend && at(o, "hca", "events") == true && len(eqs) == 3 && at(o, "hca", "port_type") == "IB" &&
			at(o, "segment", "health_syndrome") == "OK" && at(o, "segment", "initializing") == false, "%s", brief(jsonText(o)))
	}
	b.released("released", bdf)
	// vfio-pci lets an idle function sleep: what its BAR reads then is not the device's word
	if state := readFile(sysfs(bdf, "power_state")); b.check("asleep", state == "D3hot", "an idle function of vfio-pci is in %q", state) {
		b.refuses("info-sysfs-asleep", 1, "D3hot", "info", "sysfs:"+bdf)
	}
	b.check("still-asleep", readFile(sysfs(bdf, "power_state")) == "D3hot", "reading through sysfs must not wake it")
}

func (b *bench) sameFirmware(name, bdf string, o map[string]any) bool {
	return b.check(name+"-firmware", o["firmware"] == b.firmware[bdf] && b.firmware[bdf] != "", "%v, the model says %q",
		o["firmware"], b.firmware[bdf])
}

// verbs: the other verbs that bring the function up for a moment.
func verbs(b *bench) {
	bdf := b.bdfs[0]
	if !b.onVFIO(bdf) {
		return
	}
	if o, ok := b.works("caps", "caps", bdf, "--json"); ok {
		b.caps(bdf, o)
	}
	b.released("caps-released", bdf)
	if o, ok := b.works("reg-get", "reg", "get", bdf, "PAOS", "--json"); ok {
		text, _ := o["hex"].(string)
		raw, err := hex.DecodeString(text)
		b.check("reg-get-fields", err == nil && len(raw) == 16 && raw[1] == 1 && at(o, "register") == "PAOS" && at(o, "fields", "admin_status", "name") == "UP",
			"%s", jsonText(o))
	}
	b.released("reg-released", bdf)
	if o, ok := b.works("exec", "exec", bdf, "QUERY_ADAPTER", "--json"); ok {
		text, _ := at(o, "answer", "query_adapter_struct.vsd_contd_psid").(string)
		psid, err := hex.DecodeString(text)
		b.check("exec-answer", err == nil && strings.HasPrefix(string(psid), "MT_") && at(o, "answer", "status", "name") == "OK", "PSID %q, %v", psid, errText(err))
	}
	b.released("exec-released", bdf)
	b.refuses("bad-opcode", 1, "BAD_OP", "exec", bdf, "0xcff")
	b.released("bad-opcode-released", bdf)
}

// caps compares what came through this kernel's VFIO with what the same model answers in process: every byte of every
// type must be the same, at power-on, now and at most.
func (b *bench) caps(bdf string, seen map[string]any) {
	sim, ok := b.works("caps-in-process", "caps", b.models[bdf], "--json")
	if !ok {
		return
	}
	types, _ := seen["types"].([]any)
	inProcess, _ := sim["types"].([]any)
	b.check("caps-types", len(types) >= 2 && len(types) == len(inProcess), "%d types, %d in process", len(types), len(inProcess))
	for _, t := range types {
		name := fmt.Sprint(at(t, "type"))
		other := entry(sim["types"], "type", name)
		var differ []string
		for _, key := range []string{"power_on_hex", "current_hex", "maximum_hex"} {
			text, _ := at(t, key).(string)
			if len(text) < 512 || text != at(other, key) {
				differ = append(differ, fmt.Sprintf("%s (%d digits)", key, len(text)))
			}
		}
		b.check("caps-"+name, len(differ) == 0, "differ: %v", differ)
	}
	rows, _ := seen["set"].([]any)
	wrong := slices.DeleteFunc(slices.Clone(rows), func(r any) bool { return at(r, "done") != "ignored" && at(r, "sent") == at(r, "after") })
	b.check("caps-set", len(rows) > 0 && len(wrong) == 0, "of %d fields set these were not taken: %v", len(rows), wrong)
}
