package queues

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/mlxvfio/mlxvfio/internal/absent"
	"github.com/stretchr/testify/require"
)

// reference builds testdata/post_ref.c: the same work in plain C.
func reference(tb testing.TB) string {
	tb.Helper()
	cc, err := exec.LookPath("cc")
	if err != nil {
		absent.Skip(tb, "C reference of post and poll", "no C compiler in PATH")
	}
	bin := filepath.Join(tb.TempDir(), "post_ref")
	out, err := exec.Command(cc, "-O2", "-o", bin, filepath.Join("testdata", "post_ref.c")).CombinedOutput()
	if err != nil && bytes.Contains(out, []byte("emmintrin.h")) {
		absent.Skip(tb, "C reference of post and poll", "it needs SSE2: it is for amd64")
	}
	require.NoError(tb, err, "%s", out)
	return bin
}

// refServer is the C reference waiting for what to measure.
type refServer struct {
	tb  testing.TB
	in  io.WriteCloser
	out *bufio.Reader
}

func serveReference(tb testing.TB) *refServer {
	tb.Helper()
	cmd := exec.Command(reference(tb), "serve")
	in, err := cmd.StdinPipe()
	require.NoError(tb, err)
	out, err := cmd.StdoutPipe()
	require.NoError(tb, err)
	require.NoError(tb, cmd.Start())
	tb.Cleanup(func() {
		require.NoError(tb, in.Close())
		require.NoError(tb, cmd.Wait())
	})
	return &refServer{tb, in, bufio.NewReader(out)}
}

// measure has one figure taken, in ns; post_ref.c says what the words are.
func (s *refServer) measure(kind, how, what string, batch, n int) float64 {
	_, err := fmt.Fprintln(s.in, kind, how, what, batch, n)
	require.NoError(s.tb, err)
	line, err := s.out.ReadString('\n')
	require.NoError(s.tb, err)
	v, err := strconv.ParseFloat(strings.TrimSpace(line), 64)
	require.NoError(s.tb, err)
	return v
}

// Both sides write the same bytes, at the first index, in the middle, where the
// ring ends and where the counter does.
func TestReferenceBytes(t *testing.T) {
	bin := reference(t)
	for _, op := range ratioOps {
		for _, index := range []uint64{0, 1, 511, 1022, 1023, 1024, 4095, 40000, 65534, 65535} {
			out, err := exec.Command(bin, "dump", refOp(op), strconv.Itoa(int(index))).Output()
			require.NoError(t, err)
			want := strings.Fields(string(out))
			require.Len(t, want, 3)
			for _, way := range []string{"call", "list", "one of two"} {
				u, bar := memoryUAR(t)
				q, record := newSQ(t, microLogSQ, u)
				q.pi, q.ci, q.rung = index, index, uint32(index)
				if refOp(op) != op.String() {
					q.SetPeerAtomic(microRule)
				}
				off := index * 64
				w := WorkRequest{
					WRID: 1, Flags: Signalled, Op: microOpcodes[op],
					Local:  SGE{Addr: microLAddr + off, Len: 64, LKey: microLKey},
					Remote: Remote{Addr: microRAddr + off, RKey: microRKey},
				}
				switch op {
				case MicroInlineWrite16, MicroInline16InRule:
					w.Inline = binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, off), ^off)
				case MicroAtomicFA:
					w.Local.Len, w.Swap = 8, off|1
				case MicroMaskedCS4:
					w.Local.Len, w.Swap, w.Compare, w.SwapMask, w.CompareMask = 4, index, index+1, 0xffff, 0xff00ff
				case MicroMaskedCS8:
					w.Local.Len, w.Swap, w.Compare, w.SwapMask, w.CompareMask = 8, off, off+1, 0xffffffff, 0xffff0000ffff
				}
				switch way {
				case "call":
					require.NoError(t, call(q, []WorkRequest{w}))
					q.Ring()
				case "list":
					n, err := q.Post([]WorkRequest{w})
					require.NoError(t, err)
					require.Equal(t, 1, n)
				default: // the general form
					require.NoError(t, q.postOne(&w))
					q.Ring()
				}
				var got []byte
				for i := range q.pi - index {
					got = append(got, q.block(index + i)[:]...)
				}
				require.Equal(t, want[0], hex.EncodeToString(got), "%s at %d by %s", op, index, way)
				require.Equal(t, want[1], fmt.Sprintf("%08x", binary.BigEndian.Uint32(record[recordSend:])), "record")
				require.Equal(t, want[2], fmt.Sprintf("%016x", binary.BigEndian.Uint64(bar[UARBlueFlame:])), "doorbell")
			}
		}
	}
}
