package mlxvfio_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio"
	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/queues"
	"github.com/mlxvfio/mlxvfio/sim"
)

// steps are all that an Exerciser does.
func steps(t *testing.T, x *mlxvfio.Exerciser) map[string]string {
	t.Helper()
	notes := map[string]string{}
	var err error
	notes["nop"], err = x.Nops(t.Context())
	require.NoError(t, err)
	notes["send"], err = x.Sends(t.Context())
	require.NoError(t, err)
	notes["write"], err = x.Writes(t.Context())
	require.NoError(t, err)
	notes["read"], err = x.Reads(t.Context())
	require.NoError(t, err)
	notes["atomics"], err = x.Atomics(t.Context())
	require.NoError(t, err)
	notes["datagrams"], err = x.Datagrams(t.Context())
	require.NoError(t, err)
	notes["cross"], err = x.CrossChannel(t.Context())
	require.NoError(t, err)
	return notes
}

// every operation code that this driver builds, with its service.
const everyOpcode = "RC NOP, RC SEND, RC SEND_IMM, RC RDMA_WRITE, RC RDMA_WRITE_IMM, RC RDMA_READ, RC ATOMIC_CS, RC ATOMIC_FA, " +
	"RC ATOMIC_MASKED_CS, RC ATOMIC_MASKED_FA, RC SEND_EN, RC WAIT, UD SEND, UD SEND_IMM"

// Every operation is done by loopback, by interrupt and by polling, on either link
// layer, and counted as the completions say.
func TestEveryOpcode(t *testing.T) {
	for _, words := range profiles("sim:cx5,port=eth", "sim:cx4,port=ib", "sim:cx5,load=100000,seed=5") {
		for vectors := range 2 {
			h, d, c := dataPath(t, words, vectors, mlxvfio.DataOptions{})
			x, err := mlxvfio.NewExerciser(t.Context(), d, d, 7)
			require.NoError(t, err)
			for _, o := range x.Opcodes() {
				require.Zero(t, o.Done, "%+v", o)
			}
			notes := steps(t, x)
			var names []string
			for _, o := range x.Opcodes() {
				require.Empty(t, o.Note)
				require.Positive(t, o.Done, "%+v", o)
				names = append(names, o.Service+" "+o.Opcode)
			}
			require.Equal(t, everyOpcode, strings.Join(names, ", "))
			require.Contains(t, notes["cross"], "8 WRITEs held back")
			ethernet := prm.AsCmdHCACap(mustCap(t, h, prm.CapGeneral).Current).PortType() == prm.PortTypeEthernet
			require.Equal(t, !ethernet, strings.Contains(notes["datagrams"], "and without"), words)
			closed(t, h, c)
		}
	}
}

// The same between two functions on one wire.
func TestEveryOpcodeTwoHosts(t *testing.T) {
	for _, words := range []string{"sim:cx5", "sim:cx5,port=eth"} {
		a, b := chip(t, words), chip(t, words)
		require.NoError(t, sim.Link(a, b))
		var ds []*mlxvfio.DataPath
		for _, c := range []*sim.Chip{a, b} {
			h, err := mlxvfio.Open(t.Context(), c.Function(0), mlxvfio.Options{CompletionVectors: 1})
			require.NoError(t, err)
			d, err := h.OpenData(t.Context(), mlxvfio.DataOptions{})
			require.NoError(t, err)
			ds = append(ds, d)
		}
		x, err := mlxvfio.NewExerciser(t.Context(), ds[0], ds[1], 8)
		require.NoError(t, err)
		steps(t, x)
		for _, o := range x.Opcodes() {
			require.Positive(t, o.Done, "%+v", o)
		}
		closed(t, ds[0].HCA(), a)
		closed(t, ds[1].HCA(), b)
	}
}

// What the capabilities leave out is said, with the capability, and not tried.
func TestOpcodesNotSupported(t *testing.T) {
	h, c := opened(t, "sim:cx5", mlxvfio.Options{})
	h.Queues().Caps.CrossChannel = false
	for _, k := range h.Caps() {
		switch k.Type {
		case prm.CapGeneral:
			prm.AsCmdHCACap(k.Current).SetUd(false)
		case prm.CapAtomic:
			prm.AsAtomicCaps(k.Current).SetAtomicOperations(3) // the plain ones
		}
	}
	d, err := h.OpenData(t.Context(), mlxvfio.DataOptions{})
	require.NoError(t, err)
	x, err := mlxvfio.NewExerciser(t.Context(), d, d, 9)
	require.NoError(t, err)
	notes := steps(t, x)
	require.Equal(t, "not supported by this device: capability ud is 0", notes["datagrams"])
	require.Equal(t, "not supported by this device: capability cd is 0", notes["cross"])
	lacking := map[string]string{}
	for _, o := range x.Opcodes() {
		require.NotEqual(t, o.Note == "", o.Done == 0, "%+v", o)
		if o.Note != "" {
			lacking[o.Service+" "+o.Opcode] = o.Note
		}
	}
	const masked = "not supported by this device: atomic_operations 0x3, atomic_size_qp 0x1fc"
	require.Equal(t, map[string]string{
		"RC ATOMIC_MASKED_CS": masked, "RC ATOMIC_MASKED_FA": masked,
		"RC SEND_EN": notes["cross"], "RC WAIT": notes["cross"], "UD SEND": notes["datagrams"], "UD SEND_IMM": notes["datagrams"],
	}, lacking)
	closed(t, h, c)
}

// The route header of a datagram must name both ends.
func TestRouteHeader(t *testing.T) {
	v6 := func(last byte) (g queues.GID) { g[0], g[15] = 0xfe, last; return g }
	v4 := func(last byte) (g queues.GID) { copy(g[10:], []byte{0xff, 0xff, 10, 0, 0, last}); return g }
	for _, v := range []struct {
		from, to queues.GID
		head     int // where the header begins
		next     int // where it names the protocol
		src, dst int
		version  byte
	}{
		{v6(1), v6(2), 0, 6, 8, 24, 6},
		{v4(1), v4(2), 20, 29, 32, 36, 4},
	} {
		h := make([]byte, 40)
		h[v.head], h[v.next] = v.version<<4, 17
		n := v.dst - v.src
		copy(h[v.src:], v.from[16-n:])
		copy(h[v.dst:], v.to[16-n:])
		from, to := queues.PeerInfo{GID: v.from}, queues.PeerInfo{GID: v.to}
		require.NoError(t, mlxvfio.RouteHeader(h, from, to))
		for at, word := range map[int]string{v.head: "version", v.next: "protocol", v.src + n - 1: "source", v.dst + n - 1: "destination"} {
			h[at] ^= 0x30
			require.ErrorContains(t, mlxvfio.RouteHeader(h, from, to), word)
			h[at] ^= 0x30
		}
	}
}
