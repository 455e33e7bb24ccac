package litmus_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio"
	"github.com/mlxvfio/mlxvfio/atomics"
	"github.com/mlxvfio/mlxvfio/atomics/litmus"
	"github.com/mlxvfio/mlxvfio/cmdif"
	"github.com/mlxvfio/mlxvfio/internal/faultdoc"
	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/internal/vfiouser"
	"github.com/mlxvfio/mlxvfio/queues"
	"github.com/mlxvfio/mlxvfio/sim"
)

func chip(t testing.TB, words string) *sim.Chip {
	t.Helper()
	o, err := sim.Parse(words)
	require.NoError(t, err)
	c, err := sim.New(o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

// model brings a function of the model up.
func model(t testing.TB, words string) *mlxvfio.HCA {
	t.Helper()
	return open(t, chip(t, words))
}

func open(t testing.TB, c *sim.Chip) *mlxvfio.HCA {
	t.Helper()
	h, err := mlxvfio.Open(context.Background(), c.Function(0), mlxvfio.Options{CompletionVectors: 1})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, h.Close(context.Background())) })
	return h
}

// host is the function as the suite wants it.
func host(t testing.TB, h *mlxvfio.HCA, name string) litmus.Host {
	t.Helper()
	general, ok := h.Cap(prm.CapGeneral)
	require.True(t, ok)
	atomic, ok := h.Cap(prm.CapAtomic)
	require.True(t, ok)
	caps, err := atomics.ParseCaps(atomic.Current, general.Current)
	require.NoError(t, err)
	return litmus.Host{Name: name, Dev: h.Queues(), Caps: caps}
}

func build(t testing.TB, o litmus.BuildOptions) *litmus.Bench {
	t.Helper()
	b, err := litmus.Build(context.Background(), o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close(context.Background())) })
	return b
}

func show(t *testing.T, c *litmus.Card) {
	t.Helper()
	for _, r := range c.Rows {
		t.Log(strings.Join(r.Columns(), " | "))
	}
}

// bounded is a context that ends before the test does.
func bounded(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func TestModelKeepsItsGuarantees(t *testing.T) {
	devices := []string{"sim:cx5,port=eth", "sim:cx5,fault=memory-order"}
	for _, p := range sim.Profiles() {
		devices = append(devices, "sim:"+p)
	}
	table := faultdoc.New("atomics, no fault", "TestModelKeepsItsGuarantees", devices...)
	for _, words := range devices {
		row := table.Row("none", "", words)
		t.Run(words, func(t *testing.T) {
			b := build(t, litmus.BuildOptions{Name: words, Responder: host(t, model(t, words), "a")})
			c, err := litmus.Run(bounded(t), &b.Rig, litmus.Options{Seed: 1, Scale: 0.3})
			show(t, c)
			require.NoError(t, err)
			require.NoError(t, c.Err())
			require.True(t, c.Profile.Probed)
			want := atomics.LittleEndian
			if strings.Contains(words, "memory-order") {
				want = atomics.BigEndian
			}
			require.Equal(t, want, c.Profile.Order(), "the suite works in the order that was found")
			row.Raised()
			row.Saw("%s; atomics in %v order", found([]*litmus.Card{c}), c.Profile.Order())
		})
	}
	table.Check(t)
}

// found says what the suite has found on a device, run by run.
func found(cards []*litmus.Card) string {
	if len(cards) == 0 {
		return ""
	}
	var all []string
	for _, c := range cards {
		var names []string
		for _, f := range c.Faults {
			names = append(names, string(f))
		}
		text := "every guarantee holds"
		if err := c.Err(); err != nil {
			text = "named: " + strings.Join(names, ", ")
		}
		if !slices.Contains(all, text) {
			all = append(all, text)
		}
	}
	return strings.Join(all, " or ")
}

// Each fault of the model's data path that breaks a guarantee is found and named.
func TestModelFaults(t *testing.T) {
	profiles := []string{"cx5", "cx4"}
	table := faultdoc.New("atomics", "TestModelFaults", profiles...)
	for _, f := range []atomics.Fault{
		atomics.FaultMaskOrder, atomics.FaultNoBoundary, atomics.FaultTornWrite, atomics.FaultLostUpdate,
		atomics.FaultLateWrite, atomics.FaultNoFence,
	} {
		for _, profile := range profiles {
			words := "sim:" + profile + ",fault=" + string(f)
			row := table.Row(string(f), "", profile)
			t.Run(words, func(t *testing.T) {
				row.Raised()
				var cards []*litmus.Card
				for seed := range uint64(3) {
					b := build(t, litmus.BuildOptions{Name: words, Responder: host(t, model(t, fmt.Sprintf("%s,seed=%d", words, seed)), "a")})
					c, err := litmus.Run(bounded(t), &b.Rig, litmus.Options{Seed: seed, Scale: 0.3})
					if seed == 0 {
						show(t, c)
					}
					require.NoError(t, err)
					require.False(t, c.OK)
					require.Equal(t, []atomics.Fault{f}, c.Faults, "it and nothing else")
					cards = append(cards, c)
				}
				row.Saw("%s (%d seeds)", found(cards), len(cards))
			})
		}
	}
	table.Check(t)
}

// Two hosts on one wire: one works on the other's memory, which works on it by
// loopback too.
func TestTwoHosts(t *testing.T) {
	for _, words := range []string{"sim:cx5", "sim:cx5,port=eth"} {
		t.Run(words, func(t *testing.T) {
			x, y := chip(t, words+",seed=3"), chip(t, words+",seed=4")
			require.NoError(t, sim.Link(x, y))
			a, z := host(t, open(t, x), "a"), host(t, open(t, y), "b")
			b := build(t, litmus.BuildOptions{Name: "two hosts", Responder: z, Requesters: []litmus.Host{a, z}})
			c, err := litmus.Run(bounded(t), &b.Rig, litmus.Options{Seed: 2, Scale: 0.3})
			show(t, c)
			require.NoError(t, err)
			require.NoError(t, c.Err())
			require.Equal(t, 2, c.Hosts)
			require.Equal(t, 4, c.Queues)
		})
	}
}

// A fault of the responder's is found from the other host.
func TestTwoHostsFault(t *testing.T) {
	x, y := chip(t, "sim:cx5"), chip(t, "sim:cx5,fault=lost-update")
	require.NoError(t, sim.Link(x, y))
	a, z := host(t, open(t, x), "a"), host(t, open(t, y), "b")
	b := build(t, litmus.BuildOptions{Name: "two hosts", Responder: z, Requesters: []litmus.Host{a, z}})
	c, err := litmus.Run(bounded(t), &b.Rig, litmus.Options{Seed: 2, Scale: 0.3})
	require.NoError(t, err)
	require.Equal(t, []atomics.Fault{atomics.FaultLostUpdate}, c.Faults)
}

// The same suite, waiting by interrupt.
func TestByInterrupt(t *testing.T) {
	h := model(t, "sim:cx5")
	a := host(t, h, "a")
	first, vectors := h.CompletionVectors()
	require.NotEmpty(t, vectors)
	a.Vector, a.Index = vectors[0], uint16(first)
	b := build(t, litmus.BuildOptions{Name: "by interrupt", Responder: a})
	c, err := litmus.Run(bounded(t), &b.Rig, litmus.Options{Seed: 2, Scale: 0.1})
	show(t, c)
	require.NoError(t, err)
	require.NoError(t, c.Err())
}

// Events are taken as they come, also while there is always something to poll: an
// event queue that fills up loses them.
func TestEventsAreTaken(t *testing.T) {
	chip := chip(t, "sim:cx5")
	h := open(t, chip)
	a := host(t, h, "a")
	first, vectors := h.CompletionVectors()
	require.NotEmpty(t, vectors)
	a.Vector, a.Index = vectors[0], uint16(first)
	b := build(t, litmus.BuildOptions{Name: "events", Responder: a, NoProbe: true})
	conn := b.Rig.Requesters[0].Conn
	ctx := bounded(t)
	before := chip.Counters(0)
	for i := range 600 {
		require.NoError(t, conn.SQ.Nop(uint64(i), queues.Signalled))
		conn.SQ.Ring()
		var c [1]queues.Completion
		n, err := conn.CQ.Poll(c[:])
		require.NoError(t, err)
		require.Equal(t, 1, n)
		require.NoError(t, b.Rig.Idle(ctx))
	}
	after := chip.Counters(0)
	require.Greater(t, after.Events, before.Events+256)
	require.Equal(t, before.EventsLost, after.EventsLost)
}

// Queue pairs without atomic writes make no promise, and the card says what is to
// be seen.
func TestWithoutAtomicWrites(t *testing.T) {
	b := build(t, litmus.BuildOptions{Name: "plain", Responder: host(t, model(t, "sim:cx5"), "a"), NoAtomicWrites: true})
	require.Zero(t, b.Rig.MaxWrite)
	c, err := litmus.Run(bounded(t), &b.Rig, litmus.Options{Seed: 2, Scale: 0.3})
	show(t, c)
	require.NoError(t, err)
	require.NoError(t, c.Err())
	for _, r := range c.Rows {
		if r.Guarantee == "a write inside an aligned block is all or nothing" {
			require.Equal(t, litmus.NotOffered, r.Verdict)
		}
		if r.Guarantee == "a write outside the rule is seen in pieces" {
			require.Equal(t, litmus.Seen, r.Verdict)
		}
	}
}

// A Client on the model, with what the probe found, and by READ and WRITE alone.
func TestClientOnModel(t *testing.T) {
	ctx := bounded(t)
	b := build(t, litmus.BuildOptions{Name: "client", Responder: host(t, model(t, "sim:cx4"), "a"), Queues: 1})
	q := &b.Rig.Requesters[0]
	require.True(t, q.Profile.Probed)
	require.NoError(t, q.Profile.Err())
	far := b.Rig.Target
	far.Mem = far.Mem.Slice(0, 0)
	p, err := atomics.Probe(ctx, atomics.ProbeOptions{Conn: q.Conn, Caps: b.Rig.Caps, Local: q.Local, Target: far, Idle: b.Rig.Idle})
	require.NoError(t, err)
	require.NoError(t, p.Err())
	require.Equal(t, q.Profile.Order(), p.Order())

	c, err := atomics.NewClient(atomics.ClientOptions{Conn: q.Conn, Profile: q.Profile, Reply: q.Local, RKey: b.Rig.Target.RKey})
	require.NoError(t, err)
	b.Rig.Target.Store(0, []byte{1, 0xff, 3, 4, 5, 6, 7, 8})
	old, err := c.FetchAdd8(ctx, b.Rig.Target.Addr+1, 2)
	require.NoError(t, err)
	require.EqualValues(t, 0xff, old)
	got := make([]byte, 8)
	b.Rig.Target.Load(0, got)
	require.Equal(t, []byte{1, 1, 3, 4, 5, 6, 7, 8}, got)
	_, err = c.Do(ctx, &atomics.Op{Kind: atomics.FetchAdd, Size: 64, Addr: b.Rig.Target.Addr, Wide: &atomics.Wide{Value: make([]uint64, 8)}})
	require.ErrorIs(t, err, atomics.ErrNotOffered)

	// What is posted behind the package's back is refused by the device.
	var r atomics.Request
	op := atomics.Op{Kind: atomics.FetchAdd, Size: 8, Addr: b.Rig.Target.Addr}
	require.NoError(t, op.Encode(&r, atomics.LittleEndian))
	require.ErrorIs(t, q.Conn.SQ.FetchAdd(1, 0, q.Local.SGE(0, 8), queues.Remote{Addr: r.Addr + 4, RKey: b.Rig.Target.RKey}, 1), queues.ErrUnaligned)
}

// Everything a Bench makes is gone when it is closed.
func TestBenchCloses(t *testing.T) {
	h := model(t, "sim:cx5")
	before := h.Stats().DMA
	b, err := litmus.Build(bounded(t), litmus.BuildOptions{Name: "close", Responder: host(t, h, "a"), NoProbe: true})
	require.NoError(t, err)
	require.Greater(t, h.Stats().DMA.LiveBuffers, before.LiveBuffers)
	require.NoError(t, b.Close(context.Background()))
	require.Equal(t, before.LiveBuffers, h.Stats().DMA.LiveBuffers)
	require.NoError(t, b.Close(context.Background()), "a second close does nothing")

	// A build that fails leaves nothing either.
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err = litmus.Build(ctx, litmus.BuildOptions{Name: "close", Responder: host(t, h, "a")})
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, before.LiveBuffers, h.Stats().DMA.LiveBuffers)
}

// A Build that is cancelled at any command leaves nothing either: no memory, and no
// command of which nobody knows what it made.
func TestBuildCancelled(t *testing.T) {
	h := model(t, "sim:cx5")
	before := h.Stats()
	var cancel context.CancelFunc
	left := 0
	h.Conn().SetTrace(func(e cmdif.TraceEvent) {
		if !e.Output {
			if left--; left == 0 {
				cancel()
			}
		}
	})
	defer h.Conn().SetTrace(nil)
	cancelled := 0
	for n := 1; ; n++ {
		var ctx context.Context
		ctx, cancel = context.WithCancel(context.Background())
		left = n
		b, err := litmus.Build(ctx, litmus.BuildOptions{Name: "cancelled", Responder: host(t, h, "a"), Queues: 1, NoProbe: true})
		over := ctx.Err() != nil
		cancel()
		if err == nil {
			require.NoError(t, b.Close(context.Background()))
		} else {
			require.True(t, over, "%v", err)
			require.ErrorIs(t, err, context.Canceled)
			require.NotContains(t, err.Error(), "not freed")
			cancelled++
		}
		st := h.Stats()
		require.Equal(t, before.DMA.LiveBuffers, st.DMA.LiveBuffers, "cancelled at command %d: %v", n, err)
		require.Zero(t, st.Commands.Quarantined)
		require.Zero(t, st.Commands.Late)
		if !over {
			break
		}
	}
	require.Greater(t, cancelled, 3)
}

// With one seed for the model and one for the suite, and the model's clock in our
// hands, everything repeats.
func TestModelDeterministic(t *testing.T) {
	run := func(seed uint64) *litmus.Card {
		o, err := sim.Parse("sim:cx5,seed=11")
		require.NoError(t, err)
		o.Clock = sim.NewManualClock()
		c, err := sim.New(o)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, c.Close()) })
		idle := func(ctx context.Context) error {
			c.Advance(time.Microsecond)
			return ctx.Err()
		}
		b := build(t, litmus.BuildOptions{Name: "manual clock", Responder: host(t, open(t, c), "a"), Idle: idle})
		card, err := litmus.Run(bounded(t), &b.Rig, litmus.Options{Seed: seed, Scale: 0.2})
		require.NoError(t, err)
		require.NoError(t, card.Err())
		return card
	}
	first := run(5)
	require.Equal(t, first, run(5))
	require.NotEqual(t, first.Rows, run(6).Rows)
}

// Over a vfio-user socket the same device keeps the same guarantees.
func TestOverSocket(t *testing.T) {
	dir, err := os.MkdirTemp("", "litmus")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	path := filepath.Join(dir, "sock")
	l, err := vfiouser.Listen(path)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	c := chip(t, "sim:cx5")
	go func() { done <- vfiouser.Serve(ctx, l, c.Function(0), vfiouser.Options{}) }()
	t.Cleanup(func() { cancel(); <-done })
	tr, err := vfiouser.Dial(ctx, path, vfiouser.Options{})
	require.NoError(t, err)
	h, err := mlxvfio.Open(context.Background(), tr, mlxvfio.Options{CompletionVectors: 1})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, h.Close(context.Background())) })
	a := host(t, h, "a")
	first, vectors := h.CompletionVectors()
	require.NotEmpty(t, vectors)
	a.Vector, a.Index = vectors[0], uint16(first)
	b := build(t, litmus.BuildOptions{Name: "socket", Responder: a})
	card, err := litmus.Run(bounded(t), &b.Rig, litmus.Options{Seed: 2, Scale: 0.1})
	show(t, card)
	require.NoError(t, err)
	require.NoError(t, card.Err())
}
