package trace

// Kind says what a message is made of.
type Kind uint8

const (
	KindString    Kind = iota // a format with all its parameters
	KindOrphan                // a parameter whose message is not pending; the text is the event in hex
	KindUnknown               // a header whose pointer is in no section; the text is the event in hex
	KindBadFormat             // the format is not one that can be printed safely; it is shown as it is
)

var kindNames = [...]string{"string", "orphan", "unknown", "bad_format"}

// String is string, orphan, unknown or bad_format.
func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return "invalid"
}

// Message is one message, complete. It holds no text: AppendText makes it. A copy
// of a Message stays valid after the call that it was given to; the pointer does
// not.
type Message struct {
	Time    uint64  // 53 bits, ticks of the device
	Block   uint64  // the number given with the block of the header
	Raw     Event   // the header, or the event that stands alone
	Format  *Format // nil for an orphan and for an unknown string
	Pointer uint32  // address of the format string; 0 for an orphan, which has none
	Params  [MaxParams]uint32
	NParams uint8
	Kind    Kind
	EventID uint8
	Lost    bool // some event of the message says that events before it were lost
}

// AppendText appends the text: printable ASCII only, everything else escaped; of
// any length. It allocates only when dst has no room.
func (m *Message) AppendText(dst []byte) []byte {
	return m.Format.text(dst, &m.Params, m.Raw)
}

// Text is AppendText as a string.
func (m *Message) Text() string { return string(m.AppendText(nil)) }
