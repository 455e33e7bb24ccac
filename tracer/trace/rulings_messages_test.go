package trace

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestD10TheKeyIsEventIDAndNumberAndPartsMayComeInAnyOrder(t *testing.T) {
	other := func(tdsn uint8, word uint32) Event { return StringEvent(false, 5, 2, 1, tdsn, word) }
	lines, ms, c := gold(t, blockOf(at,
		str(1, 0, seven), other(0, two), str(1, 7, 7), str(1, 3, 3), other(2, 22), str(1, 1, 1), str(1, 2, 2),
		other(1, 0x11), str(1, 6, 6), str(1, 5, 5), str(1, 4, 4)))
	require.Equal(t, []string{"0x105 two 11 22", "0x105 1234567"}, lines)
	require.Equal(t, [MaxParams]uint32{1, 2, 3, 4, 5, 6, 7}, ms[1].Params)
	require.EqualValues(t, 7, ms[1].NParams)
	require.Zero(t, c.OrphanParams)
	// The part behind a header may be of another message.
	lines, _, c = gold(t, blockOf(at, str(1, 0, one), str(9, 1, 4), str(1, 1, 5)))
	require.Equal(t, []string{"0x105 0x0501004900000004", "0x105 one 5"}, lines)
	require.EqualValues(t, 1, c.OrphanParams)
	// A number of 13 bits: 0x1fff and 0x0fff are different messages.
	lines, _, c = gold(t, blockOf(at, str(0x1fff, 0, one), str(0x0fff, 1, 1), str(0x1fff, 1, 2)))
	require.Equal(t, []string{"0x105 0x05017ff900000001", "0x105 one 2"}, lines)
	require.EqualValues(t, 1, c.OrphanParams)
}

func TestD11ADuplicatePartEndsTheMessageAndIsAnOrphan(t *testing.T) {
	lines, _, c := gold(t, blockOf(at, str(1, 0, two), str(1, 1, 1), str(1, 1, 2), str(1, 2, 3)))
	require.Equal(t, []string{"0x105 0x0501000900000002", "0x105 0x0501000a00000003"}, lines)
	require.EqualValues(t, 1, c.IncompleteMessages)
	require.EqualValues(t, 2, c.OrphanParams)
}

func TestD11APartBeyondTheFormatEndsTheMessage(t *testing.T) {
	lines, _, c := gold(t, blockOf(at, str(1, 0, two), str(1, 3, 1)))
	require.Equal(t, []string{"0x105 0x0501000b00000001"}, lines)
	require.EqualValues(t, 1, c.IncompleteMessages)
	// The last one that it has a place for is taken.
	lines, _, c = gold(t, blockOf(at, str(1, 0, two), str(1, 2, 1), str(1, 1, 1)))
	require.Equal(t, []string{"0x105 two 1 1"}, lines)
	require.Zero(t, c.IncompleteMessages)
}

func TestD11ANewHeaderEndsTheOldMessage(t *testing.T) {
	for _, header := range []uint32{one, plain, 0xdead} {
		_, _, c := gold(t, blockOf(at, str(1, 0, two), str(1, 1, 1), str(1, 0, header)))
		want := uint64(1)
		if header == one {
			want = 2 // the new one is not complete either
		}
		require.Equal(t, want, c.IncompleteMessages)
	}
	lines, _, _ := gold(t, blockOf(at, str(1, 0, two), str(1, 1, 1), str(1, 0, one), str(1, 1, 9)))
	require.Equal(t, []string{"0x105 one 9"}, lines)
	// Also one that needs no parameters: what follows is an orphan.
	lines, _, c := gold(t, blockOf(at, str(1, 0, two), str(1, 1, 1), str(1, 0, plain), str(1, 2, 2)))
	require.Equal(t, []string{"0x105 plain", "0x105 0x0501000a00000002"}, lines)
	require.EqualValues(t, 1, c.IncompleteMessages)
	// A header with another number ends nothing: 13 bits count.
	lines, _, _ = gold(t, blockOf(at, str(0x1001, 0, one), str(1, 0, plain), str(0x1001, 1, 3)))
	require.Equal(t, []string{"0x105 plain", "0x105 one 3"}, lines)
}

func TestD11WhatIsPendingAtTheEndOrAtAGapIsIncomplete(t *testing.T) {
	lines, _, c := gold(t, blockOf(at, str(1, 0, two), str(1, 1, 1)))
	require.Empty(t, lines)
	require.EqualValues(t, 1, c.IncompleteMessages)
	d, err := NewDecoder(goldGeometry, NewStrings(goldSections()))
	require.NoError(t, err)
	require.NoError(t, d.Block(0, blockOf(at, str(1, 0, one)), nil))
	require.Zero(t, d.Counters().IncompleteMessages)
	d.Gap()
	d.Gap()
	require.EqualValues(t, 1, d.Counters().IncompleteMessages)
	require.NoError(t, d.Block(1, blockOf(at, str(1, 1, 5)), nil))
	require.EqualValues(t, 1, d.Counters().OrphanParams)
}

func TestD12AnOrphanIsAMessageOfItsOwn(t *testing.T) {
	lines, ms, c := gold(t, blockOf(at, StringEvent(true, 0x7f, 3, 0x1234, 5, 0x89abcdef)))
	require.Equal(t, []string{"0xff 0xff0391a589abcdef"}, lines)
	require.Equal(t, KindOrphan, ms[0].Kind)
	require.True(t, ms[0].Lost)
	require.Zero(t, ms[0].Pointer)
	require.EqualValues(t, 1, c.OrphanParams)
	require.EqualValues(t, 1, c.Messages)
}

func TestD13AnUnknownPointerGivesTheRawFormAndItsParametersAreOrphans(t *testing.T) {
	lines, ms, c := gold(t, blockOf(at, str(1, 0, 0x0fff), str(1, 1, 7)))
	require.Equal(t, []string{"0x105 0x0501000800000fff", "0x105 0x0501000900000007"}, lines)
	require.Equal(t, KindUnknown, ms[0].Kind)
	require.EqualValues(t, 0xfff, ms[0].Pointer)
	require.EqualValues(t, 1, c.UnknownStrings)
	require.EqualValues(t, 1, c.OrphanParams)
}

func TestD14WhereAStringBeginsAndEnds(t *testing.T) {
	s := NewStrings([]Section{
		{Base: 0x2000}, // empty: matches nothing
		{Base: 0x2000, Data: []byte("first\x00tail")},
		{Base: 0x2004, Data: []byte("second, longer")}, // overlaps
		{Base: 1<<32 - 4, Data: []byte("end of 32 bits")},
		{Base: 1<<64 - 2, Data: []byte("no pointer reaches it")},
		{Base: 1 << 32, Data: []byte("nor this")},
	})
	for p, want := range map[uint32]string{
		0x2000: "first", 0x2002: "rst", 0x2005: "", 0x2006: "tail", 0x2009: "l", 0x200a: ", longer",
		0x2011: "r", 0xfffffffc: "end of 32 bits", 0xffffffff: " of 32 bits",
	} {
		got, ok := s.At(p)
		require.True(t, ok, "%#x", p)
		require.Equal(t, want, string(got), "%#x", p)
	}
	for _, p := range []uint32{0, 0x1fff, 0x2012, 0xfffffffb} {
		_, ok := s.At(p)
		require.False(t, ok, "%#x", p)
		require.Nil(t, s.Format(p))
	}
}

func TestD15LostIsThatOfAnyPart(t *testing.T) {
	lost := func(e Event) Event { return e | 1<<63 }
	for i, events := range [][]Event{
		{str(1, 0, two), str(1, 1, 1), str(1, 2, 2)},
		{lost(str(1, 0, two)), str(1, 1, 1), str(1, 2, 2)},
		{str(1, 0, two), lost(str(1, 1, 1)), str(1, 2, 2)},
		{str(1, 0, two), str(1, 1, 1), lost(str(1, 2, 2))},
		{lost(str(1, 0, two)), str(2, 0, plain), str(1, 1, 1), str(1, 2, 2)},
		{str(1, 0, two), str(2, 0, plain), str(1, 1, 1), lost(str(1, 2, 2))},
		{str(1, 0, two), str(1, 1, 1), str(1, 2, 2), lost(str(2, 0, plain))}, // of the next message
	} {
		_, ms, c := gold(t, blockOf(at, events...))
		for _, m := range ms {
			if m.NParams == 2 {
				require.Equal(t, i > 0 && i < 6, m.Lost, "case %d", i)
			} else {
				require.Equal(t, i == 6, m.Lost, "case %d", i)
			}
		}
		require.EqualValues(t, min(i, 1), c.LostMarks)
	}
}

func TestD20EveryEventIsCountedOnce(t *testing.T) {
	_, _, c := gold(t, blockOf(at, str(1, 0, bad), str(1, 1, 1), str(2, 0, one), Event(0x80)<<48, at, str(3, 1, 0), str(4, 0, 1), str(4, 0, ends)))
	require.Equal(t, Counters{
		Blocks: 1, Events: 32, Messages: 4, OrphanParams: 1, UnknownStrings: 1, IncompleteMessages: 1,
		RawEvents: 32 - 2 - 6, Timestamps: 2, StringEvents: 6, BadFormats: 1,
	}, c)
	c.RawEvents--
	require.ErrorContains(t, c.Check(), "do not balance")
}

func TestABlockOfAnotherSizeIsRefused(t *testing.T) {
	d, err := NewDecoder(goldGeometry, nil)
	require.NoError(t, err)
	var e *BlockError
	require.ErrorAs(t, d.Block(0, make([]byte, 255), nil), &e)
	require.ErrorContains(t, e, "255 bytes")
	require.Zero(t, d.Counters())
}

func TestRestartTakesNewStringsAndGivesUpWhatIsPending(t *testing.T) {
	d, err := NewDecoder(goldGeometry, NewStrings(goldSections()))
	require.NoError(t, err)
	var texts []string
	emit := func(m *Message) { texts = append(texts, m.Text()) }
	require.NoError(t, d.Block(0, blockOf(at, str(1, 0, plain), str(2, 0, one)), emit))
	require.Error(t, d.Restart(Geometry{TrcVer: 7}, nil))
	require.NoError(t, d.Restart(Geometry{TrcVer: 0, FirstString: 1, NumString: 1}, NewStrings([]Section{{Base: plain, Data: []byte("new")}})))
	require.NoError(t, d.Block(1, blockOf(TimestampEvent(0x110, 1), str(1, 0, plain)), emit))
	require.Equal(t, []string{"plain", "new"}, texts)
	require.EqualValues(t, 1, d.Counters().IncompleteMessages)
	require.EqualValues(t, 2, d.Counters().Blocks)
}
