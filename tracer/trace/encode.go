package trace

import "encoding/json"

// AppendJSON appends the message as one JSON object, without a newline:
//
//	{"timestamp":N,"event_id":N,"lost":bool,"block":N,"text":"…"}
//
// with "kind" before the text if it is not an ordinary message. Numbers below 2^53
// are exact in every JSON reader. It allocates only when dst has no room.
func (m *Message) AppendJSON(dst []byte) []byte {
	dst = appendUint(append(dst, `{"timestamp":`...), m.Time)
	dst = appendUint(append(dst, `,"event_id":`...), uint64(m.EventID))
	if m.Lost {
		dst = append(dst, `,"lost":true,"block":`...)
	} else {
		dst = append(dst, `,"lost":false,"block":`...)
	}
	dst = appendUint(dst, m.Block)
	if m.Kind != KindString {
		dst = append(dst, `,"kind":"`...)
		dst = append(append(dst, m.Kind.String()...), '"')
	}
	dst = append(dst, `,"text":"`...)
	n := len(dst)
	dst = m.AppendText(dst)
	if m.Format != nil && m.Format.quotes {
		dst = quoteTail(dst, n)
	}
	return append(dst, `"}`...)
}

// quoteTail puts a backslash before each quote and backslash that dst holds from n
// on. The text has no other bytes that JSON escapes.
func quoteTail(dst []byte, n int) []byte {
	extra := 0
	for _, c := range dst[n:] {
		if c == '"' || c == '\\' {
			extra++
		}
	}
	if extra == 0 {
		return dst
	}
	from := len(dst)
	dst = grow(dst, extra)[:from+extra]
	for to := len(dst); to > from; {
		from--
		to--
		c := dst[from]
		dst[to] = c
		if c == '"' || c == '\\' {
			to--
			dst[to] = '\\'
		}
	}
	return dst
}

// AppendLine appends the message as the kernel's mlx5_fw tracepoint prints it,
// without a newline:
//
//	<device> [0x<time>] <lost> [0x<event id>] <text>
//
// An empty device leaves out the name and its space.
func (m *Message) AppendLine(dst []byte, device string) []byte {
	if device != "" {
		dst = append(append(dst, device...), ' ')
	}
	dst = appendHex(append(dst, "[0x"...), m.Time)
	if m.Lost {
		dst = append(dst, "] 1 [0x"...)
	} else {
		dst = append(dst, "] 0 [0x"...)
	}
	dst = appendHex(dst, uint64(m.EventID))
	return m.AppendText(append(dst, "] "...))
}

// AppendSummary appends the last object of a stream of messages, without a
// newline: {"summary":{…}} with every counter.
func (c *Counters) AppendSummary(dst []byte) []byte {
	b, err := json.Marshal(struct {
		Summary *Counters `json:"summary"`
	}{c})
	if err != nil { // numbers only
		return dst
	}
	return append(dst, b...)
}
