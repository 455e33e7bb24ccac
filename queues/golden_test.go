package queues

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/internal/absent"
	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// Our CREATE_EQ equals, byte for byte, the ones with which Linux created the
// command, async and page EQ of a real ConnectX-4; only the address is the
// host's own.
func TestCreateEQOfARealDevice(t *testing.T) {
	const path = "../../shared/golden/cx4-fw14.12.1220-bringup.jsonl"
	f, err := os.Open(path)
	if err != nil {
		absent.Skip(t, "captured commands of a real ConnectX-4", "none in ../shared/golden")
	}
	defer f.Close()
	want := map[int]EQOptions{
		54: {LogSize: 8, Vector: 1, Mask: MaskOf(prm.EventCmd), UAR: &UAR{index: 0x10}},
		56: {LogSize: 9, Vector: 2, Mask: EventMask{0x1f02be}, UAR: &UAR{index: 0x10}},
		58: {LogSize: 8, Vector: 0, Mask: MaskOf(prm.EventPageRequest), UAR: &UAR{index: 0x10}},
	}
	found := 0
	sc := bufio.NewScanner(f)
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		var r struct {
			Seq       int
			Entry     string
			Mailboxes []string
		}
		require.NoError(t, json.Unmarshal(sc.Bytes(), &r))
		if r.Seq < 54 || r.Seq > 60 || r.Seq%2 != 0 {
			continue
		}
		o, ok := want[r.Seq]
		if !ok {
			continue
		}
		entry, err := hex.DecodeString(r.Entry)
		require.NoError(t, err)
		n := int(binary.BigEndian.Uint32(entry[4:]))
		captured := bytes.Clone(entry[0x10:0x20])
		for _, m := range r.Mailboxes {
			box, err := hex.DecodeString(m)
			require.NoError(t, err)
			captured = append(captured, box[:512]...)
		}
		captured = captured[:n]
		iova := binary.BigEndian.Uint64(captured[prm.CreateEQInPasOffset:])
		got := createEQInput(&o, iova, eqeSize<<o.LogSize)
		require.Equal(t, hex.EncodeToString(captured), hex.EncodeToString(got), "seq %d", r.Seq)
		found++
	}
	require.NoError(t, sc.Err())
	require.Equal(t, len(want), found)
}
