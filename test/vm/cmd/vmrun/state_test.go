package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// one function of a model after a visit
const visited = `{"schema":"mlxvfio.tell/1","ok":true,"answer":{"model":"cx5","functions":[{"state":{"Phase":"off","Pages":0,"Vectors":0},
"counters":{"Commands":551,"Interrupts":52,"Events":550,"Resets":2}}]}}`

func TestSpotless(t *testing.T) {
	m, err := parseState([]byte(visited))
	require.NoError(t, err)
	require.NoError(t, m.spotless(false))
	require.ErrorContains(t, m.spotless(true), "0 pages were unmapped", "the test that does it must have run")
	require.Equal(t, "551 commands, 550 events, 52 interrupts, 2 resets", m.String())
	for name, spoil := range map[string]func(*modelState){
		"phase issi":       func(m *modelState) { m.State.Phase = "issi" },
		"with 3 pages":     func(m *modelState) { m.State.Pages = 3 },
		"1 commands in":    func(m *modelState) { m.State.InFlight = 1 },
		"objects are left": func(m *modelState) { m.State.MKeys = 1 },
		"1 mappings":       func(m *modelState) { m.State.Mappings = 1 },
		"2 vectors":        func(m *modelState) { m.State.Vectors = 2 },
		"not mapped":       func(m *modelState) { m.Counters.DMAFaults = 1 },
		"taken away":       func(m *modelState) { m.Counters.DMAAfterClose = 1 },
		"firmware held":    func(m *modelState) { m.Counters.PagesUnmapped = 1 },
		"no queue":         func(m *modelState) { m.Counters.EventsLost = 1 },
		"delivered":        func(m *modelState) { m.Counters.DeliveryErrors = 1 },
		"not decoded":      func(m *modelState) { m.Counters.BARUnsupported = 1 },
		"not really used":  func(m *modelState) { m.Counters.Interrupts = 0 },
	} {
		bad := m
		spoil(&bad)
		require.ErrorContains(t, bad.spotless(false), name)
	}
}

func TestParseStateRefuses(t *testing.T) {
	for _, text := range []string{"", "{}", `{"answer":{"functions":[]}}`, `{"answer":{"functions":[{},{}]}}`} {
		_, err := parseState([]byte(text))
		require.Error(t, err, text)
	}
}
