package vfio_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/vfio"
	"github.com/mlxvfio/mlxvfio/vfio/vfiotest"
)

func read4(t vfio.Transport, off uint64) ([]byte, error) {
	p := make([]byte, 4)
	err := t.ReadRegion(vfio.RegionBAR0, off, p)
	return p, err
}

// Which call fails, how often, and whether it was done.
func TestFaultyCounts(t *testing.T) {
	boom := errors.New("boom")
	ram := vfiotest.NewRAM(vfiotest.RAMOptions{Mapped: twoAreas})
	f := vfio.NewFaulty(ram, vfio.Plan{
		{Verb: vfio.VerbWrite, Nth: 2, Times: 2, Err: boom},
		{Verb: vfio.VerbWrite, Nth: 5, Err: boom, After: true},
		{Verb: vfio.VerbWrite, Nth: 6, Drop: true},
		{Verb: vfio.VerbRead, Match: func(c vfio.Call) bool { return c.Off == 8 && c.Index == vfio.RegionBAR0 }, Times: -1, Err: boom},
	})
	var failed []int
	for i := 1; i <= 7; i++ {
		if err := f.WriteRegion(vfio.RegionBAR0, uint64(4*i), []byte{1, 1, 1, byte(i)}); err != nil {
			require.ErrorIs(t, err, boom)
			var e *vfio.Error
			require.ErrorAs(t, err, &e)
			failed = append(failed, i)
		}
	}
	require.Equal(t, []int{2, 3, 5}, failed)
	require.Equal(t, 1, f.Unmet(), "nothing was read yet")
	for i, done := range []bool{1: true, 4: true, 5: true, 7: true} {
		require.Equal(t, done, ram.BAR().Load32(4*i) != 0, "write %d", i)
	}
	require.Equal(t, 7, f.Calls(vfio.VerbWrite))
	for range 3 {
		_, err := read4(f, 8)
		require.ErrorIs(t, err, boom)
		require.Zero(t, f.Unmet())
		_, err = read4(f, 4)
		require.NoError(t, err)
	}
	areas, err := f.MapRegion(vfio.RegionBAR0)
	require.NoError(t, err)
	require.Empty(t, areas, "a mapped access could not fail")
	f.Clear()
	_, err = read4(f, 8)
	require.NoError(t, err)
	require.NoError(t, f.Close())
}

func TestFaultyEveryVerb(t *testing.T) {
	boom := errors.New("boom")
	for _, verb := range vfio.Verbs() {
		f := vfio.NewFaulty(vfiotest.NewRAM(vfiotest.RAMOptions{}), vfio.Plan{{Verb: verb, Err: boom}})
		calls := map[vfio.Verb]func() error{
			vfio.VerbInfo:       func() error { _, err := f.Info(); return err },
			vfio.VerbRegionInfo: func() error { _, err := f.RegionInfo(0); return err },
			vfio.VerbRead:       func() error { _, err := read4(f, 0); return err },
			vfio.VerbWrite:      func() error { return f.WriteRegion(0, 0, make([]byte, 4)) },
			vfio.VerbMapRegion:  func() error { _, err := f.MapRegion(0); return err },
			vfio.VerbIRQInfo:    func() error { _, err := f.IRQInfo(vfio.IRQMSIX); return err },
			vfio.VerbNewVector:  func() error { _, err := f.NewVector(); return err },
			vfio.VerbSetIRQs:    func() error { return f.SetIRQs(vfio.IRQMSIX, 0, nil) },
			vfio.VerbReset:      f.Reset,
			vfio.VerbMapDMA:     func() error { return f.DMA().Map(vfio.Mapping{IOVA: 4096, Bytes: make([]byte, 4096), FD: -1}) },
			vfio.VerbUnmapDMA:   func() error { return f.DMA().Unmap(4096, 4096) },
			vfio.VerbLimits:     func() error { _, err := f.DMA().Limits(); return err },
			vfio.VerbClose:      f.Close,
		}
		require.Len(t, calls, len(vfio.Verbs()))
		require.ErrorIs(t, calls[verb](), boom, "%s", verb)
		if verb != vfio.VerbUnmapDMA && verb != vfio.VerbClose {
			require.NoError(t, calls[verb](), "second %s", verb)
		}
		require.NoError(t, f.Close())
		require.ErrorIs(t, calls[vfio.VerbInfo](), vfio.ErrClosed, "a Close that fails has closed")
	}
}

func TestFaultyShort(t *testing.T) {
	ram := vfiotest.NewRAM(vfiotest.RAMOptions{})
	ram.BAR().StoreBE64(0, 0x0102030405060708)
	f := vfio.NewFaulty(ram, vfio.Plan{{Verb: vfio.VerbRead, Short: 3}})
	p := []byte{9, 9, 9, 9, 9, 9, 9, 9}
	require.ErrorIs(t, f.ReadRegion(vfio.RegionBAR0, 0, p), io.ErrUnexpectedEOF)
	require.Equal(t, []byte{1, 2, 3, 9, 9, 9, 9, 9}, p)
	require.NoError(t, f.Close())
}

func TestFaultyDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := vfio.NewFaulty(vfiotest.NewRAM(vfiotest.RAMOptions{}), vfio.Plan{{Verb: vfio.VerbRead, Delay: time.Minute}})
		start := time.Now()
		_, err := read4(f, 0)
		require.NoError(t, err)
		require.Equal(t, time.Minute, time.Since(start))
		require.NoError(t, f.Close())
	})
}

// From the third read on the device is gone: reads are all ones, writes do not
// reach it, reset fails, and giving up works.
func TestFaultyAllOnes(t *testing.T) {
	touched := 0
	ram := vfiotest.NewRAM(vfiotest.RAMOptions{
		OnRead:  func(int, uint64, []byte) { touched++ },
		OnWrite: func(int, uint64, []byte) { touched++ },
	})
	f := vfio.NewFaulty(ram, vfio.Plan{{Verb: vfio.VerbRead, Nth: 3, AllOnes: true}})
	for _, want := range []byte{0, 0, 0xff, 0xff} {
		p, err := read4(f, 0)
		require.NoError(t, err)
		require.Equal(t, want, p[0])
	}
	require.Equal(t, 2, touched)
	require.NoError(t, f.WriteRegion(vfio.RegionBAR0, 0, []byte{1, 2, 3, 4}))
	require.ErrorIs(t, f.WriteRegion(vfio.RegionBAR0, 1<<20, []byte{1, 2, 3, 4}), vfio.ErrRange)
	require.Equal(t, 2, touched, "nothing reaches a device that is not there")
	require.ErrorIs(t, f.Reset(), vfio.ErrGone)
	require.Zero(t, ram.Resets())
	f.Replug()
	p, err := read4(f, 0)
	require.NoError(t, err)
	require.Zero(t, p[0])
	require.NoError(t, f.Reset())
	f.Unplug()
	require.NoError(t, f.Close())
	require.ErrorIs(t, f.Reset(), vfio.ErrClosed)
	_, err = read4(f, 0)
	require.ErrorIs(t, err, vfio.ErrClosed)
}

// A record holds every verb with its bytes, and reads back.
func TestRecorder(t *testing.T) {
	var log bytes.Buffer
	ram := vfiotest.NewRAM(vfiotest.RAMOptions{Name: "ram0", Mapped: twoAreas})
	r := vfio.NewRecorder(ram, &log)
	d, err := vfio.NewDevice(r, vfio.DeviceOptions{})
	require.NoError(t, err)
	w := openWindow(t, d)
	w.WriteBE32(0x20, 0xdeadbeef)
	require.Equal(t, uint32(0xdeadbeef), w.ReadBE32(0x20))
	require.Error(t, r.ReadRegion(vfio.RegionBAR0, 1<<20, make([]byte, 4)))
	b, err := d.Space().Alloc(64, vfio.BufferOptions{})
	require.NoError(t, err)
	require.NoError(t, b.Free())
	_, err = d.EnableVectors(2)
	require.NoError(t, err)
	require.NoError(t, d.Close())
	require.NoError(t, r.Err())
	require.Zero(t, r.Dropped())

	var head map[string]any
	require.NoError(t, json.Unmarshal(bytes.SplitN(log.Bytes(), []byte("\n"), 2)[0], &head))
	require.Equal(t, vfio.RecordSchema, head["schema"])
	require.Equal(t, "ram0", head["device"])

	seen := map[vfio.Verb][]vfio.RecordEntry{}
	n := uint64(0)
	for e, err := range vfio.ReadRecord(&log) {
		require.NoError(t, err)
		n++
		require.Equal(t, n, e.Seq, "one caller: in order, without gaps")
		require.GreaterOrEqual(t, e.Took, int64(0))
		seen[e.Verb] = append(seen[e.Verb], e)
	}
	for _, v := range vfio.Verbs() {
		if v != vfio.VerbReset {
			require.NotEmpty(t, seen[v], "%s", v)
		}
	}
	require.Equal(t, uint64(0x20), seen[vfio.VerbWrite][0].Off)
	require.Equal(t, "deadbeef", seen[vfio.VerbWrite][0].Data, "in bus order")
	p, err := seen[vfio.VerbRead][0].Bytes()
	require.NoError(t, err)
	require.Equal(t, []byte{0xde, 0xad, 0xbe, 0xef}, p)
	bad := seen[vfio.VerbRead][1]
	require.Contains(t, bad.Error, "out of range")
	require.Empty(t, bad.Data)
	require.Equal(t, uint64(2), seen[vfio.VerbSetIRQs][0].Len)
	require.Equal(t, seen[vfio.VerbMapDMA][0].Off, seen[vfio.VerbUnmapDMA][0].Off)
}

func TestRecorderLimits(t *testing.T) {
	var log bytes.Buffer
	r := vfio.NewRecorderLimits(vfiotest.NewRAM(vfiotest.RAMOptions{}), &log, vfio.RecordLimits{Bytes: 1000, Data: 4})
	for range 20 {
		require.NoError(t, r.ReadRegion(vfio.RegionConfig, 0, make([]byte, 8)), "a full record does not stop the device")
	}
	require.NoError(t, r.Close())
	require.LessOrEqual(t, log.Len(), 1000)
	require.NoError(t, r.Err())
	n := uint64(0)
	var last error
	for e, err := range vfio.ReadRecord(&log) {
		if last = err; err == nil {
			n++
			require.Equal(t, "b3151710", e.Data)
			require.True(t, e.Cut)
			require.Equal(t, uint64(8), e.Len)
		}
	}
	require.ErrorIs(t, last, vfio.ErrNoSpace)
	require.Positive(t, n)
	require.Equal(t, uint64(21), n+r.Dropped())
}

type badWriter struct{ left int }

func (w *badWriter) Write(p []byte) (int, error) {
	if w.left--; w.left < 0 {
		return 0, errors.New("disk full")
	}
	return len(p), nil
}

func TestRecorderSinkFails(t *testing.T) {
	r := vfio.NewRecorder(vfiotest.NewRAM(vfiotest.RAMOptions{}), &badWriter{left: 2})
	for range 5 {
		_, err := read4(r, 0)
		require.NoError(t, err)
	}
	require.ErrorContains(t, r.Err(), "disk full")
	require.Equal(t, uint64(3), r.Dropped())
	require.NoError(t, r.Close())
}

func TestReadRecordRefuses(t *testing.T) {
	head := `{"schema":"mlxvfio.transport-record","version":1,"device":"x","backend":"sim","began":""}` + "\n"
	for name, in := range map[string]string{
		"empty":         "",
		"no JSON":       "hello\n",
		"other schema":  `{"schema":"x","version":1}` + "\n",
		"later version": strings.Replace(head, `"version":1`, `"version":2`, 1),
		"torn line":     head + `{"seq":1,"verb":"re`,
	} {
		var got error
		for _, err := range vfio.ReadRecord(strings.NewReader(in)) {
			got = err
		}
		var e *vfio.Error
		require.ErrorAs(t, got, &e, name)
	}
}
