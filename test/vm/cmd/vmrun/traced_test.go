package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/test/vm/internal/wire"
	"github.com/mlxvfio/mlxvfio/tracer/trace"
)

// TestSameMessages: a line that differs or is missing is told.
func TestSameMessages(t *testing.T) {
	const base = 0x1000
	out := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(out, "memory"), 0o755))
	db := &trace.DB{Geometry: trace.Geometry{FirstString: 0x10, NumString: 8}, Sections: []trace.Section{{Base: base, Data: []byte("at the base\x00load %u\x00")}}}
	require.NoError(t, db.Write(filepath.Join(out, "memory", "db.json")))
	var ring []byte
	put := func(e trace.Event) {
		for s := 56; s >= 0; s -= 8 {
			ring = append(ring, byte(e>>s))
		}
	}
	lines := []string{"bash-1 [000] ..... 1.0: mlx5_fw: 0000:01:00.0 [0x1] 0 [0x11] function 0: reset"}
	for i := range tracedMessages {
		at := uint64(1000 + 200*i)
		put(trace.StringEvent(false, uint8(at%128), 0x10, uint16(i%8192), 0, base+12))
		put(trace.StringEvent(false, uint8(at%128), 0x10, uint16(i%8192), 1, uint32(i)))
		for len(ring)%trace.BlockSize != 0 {
			put(trace.TimestampEvent(at+1, 0))
		}
		lines = append(lines, fmt.Sprintf("   kworker/u8:1-31      [001] .....     3.050375: mlx5_fw: 0000:01:00.0 [0x%x] 0 [0x10] load %d", at, i))
	}
	require.NoError(t, os.WriteFile(filepath.Join(out, "memory", "ring.bin"), ring, 0o644))
	ask := func(lines []string) check {
		require.NoError(t, os.WriteFile(filepath.Join(out, "trace.txt"), []byte("# tracer: nop\n"+strings.Join(lines, "\n")+"\n"), 0o644))
		return sameMessages(out)[0]
	}
	c := ask(lines)
	require.Equal(t, wire.Pass, c.Status, c.Detail)
	c = ask(append(append([]string{}, lines[:700]...), lines[701:]...))
	require.Equal(t, wire.Fail, c.Status)
	require.Contains(t, c.Detail, "load 699")
	bad := append([]string{}, lines...)
	bad[9] = strings.Replace(bad[9], "] 0 [", "] 1 [", 1)
	c = ask(bad)
	require.Equal(t, wire.Fail, c.Status)
	require.Contains(t, c.Detail, "message 8")
	c = ask(lines[:len(lines)-1])
	require.Equal(t, wire.Fail, c.Status)
	require.Contains(t, c.Detail, "1499 messages")
	c = ask(nil)
	require.Equal(t, wire.Fail, c.Status)

	ask(lines)
	owner := func(log string) check {
		require.NoError(t, os.WriteFile(filepath.Join(out, "dmesg.txt"), []byte(log), 0o644))
		return oneOwner(out)[0]
	}
	const granted = "<7>[ 14.9] mlx5_core 0000:0%d:00.0: mlx5_fw_tracer_start:907:(pid 144): FWTracer: Ownership granted and active\n"
	require.Equal(t, wire.Pass, owner(fmt.Sprintf(granted, 1)).Status)
	require.Equal(t, wire.Fail, owner(fmt.Sprintf(granted, 2)).Status, "the lines are those of the other one")
	require.Equal(t, wire.Fail, owner(fmt.Sprintf(granted+granted, 1, 2)).Status)
	require.Equal(t, wire.Fail, owner("").Status)
}
