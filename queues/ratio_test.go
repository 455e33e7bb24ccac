package queues

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// reference builds testdata/post_ref.c: the same work in plain C.
func reference(tb testing.TB) string {
	tb.Helper()
	cc, err := exec.LookPath("cc")
	if err != nil {
		tb.Skip("no C compiler: the C reference cannot be built")
	}
	bin := filepath.Join(tb.TempDir(), "post_ref")
	out, err := exec.Command(cc, "-O2", "-o", bin, filepath.Join("testdata", "post_ref.c")).CombinedOutput()
	if err != nil && bytes.Contains(out, []byte("emmintrin.h")) {
		tb.Skip("the C reference needs SSE2: it is for amd64")
	}
	require.NoError(tb, err, "%s", out)
	return bin
}

var refLine = regexp.MustCompile(`^(\S.*\S)\s+median\s+([0-9.]+) ns`)

// runReference lets the reference take the median of several runs of each figure.
func runReference(tb testing.TB, bin string, runs, wqes int) map[string]float64 {
	tb.Helper()
	out, err := exec.Command(bin, strconv.Itoa(runs), strconv.Itoa(wqes)).Output()
	require.NoError(tb, err)
	figures := map[string]float64{}
	for s := bufio.NewScanner(bytes.NewReader(out)); s.Scan(); {
		if m := refLine.FindStringSubmatch(s.Text()); m != nil {
			v, err := strconv.ParseFloat(m[2], 64)
			require.NoError(tb, err)
			figures[m[1]] = v
		}
	}
	return figures
}

func median(v []float64) float64 {
	s := slices.Sorted(slices.Values(v))
	return s[len(s)/2]
}

// ratioOps are the operations the reference has, ratioBatches its batches.
var (
	ratioOps     = []MicroOp{MicroWrite, MicroInlineWrite16, MicroAtomicFA, MicroMaskedCS4, MicroMaskedCS8}
	ratioBatches = []int{1, 4, 16, 64}
	ratioPolls   = []int{1, 16, 64}
)

// BenchmarkRatio compares posting and polling with the C reference: rounds of
// both take turns, and medians are divided. C's "list" takes a list of work
// requests whose operation is decided at run time, as Post does; its "loop" is
// specialised to one operation; both with the order of stores that an uncached
// page needs. "calls" is one method call per WQE, "register" is Post with the
// doorbell in a mapped BAR instead of a variable. The table goes to standard
// error; the metrics are the worst ratios. -benchtime 1x is enough: it has rounds
// of its own.
func BenchmarkRatio(b *testing.B) {
	bin := reference(b)
	u, _ := memoryUAR(b)
	memory, err := NewMicrobench(nil)
	require.NoError(b, err)
	register, err := NewMicrobench(u)
	require.NoError(b, err)
	// Short runs, so that few of them are interrupted; the median of a round is
	// what counts, on both sides.
	const rounds, runs, wqes = 9, 7, 1 << 14
	times := map[string][]float64{}
	add := func(k string, run func() (time.Duration, int, error)) {
		var v []float64
		for range runs {
			d, n, err := run()
			require.NoError(b, err)
			v = append(v, float64(d.Nanoseconds())/float64(n))
		}
		times[k] = append(times[k], median(v))
	}
	for range rounds {
		for k, v := range runReference(b, bin, runs, wqes) {
			times["C "+k] = append(times["C "+k], v)
		}
		_, err := memory.Post(MicroWrite, MicroMaxBatch, wqes) // wake the core up: it waited for the C side
		require.NoError(b, err)
		for _, op := range ratioOps {
			for _, batch := range ratioBatches {
				post := func(k string, f func(MicroOp, int, int) (time.Duration, error)) {
					add(fmt.Sprintf("%s %s %d", k, op, batch), func() (time.Duration, int, error) {
						d, err := f(op, batch, wqes)
						return d, wqes, err
					})
				}
				post("list", memory.Post)
				post("calls", memory.Calls)
				post("register", register.Post)
			}
		}
		for _, batch := range ratioPolls {
			add(fmt.Sprintf("poll %d", batch), func() (time.Duration, int, error) { return memory.Poll(batch, wqes) })
		}
		add("empty", func() (time.Duration, int, error) {
			d, err := memory.PollEmpty(wqes)
			return d, wqes, err
		})
	}
	var t strings.Builder
	fmt.Fprintf(&t, "\n%-16s %5s %7s %7s %7s %9s %7s %7s   (ns a WQE, medians of %d rounds)\n",
		"post", "batch", "list", "C list", "calls", "register", "C loop", "ratio", rounds)
	worst := 0.0
	for _, op := range ratioOps {
		for _, batch := range ratioBatches {
			list := median(times[fmt.Sprintf("list %s %d", op, batch)])
			c := median(times[fmt.Sprintf("C list uc %s batch %d", op, batch)])
			fmt.Fprintf(&t, "%-16s %5d %7.2f %7.2f %7.2f %9.2f %7.2f %7.2f\n", op, batch, list, c,
				median(times[fmt.Sprintf("calls %s %d", op, batch)]),
				median(times[fmt.Sprintf("register %s %d", op, batch)]),
				median(times[fmt.Sprintf("C post uc %s batch %d", op, batch)]), list/c)
			worst = max(worst, list/c)
		}
	}
	fmt.Fprintf(&t, "%-16s %5s %7s %7s %33s   (ns a CQE)\n", "poll", "batch", "Go", "C", "ratio")
	worstPoll := 0.0
	for _, batch := range ratioPolls {
		g, c := median(times[fmt.Sprintf("poll %d", batch)]), median(times[fmt.Sprintf("C poll warm no fence batch %d", batch)])
		fmt.Fprintf(&t, "%-16s %5d %7.2f %7.2f %33.2f\n", "warm", batch, g, c, g/c)
		worstPoll = max(worstPoll, g/c)
	}
	fmt.Fprintf(&t, "%-16s %5s %7.2f %7.2f\n", "empty", "", median(times["empty"]), median(times["C poll empty CQ"]))
	fmt.Fprint(os.Stderr, t.String()) // b.Log would cut it
	b.ReportMetric(worst, "post/C")
	b.ReportMetric(worstPoll, "poll/C")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkPost and BenchmarkPoll are for profiles; BenchmarkRatio compares.
func BenchmarkPost(b *testing.B) {
	m, err := NewMicrobench(nil)
	require.NoError(b, err)
	for _, op := range MicroOps() {
		for _, batch := range []int{1, MicroMaxBatch} {
			b.Run(fmt.Sprintf("%s/%d", op, batch), func(b *testing.B) {
				b.ReportAllocs()
				_, err := m.Post(op, batch, max(b.N, batch))
				require.NoError(b, err)
			})
		}
	}
}

func BenchmarkPoll(b *testing.B) {
	m, err := NewMicrobench(nil)
	require.NoError(b, err)
	for _, batch := range []int{1, MicroMaxBatch} {
		b.Run(strconv.Itoa(batch), func(b *testing.B) {
			d, n, err := m.Poll(batch, b.N)
			require.NoError(b, err)
			b.ReportMetric(float64(d.Nanoseconds())/float64(n), "ns/CQE")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// Both sides write the same bytes, at the first index, in the middle, where the
// ring ends and where the counter does.
func TestReferenceBytes(t *testing.T) {
	bin := reference(t)
	for _, op := range ratioOps {
		for _, index := range []uint32{0, 1, 511, 1022, 1023, 1024, 4095, 40000, 65534, 65535} {
			out, err := exec.Command(bin, "dump", op.String(), strconv.Itoa(int(index))).Output()
			require.NoError(t, err)
			want := strings.Fields(string(out))
			require.Len(t, want, 3)
			for _, way := range []string{"call", "list", "one of two"} {
				u, bar := memoryUAR(t)
				q, record := newSQ(t, microLogSQ, u)
				q.pi, q.ci, q.rung = index, index, index
				off := uint64(index) * 64
				w := WorkRequest{
					WRID: 1, Flags: Signalled, Op: microOpcodes[op],
					Local:  SGE{Addr: microLAddr + off, Len: 64, LKey: microLKey},
					Remote: Remote{Addr: microRAddr + off, RKey: microRKey},
				}
				switch op {
				case MicroInlineWrite16:
					w.Inline = binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, off), ^off)
				case MicroAtomicFA:
					w.Local.Len, w.Swap = 8, off|1
				case MicroMaskedCS4:
					w.Local.Len, w.Swap, w.Compare, w.SwapMask, w.CompareMask = 4, uint64(index), uint64(index)+1, 0xffff, 0xff00ff
				case MicroMaskedCS8:
					w.Local.Len, w.Swap, w.Compare, w.SwapMask, w.CompareMask = 8, off, off+1, 0xffffffff, 0xffff0000ffff
				}
				switch way {
				case "call":
					require.NoError(t, call(q, []WorkRequest{w}))
					q.Ring()
				case "list":
					n, err := q.Post([]WorkRequest{w})
					require.NoError(t, err)
					require.Equal(t, 1, n)
				default: // the general form
					require.NoError(t, q.postOne(&w))
					q.Ring()
				}
				var got []byte
				for i := range q.pi - index {
					got = append(got, q.block(index + i)[:]...)
				}
				require.Equal(t, want[0], hex.EncodeToString(got), "%s at %d by %s", op, index, way)
				require.Equal(t, want[1], fmt.Sprintf("%08x", binary.BigEndian.Uint32(record[recordSend:])), "record")
				require.Equal(t, want[2], fmt.Sprintf("%016x", binary.BigEndian.Uint64(bar[UARBlueFlame:])), "doorbell")
			}
		}
	}
}
