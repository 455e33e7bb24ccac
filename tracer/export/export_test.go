package export_test

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/tracer/analyze"
	"github.com/mlxvfio/mlxvfio/tracer/capture"
	"github.com/mlxvfio/mlxvfio/tracer/export"
	"github.com/mlxvfio/mlxvfio/tracer/trace"
)

// hostile is a format that means something to each of the forms.
const hostile = "</script><b>\"%u\",\n=cmd|' /C'!A0 \\ \x1b[31m \xe2\x80\xa8 &amp;"

var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// info is a calibrated trace of 100 MHz that begins shortly before the wrap.
func info() *export.Info {
	i := &export.Info{Source: "a <b>.mlxt", Meta: &capture.Meta{Device: "0000:3b:00.0<i>", Firmware: "16.35.1012"}, Base: 1<<53 - 1000, Timeline: &capture.Timeline{}}
	for k, at := range []time.Duration{0, time.Second} {
		i.Timeline.Add(&capture.Clock{Host: start.Add(at), Mono: at, Ticks: (i.Base + uint64(k)*1e8) & trace.TimeMask, HaveTicks: true, Error: time.Microsecond})
	}
	return i
}

func messages() []*trace.Message {
	base := uint64(1<<53 - 1000)
	f := trace.NewFormat([]byte(hostile))
	bad := trace.NewFormat([]byte("bad %s\n"))
	l := []*trace.Message{
		{Time: base, Block: 1, EventID: 0x10, Format: f, Pointer: 0xfffffff0, Params: [7]uint32{4000000000}, NParams: 1},
		{Time: (base + 2500) & trace.TimeMask, Block: 2, EventID: 0x11, Format: bad, Pointer: 7, Params: [7]uint32{1}, NParams: 1, Kind: trace.KindBadFormat, Lost: true},
		{Time: (base + 3000) & trace.TimeMask, Block: 3, EventID: 0x11, Raw: trace.StringEvent(false, 1, 0x11, 5, 3, 0xabc), Kind: trace.KindOrphan},
		{Time: (base + 4000) & trace.TimeMask, Block: 4, EventID: 0x10, Raw: trace.StringEvent(false, 1, 0x10, 5, 0, 0xabc), Pointer: 0xabc, Kind: trace.KindUnknown},
	}
	return l
}

var gap = capture.Gap{From: 1<<53 - 1000, HaveFrom: true, To: 1500, HaveTo: true, First: 2, Blocks: 9, AtLeast: true, Cause: capture.CauseOverwritten}

// written gives a sink the messages with a gap behind the first.
func written(t *testing.T, s export.Sink) {
	t.Helper()
	for i, m := range messages() {
		require.NoError(t, s.Message(m))
		if i == 0 {
			require.NoError(t, s.Gap(&gap))
		}
	}
	require.NoError(t, s.Close(&export.End{Counters: trace.Counters{Messages: 4}, Gaps: 1, Missing: 9, AtLeast: true, Stopped: "torn \"here\""}))
}

func TestText(t *testing.T) {
	var b bytes.Buffer
	written(t, export.NewText(&b, info()))
	lines := strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
	require.Len(t, lines, 6)
	require.Equal(t, `0000:3b:00.0<i> [0x1ffffffffffc18] 0 [0x10] </script><b>"4000000000",\n=cmd|' /C'!A0 \\ \x1b[31m \xe2\x80\xa8 &amp;`, lines[0])
	require.Equal(t, "# "+gap.String(), lines[1])
	require.Equal(t, `0000:3b:00.0<i> [0x5dc] 1 [0x11] BAD_FORMAT: bad %s\n`, lines[2])
	require.Equal(t, `# torn "here"`, lines[5])
}

func TestJSONLines(t *testing.T) {
	var b bytes.Buffer
	written(t, export.NewJSONLines(&b, info()))
	var objs []map[string]any
	for _, l := range strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n") {
		var o map[string]any
		require.NoError(t, json.Unmarshal([]byte(l), &o), l)
		objs = append(objs, o)
	}
	require.Len(t, objs, 6)
	require.EqualValues(t, uint64(1<<53-1000), objs[0]["timestamp"])
	require.Equal(t, messages()[0].Text(), objs[0]["text"])
	require.Equal(t, map[string]any{"from": float64(1<<53 - 1000), "to": 1500.0, "first_block": 2.0, "blocks": 9.0, "at_least": true, "cause": gap.Cause.String()}, objs[1]["gap"])
	require.Equal(t, true, objs[2]["lost"])
	require.Equal(t, "bad_format", objs[2]["kind"])
	end := objs[5]
	require.EqualValues(t, 4, end["summary"].(map[string]any)["messages"])
	require.EqualValues(t, 9, end["capture"].(map[string]any)["missing_blocks"])
	require.Equal(t, `torn "here"`, end["stopped"])
	require.Equal(t, "mlxvfio.trace-decode/1", end["schema"])
}

func TestCSV(t *testing.T) {
	var b bytes.Buffer
	written(t, export.NewCSV(&b, info()))
	rows, err := csv.NewReader(&b).ReadAll()
	require.NoError(t, err)
	require.Len(t, rows, 5)
	require.Equal(t, export.Columns, rows[0])
	require.Equal(t, []string{"9007199254739992", "2026-03-01T12:00:00Z", "1000", "0000:3b:00.0<i>", "16.35.1012", "1", "16", "false", "string", "4294967280",
		messages()[0].Format.Escaped(), "4000000000", messages()[0].Text()}, rows[1])
	require.Equal(t, []string{"1500", "2026-03-01T12:00:00.000025Z"}, rows[2][:2])
	require.Equal(t, []string{"orphan", "", "", "", "0x0111002b00000abc"}, rows[3][8:], "an orphan has no pointer")
	require.Equal(t, []string{"unknown", "2748", "", ""}, rows[4][8:12])

	b.Reset()
	c := export.NewCSV(&b, &export.Info{})
	require.NoError(t, c.Message(messages()[0]))
	require.NoError(t, c.Close(&export.End{}))
	rows, err = csv.NewReader(&b).ReadAll()
	require.NoError(t, err)
	require.Equal(t, []string{"", "", "", ""}, rows[1][1:5], "not calibrated, no device")
	b.Reset()
	require.NoError(t, export.NewCSV(&b, &export.Info{}).Close(&export.End{}))
	require.Equal(t, strings.Join(export.Columns, ",")+"\n", b.String(), "a header always")
}

// chromeTrace is what the format's description requires.
type chromeTrace struct {
	DisplayTimeUnit string           `json:"displayTimeUnit"`
	TraceEvents     []map[string]any `json:"traceEvents"`
	OtherData       map[string]any   `json:"otherData"`
}

func parsePerfetto(t *testing.T, b []byte) *chromeTrace {
	t.Helper()
	var c chromeTrace
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	require.NoError(t, d.Decode(&c), "%s", b)
	for _, e := range c.TraceEvents {
		require.Contains(t, []any{"M", "i", "X"}, e["ph"])
		require.IsType(t, "", e["name"])
		require.IsType(t, 0.0, e["pid"])
		require.IsType(t, 0.0, e["tid"])
		if e["ph"] != "M" {
			require.IsType(t, 0.0, e["ts"])
		}
		if e["ph"] == "X" {
			require.GreaterOrEqual(t, e["dur"], 0.0)
		}
		if e["ph"] == "i" {
			require.Equal(t, "t", e["s"])
		}
	}
	return &c
}

func TestPerfetto(t *testing.T) {
	var b bytes.Buffer
	written(t, export.NewPerfetto(&b, info()))
	c := parsePerfetto(t, b.Bytes())
	require.Equal(t, "ns", c.DisplayTimeUnit)
	var got []string
	for _, e := range c.TraceEvents {
		got = append(got, fmt.Sprintf("%v %v %v", e["ph"], e["tid"], e["ts"]))
	}
	require.Equal(t, []string{
		"M 0 <nil>", "M 16 <nil>", "M 16 <nil>", "i 16 0", "M 1000 <nil>", "M 1000 <nil>", "X 1000 0",
		"M 17 <nil>", "M 17 <nil>", "i 17 25", "i 17 30", "i 16 40",
	}, got)
	require.Equal(t, "0000:3b:00.0<i>", c.TraceEvents[0]["args"].(map[string]any)["name"])
	require.Equal(t, messages()[0].Text(), c.TraceEvents[3]["name"])
	require.EqualValues(t, 25, c.TraceEvents[6]["dur"], "2500 ticks of 10 ns, in µs")
	require.Equal(t, "clock samples", c.OtherData["time_from"])
	require.Equal(t, `torn "here"`, c.OtherData["stopped"])

	for _, with := range []bool{false, true} { // no messages; no clock
		b.Reset()
		p := export.NewPerfetto(&b, &export.Info{Base: 1})
		if with {
			require.NoError(t, p.Message(messages()[3]))
		}
		require.NoError(t, p.Close(&export.End{}))
		c = parsePerfetto(t, b.Bytes())
		require.Equal(t, "ticks", c.OtherData["time_from"])
	}
	require.EqualValues(t, 2.999, c.TraceEvents[3]["ts"], "a tick is taken for a ns")
	i := export.Info{Hz: 1e6}
	require.Equal(t, 5000.0, i.Nanoseconds(5))
	require.Equal(t, "given rate", i.Calibrated())
}

// TestReport: the page holds everything, loads nothing, and lets no text of firmware
// out of its data.
func TestReport(t *testing.T) {
	s := analyze.New(analyze.Options{})
	for _, m := range messages() {
		s.Message(m)
	}
	r := export.NewReport(info(), s.Result(), s.Group)
	f := s.Finder()
	for _, m := range messages() {
		f.Message(m)
		require.NoError(t, r.Message(m))
	}
	require.NoError(t, r.Gap(&gap))
	var b bytes.Buffer
	require.NoError(t, r.Write(&b, f.Findings(), &export.End{Counters: trace.Counters{Messages: 4}}))
	page := b.String()
	require.Equal(t, 2, strings.Count(page, "</script>"), "one of the data, one of the code")
	require.Contains(t, page, "<title>Firmware trace: 0000:3b:00.0&lt;i&gt;</title>")
	require.NotContains(t, page, "{{")
	urls := regexp.MustCompile(`(?i)(?:https?:)?//[a-z0-9.]+\.[a-z]+`).FindAllString(page, -1)
	require.Equal(t, []string{"http://www.w3.org"}, urls, "the name space of SVG, which nobody loads")
	require.NotRegexp(t, `(?i)\b(src|href)=|@import|url\(|fetch\(|XMLHttpRequest`, page)

	_, data, ok := strings.Cut(page, `id="data">`)
	require.True(t, ok)
	data, _, ok = strings.Cut(data, "</script>")
	require.True(t, ok)
	require.NotContains(t, data, "<")
	var d struct {
		Title    string
		Span     float64
		Bins     int
		Lanes    []struct{ Bins []uint32 }
		Messages []struct{ T float64 }
		Gaps     []struct{ F, T float64 }
		Hist     map[string][][]float64
	}
	require.NoError(t, json.Unmarshal([]byte(data), &d))
	require.Equal(t, "0000:3b:00.0<i>", d.Title)
	require.EqualValues(t, 4000, d.Span)
	require.Len(t, d.Lanes, 4)
	n := uint32(0)
	for _, l := range d.Lanes {
		for i := 0; i < len(l.Bins); i += 2 {
			require.Less(t, int(l.Bins[i]), d.Bins)
			n += l.Bins[i+1]
		}
	}
	require.EqualValues(t, 4, n)
	require.Len(t, d.Messages, 4)
	require.EqualValues(t, 2500, d.Messages[1].T)
	require.Equal(t, 2500.0, d.Gaps[0].T)
}

// TestReportIsBounded: a long trace is counted in bins, and formats without a lane of
// their own are counted together.
func TestReportIsBounded(t *testing.T) {
	s := analyze.New(analyze.Options{})
	var formats []*trace.Format
	for i := range 100 {
		formats = append(formats, trace.NewFormat(fmt.Appendf(nil, "format %d", i)))
	}
	each := func(fn func(*trace.Message)) {
		for i := range uint64(200000) {
			fn(&trace.Message{Time: 1000 * i, EventID: 1, Format: formats[i%100]})
		}
	}
	each(s.Message)
	r := export.NewReport(&export.Info{Source: "x"}, s.Result(), s.Group)
	each(func(m *trace.Message) { require.NoError(t, r.Message(m)) })
	for range 5000 {
		require.NoError(t, r.Gap(&gap))
	}
	var b bytes.Buffer
	require.NoError(t, r.Write(&b, s.Finder().Findings(), &export.End{}))
	require.Less(t, b.Len(), 4<<20)
	require.Contains(t, b.String(), `"name":"(all others)","count":104000`)
	require.Contains(t, b.String(), `"more_gaps":3000`)
	require.Contains(t, b.String(), `"messages":[],"gaps"`)
}
