package vfiouser

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// capabilities are the members of the VERSION message's JSON that this package
// knows. A pointer distinguishes "not said", which has the default of the
// specification, from a value.
type capabilities struct {
	MaxMsgFDs     *int    `json:"max_msg_fds,omitempty"`
	MaxData       *int    `json:"max_data_xfer_size,omitempty"`
	MaxDMAMaps    *int    `json:"max_dma_maps,omitempty"`
	PageSizes     *uint64 `json:"pgsizes,omitempty"`
	WriteMultiple *bool   `json:"write_multiple,omitempty"`
}

// version is the body of VERSION and of its reply.
type version struct {
	major, minor uint16
	caps         capabilities
}

type versionJSON struct {
	Capabilities capabilities `json:"capabilities"`
}

// appendTo appends the body: versions, JSON, and the NUL that ends the JSON and
// is part of the body.
func (v version) appendTo(b []byte) []byte {
	b = le.AppendUint16(b, v.major)
	b = le.AppendUint16(b, v.minor)
	j, err := json.Marshal(versionJSON{v.caps})
	if err != nil { // only numbers and booleans: cannot happen
		panic(err)
	}
	return append(append(b, j...), 0)
}

func parseVersion(b []byte) (version, error) {
	if len(b) < versionSize {
		return version{}, errShort
	}
	v := version{major: le.Uint16(b[0:]), minor: le.Uint16(b[2:])}
	text := b[versionSize:]
	if len(text) == 0 { // the capabilities are optional
		return v, nil
	}
	end := bytes.IndexByte(text, 0)
	if end < 0 {
		return version{}, fmt.Errorf("capabilities do not end in NUL: %w", errShort)
	}
	var j versionJSON
	if err := json.Unmarshal(text[:end], &j); err != nil {
		return version{}, fmt.Errorf("capabilities: %w", err)
	}
	v.caps = j.Capabilities
	return v, nil
}

// answer is the server's reply to the version a client proposed: version 0.0
// and of our capabilities those the client named, since the list must be a
// subset of the proposal and QEMU takes no reply longer than its request.
func (v version) answer(maxMaps int) version {
	var a version
	if v.caps.MaxMsgFDs != nil {
		a.caps.MaxMsgFDs = new(maxFDs) // what we take; what the client takes does not matter, it gets none
	}
	if v.caps.MaxData != nil {
		a.caps.MaxData = new(maxData)
	}
	if v.caps.MaxDMAMaps != nil {
		a.caps.MaxDMAMaps = new(min(maxMaps, defaultMaxMaps))
	}
	if v.caps.WriteMultiple != nil {
		a.caps.WriteMultiple = new(true)
	}
	return a
}

// proposal is what our client offers.
func proposal() version {
	return version{caps: capabilities{
		MaxMsgFDs: new(maxFDs), MaxData: new(maxData), MaxDMAMaps: new(defaultMaxMaps),
		PageSizes: new(uint64(pageSize)), WriteMultiple: new(true),
	}}
}
