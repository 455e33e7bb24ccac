package trace

import (
	"encoding/binary"
	"flag"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// realFormats are messages as firmware writes them, with the number of times each
// is drawn; most have one to three words.
var realFormats = []struct {
	weight int
	format string
}{
	{20, "qp 0x%x: state %d -> %d\n"},
	{20, "sx: qpn=0x%06x wqe_cnt=%d sq_ci=0x%x\n"},
	{16, "rx: qpn=0x%06x psn=0x%x len=%u\n"},
	{14, "cmd opcode 0x%04x slot %d start\n"},
	{14, "cmd opcode 0x%04x slot %d status 0x%x synd 0x%08x\n"},
	{12, "page fault on mkey 0x%08x addr 0x%08x%08x\n"},
	{10, "eq %d armed, ci=%u\n"},
	{10, "cq 0x%x overrun check pi=%u ci=%u\n"},
	{8, "port %u link event %u\n"},
	{8, "timer tick\n"},
	{8, "icm alloc: func %d, pages %d, total %u\n"},
	{6, "steering: ft 0x%x fg 0x%x fte 0x%x act 0x%x\n"},
	{6, "mac counters %llu rx, %llu tx\n"},
	{5, "temperature %d C, fan %u%%\n"},
	{5, "health poll ok\n"},
	{4, "iseg: write 0x%x = 0x%08x\n"},
	{4, "ud: ah cache miss dlid=%u sl=%d pkey=0x%04x qkey=0x%x sqpn=0x%x\n"},
	{3, "assert check %s\n"},
	{3, "retry: qpn=0x%06x rnr=%d timeout=%d psn=0x%x last=0x%x ssn=0x%x msn=0x%x\n"},
	{2, "module %c%c%c%c revision %5d\n"},
	{2, "entering low power state, reason 0x%x\n"},
}

// realisticRing writes a ring as a busy device would: several processors (event
// ids) whose messages interleave, one in ten with parts of another between its own,
// now and then an event of another kind, and a closing timestamp every 31 events.
func realisticRing(seed uint64, blocks int) (*DB, []byte) {
	r := rand.New(rand.NewPCG(seed, 1))
	db := &DB{Geometry: Geometry{TrcVer: 1, FirstString: 1, NumString: 12}}
	type entry struct {
		pointer uint32
		words   int
	}
	var table []entry
	for i := range 2 {
		s := Section{Base: 0x100000 + uint64(i)*0x80000}
		for range 8 { // as an image has more strings than these
			for j, f := range realFormats {
				if j%2 != i {
					continue
				}
				words, _ := refScan(f.format)
				for range f.weight {
					table = append(table, entry{uint32(s.Base) + uint32(len(s.Data)), words})
				}
				s.Data = append(append(s.Data, f.format...), 0)
			}
		}
		for len(s.Data)%64 != 0 {
			s.Data = append(s.Data, 0)
		}
		db.Sections = append(db.Sections, s)
	}
	t, tmsn := uint64(0x12345678), [16]uint16{}
	var queues [12][]Event
	image := make([]byte, 0, blocks*BlockSize)
	message := func(q int) {
		e, id := table[r.IntN(len(table))], uint8(1+q)
		tmsn[q]++
		queues[q] = append(queues[q], StringEvent(false, uint8(t), id, tmsn[q], 0, e.pointer))
		for k := range e.words {
			v := r.Uint32()
			if r.IntN(2) == 0 {
				v >>= r.IntN(32)
			}
			queues[q] = append(queues[q], StringEvent(false, uint8(t), id, tmsn[q], uint8(k+1), v))
		}
	}
	next := func() Event {
		t += uint64(r.IntN(4))
		if r.IntN(200) == 0 {
			return Event(0x80+r.Uint64N(16))<<48 | Event(t&127)<<56 | Event(r.Uint32())
		}
		for q := range queues { // what has been begun goes on
			if len(queues[q]) > 0 && (r.IntN(10) > 0 || q == len(queues)-1) {
				e := queues[q][0]
				queues[q] = queues[q][1:]
				return e
			}
		}
		q := r.IntN(len(queues))
		if len(queues[q]) == 0 {
			message(q)
		}
		e := queues[q][0]
		queues[q] = queues[q][1:]
		return e
	}
	for range blocks {
		for range EventsPerBlock - 1 {
			image = binary.BigEndian.AppendUint64(image, uint64(next()))
		}
		t += uint64(1 + r.IntN(3))
		image = binary.BigEndian.AppendUint64(image, uint64(TimestampEvent(t, 0)))
	}
	return db, image
}

var ringDir = flag.String("ring-dir", "", "directory for TestWriteRealisticRing to write ring.bin and stringdb.json to")

// TestWriteRealisticRing is a tool: go test ./tracer/trace -run WriteRealistic
// -ring-dir DIR leaves a ring for `mlxvfio microbench trace` and for the C reference.
// Without a directory it only looks at the ring.
func TestWriteRealisticRing(t *testing.T) {
	db, image := realisticRing(1, 4096)
	dir := *ringDir
	if dir == "" {
		dir = t.TempDir()
	}
	writeRing(t, dir, db.Geometry, db.Sections, image)
	d, err := NewDecoder(db.Geometry, db.Strings())
	require.NoError(t, err)
	kinds := map[Kind]int{}
	require.NoError(t, NewRing(image).Decode(d, -1, func(m *Message) { kinds[m.Kind]++ }))
	c := d.Counters()
	require.NoError(t, c.Check())
	require.Zero(t, c.OrphanParams+c.UnknownStrings+c.UnreliableEventsDropped+c.SkippedBlocks)
	require.LessOrEqual(t, c.IncompleteMessages, uint64(12), "only what the end of the ring cuts off")
	require.Greater(t, kinds[KindString], 30000)
	require.Greater(t, kinds[KindBadFormat], 100)
	t.Logf("%d events a message; %+v", c.StringEvents*100/c.Messages, c)
}
