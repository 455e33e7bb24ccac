package trace

// formatCache has the compiled formats by pointer. It is open addressing with
// linear search, at most half full. The number of formats is bounded, because a
// damaged trace may point at every byte of the sections: a full cache starts anew.
type formatCache struct {
	strings *Strings
	entries []cacheEntry
	shift   uint8
	n       int
	bytes   int // held by the formats, about
}

type cacheEntry struct {
	pointer uint32
	words   uint8
	kind    Kind
	f       *Format // nil: empty
}

const (
	cacheLogMin   = 10
	cacheLogMax   = 17
	cacheMaxBytes = 64 << 20
)

func (c *formatCache) reset(s *Strings) {
	*c = formatCache{strings: s}
	c.resize(cacheLogMin)
}

func (c *formatCache) resize(log uint8) {
	old := c.entries
	c.entries, c.shift, c.n = make([]cacheEntry, 1<<log), 32-log, 0
	for _, e := range old {
		if e.f != nil {
			*c.place(e.pointer) = e
			c.n++
		}
	}
}

// place finds the entry of a pointer, or the empty one where it belongs.
func (c *formatCache) place(pointer uint32) *cacheEntry {
	mask := uint32(len(c.entries) - 1)
	for i := pointer * 0x9e3779b1 >> c.shift; ; i++ {
		if e := &c.entries[i&mask]; e.f == nil || e.pointer == pointer {
			return e
		}
	}
}

// compile makes the entry that place did not find; nil if the string is unknown. An
// entry is valid until the next call.
func (c *formatCache) compile(pointer uint32) *cacheEntry {
	f := c.strings.Format(pointer)
	if f == nil {
		return nil
	}
	if 2*(c.n+1) > len(c.entries) {
		if log := 32 - c.shift; log < cacheLogMax {
			c.resize(log + 1)
		} else {
			c.reset(c.strings)
		}
	}
	if c.bytes > cacheMaxBytes {
		c.reset(c.strings)
	}
	e := c.place(pointer)
	*e = cacheEntry{pointer: pointer, words: f.words, f: f}
	if f.bad {
		e.kind = KindBadFormat
	}
	c.n++
	c.bytes += f.room + 96*len(f.pieces) + 192
	return e
}
