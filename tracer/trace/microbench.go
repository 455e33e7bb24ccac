package trace

import (
	"errors"
	"time"
)

// Microbench decodes the same ring image again and again in memory; `mlxvfio
// microbench trace` and the tests of the ratio to the C reference use it.
type Microbench struct {
	g      Geometry
	image  []byte
	d      *Decoder
	text   []byte
	times  [8192]uint64
	n      int
	Bytes  int    // decoded by a run
	Events int    // decoded by a run
	Texts  uint64 // messages whose text was made, in all runs
	Tally  Tally  // of the runs of Count
}

// microText is how much text is kept: as the kernel's tracer keeps the last texts,
// so does this, in a buffer that starts anew when it is full.
const microText = 128 << 10

// NewMicrobench repeats the whole blocks of a ring image up to mb megabytes (2^20
// bytes), at least once, in blocks' order in the image.
func NewMicrobench(db *DB, image []byte, mb int) (*Microbench, error) {
	image = image[:len(image)-len(image)%BlockSize]
	if len(image) == 0 {
		return nil, errors.New("trace: the ring has no whole block")
	}
	d, err := NewDecoder(db.Geometry, db.Strings())
	if err != nil {
		return nil, err
	}
	times := max(mb<<20/len(image), 1)
	all := make([]byte, 0, times*len(image))
	for range times {
		all = append(all, image...)
	}
	return &Microbench{g: db.Geometry, image: all, d: d, text: make([]byte, 0, microText), Bytes: len(all), Events: len(all) / EventSize}, nil
}

// Text decodes everything, with the text and the time of each message in memory.
func (m *Microbench) Text() (time.Duration, error) {
	emit := func(msg *Message) {
		if len(m.text) > microText-4096 {
			m.text = m.text[:0]
		}
		m.text = msg.AppendText(m.text)
		m.times[m.n&8191] = msg.Time
		m.n++
	}
	n := m.n
	start := time.Now()
	for i := 0; i < len(m.image); i += BlockSize {
		if err := m.d.Block(uint64(i/BlockSize), m.image[i:i+BlockSize], emit); err != nil {
			return 0, err
		}
	}
	took := time.Since(start)
	m.Texts += uint64(m.n - n)
	return took, nil
}

// Count finds the full time of each event, and counts by id, without messages.
func (m *Microbench) Count() (time.Duration, error) {
	start := time.Now()
	err := m.Tally.Add(m.g, m.image)
	return time.Since(start), err
}
