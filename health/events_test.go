package health_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/health"
)

func TestEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, w := newBAR(t)
		var log bytes.Buffer
		m, err := health.New(health.Options{Window: w, Device: "0000:3b:00.0", Period: time.Second, Logger: slog.New(slog.NewJSONHandler(&log, nil))})
		require.NoError(t, err)
		require.NoError(t, m.Start(t.Context()))
		pause(3500 * time.Millisecond)
		f.report(8, rfr)
		pause(time.Second)
		m.Stop()
		var got []health.Event
		for e := range m.Events() { // closed after Stop
			got = append(got, e)
		}
		require.Len(t, got, 3)
		require.Equal(t, health.EventVerdict, got[0].Kind)
		require.Equal(t, health.Unknown, got[0].Previous)
		require.Equal(t, health.Healthy, got[0].Verdict.State)
		require.Equal(t, health.Fatal, got[1].Verdict.State)
		require.Equal(t, health.Healthy, got[1].Previous)
		require.Equal(t, uint8(8), got[1].Buffer.Synd)
		require.Equal(t, health.EventSyndrome, got[2].Kind)
		require.Equal(t, uint64(3), got[2].Seq)

		b, err := json.Marshal(got[1])
		require.NoError(t, err)
		require.Contains(t, string(b), `"state":"fatal","condition":"fatal-rfr"`)
		var back health.Event
		require.NoError(t, json.Unmarshal(b, &back))
		require.Equal(t, got[1].Buffer, back.Buffer)

		var line struct{ Level, Bdf, State, Condition, Previous string }
		lines := bytes.Split(bytes.TrimSpace(log.Bytes()), []byte("\n"))
		require.Len(t, lines, 2)
		require.NoError(t, json.Unmarshal(lines[1], &line))
		require.Equal(t, "ERROR", line.Level)
		require.Equal(t, "0000:3b:00.0", line.Bdf)
		require.Equal(t, "fatal", line.State)
		require.Equal(t, "healthy", line.Previous)
	})
}

// Nobody reads the events: the monitor goes on, and counts what was dropped.
func TestEventsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, w := newBAR(t)
		m := watch(t, health.Options{Window: w, Period: time.Second, Events: 3, History: 8})
		pause(1500 * time.Millisecond)
		for i := range 10 {
			f.report(uint32(i+1), 0)
			pause(time.Second)
		}
		r := m.Report()
		require.Equal(t, uint64(12), r.Counts.Samples)
		require.Equal(t, uint64(12), r.Counts.Events)
		require.Equal(t, uint64(9), r.Counts.EventsDropped)
		require.Len(t, m.Events(), 3)
		h := m.History()
		require.Len(t, h, 8)
		for i := range h {
			require.Equal(t, time.Duration(i+4)*time.Second, h[i].Elapsed, "the last eight, oldest first")
		}
	})
}

// What ends a monitor: its context, Stop before and after Start, twice.
func TestEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, w := newBAR(t)
		ctx, cancel := context.WithCancel(t.Context())
		m, err := health.New(health.Options{Window: w})
		require.NoError(t, err)
		require.False(t, m.BeginRecovery(), "it does not run")
		require.NoError(t, m.Start(ctx))
		require.Error(t, m.Start(ctx))
		pause(time.Second)
		cancel()
		<-m.Done()
		_, open := <-m.Events()
		require.False(t, open)
		require.False(t, m.BeginRecovery())
		m.Stop()
		m.Stop()
		_, err = m.Wait(t.Context())
		require.Error(t, err)

		m, err = health.New(health.Options{Window: w})
		require.NoError(t, err)
		m.Stop()
		require.Error(t, m.Start(t.Context()))
		m.Stop()
	})
	synctest.Test(t, func(t *testing.T) {
		_, w := newBAR(t)
		why := errors.New("enough")
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, why)
		defer cancel()
		r, err := health.Check(ctx, health.Options{Window: w})
		require.ErrorIs(t, err, why)
		require.Equal(t, health.Starting, r.Verdict.Condition)
		require.Equal(t, uint64(1), r.Counts.Samples)
	})
}

func TestReportJSON(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, w := newBAR(t)
		cmds := &fakeCommands{}
		m := watch(t, health.Options{Window: w, Device: "dev", Commands: cmds, Registers: newRegisters()})
		pause(10 * time.Second)
		f.report(0xb, crr)
		pause(2 * time.Second)
		b, err := json.Marshal(m.Report())
		require.NoError(t, err)
		var o map[string]any
		require.NoError(t, json.Unmarshal(b, &o))
		require.Equal(t, "mlxvfio.health/1", o["schema"])
		require.Equal(t, "degraded", o["verdict"].(map[string]any)["state"])
		require.Equal(t, "ICM_PAGE_ERR", o["buffer"].(map[string]any)["synd_name"])
		for _, k := range []string{"now", "last", "limits", "counts", "counter_rate", "commands", "environment", "probe", "verdicts"} {
			require.Contains(t, o, k)
		}
		var back health.Report
		require.NoError(t, json.Unmarshal(b, &back))
		require.Equal(t, m.Report().Buffer, back.Buffer)
	})
}

// OnSample sees every sample with the verdict after it, and may ask for the report.
func TestOnSample(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, w := newBAR(t)
		var m *health.Monitor
		var seen []health.State
		m, err := health.New(health.Options{Window: w, Period: time.Second, OnSample: func(s health.Sample, v health.Verdict) {
			require.Equal(t, s, m.Report().Last)
			require.Equal(t, v, m.Verdict())
			seen = append(seen, v.State)
		}})
		require.NoError(t, err)
		require.NoError(t, m.Start(t.Context()))
		pause(1500 * time.Millisecond)
		f.change(func() { f.ones = true })
		pause(time.Second)
		m.Stop()
		require.Equal(t, []health.State{health.Unknown, health.Healthy, health.Gone}, seen)
	})
}
