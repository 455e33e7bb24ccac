package queues

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// Segment is one segment of a WQE, taken apart.
type Segment struct {
	Name   string      // "ctrl", "raddr", "data", …
	Offset int         // bytes from the start of the WQE
	Fields prm.Decoded // empty for segments without a layout
	Bytes  []byte      // operands of masked atomics, inline data, or what has no layout
}

// String is name{field=value …} without fields that are zero.
func (s Segment) String() string {
	var b strings.Builder
	b.WriteString(s.Name)
	b.WriteByte('{')
	sep := ""
	for _, v := range s.Fields.NonZero() {
		fmt.Fprintf(&b, "%s%s=%s", sep, v.Path, v.String())
		sep = " "
	}
	if s.Bytes != nil {
		b.WriteString(sep + hex.EncodeToString(s.Bytes))
	}
	b.WriteByte('}')
	return b.String()
}

// dissector cuts a WQE into segments.
type dissector struct {
	b   []byte
	at  int
	out []Segment
}

// take cuts off a segment of a known layout; a WQE that ends before shows as far
// as it goes.
func (d *dissector) take(name string, s *prm.Struct) {
	n := min(s.Size, len(d.b)-d.at)
	if n <= 0 {
		return
	}
	d.out = append(d.out, Segment{Name: name, Offset: d.at, Fields: prm.Decode(d.b[d.at:d.at+n], s)})
	d.at += n
}

// bytes cuts off a segment of n bytes without a layout.
func (d *dissector) bytes(name string, n int) {
	if n = min(n, len(d.b)-d.at); n > 0 {
		d.out = append(d.out, Segment{Name: name, Offset: d.at, Bytes: append([]byte(nil), d.b[d.at:d.at+n]...)})
		d.at += n
	}
}

// data cuts the rest into data pointers and inline data.
func (d *dissector) data() {
	for d.at+wqeUnit <= len(d.b) {
		if d.b[d.at]&0x80 == 0 {
			d.take("data", prm.WQEDataSegStruct)
			continue
		}
		n := int(binary.BigEndian.Uint32(d.b[d.at:]) & maxLen)
		n = min(n, len(d.b)-d.at-4)
		s := Segment{Name: "inline", Offset: d.at, Fields: prm.Decode(d.b[d.at:d.at+4], prm.WQEInlineSegStruct)}
		s.Bytes = append([]byte{}, d.b[d.at+4:d.at+4+n]...)
		d.out = append(d.out, s)
		d.at += inlineUnits(max(n, 1)) * wqeUnit
	}
}

// DecodeWQE takes a send WQE apart, as far as it goes and as its control segment
// says; bytes behind ctrl.ds are not part of it. It never fails: what cannot be
// told apart is shown as bytes. A datagram segment is recognised by its extended
// bit and the reserved word that a data segment has its key in.
func DecodeWQE(wqe []byte) []Segment {
	d := dissector{b: wqe}
	if len(wqe) < prm.WQECtrlSegSize {
		d.bytes("bytes", len(wqe))
		return d.out
	}
	c := prm.AsWQECtrlSeg(wqe)
	if n := int(c.Ds()) * wqeUnit; n >= prm.WQECtrlSegSize && n < len(d.b) {
		d.b = wqe[:n]
	}
	d.take("ctrl", prm.WQECtrlSegStruct)
	switch c.Opcode() {
	case prm.WQENop:
	case prm.WQESend, prm.WQESendImm, prm.WQESendInval:
		if rest := d.b[d.at:]; len(rest) >= prm.WQEDatagramSegSize && rest[8]&0x80 != 0 && binary.BigEndian.Uint32(rest[4:]) == 0 {
			d.take("datagram", prm.WQEDatagramSegStruct)
		}
		d.data()
	case prm.WQERdmaWrite, prm.WQERdmaWriteImm, prm.WQERdmaRead:
		d.take("raddr", prm.WQERaddrSegStruct)
		d.data()
	case prm.WQEAtomicCS, prm.WQEAtomicFA:
		d.take("raddr", prm.WQERaddrSegStruct)
		d.take("atomic", prm.WQEAtomicSegStruct)
		d.data()
	case prm.WQEAtomicMaskedCS, prm.WQEAtomicMaskedFA:
		d.take("raddr", prm.WQERaddrSegStruct)
		d.masked(c.Opcode(), 4<<(c.Opmod()&7))
		d.data()
	case prm.WQEWait, prm.WQESendEn, prm.WQERecvEn:
		d.take("wait", prm.WQEWaitSegStruct)
	}
	d.bytes("bytes", len(d.b))
	return d.out
}

// masked cuts off the operands of a masked atomic of size bytes.
func (d *dissector) masked(op prm.WQEOpcode, size int) {
	names := []string{"add", "boundary"}
	if op == prm.WQEAtomicMaskedCS {
		names = []string{"swap", "compare", "swap_mask", "compare_mask"}
	}
	end := d.at + max(len(names)*size, wqeUnit)
	for _, n := range names {
		d.bytes(n, size)
	}
	d.at = min(max(d.at, end), len(d.b)) // 4-byte fetch-and-add is padded
}

// DecodeRecvWQE takes a receive WQE apart, up to the terminator.
func DecodeRecvWQE(wqe []byte) []Segment {
	d := dissector{b: wqe}
	for d.at+wqeUnit <= len(wqe) {
		s := prm.AsWQEDataSeg(wqe[d.at:])
		if s.ByteCount() == 0 && s.Lkey() == terminator {
			break
		}
		d.take("data", prm.WQEDataSegStruct)
	}
	return d.out
}
