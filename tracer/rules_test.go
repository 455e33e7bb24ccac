package tracer

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// TestRules breaks each condition alone: that one is named, and no other, where one
// does not imply another.
func TestRules(t *testing.T) {
	const iova, size, key = 0x100000, 1 << 18, 0x1234
	good := goodKey(iova, size, key)
	require.NoError(t, CheckBuffer(iova, size, key, &good, 6))
	broken := map[string]bool{}
	for _, c := range []struct {
		name  string
		brk   func(m *prm.MKC, iova, size *uint64, key *uint32)
		rules []string
	}{
		{"size no power of two", func(_ *prm.MKC, _, s *uint64, _ *uint32) { *s -= 4096 }, []string{RuleSize}},
		{"size zero", func(_ *prm.MKC, _, s *uint64, _ *uint32) { *s = 0 }, []string{RuleSize}},
		{"size below a page", func(_ *prm.MKC, _, s *uint64, _ *uint32) { *s = 2048 }, []string{RuleSize}},
		{"size beyond the device", func(m *prm.MKC, _, s *uint64, _ *uint32) { *s *= 2; *m = goodKey(iova, *s, key) }, []string{RuleSize}},
		{"bus address", func(_ *prm.MKC, a, _ *uint64, _ *uint32) { *a += 256 }, []string{RuleAligned}},
		{"start", func(m *prm.MKC, _, _ *uint64, _ *uint32) {
			m.SetStartAddr(iova + 8)
			m.SetTranslationsOctwordSize(64)
		}, []string{RuleAligned}},
		{"free", func(m *prm.MKC, _, _ *uint64, _ *uint32) { m.SetFree(true) }, []string{RuleKey}},
		{"stale", func(_ *prm.MKC, _, _ *uint64, k *uint32) { *k++ }, []string{RuleKey}},
		{"PA", func(m *prm.MKC, _, _ *uint64, _ *uint32) { m.SetAccessMode1_0(uint8(prm.AccessModePA)) }, []string{RuleMTT}},
		{"software ICM", func(m *prm.MKC, _, _ *uint64, _ *uint32) { m.SetAccessMode1_0(0); m.SetAccessMode4_2(1) }, []string{RuleMTT}},
		{"MEMIC", func(m *prm.MKC, _, _ *uint64, _ *uint32) { m.SetAccessMode4_2(1) }, []string{RuleMTT}},
		{"KLM", func(m *prm.MKC, _, _ *uint64, _ *uint32) { m.SetAccessMode1_0(uint8(prm.AccessModeKLMs)) }, []string{RuleIndirect, RuleMTT}},
		{"KSM", func(m *prm.MKC, _, _ *uint64, _ *uint32) { m.SetAccessMode1_0(uint8(prm.AccessModeKSM)) }, []string{RuleIndirect, RuleMTT}},
		{"lw", func(m *prm.MKC, _, _ *uint64, _ *uint32) { m.SetLw(false) }, []string{RuleLocalW}},
		{"lr", func(m *prm.MKC, _, _ *uint64, _ *uint32) { m.SetLr(false) }, []string{RuleLocalR}},
		{"umr", func(m *prm.MKC, _, _ *uint64, _ *uint32) { m.SetUMREn(true) }, []string{RuleUMR}},
		{"bsf_en", func(m *prm.MKC, _, _ *uint64, _ *uint32) { m.SetBSFEn(true) }, []string{RuleSignature}},
		{"bsf size", func(m *prm.MKC, _, _ *uint64, _ *uint32) { m.SetBSFOctwordSize(4) }, []string{RuleSignature}},
		{"sigerr", func(m *prm.MKC, _, _ *uint64, _ *uint32) { m.SetExpectedSigerrCount(true) }, []string{RuleSignature}},
		{"rr", func(m *prm.MKC, _, _ *uint64, _ *uint32) { m.SetRr(true) }, []string{RuleRemoteR}},
		{"rw", func(m *prm.MKC, _, _ *uint64, _ *uint32) { m.SetRw(true) }, []string{RuleRemoteW}},
		{"a", func(m *prm.MKC, _, _ *uint64, _ *uint32) { m.SetA(true) }, []string{RuleRemoteA}},
		{"qpn", func(m *prm.MKC, _, _ *uint64, _ *uint32) { m.SetQPN(5) }, []string{RuleQP}},
		{"page", func(m *prm.MKC, _, _ *uint64, _ *uint32) { m.SetLogPageSize(11) }, []string{RulePage}},
		{"length", func(m *prm.MKC, _, _ *uint64, _ *uint32) { m.SetLen(size - 1) }, []string{RuleLength}},
		{"table", func(m *prm.MKC, _, _ *uint64, _ *uint32) { m.SetTranslationsOctwordSize(31) }, []string{RuleTable}},
		{"two", func(m *prm.MKC, _, _ *uint64, _ *uint32) { m.SetRw(true); m.SetLw(false) }, []string{RuleLocalW, RuleRemoteW}},
	} {
		m, a, s, k := good, uint64(iova), uint64(size), uint32(key)
		c.brk(&m, &a, &s, &k)
		err := CheckBuffer(a, s, k, &m, 6)
		var be *BufferError
		require.ErrorAs(t, err, &be, c.name)
		var got []string
		for _, v := range be.Violations {
			require.NotEmpty(t, v.Detail)
			require.ErrorContains(t, err, v.Rule)
			got = append(got, v.Rule)
			broken[v.Rule] = true
		}
		require.ElementsMatch(t, c.rules, got, c.name)
		require.True(t, be.Violates(c.rules[0]))
	}
	for _, r := range Rules() {
		require.True(t, broken[r], "no test breaks %s", r)
	}
	// What is allowed: a key that starts at 0, one of the whole address space, larger pages.
	m := good
	m.SetStartAddr(0)
	require.NoError(t, CheckBuffer(iova, size, key, &m, 6))
	m = good
	m.SetLength64(true)
	m.SetLen(0)
	require.NoError(t, CheckBuffer(iova, size, key, &m, 6))
	m = good
	m.SetLogPageSize(20)
	m.SetTranslationsOctwordSize(1)
	require.NoError(t, CheckBuffer(iova, size, key, &m, 6))
	// A buffer of two pages that begins inside of one reaches three.
	m.SetLogPageSize(17)
	m.SetStartAddr(iova + 4096)
	var be *BufferError
	require.ErrorAs(t, CheckBuffer(iova+4096, size, key, &m, 6), &be)
	require.True(t, be.Violates(RuleTable))
	m.SetTranslationsOctwordSize(2)
	require.NoError(t, CheckBuffer(iova+4096, size, key, &m, 6))
}

func TestLogSize(t *testing.T) {
	for size, want := range map[uint64]int{0: -1, 4095: -1, 4096: 0, 8192: 1, 12288: -1, 1 << 20: 8, 1 << 40: 28, 1 << 63: 51} {
		got, ok := LogSize(size)
		require.Equal(t, want >= 0, ok, "%d", size)
		if ok {
			require.EqualValues(t, want, got)
		}
	}
}
