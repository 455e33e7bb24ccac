package sim

import (
	"bufio"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/internal/absent"
	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// TestDemands: every command that rdma-core's VFIO provider was seen to send,
// with its op_mod, has a row in the command table. 0xcff is sent to be refused.
func TestDemands(t *testing.T) {
	files, err := filepath.Glob("../../shared/judge/demands/vfio-*.txt")
	require.NoError(t, err)
	if len(files) == 0 {
		absent.Skip(t, "commands that rdma-core sends", "../shared/judge/demands is absent")
	}
	line := regexp.MustCompile(`^(?:\d+x )?0x([0-9a-f]+) (?:\S+ )?op_mod=0x([0-9a-f]+)`)
	for _, name := range files {
		f, err := os.Open(name)
		require.NoError(t, err)
		defer func() { require.NoError(t, f.Close()) }()
		n := 0
		for s := bufio.NewScanner(f); s.Scan(); n++ {
			m := line.FindStringSubmatch(s.Text())
			require.NotNil(t, m, s.Text())
			op, err := strconv.ParseUint(m[1], 16, 16)
			require.NoError(t, err)
			opMod, err := strconv.ParseUint(m[2], 16, 16)
			require.NoError(t, err)
			h := handlers[prm.Opcode(op)]
			if op == 0xcff {
				require.Nil(t, h)
				continue
			}
			require.NotNil(t, h, s.Text())
			require.True(t, h.opMods == anyOpMod || h.opMods>>opMod&1 != 0, s.Text())
		}
		require.NotZero(t, n)
	}
}
