package capture_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/tracer/capture"
	"github.com/mlxvfio/mlxvfio/tracer/trace"
)

// TestFollow reads a file while it is written, in pieces of any size.
func TestFollow(t *testing.T) {
	whole := file(t, true)
	path := filepath.Join(t.TempDir(), "a.mlxt")
	f, err := os.Create(path)
	require.NoError(t, err)
	defer f.Close()
	rd, err := capture.Open(path, capture.ReaderOptions{Follow: true, Poll: time.Millisecond})
	require.NoError(t, err)
	defer rd.Close()

	short, cancel := context.WithTimeoutCause(t.Context(), 5*time.Millisecond, errPlanned)
	var r capture.Record
	require.ErrorIs(t, rd.Next(short, &r), errPlanned, "nothing is there yet")
	cancel()

	go func() {
		for n, i := 1, 0; i < len(whole); n = n*5%4099 + 1 {
			m := min(n, len(whole)-i)
			_, _ = f.Write(whole[i : i+m])
			i += m
			if n%3 == 0 {
				time.Sleep(100 * time.Microsecond)
			}
		}
	}()
	var l []uint64
	for {
		if err = rd.Next(t.Context(), &r); err != nil {
			break
		}
		if r.Kind == capture.KindBlock {
			l = append(l, r.Index)
		}
	}
	require.ErrorIs(t, err, io.EOF)
	want, _ := readAll(t.Context(), bytes.NewReader(whole), capture.ReaderOptions{})
	require.Equal(t, blocksOf(want), l)
}

func TestFollowShrinks(t *testing.T) {
	whole := file(t, false)
	path := filepath.Join(t.TempDir(), "a.mlxt")
	require.NoError(t, os.WriteFile(path, whole, 0o600))
	rd, err := capture.Open(path, capture.ReaderOptions{Follow: true, Poll: time.Millisecond})
	require.NoError(t, err)
	defer rd.Close()
	var r capture.Record
	for range len(sample()) + 1 {
		require.NoError(t, rd.Next(t.Context(), &r))
	}
	require.NoError(t, os.Truncate(path, 100))
	err = rd.Next(t.Context(), &r)
	require.ErrorIs(t, err, capture.ErrDamaged)
	require.ErrorContains(t, err, "shorter")
}

func TestNoAllocations(t *testing.T) {
	w, err := capture.NewWriter(io.Discard, &testMeta)
	require.NoError(t, err)
	r := capture.Record{Kind: capture.KindBlock, Data: blockAt(1)}
	g := capture.Record{Kind: capture.KindGap}
	require.Zero(t, testing.AllocsPerRun(1000, func() {
		r.Index++
		require.NoError(t, w.Write(&r))
		require.NoError(t, w.Write(&g))
	}))

	var b bytes.Buffer
	w, err = capture.NewWriter(&b, &testMeta)
	require.NoError(t, err)
	for i := range uint64(3000) {
		d := blockAt(i)
		require.NoError(t, w.Block(i, &d))
	}
	require.NoError(t, w.Flush())
	rd := capture.NewReader(bytes.NewReader(b.Bytes()), capture.ReaderOptions{})
	require.NoError(t, rd.Next(t.Context(), &r))
	ctx := t.Context()
	require.Zero(t, testing.AllocsPerRun(2500, func() { require.NoError(t, rd.Next(ctx, &r)) }))
	require.EqualValues(t, 2500, r.Index)
}

// failing fails after n bytes.
type failing struct{ n int }

func (f *failing) Write(p []byte) (int, error) {
	if len(p) > f.n {
		n := f.n
		f.n = 0
		return n, errPlanned
	}
	f.n -= len(p)
	return len(p), nil
}

func TestWriteFails(t *testing.T) {
	_, err := capture.NewWriter(&failing{10}, &testMeta)
	require.ErrorIs(t, err, errPlanned)
	w, err := capture.NewWriter(&failing{1000}, &testMeta)
	require.NoError(t, err)
	meta := w.Size()
	d := blockAt(0)
	require.NoError(t, w.Block(0, &d))
	require.NoError(t, w.Flush())
	for i := range uint64(3) {
		require.NoError(t, w.Block(i+1, &d), "buffered")
	}
	err = w.Flush()
	require.ErrorIs(t, err, errPlanned)
	require.ErrorContains(t, err, "write at byte 1000")
	require.Equal(t, err, w.Block(9, &d), "it sticks")
	size, blocks := w.Size(), uint64(0)
	require.EqualValues(t, 1000, size)
	n, _, _ := w.Totals()
	for rest := size - meta; rest >= 280; rest -= 280 {
		blocks++
	}
	require.Equal(t, blocks, n, "those that are whole in the file")
	require.Equal(t, err, w.Close(&capture.End{}))
	require.ErrorIs(t, w.Close(&capture.End{}), capture.ErrClosed)
}

func TestCreate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.mlxt")
	w, err := capture.Create(path, &testMeta, false)
	require.NoError(t, err)
	require.NoError(t, w.Sync())
	require.NoError(t, w.Close(&capture.End{Reason: capture.ReasonStopped}))
	d := blockAt(0)
	require.ErrorIs(t, w.Block(0, &d), capture.ErrClosed)
	_, err = capture.Create(path, &testMeta, false)
	require.ErrorIs(t, err, os.ErrExist)
	w, err = capture.Create(path, &testMeta, true)
	require.NoError(t, err)
	require.NoError(t, w.Close(&capture.End{}))
	rd, err := capture.Open(path, capture.ReaderOptions{})
	require.NoError(t, err)
	defer rd.Close()
	var r capture.Record
	require.NoError(t, rd.Next(t.Context(), &r))
	require.NoError(t, rd.Next(t.Context(), &r))
	require.Equal(t, capture.KindEnd, r.Kind)
}

// TestKill kills a process that records: everything that it had flushed is there.
func TestKill(t *testing.T) {
	if path := os.Getenv("CAPTURE_TEST_WRITE"); path != "" {
		w, err := capture.Create(path, &testMeta, false)
		require.NoError(t, err)
		for i := uint64(0); ; i++ {
			d := blockAt(i)
			require.NoError(t, w.Block(i, &d))
			if i%7 == 0 {
				require.NoError(t, w.Flush())
				fmt.Println(i)
			}
		}
	}
	path := filepath.Join(t.TempDir(), "a.mlxt")
	cmd := exec.Command(os.Args[0], "-test.run=^TestKill$")
	cmd.Env = append(os.Environ(), "CAPTURE_TEST_WRITE="+path)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	var told uint64
	for told < 700 {
		_, err := fmt.Fscanln(out, &told)
		require.NoError(t, err)
	}
	require.NoError(t, cmd.Process.Kill())
	_, _ = io.Copy(io.Discard, out)
	_ = cmd.Wait()
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	rs, err := readAll(t.Context(), f, capture.ReaderOptions{})
	var stop *capture.StopError
	require.ErrorAs(t, err, &stop)
	require.True(t, errors.Is(err, capture.ErrNoEnd) || errors.Is(err, capture.ErrTruncated), "%v", err)
	l := blocksOf(rs)
	require.GreaterOrEqual(t, l[len(l)-1], told, "the last block that was flushed is there")
	for i, n := range l {
		require.EqualValues(t, i, n)
		require.Equal(t, blockAt(n), rs[i+1].Data)
	}
}

// queue is a Source.
type queue struct {
	rs      []capture.Record
	flushed func() int
	seen    []int
}

func (q *queue) Ready() int { return len(q.rs) % 5 }

func (q *queue) Next(_ context.Context, r *capture.Record) error {
	if q.Ready() == 0 {
		q.seen = append(q.seen, q.flushed())
	}
	if len(q.rs) == 0 {
		return io.EOF
	}
	*r, q.rs = q.rs[0], q.rs[1:]
	return nil
}

// TestPump: what was taken is in the file whenever the source has nothing more.
func TestPump(t *testing.T) {
	var b bytes.Buffer
	w, err := capture.NewWriter(&b, &testMeta)
	require.NoError(t, err)
	var rs []capture.Record
	for i := range uint64(20) {
		rs = append(rs, capture.Record{Kind: capture.KindBlock, Index: i, Data: blockAt(i)})
	}
	rs = append(rs, capture.Record{Kind: capture.KindEnd, End: capture.End{Reason: capture.ReasonLost}})
	head := b.Len()
	q := &queue{rs: rs, flushed: func() int { return (b.Len() - head) / blockSize }}
	end, err := capture.Pump(t.Context(), w, q, nil)
	require.NoError(t, err)
	require.Equal(t, capture.ReasonLost, end.Reason)
	require.Equal(t, []int{1, 6, 11, 16, 20}, q.seen)
	_, err = capture.Pump(t.Context(), w, &queue{rs: sample(), flushed: func() int { return 0 }}, func(r *capture.Record) error {
		if r.Kind == capture.KindBlock {
			return errPlanned
		}
		return nil
	})
	require.ErrorIs(t, err, errPlanned)
}

func TestPlayer(t *testing.T) {
	var p capture.Player
	rd := capture.NewReader(bytes.NewReader(file(t, true)), capture.ReaderOptions{})
	n := 0
	require.NoError(t, p.Play(t.Context(), rd, func(*capture.Record) error { n++; return nil }, nil))
	require.Equal(t, len(sample())+2, n)
	require.Equal(t, testMeta, *p.Meta())
	require.Equal(t, capture.ReasonLost, p.End().Reason)
	c := p.Counters()
	require.EqualValues(t, 17, c.Blocks)
	require.NoError(t, c.Check())
	gaps, lost, least := p.Missing()
	require.EqualValues(t, 2, gaps)
	require.EqualValues(t, 8, lost)
	require.True(t, least)
	// A message that is not complete: it ends with the trace, with a gap, or with damage.
	pending := blockAt(0)
	binary.BigEndian.PutUint64(pending[8*3:], uint64(trace.StringEvent(false, 1, 16, 5, 0, 0x400000)))
	rest := blockAt(1)
	binary.BigEndian.PutUint64(rest[8*3:], uint64(trace.StringEvent(false, 1, 16, 5, 1, 7)))
	for _, k := range []capture.Kind{capture.KindNote, capture.KindGap, capture.KindDamage} {
		var out bytes.Buffer
		w, err := capture.NewWriter(&out, &testMeta)
		require.NoError(t, err)
		require.NoError(t, w.Write(&capture.Record{Kind: capture.KindStrings, DB: testDB(3)}))
		require.NoError(t, w.Block(0, &pending))
		require.NoError(t, w.Close(&capture.End{}))
		var p capture.Player
		require.NoError(t, p.Play(t.Context(), capture.NewReader(&out, capture.ReaderOptions{}), nil, nil))
		require.EqualValues(t, 1, p.Counters().IncompleteMessages)

		p = capture.Player{}
		var texts []string
		for _, r := range []capture.Record{{Kind: capture.KindStrings, DB: testDB(3)}, {Kind: capture.KindBlock, Data: pending}, {Kind: k}, {Kind: capture.KindBlock, Index: 1, Data: rest}} {
			require.NoError(t, p.Record(&r, func(m *trace.Message) { texts = append(texts, m.Text()) }))
		}
		want := "hello 7"
		if k != capture.KindNote {
			want = fmt.Sprintf("0x%016x", uint64(trace.StringEvent(false, 1, 16, 5, 1, 7)))
		}
		require.Equal(t, []string{want}, texts, "%v", k)
	}
	var q capture.Player
	require.ErrorContains(t, q.Record(&capture.Record{Kind: capture.KindBlock}, nil), "before any string database")
}

func BenchmarkWriteBlock(b *testing.B) {
	w, err := capture.NewWriter(io.Discard, &testMeta)
	require.NoError(b, err)
	d := blockAt(1)
	b.SetBytes(trace.BlockSize)
	for i := range uint64(b.N) {
		_ = w.Block(i, &d)
	}
}

func BenchmarkReadBlock(b *testing.B) {
	var f bytes.Buffer
	w, err := capture.NewWriter(&f, &testMeta)
	require.NoError(b, err)
	for i := range uint64(b.N) {
		d := blockAt(i)
		_ = w.Block(i, &d)
	}
	require.NoError(b, w.Flush())
	rd := capture.NewReader(&f, capture.ReaderOptions{})
	var r capture.Record
	ctx := context.Background()
	require.NoError(b, rd.Next(ctx, &r))
	b.SetBytes(trace.BlockSize)
	b.ResetTimer()
	for range b.N {
		if err := rd.Next(ctx, &r); err != nil {
			b.Fatal(err)
		}
	}
}
