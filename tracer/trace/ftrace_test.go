package trace

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"
)

func TestReadFtrace(t *testing.T) {
	lines, st, err := ReadFtrace(strings.NewReader(`# tracer: nop
#           TASK-PID     CPU#  |||||  TIMESTAMP  FUNCTION
 kworker/u16:2-1234    [003] .....  12345.678901: mlx5_fw: 0000:3b:00.0 [0x1fffffffffffff] 1 [0xe] qp 0x5: [0x1] 0 [0x2] state
 kworker/u16:2-1234    [003] .....  12345.678902: mlx5_cmd: something else
   kworker/0:1-77      [000] d..1.   0.5: fw_tracer: 0000:3b:00.1 [0x10] 0 [0x1]
0000:3b:00.0 [0x20] 0 [0x3] as our own decoder prints it` + "\r" + `
[0x30] 0 [0x4] and without a device
 kworker-1 [003] 1.000000: mlx5_fw: 0000:3b:00.0 [0x20000000000000] 0 [0x3] 54 bits
 kworker-1 [003] 1.000000: mlx5_fw: 0000:3b:00.0 [0x20] 2 [0x3] lost is 0 or 1
 kworker-1 [003] 1.000000: mlx5_fw: cut of`))
	require.NoError(t, err)
	require.Equal(t, FtraceStats{Lines: 10, Messages: 4, Malformed: 3, Other: 3}, st)
	require.Equal(t, []FtraceLine{
		{Line: 3, Host: 12345678901000, Device: "0000:3b:00.0", Time: 1<<53 - 1, Corrected: 1<<53 - 1, Lost: true, EventID: 14, Text: "qp 0x5: [0x1] 0 [0x2] state"},
		{Line: 5, Host: 500000000, Device: "0000:3b:00.1", Time: 16, Corrected: 16, EventID: 1},
		{Line: 6, Device: "0000:3b:00.0", Time: 32, Corrected: 32, EventID: 3, Text: "as our own decoder prints it"},
		{Line: 7, Time: 48, Corrected: 48, EventID: 4, Text: "and without a device"},
	}, lines)
}

func TestFtraceErrorsKeepWhatWasRead(t *testing.T) {
	text := "[0x30] 0 [0x4] good\n"
	lines, st, err := ReadFtrace(strings.NewReader(text + strings.Repeat("x", ftraceMaxLine+1)))
	var e *FtraceError
	require.ErrorAs(t, err, &e)
	require.Equal(t, 2, e.Line)
	require.ErrorContains(t, err, "longer than")
	require.Len(t, lines, 1)
	require.Equal(t, 1, st.Messages)
	broken := errors.New("pipe")
	lines, _, err = ReadFtrace(io.MultiReader(strings.NewReader(text), iotest.ErrReader(broken)))
	require.ErrorIs(t, err, broken)
	require.Len(t, lines, 1)
}

func TestFtraceEpochs(t *testing.T) {
	for name, c := range map[string]struct {
		times []uint64
		want  string
	}{
		// T = 0x140: stamps from 0x40 on belong to the epoch before
		"wrong ones first":                     {[]uint64{0x170, 0x17f, 0x105, 0x130}, "wrong wrong unproven unproven"},
		"a step of 64 may be order":            {[]uint64{0x145, 0x105}, "suspect unproven"},
		"a step of 65 may not":                 {[]uint64{0x146, 0x105}, "wrong unproven"},
		"the smallest of all that follow":      {[]uint64{0x170, 0x160, 0x105, 0x106}, "wrong wrong unproven unproven"},
		"another epoch says nothing":           {[]uint64{0x170, 0x085}, "unproven unproven"},
		"a run ends with its epoch":            {[]uint64{0x170, 0x200, 0x105}, "unproven unproven unproven"},
		"equal times":                          {[]uint64{0x120, 0x120}, "unproven unproven"},
		"the stamp is lost before Linux 6.1":   {[]uint64{0x0ff, 0x0ff, 0x0ff, 0x105}, "stamp_lost stamp_lost stamp_lost unproven"},
		"one stamp 0x7f is nothing remarkable": {[]uint64{0x0ff, 0x105}, "unproven unproven"},
	} {
		var b strings.Builder
		for _, x := range c.times {
			fmt.Fprintf(&b, "dev [0x%x] 0 [0x1] m\n", x)
			fmt.Fprintf(&b, "other [0x%x] 0 [0x1] m\n", 1000-x) // devices do not mix
		}
		lines, st, err := ReadFtrace(strings.NewReader(b.String()))
		require.NoError(t, err)
		var got []string
		for _, l := range lines {
			if l.Device == "dev" {
				got = append(got, l.Epoch.String())
				if l.Epoch == EpochWrong {
					require.Equal(t, l.Time-128, l.Corrected)
				} else {
					require.Equal(t, l.Time, l.Corrected)
				}
			}
		}
		require.Equal(t, c.want, strings.Join(got, " "), name)
		require.GreaterOrEqual(t, st.Wrong, strings.Count(c.want, "wrong"))
		require.Equal(t, st.StampLost > 0, strings.Contains(c.want, "stamp"))
	}
	b, err := json.Marshal(FtraceLine{Line: 1, Device: "d", Time: 5, Corrected: 5, Text: "\x01"})
	require.NoError(t, err)
	require.Equal(t, `{"line":1,"device":"d","timestamp":5,"lost":false,"event_id":0,"text":"\u0001","epoch":"unproven","corrected":5}`, string(b))
	require.Equal(t, "invalid", EpochVerdict(9).String())
	// The first epoch: 128 ticks before it are the end of the circle.
	lines, _, err := ReadFtrace(strings.NewReader("[0x70] 0 [0x1] a\n[0x5] 0 [0x1] b"))
	require.NoError(t, err)
	require.Equal(t, uint64(1<<53-16), lines[0].Corrected)
}

// TestFtraceFindsTheKernelsMistake lets messages of known times be printed by the
// kernel's rule, in their order: every line called wrong is, the corrected time is
// the true one, and a good part of the wrong ones is found.
func TestFtraceFindsTheKernelsMistake(t *testing.T) {
	r := rand.New(rand.NewPCG(6, 6))
	var b strings.Builder
	var truth []uint64
	now, mistakes := uint64(1<<40), 0
	for range 3000 {
		var stamps []uint64
		for range 1 + r.IntN(12) {
			now += r.Uint64N(10)
			stamps = append(stamps, now)
		}
		now += 1 + r.Uint64N(8)
		for _, m := range stamps {
			printed := now&^0x7f | m&0x7f
			if m&0x7f >= now&0x7f { // Linux: the epoch of T − 1, which is T's unless T is on its edge
				printed = (now-1)&^0x7f | m&0x7f
			}
			truth = append(truth, m)
			fmt.Fprintf(&b, "d [0x%x] 0 [0x1] m\n", printed)
			if printed != m {
				mistakes++
				require.Equal(t, m+128, printed)
			}
		}
	}
	lines, st, err := ReadFtrace(strings.NewReader(b.String()))
	require.NoError(t, err)
	require.Len(t, lines, len(truth))
	for i, l := range lines {
		switch l.Epoch {
		case EpochWrong:
			require.Equal(t, truth[i], l.Corrected, "line %d", l.Line)
		case EpochSuspect: // in order, so these are wrong too
			require.Equal(t, truth[i], l.Time-128)
		}
	}
	require.Greater(t, mistakes, 500)
	require.Greater(t, st.Wrong, mistakes/3)
	t.Logf("%d mistakes, %d proven, %d suspect", mistakes, st.Wrong, st.Suspect)
}

// TestOurLinesAreRead: what AppendLine writes comes back.
func TestOurLinesAreRead(t *testing.T) {
	_, ms, _ := gold(t, blockOf(at, str(1, 0, plain), StringEvent(true, 6, 4, 9, 0, seven), str(2, 1, 5)))
	var b []byte
	for i := range ms {
		b = append(ms[i].AppendLine(b, "0000:3b:00.0"), '\n')
	}
	lines, st, err := ReadFtrace(strings.NewReader(string(b)))
	require.NoError(t, err)
	require.Equal(t, len(ms), st.Messages)
	for i, l := range lines {
		require.Equal(t, describe(ms[i].Time, 0, ms[i].EventID, ms[i].Lost, 0, ms[i].Text()), describe(l.Time, 0, l.EventID, l.Lost, 0, l.Text))
	}
}

// FuzzFtrace: any text is read, every line counted once, and what was read comes
// back when it is written again.
func FuzzFtrace(f *testing.F) {
	f.Add("w-1 [003] 1.5: mlx5_fw: d [0x170] 0 [0x1] text\nd [0x105] 1 [0xff] \n# x")
	f.Fuzz(func(t *testing.T, text string) {
		lines, st, _ := ReadFtrace(strings.NewReader(text))
		if st.Lines != st.Messages+st.Malformed+st.Other || st.Messages != len(lines) {
			t.Fatalf("%+v", st)
		}
		for _, l := range lines {
			if l.Time > TimeMask || l.Corrected != l.Time && l.Corrected != (l.Time-128)&TimeMask {
				t.Fatalf("%+v", l)
			}
			again, ok, _ := parseFtrace(fmt.Sprintf("mlx5_fw: %s [0x%x] %d [0x%x] %s", max(l.Device, "-"), l.Time, map[bool]int{true: 1}[l.Lost], l.EventID, l.Text))
			if !ok || again.Time != l.Time || again.Text != l.Text {
				t.Fatalf("%+v became %+v", l, again)
			}
		}
	})
}

// TestFtraceDeviceIsPlain: a name that could do something to a terminal is none.
func TestFtraceDeviceIsPlain(t *testing.T) {
	lines, st, err := ReadFtrace(strings.NewReader("w-1 [003] 1.5: mlx5_fw: \x1b[31md [0x170] 0 [0x1] text\n\x1bd [0x171] 0 [0x1] text\n0000:3b:00.0 [0x172] 0 [0x1] text\n"))
	if err != nil || len(lines) != 1 || lines[0].Device != "0000:3b:00.0" || st.Malformed != 1 || st.Other != 1 {
		t.Fatalf("%v %+v %+v", err, lines, st)
	}
}
