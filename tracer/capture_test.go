package tracer

import (
	"context"
	"io"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/tracer/capture"
	"github.com/mlxvfio/mlxvfio/tracer/trace"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// take reads records until the source ends or n blocks have come.
func take(t *testing.T, c *Capture, n int) (rs []capture.Record, err error) {
	t.Helper()
	for blocks := 0; blocks < n; {
		var r capture.Record
		if err = c.Next(t.Context(), &r); err != nil {
			return rs, err
		}
		rs = append(rs, r)
		if r.Kind == capture.KindBlock {
			blocks++
		}
	}
	return rs, nil
}

const all = 1 << 30

// account checks records against what the device wrote: each block is there or
// inside a gap that says exactly how many are missing.
func account(t *testing.T, written []uint64, rs []capture.Record) (got, lost int) {
	t.Helper()
	at := 0
	var last uint64
	haveLast := false
	for i := range rs {
		r := &rs[i]
		switch r.Kind {
		case capture.KindBlock:
			require.Less(t, at, len(written))
			require.EqualValues(t, at, r.Index, "number of a block")
			tm, closed := trace.ClosedTime(r.Data[:])
			require.True(t, closed)
			require.Equal(t, written[at], tm, "block %d", at)
			require.Equal(t, blockAt(uint64(at), tm), r.Data, "block %d is whole", at)
			last, haveLast = tm, true
			at++
			got++
		case capture.KindGap:
			g := &r.Gap
			require.EqualValues(t, at, g.First)
			require.Positive(t, g.Blocks)
			require.Equal(t, haveLast, g.HaveFrom)
			if haveLast {
				require.Equal(t, last, g.From)
			}
			at += int(g.Blocks)
			lost += int(g.Blocks)
			require.LessOrEqual(t, at, len(written), "%v", g)
			if g.HaveTo {
				require.Equal(t, written[at], g.To)
			}
		}
	}
	return got, lost
}

func TestCapture(t *testing.T) {
	for name, o := range map[string]Options{"events": {BufferSize: 4096}, "polled": {BufferSize: 4096, Polled: true}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake()
				c, err := Open(t.Context(), f.device(), o)
				require.NoError(t, err)
				var rs []capture.Record
				for range 50 {
					f.write(5)
					l, err := take(t, c, 5)
					require.NoError(t, err)
					rs = append(rs, l...)
					time.Sleep(30 * time.Millisecond)
				}
				f.write(7)
				c.Stop()
				l, err := take(t, c, all)
				require.ErrorIs(t, err, io.EOF)
				rs = append(rs, l...)
				got, lost := account(t, f.written, rs)
				require.Equal(t, 257, got)
				require.Zero(t, lost)
				require.Equal(t, capture.KindMeta, rs[0].Kind)
				require.EqualValues(t, 16, rs[0].Meta.RingBlocks)
				require.False(t, rs[0].Meta.TakenUp)
				require.Equal(t, capture.KindStrings, rs[1].Kind)
				require.Equal(t, trace.Geometry{TrcVer: 1, FirstString: 16, NumString: 8}, rs[1].DB.Geometry)
				text, ok := rs[1].DB.Strings().At(0x400000)
				require.True(t, ok)
				require.Equal(t, "hello %u", string(text))
				end := rs[len(rs)-1].End
				require.Equal(t, capture.ReasonStopped, end.Reason)
				require.EqualValues(t, 257, end.Blocks)
				require.Empty(t, end.Text)
				require.NoError(t, c.Err())
				clocks := 0
				for _, r := range rs {
					if r.Kind == capture.KindClock {
						clocks++
					}
				}
				require.GreaterOrEqual(t, clocks, 6, "two readings at the beginning, each second and at the end")

				owner, status, freed := f.state()
				require.False(t, owner, "given back before Close")
				require.Zero(t, status)
				require.Zero(t, freed)
				require.NoError(t, c.Close(t.Context()))
				require.NoError(t, c.Close(t.Context()))
				require.Equal(t, []string{"acquire", "configure", "on", "off", "release", "free"},
					f.opsOf("acquire", "configure", "on", "off", "release", "free"), "the order of steps")
				s := c.Stats()
				require.EqualValues(t, 257, s.Blocks)
				if o.Polled {
					require.Zero(t, s.Armed)
				} else {
					require.Positive(t, s.Events)
					require.Greater(t, s.Armed, uint64(40))
				}
				var r capture.Record
				require.ErrorIs(t, c.Next(t.Context(), &r), io.EOF)
			})
		})
	}
}

// TestContextEnds: the context of Open, over, is as good as Stop, and what is left
// still comes from a Next with the same context.
func TestContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		ctx, cancel := context.WithCancel(t.Context())
		c, err := Open(ctx, f.device(), Options{})
		require.NoError(t, err)
		f.write(9)
		cancel()
		var rs []capture.Record
		var r capture.Record
		for {
			if err = c.Next(ctx, &r); err != nil {
				break
			}
			rs = append(rs, r)
		}
		require.ErrorIs(t, err, io.EOF)
		got, lost := account(t, f.written, rs)
		require.Equal(t, 9, got+lost)
		require.Zero(t, lost)
		<-c.Done()
		owner, status, _ := f.state()
		require.False(t, owner)
		require.Zero(t, status)
		require.NoError(t, c.Close(t.Context()))
		_, _, freed := f.state()
		require.Equal(t, 1, freed)
	})
}

// TestNextWaits: a context of Next alone ends only the waiting.
func TestNextWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		c, err := Open(t.Context(), f.device(), Options{ClockPoll: -1})
		require.NoError(t, err)
		short, cancel := context.WithTimeoutCause(t.Context(), time.Minute, errPlanned)
		defer cancel()
		var r capture.Record
		for err == nil {
			err = c.Next(short, &r)
		}
		require.ErrorIs(t, err, errPlanned)
		f.write(1)
		require.NoError(t, c.Next(t.Context(), &r))
		require.Equal(t, capture.KindBlock, r.Kind)
		require.NoError(t, c.Close(t.Context()))
	})
}

func TestLost(t *testing.T) {
	for _, silent := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			f := newFake()
			c, err := Open(t.Context(), f.device(), Options{})
			require.NoError(t, err)
			f.write(20)
			f.steal(silent)
			begin := time.Now()
			rs, err := take(t, c, all)
			require.ErrorIs(t, err, io.EOF)
			got, lost := account(t, f.written, rs)
			require.Equal(t, 20, got, "what was read until then is good")
			require.Zero(t, lost)
			end := rs[len(rs)-1].End
			require.Equal(t, capture.ReasonLost, end.Reason)
			require.ErrorIs(t, c.Err(), ErrLost)
			var le *LostError
			require.ErrorAs(t, c.Err(), &le)
			if silent {
				require.Equal(t, "poll", le.By)
				require.LessOrEqual(t, time.Since(begin), defaultOwnerPoll)
			} else {
				require.Equal(t, "event", le.By)
				require.Less(t, time.Since(begin), 50*time.Millisecond)
			}
			require.Equal(t, OwnerReleased, c.Owner())
			require.NoError(t, c.Close(t.Context()), "a loss is no failure of closing")
			require.Equal(t, []string{"acquire", "on", "free"}, f.opsOf("acquire", "on", "off", "release", "free"),
				"nothing is written any more, and nothing taken again")
		})
	}
}

// TestLostUnnoticed: the tracer was taken just before the capture was to end, and
// nobody had told. That it stopped as asked would not be true.
func TestLostUnnoticed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		c, err := Open(t.Context(), f.device(), Options{})
		require.NoError(t, err)
		f.write(20)
		f.steal(true)
		c.Stop()
		rs, err := take(t, c, all)
		require.ErrorIs(t, err, io.EOF)
		got, lost := account(t, f.written, rs)
		require.Equal(t, 20, got)
		require.Zero(t, lost)
		end := rs[len(rs)-1].End
		require.Equal(t, capture.ReasonLost, end.Reason)
		require.Contains(t, end.Text, "noticed by read-back")
		require.ErrorIs(t, c.Err(), ErrLost)
		require.NoError(t, c.Close(t.Context()))
		require.Empty(t, f.opsOf("release"), "what is not ours is not given back")
	})
}

func TestTakenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.owner, f.status = true, 1 // of a killed run
		c, err := Open(t.Context(), f.device(), Options{})
		require.NoError(t, err)
		require.True(t, c.Meta().TakenUp)
		require.Equal(t, []string{"acquire", "off", "configure", "on"}, f.opsOf("acquire", "off", "configure", "on"),
			"a device that still writes for the earlier run is stopped first")
		require.NoError(t, c.Close(t.Context()))
	})
}

// TestOpenFails: whatever fails, and whoever panics, the tracer is given back and the
// memory free.
func TestOpenFails(t *testing.T) {
	for name, c := range map[string]struct {
		plan  func(f *fake, o *Options)
		check func(t *testing.T, err error)
		ops   []string
	}{
		"no memory mode": {func(f *fake, _ *Options) { f.caps.SetTraceToMemory(false) }, func(t *testing.T, err error) {
			var ce *CapabilityError
			require.ErrorAs(t, err, &ce)
			require.Equal(t, "MTRC_CAP.trace_to_memory", ce.Bit)
			require.ErrorIs(t, err, vfio.ErrNotSupported)
		}, nil},
		"size": {func(_ *fake, o *Options) { o.BufferSize = 5000 }, func(t *testing.T, err error) {
			var be *BufferError
			require.ErrorAs(t, err, &be)
			require.True(t, be.Violates(RuleSize))
		}, nil},
		"queue": {func(_ *fake, o *Options) { o.Queue = math.MaxInt }, func(t *testing.T, err error) {
			var oe *OptionError
			require.ErrorAs(t, err, &oe)
			require.Equal(t, "Queue", oe.Option)
		}, nil},
		"too large": {func(_ *fake, o *Options) { o.BufferSize = 4096 << 7 }, func(t *testing.T, err error) {
			require.ErrorContains(t, err, "from 4096 to 262144")
		}, nil},
		"key": {func(f *fake, _ *Options) {
			f.key = goodKey(0x10000, 4096<<6, 0x1234)
			f.key.SetUMREn(true)
		}, func(t *testing.T, err error) {
			var be *BufferError
			require.ErrorAs(t, err, &be)
			require.Equal(t, []Violation{{RuleUMR, "a work request may change the key (umr_en 1)"}}, be.Violations)
		}, []string{"free"}},
		"busy": {func(f *fake, _ *Options) { f.tool = true }, func(t *testing.T, err error) {
			require.ErrorIs(t, err, ErrBusy)
		}, []string{"acquire", "free"}},
		"acquire": {failAt("acquire"), planned, []string{"acquire", "release", "free"}},
		"strings": {failAt("stdb"), planned, []string{"acquire", "release", "free"}},
		"panic": {func(_ *fake, o *Options) { o.Progress = func(_, _ uint64) { panic(errPlanned) } }, nil,
			[]string{"acquire", "release", "free"}},
		"conf": {failAt("configure"), planned, []string{"acquire", "configure", "release", "free"}},
		"conf lies": {func(f *fake, _ *Options) { f.confLies = true }, func(t *testing.T, err error) {
			var me *MismatchError
			require.ErrorAs(t, err, &me)
			require.Equal(t, "log_trace_buffer_size", me.Field)
			require.NotErrorIs(t, err, ErrLost)
		}, []string{"acquire", "configure", "release", "free"}},
		"ctrl lies": {func(f *fake, _ *Options) {
			f.on = func(op string) error { f.ctrlLies = op == "ctrl" && f.status == 1; return nil }
		}, func(t *testing.T, err error) {
			var me *MismatchError
			require.ErrorAs(t, err, &me)
			require.Equal(t, "trace_status", me.Field)
		}, []string{"acquire", "configure", "on", "off", "release", "free"}},
		"on": {failAt("on"), planned, []string{"acquire", "configure", "on", "off", "release", "free"}},
		"stolen at once": {func(f *fake, _ *Options) {
			f.on = func(op string) error {
				if op == "on" {
					f.owner, f.tool = false, true
				}
				return nil
			}
		}, func(t *testing.T, err error) { require.ErrorIs(t, err, ErrLost) },
			[]string{"acquire", "configure", "on", "free"}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake()
			var o Options
			c.plan(f, &o)
			if c.check == nil {
				require.PanicsWithValue(t, errPlanned, func() { _, _ = Open(t.Context(), f.device(), o) })
			} else {
				cp, err := Open(t.Context(), f.device(), o)
				require.Error(t, err)
				require.Nil(t, cp)
				c.check(t, err)
			}
			require.Equal(t, c.ops, f.opsOf("acquire", "configure", "on", "off", "release", "free"))
			require.False(t, f.owner)
		})
	}
}

func planned(t *testing.T, err error) { require.ErrorIs(t, err, errPlanned) }

func failAt(op string) func(*fake, *Options) {
	return func(f *fake, _ *Options) {
		f.on = func(o string) error {
			if o == op {
				return errPlanned
			}
			return nil
		}
	}
}

// TestDeviceDies: the capture ends by itself; Close says what it could not do and may
// be called again.
func TestDeviceDies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		c, err := Open(t.Context(), f.device(), Options{})
		require.NoError(t, err)
		f.write(3)
		f.mu.Lock()
		f.on = func(string) error { return vfio.ErrGone }
		f.mu.Unlock()
		rs, err := take(t, c, all)
		require.ErrorIs(t, err, io.EOF)
		got, _ := account(t, f.written, rs)
		require.Equal(t, 3, got)
		require.Equal(t, capture.ReasonDevice, rs[len(rs)-1].End.Reason)
		require.ErrorIs(t, c.Err(), vfio.ErrGone)
		require.ErrorIs(t, c.Close(t.Context()), vfio.ErrGone)
		f.mu.Lock()
		f.on = nil
		f.mu.Unlock()
		require.NoError(t, c.Release())
		_, _, freed := f.state()
		require.Equal(t, 1, freed)
		require.NoError(t, c.Close(t.Context()), "nothing is left to do")
	})
}

// TestPanicInside: a panic in the capture's goroutines gives the tracer back.
func TestPanicInside(t *testing.T) {
	for _, where := range []string{"control", "reader"} {
		synctest.Test(t, func(t *testing.T) {
			f := newFake()
			c, err := Open(t.Context(), f.device(), Options{BufferSize: 4096})
			require.NoError(t, err)
			f.write(1)
			_, err = take(t, c, 1)
			require.NoError(t, err)
			synctest.Wait()
			if where == "control" {
				f.mu.Lock()
				f.on = func(op string) error {
					if op == "cap" {
						f.on = nil
						panic(errPlanned)
					}
					return nil
				}
				f.mu.Unlock()
			} else {
				c.read.ring.words = nil // it needs them when the device has come around
				f.write(40)
			}
			_, err = take(t, c, all)
			require.ErrorIs(t, err, io.EOF)
			var pe *PanicError
			require.ErrorAs(t, c.Err(), &pe, where)
			require.NotEmpty(t, pe.Stack)
			owner, status, _ := f.state()
			require.False(t, owner, where)
			require.Zero(t, status)
			require.NoError(t, c.Close(t.Context()))
		})
	}
}

// TestReleaseFails: a device that keeps the tracer ours is an error of Close.
func TestReleaseFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.stubborn = true
		c, err := Open(t.Context(), f.device(), Options{})
		require.NoError(t, err)
		err = c.Close(t.Context())
		var me *MismatchError
		require.ErrorAs(t, err, &me)
		require.Equal(t, "trace_owner", me.Field)
		require.NoError(t, c.Close(t.Context()), "there is nothing left to do")
	})
}

// TestLostEvents: what no event tells of is found by the clock, and the event asked
// for again.
func TestLostEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		c, err := Open(t.Context(), f.device(), Options{OwnerPoll: time.Hour, ClockPoll: -1})
		require.NoError(t, err)
		f.mu.Lock()
		f.armed = false // the event is lost
		f.mu.Unlock()
		time.Sleep(time.Second)
		armed := c.Stats().Armed
		f.write(2)
		_, err = take(t, c, 2)
		require.NoError(t, err)
		time.Sleep(time.Second)
		require.EqualValues(t, 1, c.Stats().FoundByPoll)
		require.Greater(t, c.Stats().Armed, armed)
		f.mu.Lock()
		require.True(t, f.armed)
		f.mu.Unlock()
		require.NoError(t, c.Close(t.Context()))
	})
}

// TestStringUpdate: blocks before the update come before its strings, all others
// after them, and nothing is missing.
func TestStringUpdate(t *testing.T) {
	for _, how := range []string{"event", "twice", "silent"} {
		synctest.Test(t, func(t *testing.T) {
			f := newFake()
			dir := t.TempDir()
			c, err := Open(t.Context(), f.device(), Options{CacheDir: dir})
			require.NoError(t, err)
			f.write(10)
			f.mu.Lock()
			if how == "silent" {
				f.caps.StringDbParam(0).SetStringDbBaseAddress(0x900000)
			} else {
				copy(f.sections[0], "HELLO %u")
				f.events <- prm.TracerEventStringsDbUpdate
			}
			if how == "twice" {
				n := 0
				f.on = func(op string) error {
					if op == "stdb" {
						if n++; n == 1 {
							copy(f.sections[0], "Hello %u")
							f.events <- prm.TracerEventStringsDbUpdate
						}
					}
					return nil
				}
			}
			f.mu.Unlock()
			time.Sleep(2 * time.Second)
			f.write(10)
			time.Sleep(time.Second)
			c.Stop()
			rs, err := take(t, c, all)
			require.ErrorIs(t, err, io.EOF)
			got, lost := account(t, f.written, rs)
			require.Equal(t, 20, got)
			require.Zero(t, lost)
			var dbs []*trace.DB
			before := 0
			for _, r := range rs {
				switch r.Kind {
				case capture.KindStrings:
					dbs = append(dbs, r.DB)
				case capture.KindBlock:
					if len(dbs) == 1 {
						before++
					}
				}
			}
			require.Len(t, dbs, 2, how)
			require.Equal(t, 10, before)
			at, want := uint32(0x400000), map[string]string{"event": "HELLO %u", "twice": "Hello %u", "silent": "hello %u"}[how]
			if how == "silent" {
				at = 0x900000
			}
			text, _ := dbs[1].Strings().At(at)
			require.Equal(t, want, string(text))
			require.NoError(t, c.Close(t.Context()))
			require.Equal(t, []string{"on", "off", "configure", "on", "off"}, f.opsOf("on", "off", "configure")[1:])
		})
	}
}

// TestSlowConsumer: the reader never waits; every block is there or accounted for.
func TestSlowConsumer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		c, err := Open(t.Context(), f.device(), Options{BufferSize: 16384, Queue: 16})
		require.NoError(t, err)
		var rs []capture.Record
		for i := range 300 {
			f.write(1 + i%9)
			time.Sleep(5 * time.Millisecond)
			if i%10 == 0 {
				l, err := take(t, c, i%7)
				require.NoError(t, err)
				rs = append(rs, l...)
			}
		}
		c.Stop()
		l, err := take(t, c, all)
		require.ErrorIs(t, err, io.EOF)
		rs = append(rs, l...)
		got, lost := account(t, f.written, rs)
		require.Equal(t, f.writtenBlocks(), got+lost)
		require.Greater(t, lost, 100)
		s := c.Stats()
		require.EqualValues(t, lost, s.BackPressure, "all of it ours")
		require.Zero(t, s.Overwritten)
		end := rs[len(rs)-1].End
		require.EqualValues(t, lost, end.Lost)
		require.EqualValues(t, got, end.Blocks)
		require.EqualValues(t, s.Gaps, end.Gaps)
		require.NoError(t, c.Close(t.Context()))
	})
}

// TestCloseWithoutReading: nobody takes anything; Close does not hang, and the end
// accounts for everything.
func TestCloseWithoutReading(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		c, err := Open(t.Context(), f.device(), Options{BufferSize: 16384, Queue: 8})
		require.NoError(t, err)
		f.write(60)
		time.Sleep(time.Second)
		require.NoError(t, c.Close(t.Context()))
		rs, err := take(t, c, all)
		require.ErrorIs(t, err, io.EOF)
		got, lost := account(t, f.written, rs)
		require.Equal(t, 60, got+lost)
		var last capture.Gap
		for _, r := range rs {
			if r.Kind == capture.KindGap {
				last = r.Gap
			}
		}
		require.Equal(t, capture.Gap{From: f.written[got-1], HaveFrom: true, First: uint64(got), Blocks: uint64(lost), Cause: capture.CauseBackPressure}, last)
	})
}

// TestTheRestWaits: the device has stopped, so what is left in the ring is not lost,
// however slowly it is taken, and the tracer is given back before.
func TestTheRestWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		c, err := Open(t.Context(), f.device(), Options{BufferSize: 16384, Queue: 8, ClockPoll: -1})
		require.NoError(t, err)
		f.write(50)
		c.Stop()
		<-c.Done()
		owner, _, _ := f.state()
		require.False(t, owner)
		var rs []capture.Record
		for {
			l, err := take(t, c, 1)
			rs = append(rs, l...)
			if err != nil {
				break
			}
			time.Sleep(time.Second)
		}
		got, lost := account(t, f.written, rs)
		require.Equal(t, 50, got+lost)
		require.NoError(t, c.Close(t.Context()))
	})
}

// TestTail gives the newest blocks without taking them.
func TestTail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		c, err := Open(t.Context(), f.device(), Options{BufferSize: 4096})
		require.NoError(t, err)
		for range 5 {
			f.write(8)
			_, err := take(t, c, 8)
			require.NoError(t, err)
		}
		l := c.Tail(3)
		require.Len(t, l, 3)
		for i, b := range l {
			tm, _ := trace.ClosedTime(b[:])
			require.Equal(t, f.written[len(f.written)-3+i], tm)
		}
		require.Len(t, c.Tail(1000), 15, "all but the one that is written next")
		require.NoError(t, c.Close(t.Context()))
		require.Empty(t, c.Tail(3))
	})
}
