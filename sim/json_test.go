package sim

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestJSON: what the command line prints of the model has names in snake case.
func TestJSON(t *testing.T) {
	r := newRaw(t, Options{Faults: []FaultSpec{{"late", "NOP=1s"}}}).to(phaseInit)
	for _, v := range []any{r.chip.State(0), r.chip.Counters(0), Faults()[0], r.chip.Values()[0], Rulings()[0]} {
		b, err := json.Marshal(v)
		require.NoError(t, err)
		var m map[string]any
		require.NoError(t, json.Unmarshal(b, &m))
		require.NotEmpty(t, m)
		for k := range m {
			require.Regexp(t, `^[a-z]+(_[a-z]+)*$`, k, "%T", v)
		}
	}
	b, err := json.Marshal(r.chip.State(0))
	require.NoError(t, err)
	require.Contains(t, string(b), `"phase":"init"`)
	require.Contains(t, string(b), `"faults":["late@NOP=1s"]`)
	require.NoError(t, r.chip.ClearFault(""))
	b, err = json.Marshal(r.chip.State(0))
	require.NoError(t, err)
	require.Contains(t, string(b), `"faults":[]`)
}
