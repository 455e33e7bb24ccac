package main

import (
	"encoding/binary"
	"math/rand/v2"
	"path/filepath"
	"sort"
	"testing"
	"time"

	"github.com/mlxvfio/mlxvfio/tracer/capture"
	"github.com/mlxvfio/mlxvfio/tracer/trace"
	"github.com/stretchr/testify/require"
)

// stream is messages of one format for a capture of the tests.
type stream struct {
	format string
	id     uint8
	words  int
	every  float64 // ticks, the mean
	chance bool    // intervals by chance; else regular
	burst  [2]float64
	quiet  [2]float64
	after  float64 // first message not before
}

// Formats of the usual capture. One of them tries to be a script.
const (
	fmtRegular = "hb: tick %u"
	fmtChance  = "cmd: opcode 0x%x token %u"
	fmtScript  = "</script><script>document.title='%u'</script> \"q\" & é"
	fmtRare    = "port %u: link state %d"
	fmtBad     = "bad %s here"
)

// usual are the streams of the usual capture. The clock ticks with 156.25 MHz.
func usual() []stream {
	return []stream{
		{format: fmtRegular, id: 0x10, words: 1, every: 156250, quiet: [2]float64{200e6, 260e6}},
		{format: fmtChance, id: 0x11, words: 2, every: 220000, chance: true, burst: [2]float64{100e6, 100.3e6}},
		{format: fmtScript, id: 0x11, words: 1, every: 2e6, chance: true},
		{format: fmtRare, id: 0x12, words: 2, every: 40e6, chance: true},
		{format: fmtBad, id: 0x12, words: 1, every: 30e6, chance: true},
	}
}

const (
	testHz    = 156.25e6
	testStart = uint64(1<<53 - 300e6) // the clock's 53 bits wrap during the capture
	testTicks = 470e6
)

// part is an event with its time since the start.
type part struct {
	at float64
	e  [8]uint32 // header and parameters
	n  int
	id uint8
}

// makeCapture writes a capture of the streams: 3 s, with a gap of 40 blocks in the
// middle if asked for, and without an end if not asked for.
func makeCapture(t testing.TB, name string, streams []stream, gap, end bool) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	start := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	w, err := capture.Create(path, &capture.Meta{
		Device: "0000:3b:00.0", PCIID: "15b3:1019", Firmware: "16.35.1012", PSID: "MT_0000000008", RingBlocks: 1024, ClockKHz: 156250, Started: start, Tool: "test",
	}, false)
	require.NoError(t, err)
	db := &trace.DB{Geometry: trace.Geometry{TrcVer: 1, FirstString: 0x10, NumString: 8}}
	rng := rand.New(rand.NewPCG(1, 2))
	var all []part
	for i, s := range streams {
		base := uint32(0x1000 + 0x100*i)
		db.Sections = append(db.Sections, trace.Section{Base: uint64(base), Data: append([]byte(s.format), '\n', 0)})
		n := uint32(0)
		for at := s.after + 1000; at < testTicks; {
			p := part{at: at, n: s.words, id: s.id}
			p.e[0] = base
			for k := range s.words {
				p.e[k+1] = n + uint32(k)*7
			}
			n++
			if at < s.quiet[0] || at > s.quiet[1] {
				all = append(all, p)
			}
			d := s.every
			if s.chance {
				d *= rng.ExpFloat64()
			}
			if at > s.burst[0] && at < s.burst[1] {
				d = 2000
			}
			at += max(d, 200)
		}
	}
	sort.Slice(all, func(i, j int) bool { return all[i].at < all[j].at })
	clock := func(at float64) capture.Record {
		mono := time.Duration(at / testHz * 1e9)
		return capture.Record{Kind: capture.KindClock, Clock: capture.Clock{Host: start.Add(mono), Mono: mono, Ticks: (testStart + uint64(at)) & trace.TimeMask, HaveTicks: true, Error: 2 * time.Microsecond}}
	}
	write := func(r capture.Record) { require.NoError(t, w.Write(&r)) }
	write(capture.Record{Kind: capture.KindStrings, DB: db})
	write(clock(0))
	var (
		b     [trace.BlockSize]byte
		n     int
		index uint64
		num   [256]uint16
		last  uint64
		lost  capture.Gap
	)
	put := func(e trace.Event) {
		binary.BigEndian.PutUint64(b[n*8:], uint64(e))
		n++
	}
	closeBlock := func(at float64) {
		for n < trace.EventsPerBlock-1 {
			put(0)
		}
		now := (testStart + uint64(at)) & trace.TimeMask
		put(trace.TimestampEvent(now, 0))
		if gap && index >= 100 && index < 140 {
			if lost.Blocks++; lost.Blocks == 1 {
				lost.From, lost.HaveFrom, lost.First, lost.Cause = last, true, index, capture.CauseOverwritten
			}
		} else {
			if lost.Blocks > 0 {
				lost.To, lost.HaveTo = now, true
				write(capture.Record{Kind: capture.KindGap, Gap: lost})
				lost = capture.Gap{}
			}
			write(capture.Record{Kind: capture.KindBlock, Index: index, Data: b})
			last = now
		}
		index++
		n, b = 0, [trace.BlockSize]byte{}
	}
	tick := func(at float64) uint8 { return uint8((testStart + uint64(at)) & 0x7f) }
	for i, p := range all {
		for k := 0; k <= p.n; k++ {
			put(trace.StringEvent(false, tick(p.at), p.id, num[p.id]&0x1fff, uint8(k), p.e[k]))
			if n == trace.EventsPerBlock-1 {
				closeBlock(p.at + 1)
			}
		}
		num[p.id]++
		// An epoch is 128 ticks: a timestamp event follows every message that no block's
		// end follows soon.
		if n > 0 {
			put(trace.TimestampEvent((testStart+uint64(p.at)+1)&trace.TimeMask, 0))
			switch n {
			case trace.EventsPerBlock: // it takes the place of the closing one
				n--
				closeBlock(p.at + 1)
			case trace.EventsPerBlock - 1:
				closeBlock(p.at + 2)
			}
		}
		if i%1000 == 999 {
			write(clock(p.at))
		}
	}
	if n > 0 {
		closeBlock(testTicks)
	}
	write(clock(testTicks))
	if end {
		require.NoError(t, w.Close(&capture.End{Time: start.Add(3 * time.Second)}))
	} else {
		require.NoError(t, w.Flush())
	}
	return path
}
