package mlxvfio_test

import (
	"bytes"
	"context"
	"log/slog"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio"
	"github.com/mlxvfio/mlxvfio/internal/drivertest"
	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/queues"
	"github.com/mlxvfio/mlxvfio/sim"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// opened brings the model up and has the test close it.
func opened(t *testing.T, words string, o mlxvfio.Options) (*mlxvfio.HCA, *sim.Chip) {
	t.Helper()
	c := chip(t, words)
	h, err := mlxvfio.Open(t.Context(), c.Function(0), o)
	require.NoError(t, err)
	return h, c
}

// closed takes the function down and requires that nothing is left.
func closed(t *testing.T, h *mlxvfio.HCA, c *sim.Chip) {
	t.Helper()
	require.NoError(t, h.Close(context.Background()))
	drivertest.Balanced(t, h.Ledger())
	spotless(c, 0)(t)
}

// raise has firmware write an event to an EQ (GEN_EQE).
func raise(t *testing.T, h *mlxvfio.HCA, eqn uint8, e *prm.EQE) {
	t.Helper()
	in, out := make([]byte, prm.GenEQEInSize), make([]byte, 16)
	v := prm.AsGenEQEIn(in)
	v.SetOpcode(prm.OpGenEQE)
	v.SetEQNumber(eqn)
	copy(v.EQE(), e[:])
	require.NoError(t, h.Conn().Exec(t.Context(), in, out))
}

func eqnOf(t *testing.T, h *mlxvfio.HCA, name string) uint8 {
	t.Helper()
	for _, q := range h.Info().EQs {
		if q.Name == name {
			return q.EQN
		}
	}
	t.Fatalf("no %s EQ", name)
	return 0
}

func event(typ prm.EventType, sub uint8) *prm.EQE {
	var e prm.EQE
	e.SetEventType(typ)
	e.SetEventSubType(sub)
	return &e
}

// Device events reach subscribers in order, by interrupt as well as by the clock.
func TestEventsArrive(t *testing.T) {
	for _, polled := range []bool{false, true} {
		inBubble(t, func(t *testing.T) {
			h, c := opened(t, "sim:cx5", mlxvfio.Options{Polled: polled})
			all := h.Subscribe(64, queues.EventMask{})
			cqs := h.Subscribe(64, queues.MaskOf(prm.EventCQError))
			c.SetLink(0, false)
			c.SetLink(0, true)
			raise(t, h, eqnOf(t, h, "async"), event(prm.EventCQError, 0))
			var got []string
			for range 3 {
				e := <-all.C()
				require.Equal(t, eqnOf(t, h, "async"), e.EQN)
				require.True(t, e.Known())
				got = append(got, e.String())
			}
			require.Equal(t, []string{"PORT_CHANGE/DOWN port 1", "PORT_CHANGE/ACTIVE port 1", "CQ_ERROR cqn 0x0 0x0"}, got)
			e := <-cqs.C()
			require.Equal(t, prm.EventCQError, e.Type())
			require.Empty(t, cqs.C(), "the mask keeps the others out")
			require.Equal(t, uint64(3), h.Stats().Events.Delivered)
			closed(t, h, c)
		})
	}
}

// An event without a name is logged, counted and delivered like any other.
func TestUnknownEvents(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		var log syncBuffer
		h, c := opened(t, "sim:cx5", mlxvfio.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		sub := h.Subscribe(4, queues.EventMask{})
		raise(t, h, eqnOf(t, h, "async"), event(0x7e, 3))
		raise(t, h, eqnOf(t, h, "async"), event(prm.EventPortChange, 0x3f))
		a, b := <-sub.C(), <-sub.C()
		require.False(t, a.Known())
		require.False(t, b.Known())
		require.Contains(t, b.String(), "PORT_CHANGE/SUBTYPE_0x3f")
		require.Equal(t, uint64(2), h.Stats().Events.Unknown)
		require.Contains(t, log.String(), "event without a name")
		require.Contains(t, log.String(), "EVENT_0x7e")
		closed(t, h, c)
	})
}

// A reader that does not read loses events, which are counted; the driver and
// the other readers go on.
func TestSlowSubscriber(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h, c := opened(t, "sim:cx5", mlxvfio.Options{})
		slow, fast := h.Subscribe(2, queues.EventMask{}), h.Subscribe(64, queues.EventMask{})
		for range 10 {
			raise(t, h, eqnOf(t, h, "async"), event(prm.EventCQError, 0))
		}
		for range 10 {
			<-fast.C()
		}
		require.Equal(t, uint64(8), slow.Dropped())
		require.Zero(t, fast.Dropped())
		require.Equal(t, uint64(8), h.Stats().Events.Dropped)
		require.NoError(t, h.Conn().NOP(t.Context()))
		closed(t, h, c)
	})
}

// Many passes over the ring in bursts that nearly fill it: none is lost, because
// the consumer index follows.
func TestManyEvents(t *testing.T) {
	h, c := opened(t, "sim:cx5", mlxvfio.Options{})
	eqn := eqnOf(t, h, "pages") // the smallest: 256 entries
	sub := h.Subscribe(1000, queues.EventMask{})
	for range 10 {
		for range 200 {
			raise(t, h, eqn, event(prm.EventCQError, 0))
		}
		for range 200 {
			<-sub.C()
		}
	}
	require.Zero(t, h.Stats().Events.Overruns)
	require.Zero(t, c.Counters(0).EventsLost)
	closed(t, h, c)
}

// An event queue that nobody reads fills up: what was written is good, the loss
// shows in its state.
func TestFullEQ(t *testing.T) {
	h, c := opened(t, "sim:cx5", mlxvfio.Options{})
	u, err := h.Queues().AllocUAR(t.Context())
	require.NoError(t, err)
	q, err := h.Queues().CreateEQ(t.Context(), queues.EQOptions{Name: "small", LogSize: 3, UAR: u})
	require.NoError(t, err)
	for i := range 8 {
		raise(t, h, q.Number(), event(prm.EventCQError, uint8(i)))
	}
	st, err := q.Query(t.Context())
	require.NoError(t, err)
	require.Equal(t, prm.EQStatusOK, st.Status, "full is not broken")
	raise(t, h, q.Number(), event(prm.EventCQError, 8))
	var got []uint8
	n, err := q.Poll(func(e *prm.EQE) { got = append(got, e.EventSubType()) })
	require.NoError(t, err)
	require.Equal(t, 8, n)
	require.Equal(t, []uint8{0, 1, 2, 3, 4, 5, 6, 7}, got)
	st, err = q.Query(t.Context())
	require.NoError(t, err)
	require.Equal(t, prm.EQStatusWriteFailure, st.Status)
	require.NoError(t, q.Destroy(t.Context()))
	require.NoError(t, u.Free(t.Context()))
	closed(t, h, c)
}

// Firmware's requests at run time: positive and negative ones, many in flight.
func TestPageRequests(t *testing.T) {
	for _, polled := range []bool{false, true} {
		inBubble(t, func(t *testing.T) {
			h, c := opened(t, "sim:cx5", mlxvfio.Options{Polled: polled})
			start := h.Ledger()
			for range 20 {
				require.True(t, c.RequestPages(0, 300))
			}
			sleep(1)
			require.Equal(t, start.Outstanding+6000, h.Ledger().Outstanding)
			require.Equal(t, start.Outstanding+6000, c.State(0).Pages)
			for range 10 {
				require.True(t, c.RequestPages(0, -250))
			}
			sleep(1)
			l := h.Ledger()
			require.Equal(t, start.Outstanding+3500, l.Outstanding)
			require.Equal(t, l.Outstanding, c.State(0).Pages)
			require.Equal(t, 20, l.Requests)
			require.Equal(t, 10, l.Reclaims)
			require.Zero(t, c.State(0).PagesWanted, "every request was met")
			closed(t, h, c)
		})
	}
}

// A request the host cannot meet is answered; firmware does not wait for ever.
func TestPageRequestRefused(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h, c := opened(t, "sim:cx5", mlxvfio.Options{PageLimit: 1100})
		held := h.Ledger().Outstanding
		require.True(t, c.RequestPages(0, 1000))
		sleep(1)
		require.Equal(t, held, h.Ledger().Outstanding)
		require.Equal(t, 1, h.Ledger().Refused)
		require.Zero(t, c.State(0).PagesWanted, "firmware was told")
		require.True(t, c.RequestPages(0, 10))
		sleep(1)
		require.Equal(t, held+10, h.Ledger().Outstanding)
		closed(t, h, c)
	})
}

// Firmware forgets all pages at once: no command, and nothing to reclaim later.
func TestReleaseAll(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h, c := opened(t, "sim:cx5", mlxvfio.Options{})
		held := h.Ledger().Outstanding
		require.True(t, c.ReleaseAllPages(0))
		sleep(1)
		require.Equal(t, held, h.Ledger().Dropped)
		require.Zero(t, h.Ledger().Outstanding)
		require.True(t, c.RequestPages(0, 50))
		sleep(1)
		closed(t, h, c)
		require.Equal(t, 50, h.Ledger().Returned)
	})
}

// Two functions of one chip in one I/O address space: each has its account, and
// one closing does not disturb the other.
func TestSharedSpace(t *testing.T) {
	two, err := sim.New(sim.Options{Functions: 2, SharedDomain: true})
	require.NoError(t, err)
	defer two.Close()
	first := two.Function(0)
	space, err := vfio.NewAddressSpace(first.DMA(), vfio.SpaceOptions{})
	require.NoError(t, err)
	var hs []*mlxvfio.HCA
	for _, tr := range []vfio.Transport{first, two.Function(1)} {
		h, err := mlxvfio.Open(t.Context(), tr, mlxvfio.Options{Space: space})
		require.NoError(t, err)
		hs = append(hs, h)
	}
	require.NoError(t, hs[0].Close(t.Context()))
	require.NoError(t, hs[1].Conn().NOP(t.Context()))
	require.Equal(t, 1030, hs[1].Ledger().Outstanding)
	require.NoError(t, hs[1].Close(t.Context()))
	require.Zero(t, space.Stats().LiveBuffers)
	require.NoError(t, space.Close())
}

// syncBuffer is a log that several goroutines write.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}
