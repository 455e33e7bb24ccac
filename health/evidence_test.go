package health

import (
	"encoding/binary"
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/cmdif"
	"github.com/mlxvfio/mlxvfio/health/blackbox"
	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/vfio"
)

type fakeCommands struct{}

func (fakeCommands) History() []cmdif.Record {
	r := cmdif.Record{Posted: time.Unix(5, 0), Latency: time.Millisecond, Slot: 3, Token: 0x12, Opcode: prm.OpQueryHCACap, OpMod: 1,
		InLen: 16, OutLen: 16, Outcome: cmdif.OutcomeRefused, Status: prm.StatusBadParam, Syndrome: 0xabc}
	r.In[0], r.In[1] = 0x01, 0x00
	r.Out[0] = 3
	return []cmdif.Record{r}
}

func (fakeCommands) InFlight() []cmdif.Record {
	return []cmdif.Record{{Posted: time.Unix(6, 0), Slot: 7, Opcode: prm.OpManagePages, InLen: 16}}
}

func TestEvidence(t *testing.T) {
	h := newFakeHW(t)
	h.sickWith(FatalRFR, RungFLR)
	w, err := h.dev.Window(vfio.RegionBAR0)
	require.NoError(t, err)
	v, err := OpenVSC(h)
	require.NoError(t, err)
	e := Evidence{
		Device: "fake", Reason: "test", Window: w, Commands: fakeCommands{}, VSC: v, Notes: []string{"a note"},
		Events:       func() any { return []EventRecord{EventRecordOf(time.Unix(1, 0), 4, &prm.EQE{0x00, 0x08}, "link")} },
		Ledger:       func() any { panic("boom") },
		Capabilities: func() any { return map[string]int{"x": 1} },
	}
	sections := map[string]blackbox.Section{}
	list := e.Collect(t.Context())
	for _, s := range list {
		sections[s.Name] = s
		require.False(t, s.Time.IsZero() && s.Name != SectionNotes)
		if strings.HasSuffix(s.Name, ".json") {
			require.True(t, json.Valid(s.Data), s.Name)
		}
	}
	require.Equal(t, SectionAbout, list[0].Name)
	require.Equal(t, SectionNotes, list[1].Name)
	require.Equal(t, h.buffer[:], sections[SectionRaw].Data)
	require.Contains(t, string(sections[SectionBuffer].Data), `"rfr":true`)
	require.Contains(t, string(sections[SectionHexdump].Data), "cmd[3]: QUERY_HCA_CAP(0x100) op_mod 0x1 token 0x12")
	require.Contains(t, string(sections[SectionHexdump].Data), "cmd[3]: 000: 01000000 00000000 00000000 00000000 (input, 16 bytes)")
	require.Contains(t, string(sections[SectionHexdump].Data), "cmd[7]: MANAGE_PAGES(0x108)")
	require.Contains(t, string(sections[SectionCommands].Data), `"in_flight":true`)
	require.Contains(t, string(sections[SectionCommands].Data), `"syndrome":2748`)
	notes := string(sections[SectionNotes].Data)
	require.Contains(t, notes, "a note\n")
	require.Contains(t, notes, "ledger.json: not there: gathering it panicked: boom")
	require.Contains(t, notes, "tracer.bin: not there")
	require.NotContains(t, sections, SectionLedger)
	require.Len(t, sections[SectionCRDump].Data, 4+2*8+13*4)
	gw, sw := h.semaphores()
	require.Zero(t, gw|sw)

	seg := sections[SectionSegment].Data
	seen := map[uint32]uint32{}
	for ; len(seg) > 0; seg = seg[8:] {
		seen[binary.BigEndian.Uint32(seg)] = binary.BigEndian.Uint32(seg[4:])
	}
	require.Contains(t, seen, uint32(0x1010))
	require.Equal(t, uint32(1<<30), seen[0x1fc])
	require.NotContains(t, seen, uint32(0x18), "the doorbell is not read")

	// With nothing at all there is still a bundle that says so.
	bare := (&Evidence{}).Collect(t.Context())
	require.Len(t, bare, 2)
}

func TestSampleCoding(t *testing.T) {
	s := Sample{At: time.Unix(9, 7), Elapsed: 5 * time.Second, Health: 0x1000002, NIC: 3, FW: 4, Synd: 5}
	b := AppendSample(nil, &s, Fatal)
	require.Len(t, b, SampleSize)
	got, st, ok := ParseSample(b)
	require.True(t, ok)
	require.True(t, s.At.Equal(got.At))
	got.At = s.At
	require.Equal(t, s, got)
	require.Equal(t, Fatal, st)
	_, _, ok = ParseSample(b[1:])
	require.False(t, ok)
	require.Zero(t, testing.AllocsPerRun(100, func() { b = AppendSample(b[:0], &s, Fatal) }))
}

// TestBlackBoxDocs: docs/blackbox.md names every section, and every rung with the
// words of the table.
func TestBlackBoxDocs(t *testing.T) {
	b, err := os.ReadFile("../docs/blackbox.md")
	require.NoError(t, err)
	doc := string(b)
	for _, s := range []string{SectionAbout, SectionReport, SectionBuffer, SectionRaw, SectionHistory, SectionSegment, SectionCommands, SectionHexdump,
		SectionEvents, SectionCaps, SectionLedger, SectionFirmware, SectionEnv, SectionTracer, SectionCRDump, SectionRecovery, SectionNotes} {
		require.Contains(t, doc, "| `"+s+"` |")
	}
	for _, r := range Rungs()[1:] {
		row := regexp.MustCompile("(?m)^\\| `" + r.Rung.String() + "` \\|.*$").FindString(doc)
		require.NotEmpty(t, row, "%v", r.Rung)
		require.Contains(t, row, "| "+r.Hits+" |")
		require.Contains(t, row, r.Proof)
	}
	for i, s := range States() {
		require.Contains(t, doc, string(rune('0'+i))+" "+s.String())
	}
}
