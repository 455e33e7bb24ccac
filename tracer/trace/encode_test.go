package trace

import (
	"encoding/json"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestEncodings(t *testing.T) {
	_, ms, c := gold(t, blockOf(TimestampEvent(0x1fedcba9876510, 0), StringEvent(true, 5, 2, 1, 0, two), StringEvent(false, 5, 2, 1, 1, 0xab),
		StringEvent(false, 5, 2, 1, 2, 0xffffffff), str(9, 0, bad), str(9, 1, 1), str(8, 1, 1), str(7, 0, 3)))
	require.Len(t, ms, 4)
	line := func(i int) string { return string(ms[i].AppendLine([]byte("> "), "0000:3b:00.0")) }
	object := func(i int) string { return string(ms[i].AppendJSON([]byte("> "))) }
	require.Equal(t, "> 0000:3b:00.0 [0x1fedcba9876505] 1 [0x2] two ab -1", line(0))
	require.Equal(t, "> 0000:3b:00.0 [0x1fedcba9876505] 0 [0x1] BAD_FORMAT: bad %s", line(1))
	require.Equal(t, "[0x1fedcba9876505] 0 [0x1] 0x0501004100000001", string(ms[2].AppendLine(nil, "")), "no device")
	require.Equal(t, `> {"timestamp":8987183256397061,"event_id":2,"lost":true,"block":0,"text":"two ab -1"}`, object(0))
	require.Equal(t, `> {"timestamp":8987183256397061,"event_id":1,"lost":false,"block":0,"kind":"bad_format","text":"BAD_FORMAT: bad %s"}`, object(1))
	require.Equal(t, `> {"timestamp":8987183256397061,"event_id":1,"lost":false,"block":0,"kind":"orphan","text":"0x0501004100000001"}`, object(2))
	require.Equal(t, `> {"timestamp":8987183256397061,"event_id":1,"lost":false,"block":0,"kind":"unknown","text":"0x0501003800000003"}`, object(3))
	require.JSONEq(t, `{"summary":{"blocks":1,"events":32,"messages":4,"orphan_params":1,"unknown_strings":1,"incomplete_messages":0,
		"unreliable_events_dropped":0,"raw_events":24,"timestamps":1,"unreliable_timestamps":0,"string_events":7,"lost_marks":1,
		"bad_formats":1,"skipped_blocks":0}}`, string(c.AppendSummary(nil)))
	require.Equal(t, "invalid", Kind(9).String())
}

// TestJSONTextIsTheText: what a JSON reader gets is the text, byte for byte.
func TestJSONTextIsTheText(t *testing.T) {
	r := rand.New(rand.NewPCG(4, 4))
	for range 5000 {
		m := Message{Time: r.Uint64() & TimeMask, Format: NewFormat([]byte(oddFormat(r)))}
		for i := range m.Params {
			m.Params[i] = r.Uint32() >> r.IntN(32)
		}
		var o struct {
			Timestamp uint64
			Text      string
		}
		b := m.AppendJSON(nil)
		require.NoError(t, json.Unmarshal(b, &o), "%s", b)
		require.Equal(t, m.Text(), o.Text)
		require.Equal(t, m.Time, o.Timestamp)
	}
}
