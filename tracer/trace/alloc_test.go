package trace

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestNothingIsAllocatedForAnEvent decodes rings again and again, with text, JSON
// and lines: once the formats are compiled, the slots and the buffer are there.
func TestNothingIsAllocatedForAnEvent(t *testing.T) {
	db, busy := realisticRing(5, 256)
	g, sections, odd := oddRing(rand.New(rand.NewPCG(12, 5)), 256)
	for _, c := range []struct {
		name  string
		db    *DB
		image []byte
	}{{"realistic", db, busy}, {"odd", &DB{Geometry: g, Sections: sections}, odd}} {
		d, err := NewDecoder(c.db.Geometry, c.db.Strings())
		require.NoError(t, err)
		var buf []byte
		n := 0
		emit := func(m *Message) {
			n++
			buf = m.AppendText(buf[:0])
			buf = m.AppendJSON(buf)
			buf = m.AppendLine(buf, "0000:3b:00.0")
		}
		ring := NewRing(c.image)
		run := func() {
			for i := range ring.Blocks() {
				if d.Block(uint64(i), ring.Block(i), emit) != nil {
					t.Fatal("block")
				}
			}
			d.Gap()
		}
		run()
		require.Greater(t, n, 1000)
		require.Zero(t, testing.AllocsPerRun(5, run), c.name)
		var tally Tally
		require.Zero(t, testing.AllocsPerRun(5, func() { _ = tally.Add(c.db.Geometry, c.image) }), c.name)
	}
}

// TestTheCacheOfFormatsIsBounded: a trace that points at every byte of a large
// section costs a bounded memory, and the texts stay right.
func TestTheCacheOfFormatsIsBounded(t *testing.T) {
	data := make([]byte, 1<<18)
	for i := range data {
		data[i] = "ab%u\x00"[i%5]
	}
	d, err := NewDecoder(goldGeometry, NewStrings([]Section{{Base: 0x1000, Data: data}}))
	require.NoError(t, err)
	want := []string{"ab5", "b5", "5", "u", ""}
	for i := 0; i < len(data); i += 7 {
		p := uint32(0x1000 + i)
		require.NoError(t, d.Block(0, blockOf(at, str(1, 0, p), str(1, 1, 5)), func(m *Message) {
			if m.Kind == KindString {
				require.Equal(t, want[i%5], m.Text())
			}
		}))
	}
	for i := range data { // every pointer
		d.cache.compile(uint32(0x1000 + i))
	}
	require.Len(t, d.cache.entries, 1<<cacheLogMax)
	require.LessOrEqual(t, 2*d.cache.n, 1<<cacheLogMax)
	// Long formats: the bytes are bounded too.
	long := make([]byte, 1<<20)
	for i := range long {
		long[i] = 'x'
	}
	d.cache.reset(NewStrings([]Section{{Base: 0, Data: long}}))
	for p := range uint32(200) {
		require.NotNil(t, d.cache.compile(p))
		require.LessOrEqual(t, d.cache.bytes, cacheMaxBytes+2<<20)
	}
	require.Less(t, d.cache.n, 100)
}
