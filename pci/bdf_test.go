package pci_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/pci"
)

func TestParseBDF(t *testing.T) {
	for in, want := range map[string]string{
		"0000:3b:00.0":     "0000:3b:00.0",
		"3b:00.0":          "0000:3b:00.0",
		"00:1F.7":          "0000:00:1f.7",
		"ABCD:ff:1f.7":     "abcd:ff:1f.7",
		"10000:01:00.1":    "10000:01:00.1", // VMD domains have five digits
		"ffffffff:00:00.0": "ffffffff:00:00.0",
	} {
		b, err := pci.ParseBDF(in)
		require.NoError(t, err, in)
		require.Equal(t, want, b.String(), in)
		require.True(t, b.Valid())
		again, err := pci.ParseBDF(b.String())
		require.NoError(t, err)
		require.Equal(t, b, again)
	}
}

func TestParseBDFRefuses(t *testing.T) {
	for _, in := range []string{"", "not-a-device", "3b:00", "3b.00.0", "3b:00.8", "3b:00.00", "3b:20.0", "3b:0.0", "b:00.0",
		"000:3b:00.0", "123456789:3b:00.0", "0000:3b:00.0/..", "../../etc", "0000:3b:../.0", " 3b:00.0", "3b:00.0\n",
		"+b:00.0", "0x:00.0", "1_0:00.0", "0000:0000:3b:00.0", "00g0:3b:00.0", "3b:00.-1", "3b:00."} {
		_, err := pci.ParseBDF(in)
		require.ErrorIs(t, err, pci.ErrBadBDF, "%q", in)
		require.NotContains(t, err.Error(), "\n")
	}
}

func TestBDFInJSONAndOrder(t *testing.T) {
	in := map[pci.BDF]pci.BDF{{Bus: 0x3b}: {Bus: 0x3b, Function: 1}}
	out, err := json.Marshal(in)
	require.NoError(t, err)
	require.JSONEq(t, `{"0000:3b:00.0":"0000:3b:00.1"}`, string(out))
	var back map[pci.BDF]pci.BDF
	require.NoError(t, json.Unmarshal(out, &back))
	require.Equal(t, in, back)
	require.Error(t, json.Unmarshal([]byte(`{"x":"0000:3b:00.1"}`), &back))

	lo, hi := pci.BDF{Bus: 0x3b, Function: 1}, pci.BDF{Bus: 0x3b, Device: 1}
	require.Equal(t, -1, lo.Compare(hi))
	require.Equal(t, 1, hi.Compare(lo))
	require.Zero(t, hi.Compare(hi))
}

func FuzzParseBDF(f *testing.F) {
	f.Add("0000:3b:00.0")
	f.Add("../:00.0")
	f.Fuzz(func(t *testing.T, s string) {
		b, err := pci.ParseBDF(s)
		if err != nil {
			return
		}
		for _, c := range b.String() {
			require.Contains(t, "0123456789abcdef:.", string(c))
		}
		require.NotContains(t, b.String(), "..")
		again, err := pci.ParseBDF(b.String())
		require.NoError(t, err)
		require.Equal(t, b, again)
	})
}
