package trace

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The examples here are worked out by hand from docs/sources.md; none of the
// expected values comes from the code.

// goldGeometry: string ids 1 to 4, urts bit 0.
var goldGeometry = Geometry{TrcVer: 1, FirstString: 1, NumString: 4}

// goldStrings lie at 0x1000, 0x1010, …: sixteen bytes each.
var goldStrings = []string{"plain", "one %u", "two %x %d", "wide %llx", "bad %s", "ends\r\n", "%u%u%u%u%u%u%u", "pct%%"}

const (
	plain, one, two, wide, bad, ends, seven, pct = 0x1000, 0x1010, 0x1020, 0x1030, 0x1040, 0x1050, 0x1060, 0x1070
)

func goldSections() []Section {
	var data []byte
	for _, s := range goldStrings {
		data = append(append(data, s...), make([]byte, 16-len(s))...)
	}
	return []Section{{Base: 0x1000, Data: data}}
}

// str is a string event of id 1 with stamp 5.
func str(tmsn uint16, tdsn uint8, word uint32) Event {
	return StringEvent(false, 5, 1, tmsn, tdsn, word)
}

// blockOf puts events at the front of a block, zeros behind them and last at its end.
func blockOf(last Event, events ...Event) []byte {
	b := make([]byte, BlockSize)
	for i, e := range append(events, make([]Event, EventsPerBlock-1-len(events))...) {
		binary.BigEndian.PutUint64(b[i*8:], uint64(e))
	}
	binary.BigEndian.PutUint64(b[BlockSize-8:], uint64(last))
	return b
}

// at closes blocks in epoch 2 with low bits 0x10.
var at = TimestampEvent(0x110, 0)

// decode gives "time text" of each message; what else is asked comes from the
// messages and counters.
func decode(t *testing.T, g Geometry, s []Section, blocks ...[]byte) ([]string, []Message, Counters) {
	t.Helper()
	d, err := NewDecoder(g, NewStrings(s))
	require.NoError(t, err)
	var lines []string
	var messages []Message
	for i, b := range blocks {
		require.NoError(t, d.Block(uint64(i), b, func(m *Message) {
			lines = append(lines, fmt.Sprintf("%#x %s", m.Time, m.Text()))
			messages = append(messages, *m)
		}))
	}
	d.Flush()
	c := d.Counters()
	require.NoError(t, c.Check())
	return lines, messages, c
}

func gold(t *testing.T, blocks ...[]byte) ([]string, []Message, Counters) {
	t.Helper()
	return decode(t, goldGeometry, goldSections(), blocks...)
}

func TestD1ABlockWithoutAClosingTimestampIsSkippedAndPendingSurvives(t *testing.T) {
	lines, _, c := gold(t,
		blockOf(at, str(7, 0, one)),
		blockOf(str(8, 0, plain), str(7, 1, 99), str(9, 0, plain)), // not closed: as if it were not there
		blockOf(TimestampEvent(0x190, 0), str(7, 1, 42)))
	require.Equal(t, []string{"0x105 one 42"}, lines)
	require.EqualValues(t, 1, c.SkippedBlocks)
	require.EqualValues(t, 2, c.Blocks)
	require.EqualValues(t, 64, c.Events)
	require.EqualValues(t, 2, c.StringEvents)
	require.Zero(t, c.OrphanParams)
}

// ringOf is an image of one message a block, which tells its place, closed at the
// times.
func ringOf(times ...uint64) []byte {
	var image []byte
	for i, x := range times {
		image = append(image, blockOf(TimestampEvent(x, 0), str(1, 0, one), str(1, 1, uint32(i)))...)
	}
	return image
}

func ringOrder(t *testing.T, image []byte, start int) string {
	t.Helper()
	d, err := NewDecoder(goldGeometry, NewStrings(goldSections()))
	require.NoError(t, err)
	var order []string
	require.NoError(t, NewRing(image).Decode(d, start, func(m *Message) {
		require.EqualValues(t, m.Params[0], m.Block)
		order = append(order, fmt.Sprint(m.Params[0]))
	}))
	return strings.Join(order, " ")
}

func TestD2ARingIsDecodedFromItsOldestBlock(t *testing.T) {
	for _, c := range []struct {
		name  string
		image []byte
		start int
		want  string
	}{
		{"wrapped", ringOf(500, 600, 300, 400), -1, "2 3 0 1"},
		{"not wrapped", ringOf(300, 400, 500), -1, "0 1 2"},
		{"equal times do not begin a ring", ringOf(500, 500, 300), -1, "2 0 1"},
		{"across the end of 53 bits", ringOf(1<<53-10, 5, 20), -1, "0 1 2"},
		{"wrapped across the end of 53 bits", ringOf(5, 20, 1<<53-10), -1, "2 0 1"},
		{"exactly half the circle is older", ringOf(0, 1<<52), -1, "1 0"},
		{"just under half the circle is newer", ringOf(0, 1<<52-1), -1, "0 1"},
		{"the caller's start wins", ringOf(500, 600, 300, 400), 1, "1 2 3 0"},
	} {
		require.Equal(t, c.want, ringOrder(t, c.image, c.start), c.name)
	}
}

func TestD2OpenBlocksDoNotOrderAndUnreliableOnesDo(t *testing.T) {
	open := ringOf(900)
	open[BlockSize-7] = 0
	image := append(append(ringOf(500), open...), ringOf(300, 400)...)
	require.Equal(t, 2, NewRing(image).Oldest())
	unreliable := append(ringOf(500), blockOf(TimestampEvent(300, 1))...)
	require.Equal(t, 1, NewRing(append(unreliable, ringOf(400)...)).Oldest())
}

func TestD2AStartOutsideTheRingIsRefused(t *testing.T) {
	d, err := NewDecoder(goldGeometry, nil)
	require.NoError(t, err)
	var e *StartError
	require.ErrorAs(t, NewRing(ringOf(1, 2)).Decode(d, 2, nil), &e)
	require.ErrorContains(t, e, "start block 2: the image has 2 blocks, 0 to 1")
	require.ErrorAs(t, NewRing(ringOf(1, 2)).Decode(d, -2, nil), &e)
	require.Zero(t, d.Counters())
}

func TestAnImageThatEndsInsideABlockDecodesAsFarAsItGoes(t *testing.T) {
	d, err := NewDecoder(goldGeometry, NewStrings(goldSections()))
	require.NoError(t, err)
	var e *TruncatedError
	require.ErrorAs(t, NewRing(append(ringOf(1, 2), 1, 2, 3)).Decode(d, -1, nil), &e)
	require.Equal(t, TruncatedError{At: 512, Have: 3}, *e)
	require.EqualValues(t, 2, d.Counters().Messages)
}

func TestD3StringIDsEndBeforeFirstPlusNum(t *testing.T) {
	_, ms, c := gold(t, blockOf(at,
		StringEvent(false, 1, 1, 0, 0, plain), StringEvent(false, 1, 4, 0, 0, plain), // first and last
		StringEvent(false, 1, 5, 0, 0, plain))) // first + num: Linux takes it
	require.Len(t, ms, 2)
	require.EqualValues(t, 4, ms[1].EventID)
	require.EqualValues(t, 29, c.RawEvents)
}

func TestD3FFIsATimestampWhateverTheStringIDs(t *testing.T) {
	g := Geometry{TrcVer: 1, FirstString: 0xfe, NumString: 9}
	require.Len(t, g.Warnings(), 1)
	_, ms, c := decode(t, g, goldSections(), blockOf(at,
		StringEvent(false, 1, 0xfe, 0, 0, plain), TimestampEvent(0x108, 0), StringEvent(false, 1, 3, 0, 0, plain)))
	require.Len(t, ms, 1, "id 3 is not first + 5 modulo 256")
	require.EqualValues(t, 2, c.Timestamps)
	require.EqualValues(t, 29, c.RawEvents)
	require.True(t, g.IsString(0xfe))
	for _, id := range []uint8{0xff, 0, 3, 0xfd} {
		require.False(t, g.IsString(id), "%#x", id)
	}
}

func TestD4OtherIDsAreRawAndEmptySlotsToo(t *testing.T) {
	lines, _, c := gold(t, blockOf(at, Event(0x80)<<48|1<<63, Event(9)<<48))
	require.Empty(t, lines)
	require.EqualValues(t, 31, c.RawEvents)
	require.EqualValues(t, 1, c.LostMarks)
	g := Geometry{TrcVer: 1, FirstString: 0, NumString: 1}
	_, ms, c := decode(t, g, goldSections(), blockOf(at))
	require.Len(t, ms, 31, "id 0 is a string id here")
	require.Equal(t, KindUnknown, ms[0].Kind)
	require.Zero(t, c.RawEvents)
}

func TestD5AStampBelowTheTimestampsIsOfItsEpochOthersOfTheOneBefore(t *testing.T) {
	for _, c := range []struct {
		t     uint64
		stamp uint8
		want  uint64
	}{
		{0x110, 0x0f, 0x10f},         // smaller: the same epoch
		{0x110, 0x10, 0x090},         // equal: the one before
		{0x110, 0x11, 0x091},         // larger: the one before; Linux says 0x111
		{0x17f, 0x7f, 0x0ff},         // both ends
		{0x17f, 0x7e, 0x17e},         //
		{0x100, 0x00, 0x080},         // the edge of an epoch: nothing is smaller
		{0x100, 0x7f, 0x0ff},         //
		{0x010, 0x20, 1<<53 - 0x60},  // the epoch before 0 is the last of 53 bits
		{0, 0, 1<<53 - 0x80},         //
		{1<<53 - 1, 0, 1<<53 - 0x80}, //
	} {
		_, ms, _ := gold(t, blockOf(TimestampEvent(c.t, 0), StringEvent(false, c.stamp, 1, 0, 0, plain)))
		require.Len(t, ms, 1)
		require.Equal(t, c.want, ms[0].Time, "T %#x stamp %#x", c.t, c.stamp)
		require.Equal(t, c.want, Place(c.t, c.stamp))
	}
}

func TestD5TheTimestampIsTheFirstAfterTheHeaderAlsoInTheMiddleOfABlock(t *testing.T) {
	lines, _, _ := gold(t, blockOf(TimestampEvent(0x990, 0),
		str(1, 0, one), str(2, 0, plain), TimestampEvent(0x210, 0), // both headers lie here
		str(1, 1, 3), str(3, 0, plain)))
	require.Equal(t, []string{"0x205 plain", "0x205 one 3", "0x985 plain"}, lines)
}

func TestD5StampsOfParametersAreIgnored(t *testing.T) {
	lines, _, _ := gold(t, blockOf(at, str(1, 0, one), StringEvent(false, 0x7f, 1, 1, 1, 8)))
	require.Equal(t, []string{"0x105 one 8"}, lines)
}

func TestD6WhichBitsOfUrtsMakeATimestampUnreliable(t *testing.T) {
	for ver, reliable := range map[uint8][]uint8{0: {0, 1, 2, 3}, 1: {0, 2, 4, 6}, 2: {0}, 3: {0}} {
		g := Geometry{TrcVer: ver, FirstString: 1, NumString: 1}
		require.Equal(t, ver > 1, len(g.Warnings()) > 0)
		for urts := range uint8(8) {
			_, ms, c := decode(t, g, goldSections(), blockOf(TimestampEvent(0x110, urts), str(1, 0, plain)))
			want := strings.ContainsRune(string(reliable), rune(urts))
			require.Equal(t, want, len(ms) == 1, "trc_ver %d urts %d", ver, urts)
			require.Equal(t, want, c.UnreliableTimestamps == 0)
			require.Equal(t, want, !g.Unreliable(TimestampEvent(0x110, urts)))
		}
	}
	_, err := NewDecoder(Geometry{TrcVer: 4}, nil)
	require.ErrorContains(t, err, "trc_ver 4")
}

func TestD7AMessageWithAnUnreliableHeaderIsDroppedWheneverItCompletes(t *testing.T) {
	lines, _, c := gold(t,
		blockOf(TimestampEvent(0x110, 1), str(1, 0, two), str(1, 1, 1), str(2, 0, plain), str(3, 0, 0xdead), str(4, 3, 0)),
		blockOf(TimestampEvent(0x190, 0), str(1, 2, 2)))
	require.Empty(t, lines)
	require.EqualValues(t, 3+1+1+1, c.UnreliableEventsDropped)
	require.EqualValues(t, 1, c.UnknownStrings)
	require.EqualValues(t, 1, c.OrphanParams)
	require.Zero(t, c.IncompleteMessages)
	require.Zero(t, c.Messages)
}

func TestD7AReliableHeaderKeepsParametersOfAnUnreliableInterval(t *testing.T) {
	lines, _, c := gold(t,
		blockOf(at, str(1, 0, two), str(1, 1, 0xab)),
		blockOf(TimestampEvent(0x190, 1), str(1, 2, 7)))
	require.Equal(t, []string{"0x105 two ab 7"}, lines, "given out at the unreliable timestamp")
	require.Zero(t, c.UnreliableEventsDropped)
}

func TestD8MessagesComeOutInTheOrderOfCompletion(t *testing.T) {
	lines, _, _ := gold(t, blockOf(at, str(1, 0, two), str(2, 0, one), str(1, 2, 1), str(3, 0, plain), str(2, 1, 2), str(1, 1, 3)))
	require.Equal(t, []string{"0x105 plain", "0x105 one 2", "0x105 two 3 1"}, lines)
}

func TestD9TheBlockIsThatOfTheHeader(t *testing.T) {
	_, ms, _ := gold(t, blockOf(at, str(1, 0, one)), blockOf(at, str(2, 0, plain)), blockOf(at, str(1, 1, 1)))
	require.Len(t, ms, 2)
	require.EqualValues(t, 1, ms[0].Block)
	require.EqualValues(t, 0, ms[1].Block)
}
