package trace

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"
)

// FuzzDecoder gives any bytes for ring, sections and geometry to the decoder and to
// the plain one: both must say the same, and nothing may be lost.
func FuzzDecoder(f *testing.F) {
	for seed := range uint64(20) {
		g, s, image := oddRing(rand.New(rand.NewPCG(seed, 6)), 3)
		f.Add(image, s[0].Data, uint32(s[0].Base), g.TrcVer, g.FirstString, g.NumString)
	}
	f.Fuzz(func(t *testing.T, image, texts []byte, base uint32, ver, first, num uint8) {
		g := Geometry{TrcVer: ver & 3, FirstString: first, NumString: num}
		s := []Section{{Base: uint64(base), Data: texts}}
		image = image[:len(image)/BlockSize*BlockSize]
		ref := newReference(g, s)
		var want []string
		for i := 0; i < len(image); i += BlockSize {
			ref.block(uint64(i/BlockSize), image[i:i+BlockSize], func(m *refMessage) {
				want = append(want, describe(m.time, m.block, m.id, m.lost, m.kind, m.text))
			})
		}
		ref.finish()
		d, err := NewDecoder(g, NewStrings(s))
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		err = NewRing(image).Decode(d, 0, func(m *Message) {
			got := describe(m.Time, m.Block, m.EventID, m.Lost, m.Kind, m.Text())
			if n >= len(want) || want[n] != got {
				t.Fatalf("message %d: %s, want %q", n, got, want[min(n, len(want)):min(n+1, len(want))])
			}
			n++
		})
		if c := d.Counters(); err != nil || n != len(want) || c != ref.c || c.Check() != nil {
			t.Fatalf("%v, %d messages of %d, %+v, want %+v", err, n, len(want), c, ref.c)
		}
		var tally Tally
		if err := tally.Add(g, image); err != nil || tally.Events() != ref.c.Events || tally.LostMarks != ref.c.LostMarks || tally.Unreliable != ref.c.UnreliableTimestamps {
			t.Fatalf("%v: tally %+v, want %+v", err, tally, ref.c)
		}
	})
}

// FuzzFormat gives any format and values: the text is that of the plain rule,
// printable, and a JSON string.
func FuzzFormat(f *testing.F) {
	r := rand.New(rand.NewPCG(7, 7))
	for range 50 {
		f.Add([]byte(oddFormat(r)), r.Uint32(), r.Uint32(), uint32(0), uint32('\n'), uint32(1), r.Uint32(), uint32(0xffffffff))
	}
	f.Fuzz(func(t *testing.T, format []byte, a, b, c, d, e, g, h uint32) {
		m := Message{Format: NewFormat(format), Params: [MaxParams]uint32{a, b, c, d, e, g, h}}
		cut, _, _ := strings.Cut(string(format), "\x00")
		want := &refMessage{format: cut, params: map[int]uint32{}}
		for i, v := range m.Params {
			want.params[i+1] = v
		}
		var valid bool
		if want.words, valid = refScan(want.format); !valid {
			want.kind = KindBadFormat
		}
		text := m.AppendText(nil)
		if string(text) != want.print() || m.Format.Bad() == valid || m.Format.Words() != want.words {
			t.Fatalf("%q: %q, want %q", format, text, want.print())
		}
		for _, c := range text {
			if c < 0x20 || c > 0x7e {
				t.Fatalf("%q: byte %#x", text, c)
			}
		}
		var o struct{ Text string }
		if err := json.Unmarshal(m.AppendJSON(nil), &o); err != nil || o.Text != string(text) {
			t.Fatalf("%v: %q", err, o.Text)
		}
	})
}

// FuzzDB gives any JSON and any sections to the reader of databases, and looks a
// pointer up in what comes out.
func FuzzDB(f *testing.F) {
	f.Add([]byte(`{"trc_ver":1,"first_string_trace":2,"num_string_trace":3,"sections":[{"base":"0x10","file":"a"},{"base":"0xfffffff0","file":"b"}]}`), []byte("one\x00two"), uint32(0x12))
	f.Add([]byte(`{"sections":[{}]}`), []byte(nil), uint32(0))
	f.Fuzz(func(t *testing.T, text, data []byte, pointer uint32) {
		db, err := ParseDB("fuzz", text, func(string) ([]byte, error) { return data, nil })
		if err != nil {
			return
		}
		if err := db.Geometry.Check(); err != nil {
			t.Fatal(err)
		}
		s, ok := db.Strings().At(pointer)
		want, known := newReference(db.Geometry, db.Sections).find(pointer)
		if ok != known || string(s) != want {
			t.Fatalf("%q %t, want %q %t", s, ok, want, known)
		}
		if bytes.IndexByte(s, 0) >= 0 {
			t.Fatalf("%q holds a NUL", s)
		}
	})
}
