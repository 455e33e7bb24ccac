package atomics

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// facts are the cells of testdata/matrix.txt.
func facts(t *testing.T) [][]string {
	t.Helper()
	b, err := os.ReadFile("testdata/matrix.txt")
	require.NoError(t, err)
	var rows [][]string
	for line := range strings.Lines(string(b)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		cells := strings.Split(strings.TrimSpace(line), " | ")
		require.Len(t, cells, 10, line)
		rows = append(rows, cells)
	}
	return rows
}

// The table equals the facts, cell by cell.
func TestTableEqualsFacts(t *testing.T) {
	want := facts(t)
	got := Table()
	require.Len(t, want, 42)
	require.Len(t, got, len(want))
	for i, r := range got {
		require.Equal(t, want[i], append([]string{r.Order.String()}, r.Columns()...), "row %d", i)
	}
}

// What Encode puts into a WQE is what the facts' row says of the same place, for
// operands that are not zero.
func TestEncodeEqualsFacts(t *testing.T) {
	const c, s, a = 0xb7, 0xd1, 0xe3
	operand := map[string]uint64{"c": c, "s": s, "a": a, "0": 0, "—": 0}
	value := func(cell string) uint64 {
		name, shift, shifted := strings.Cut(cell, "<<")
		v, ok := operand[name]
		require.True(t, ok, cell)
		if shifted {
			n, err := strconv.Atoi(shift)
			require.NoError(t, err)
			v <<= n
		}
		return v
	}
	mask := func(cell string) uint64 {
		if cell == "—" {
			return 0
		}
		v, err := strconv.ParseUint(strings.TrimPrefix(cell, "0x"), 16, 32)
		require.NoError(t, err)
		return v
	}
	word := func(w []uint64) uint64 {
		if w == nil {
			return 0
		}
		require.Len(t, w, 1)
		return w[0]
	}
	for _, row := range facts(t) {
		var order Order
		require.NoError(t, order.UnmarshalText([]byte(row[0])))
		size, err := strconv.Atoi(strings.TrimSuffix(row[2], "B"))
		require.NoError(t, err)
		k, err := strconv.Atoi(row[3][:1])
		require.NoError(t, err)
		op := Op{Size: size, Addr: 0x7000 + uint64(k)}
		switch row[1] {
		case "MASKED_CS as C&S":
			op.Kind, op.Compare, op.Value = CompareSwap, c, s
		case "MASKED_CS as SWAP":
			op.Kind, op.Value = Swap, s
		case "MASKED_FA as F&A":
			op.Kind, op.Value = FetchAdd, a
		default:
			t.Fatal(row[1])
		}
		var r Request
		require.NoError(t, op.Encode(&r, order), row)
		swapAdd, compare, swapMask, compareMask, boundary := r.Words()
		require.Equal(t, value(row[5]), word(compare), row)
		require.Equal(t, mask(row[6]), word(compareMask), row)
		require.Equal(t, value(row[7]), word(swapAdd), row)
		require.Equal(t, mask(row[8]), word(swapMask), row)
		require.Equal(t, mask(row[9]), word(boundary), row)
		require.EqualValues(t, 0x7000, r.Addr, row)
		require.Equal(t, 4, r.Size, row)
		require.EqualValues(t, 8, r.Opmod, row)
		require.Equal(t, !strings.Contains(row[3], "not naturally aligned"), r.Natural, row)
		if strings.Contains(row[1], "_CS") {
			require.EqualValues(t, 0x14, r.Opcode, row)
		} else {
			require.EqualValues(t, 0x15, r.Opcode, row)
		}
	}
}

// The derived rows are UCX's derivations (rc_mlx5.inl) inside a field: OR stores
// v<<shift, AND the zeros of v inside the field, XOR has the whole field as
// boundary.
func TestDerivedRows(t *testing.T) {
	rows := Derived()
	require.Len(t, rows, 42)
	find := func(o Order, k Kind, size, offset int) Row {
		for _, r := range rows {
			if r.Order == o && r.Kind == k && r.Size == size && r.Offset == offset {
				return r
			}
		}
		t.Fatal("no such row")
		return Row{}
	}
	require.Equal(t, []string{"MASKED_CS as AND", "1B", "1", "8", "0", "0x00000000", "v<<8", "0x0000ff00 &^ (v<<8)", "—"},
		find(LittleEndian, And, 1, 1).Columns())
	require.Equal(t, []string{"MASKED_CS as OR", "2B", "0", "16", "0", "0x00000000", "v<<16", "v<<16", "—"},
		find(BigEndian, Or, 2, 0).Columns())
	require.Equal(t, []string{"MASKED_FA as XOR", "2B", "1 (not naturally aligned)", "8", "—", "—", "v<<8", "—", "0x00ffff00"},
		find(LittleEndian, Xor, 2, 1).Columns())
	require.Len(t, Heads(), len(rows[0].Columns()))
}
