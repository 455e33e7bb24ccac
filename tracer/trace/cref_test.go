package trace

import (
	"bufio"
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/mlxvfio/mlxvfio/internal/absent"
	"github.com/stretchr/testify/require"
)

// cReference builds testdata/trace_ref.c: the same work in plain C.
func cReference(tb testing.TB) string {
	tb.Helper()
	cc, err := exec.LookPath("cc")
	if err != nil {
		absent.Skip(tb, "C reference of the trace decoder", "no C compiler in PATH")
	}
	bin := filepath.Join(tb.TempDir(), "trace_ref")
	out, err := exec.Command(cc, "-O2", "-o", bin, filepath.Join("testdata", "trace_ref.c")).CombinedOutput()
	require.NoError(tb, err, "%s", out)
	return bin
}

// writeRing stores a ring and its database as the C reference and `trace decode
// --ring` read them.
func writeRing(tb testing.TB, dir string, g Geometry, sections []Section, image []byte) {
	tb.Helper()
	require.NoError(tb, os.WriteFile(filepath.Join(dir, "ring.bin"), image, 0o644))
	db := &DB{Geometry: g, Sections: sections}
	require.NoError(tb, db.Write(filepath.Join(dir, "stringdb.json")))
}

type cMessage struct {
	Block     uint64           `json:"block"`
	Timestamp uint64           `json:"timestamp"`
	EventID   uint8            `json:"event_id"`
	Lost      bool             `json:"lost"`
	Invalid   bool             `json:"invalid"`
	Text      string           `json:"text"`
	Summary   *json.RawMessage `json:"summary"`
}

// TestSameAsC: our JSON lines are those of the C reference, whose values snprintf
// prints, on rings full of oddities; the rulings and the reference agree in all of
// them.
func TestSameAsC(t *testing.T) {
	bin := cReference(t)
	messages := 0
	for seed := range 150 {
		r := rand.New(rand.NewPCG(uint64(seed), 77))
		g, sections, image := oddRing(r, 1+r.IntN(60))
		if seed == 0 {
			db, busy := realisticRing(3, 512)
			g, sections, image = db.Geometry, db.Sections, busy
		}
		dir := t.TempDir()
		writeRing(t, dir, g, sections, image)
		db, err := ReadDB(filepath.Join(dir, "stringdb.json"))
		require.NoError(t, err)
		d, err := NewDecoder(db.Geometry, db.Strings())
		require.NoError(t, err)
		var lines [][]byte
		require.NoError(t, NewRing(image).Decode(d, -1, func(m *Message) { lines = append(lines, m.AppendJSON(nil)) }))
		c := d.Counters()
		lines = append(lines, c.AppendSummary(nil))
		for _, mode := range []string{"verify", "verify-fast"} {
			out, err := exec.Command(bin, mode, dir).Output()
			require.NoError(t, err, "seed %d", seed)
			n := 0
			s := bufio.NewScanner(bytes.NewReader(out))
			s.Buffer(nil, 1<<20)
			for ; s.Scan(); n++ {
				var want, got cMessage
				require.NoError(t, json.Unmarshal(s.Bytes(), &want), "%s", s.Text())
				require.Less(t, n, len(lines), "seed %d %s: C has more", seed, mode)
				var kind struct{ Kind string }
				require.NoError(t, json.Unmarshal(lines[n], &got), "%s", lines[n])
				require.NoError(t, json.Unmarshal(lines[n], &kind))
				got.Invalid = kind.Kind == KindBadFormat.String()
				if want.Summary != nil {
					require.NotNil(t, got.Summary)
					require.JSONEq(t, string(*want.Summary), string(*got.Summary), "seed %d %s", seed, mode)
					continue
				}
				messages++
				require.Equal(t, want, got, "seed %d %s line %d", seed, mode, n)
			}
			require.Equal(t, len(lines), n, "seed %d %s", seed, mode)
		}
	}
	require.Greater(t, messages, 20000)
	t.Logf("%d messages", messages)
}
