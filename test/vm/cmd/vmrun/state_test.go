package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// one function of a model after a visit
const visited = `{"schema":"mlxvfio.tell/1","ok":true,"answer":{"model":"cx5","functions":[{
"state":{"Phase":"off","ISSI":0,"Pages":0,"InFlight":0,"EQs":0,"UARs":0,"PDs":0,"MKeys":0,"Mappings":0,"MapCalls":7,"Vectors":0,"Handles":1,"Faults":null},
"counters":{"Commands":551,"Interrupts":52,"Events":550,"Resets":2,"DMAFaults":0,"DMAAfterClose":0,"EventsLost":0,"DeliveryErrors":0,
"PagesUnmapped":0,"BARUnsupported":0,"CQErrors":0,"DMABlocked":2,"Packets":12,"Completions":11}}]}}`

func TestSpotless(t *testing.T) {
	m, err := parseStates([]byte(visited), 1)
	require.NoError(t, err)
	require.NoError(t, m.spotless(tolerance{}))
	require.ErrorContains(t, m.spotless(tolerance{losesPages: true}), "0 pages were unmapped", "the test that does it must have run")
	require.Equal(t, "551 commands, 550 events, 52 interrupts, 2 resets, 12 packets, 11 completions", m.String())
	unused, err := parseStates([]byte(strings.Replace(visited, `"Interrupts":52`, `"Interrupts":0`, 1)), 1)
	require.NoError(t, err)
	require.ErrorContains(t, unused.spotless(tolerance{}), "not really used")
	require.NoError(t, unused.spotless(tolerance{faulty: true}))
	require.NoError(t, m.spotless(tolerance{movesData: true}))
	for lost, ok := range map[string]bool{"2": true, "3": false} {
		killed, err := parseStates([]byte(strings.Replace(visited, `"EventsLost":0`, `"EventsLost":`+lost, 1)), 1)
		require.NoError(t, err)
		require.Error(t, killed.spotless(tolerance{}))
		require.Equal(t, ok, killed.spotless(tolerance{killsData: true}) == nil)
	}
	idle, err := parseStates([]byte(strings.Replace(visited, `"Packets":12`, `"Packets":0`, 1)), 1)
	require.NoError(t, err)
	require.ErrorContains(t, idle.spotless(tolerance{movesData: true}), "0 packets")
	tagged, err := parseStates([]byte(strings.Replace(visited, "InFlight", "in_flight", 1)), 1)
	require.NoError(t, err)
	require.NoError(t, tagged.spotless(tolerance{}))
	for _, c := range []struct{ from, to, complaint string }{
		{`"off"`, `"issi"`, "phase issi"},
		{`"Pages":0`, `"Pages":3`, "3 pages are left"},
		{`"Pages":0,`, ``, "tell of pages"},
		{`"InFlight":0`, `"InFlight":1`, "1 inflight"},
		{`"PDs":0`, `"PDs":1`, "1 pds"},
		{`"Mappings":0`, `"Mappings":1`, "1 mappings"},
		{`"Vectors":0`, `"Vectors":2`, "2 vectors"},
		{`"Handles":1`, `"Handles":1,"New":1`, "1 new are left"},
		{`"DMAFaults":0`, `"DMAFaults":1`, "1 dmafaults"},
		{`"DMAFaults":0,`, ``, "<nil> dmafaults"},
		{`"DMAAfterClose":0`, `"DMAAfterClose":1`, "1 dmaafterclose"},
		{`"PagesUnmapped":0`, `"PagesUnmapped":1`, "firmware held"},
		{`"PagesUnmapped":0,`, ``, "firmware held"},
		{`"EventsLost":0`, `"EventsLost":1`, "1 eventslost"},
		{`"DeliveryErrors":0`, `"DeliveryErrors":1`, "1 deliveryerrors"},
		{`"BARUnsupported":0`, `"BARUnsupported":1`, "1 barunsupported"},
		{`"CQErrors":0`, `"CQErrors":1`, "1 cqerrors"},
		{`"Commands":551`, `"Commands":0`, "not really used"},
		{`"Resets":2,`, ``, "not really used"},
	} {
		require.Equal(t, 1, strings.Count(visited, c.from), c.from)
		bad, err := parseStates([]byte(strings.Replace(visited, c.from, c.to, 1)), 1)
		require.NoError(t, err)
		require.ErrorContains(t, bad.spotless(tolerance{}), c.complaint)
	}
}

func TestParseStateRefuses(t *testing.T) {
	for _, text := range []string{"", "{}", `{"answer":{"functions":[]}}`, `{"answer":{"functions":[{},{}]}}`} {
		_, err := parseStates([]byte(text), 1)
		require.Error(t, err, text)
	}
}
