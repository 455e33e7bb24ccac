package mlxvfio_test

import (
	"context"
	"hash/crc64"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio"
	"github.com/mlxvfio/mlxvfio/health"
	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/internal/vfiouser"
	"github.com/mlxvfio/mlxvfio/queues"
	"github.com/mlxvfio/mlxvfio/sim"
	"github.com/mlxvfio/mlxvfio/tracer"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// kept is a transport that notes the order of what ends a function, and keeps every
// piece of memory that was ever mapped to look at it later.
type kept struct {
	ordered
	memory map[uint64][]byte
}

func keep(t vfio.Transport) *kept {
	return &kept{ordered: ordered{Transport: t}, memory: map[uint64][]byte{}}
}

func (k *kept) DMA() vfio.Mapper {
	return keptMapper{orderedMapper{k.ordered.Transport.DMA(), &k.ordered}, k}
}

type keptMapper struct {
	orderedMapper
	k *kept
}

func (m keptMapper) Map(x vfio.Mapping) error {
	m.k.mu.Lock()
	m.k.memory[x.IOVA] = x.Bytes
	m.k.mu.Unlock()
	return m.orderedMapper.Map(x)
}

// sum is a checksum of all of it.
func (k *kept) sum() uint64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	var at []uint64
	for a := range k.memory {
		at = append(at, a)
	}
	slices.Sort(at)
	h := crc64.New(crc64.MakeTable(crc64.ECMA))
	for _, a := range at {
		_, _ = h.Write(k.memory[a])
	}
	return h.Sum64()
}

// busy opens a function and leaves work of every kind on it: unfinished work
// requests, an armed CQ, a live trace, a health monitor.
func busy(t *testing.T, tr vfio.Transport, o mlxvfio.Options) *mlxvfio.HCA {
	t.Helper()
	ctx := t.Context()
	o.CompletionVectors, o.CommandTimeout = 1, 50*time.Millisecond
	h, err := mlxvfio.Open(ctx, tr, o)
	require.NoError(t, err)
	d := h.Queues()
	uar, err := d.AllocUAR(ctx)
	require.NoError(t, err)
	pd, err := d.AllocPD(ctx)
	require.NoError(t, err)
	ch, err := d.NewEventChannel(ctx, queues.EventChannelOptions{UAR: uar})
	require.NoError(t, err)
	cq, err := d.CreateCQ(ctx, queues.CQOptions{EQ: ch.EQ(), UAR: uar})
	require.NoError(t, err)
	buf, err := d.Space.Alloc(1<<16, vfio.BufferOptions{})
	require.NoError(t, err)
	mk, err := d.CreateMKey(ctx, queues.MKeyOptions{PD: pd, Buffer: buf, Access: queues.AccessAll})
	require.NoError(t, err)
	q, err := d.CreateQP(ctx, queues.QPOptions{PD: pd, SendCQ: cq, UAR: uar, BlueFlame: true})
	require.NoError(t, err)
	require.NoError(t, q.ConnectLoopback(ctx, queues.ConnectOptions{}))
	for i := range uint64(8) {
		require.NoError(t, q.SQ.Write(i, queues.Signalled|queues.NonAtomic, mk.SGE(0, 1<<15), mk.Remote(1<<15)))
	}
	q.SQ.Ring()
	cq.Arm(false)
	_, err = h.OpenTracer(ctx, tracer.Options{})
	require.NoError(t, err)
	_, err = h.Monitor(ctx, health.Options{})
	require.NoError(t, err)
	return h
}

// closings are the ways in which a function ends, good and bad.
var closings = []struct {
	name  string
	o     mlxvfio.Options
	raise func(t *testing.T, c *sim.Chip)
}{
	{"regular", mlxvfio.Options{}, nil},
	{"forced", mlxvfio.Options{Teardown: mlxvfio.TeardownForced}, nil},
	{"fast", mlxvfio.Options{Teardown: mlxvfio.TeardownFast}, nil},
	{"teardown refused", mlxvfio.Options{}, raising("status", prm.OpTeardownHCA.String()+"=RES_BUSY")},
	{"teardown lost", mlxvfio.Options{}, raising("lost", prm.OpTeardownHCA.String())},
	{"teardown late", mlxvfio.Options{}, raising("late", prm.OpTeardownHCA.String()+"=200ms")},
	{"pages lost", mlxvfio.Options{}, raising("lost", prm.OpManagePages.String())},
	{"pages kept", mlxvfio.Options{}, raising("pages-kept", "7")},
	{"disable refused", mlxvfio.Options{}, raising("status", prm.OpDisableHCA.String()+"=RES_BUSY")},
	{"event queue stays", mlxvfio.Options{}, raising("lost", prm.OpDestroyEQ.String())},
	{"firmware dead", mlxvfio.Options{}, raising("fatal", "now")},
	{"all ones", mlxvfio.Options{}, raising("all-ones", "")},
}

func raising(name, arg string) func(*testing.T, *sim.Chip) {
	return func(t *testing.T, c *sim.Chip) { require.NoError(t, c.SetFault(name, arg)) }
}

// TestDMAAfterClose: the model keeps trying after every kind of Close, good or
// failing, to write to each page that it has ever used, by itself and at the moment
// of each unmap; once deaf to the bus-master bit, too. Every attempt is refused and
// counted, no byte of what was mapped changes, and nothing was unmapped before
// the device was cut off.
func TestDMAAfterClose(t *testing.T) {
	for _, rogue := range []string{"", "deaf"} {
		for _, how := range closings {
			t.Run(how.name+"/"+rogue, func(t *testing.T) {
				inBubble(t, func(t *testing.T) {
					c := chip(t, "sim:cx5,load=20000")
					require.NoError(t, c.SetFault("rogue", rogue))
					k := keep(c.Function(0))
					how.o.Memory = vfio.MemoryHeap // stays readable
					h := busy(t, k, how.o)
					if how.raise != nil {
						how.raise(t, c)
					}
					k.mu.Lock()
					k.acts = nil
					k.mu.Unlock()
					_ = h.Close(t.Context()) // how each ends is other tests' business
					cutOff := slices.IndexFunc(k.acts, func(a string) bool { return a == "bus master off" || a == "reset" })
					require.GreaterOrEqual(t, cutOff, 0)
					require.Less(t, cutOff, slices.Index(k.acts, "unmap"), "%v", k.acts)
					require.Equal(t, "close", k.acts[len(k.acts)-1])

					was, sum := c.Counters(0), k.sum()
					require.Greater(t, len(k.memory), 0)
					time.Sleep(3 * time.Second)
					is := c.Counters(0)
					tries := is.RogueTries - was.RogueTries
					require.Greater(t, tries, uint64(10_000), "the device really tries")
					refused := is.DMABlocked - was.DMABlocked + is.DMAFaults - was.DMAFaults
					require.GreaterOrEqual(t, refused, tries, "each is refused and counted")
					require.Equal(t, was.RogueLanded, is.RogueLanded)
					require.Equal(t, was.DMAReads, is.DMAReads)
					require.Equal(t, was.DMAWrites, is.DMAWrites)
					require.Equal(t, sum, k.sum(), "the memory is as it was")
					if rogue == "" {
						require.Zero(t, is.RogueLanded, "not even while the Close ran")
					} else {
						require.Greater(t, is.DMAAfterClose-was.DMAAfterClose, uint64(1000), "in memory that was mapped once")
					}
				})
			})
		}
	}
}

// TestDMAAfterCloseOverSocket: the same where the function is behind a socket and
// the memory another process's: when Close returns, the server has let go.
func TestDMAAfterCloseOverSocket(t *testing.T) {
	for _, cut := range []bool{false, true} {
		c := chip(t, "sim:cx5,load=5000,fault=rogue@deaf")
		path := serve(t, c)
		tr, err := vfiouser.Dial(context.Background(), path, vfiouser.Options{})
		require.NoError(t, err)
		k := keep(tr)
		space, err := vfio.NewAddressSpace(k.DMA(), vfio.SpaceOptions{})
		require.NoError(t, err)
		hold, err := space.Alloc(1<<20, vfio.BufferOptions{}) // memory of ours that outlives the Close
		require.NoError(t, err)
		h := busy(t, k, mlxvfio.Options{Space: space, CommandTimeout: time.Second})
		ctx, cancel := context.WithCancel(t.Context())
		if cut {
			cancel()
		}
		_ = h.Close(ctx)
		cancel()
		was := c.Counters(0)
		before := append([]byte(nil), hold.Bytes()...)
		require.Eventually(t, func() bool { return c.Counters(0).RogueTries > was.RogueTries+10_000 }, 10*time.Second, time.Millisecond)
		is := c.Counters(0)
		require.Equal(t, was.RogueLanded, is.RogueLanded)
		require.Equal(t, was.DMAWrites, is.DMAWrites)
		require.Greater(t, is.DMAAfterClose, was.DMAAfterClose)
		require.Equal(t, before, hold.Bytes())
		require.NoError(t, hold.Free())
	}
}

// together is the address space of two functions of one chip.
type together struct {
	c     *sim.Chip
	space *vfio.AddressSpace
	a, b  *mlxvfio.HCA
}

func share(t *testing.T, rogue string) *together {
	t.Helper()
	c, err := sim.New(sim.Options{Functions: 2, SharedDomain: true})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	require.NoError(t, c.SetFault("rogue", rogue))
	fa, fb := c.Function(0), c.Function(1)
	memory := vfio.MemoryHeap
	if rogue == "deaf" {
		// It writes to what the test reads: a race on purpose, in memory that the race
		// detector does not watch.
		memory = vfio.MemoryMemFD
	}
	space, err := vfio.NewAddressSpace(fa.DMA(), vfio.SpaceOptions{Memory: memory, SlabMin: 8 << 20})
	require.NoError(t, err)
	x := &together{c: c, space: space}
	x.a = busy(t, fa, mlxvfio.Options{Space: space})
	x.b, err = mlxvfio.Open(t.Context(), fb, mlxvfio.Options{Space: space})
	require.NoError(t, err)
	return x
}

// TestDMAAfterCloseInSharedSpace: one of two functions in one address space is
// closed. Its memory there stays mapped, for the other; what keeps it from writing
// is the bus-master bit, and a device that is deaf to that is not kept: an IOMMU
// knows address spaces, not which function of one a page is meant for. That is
// what docs/security.md says, and what the second half shows.
func TestDMAAfterCloseInSharedSpace(t *testing.T) {
	for _, rogue := range []string{"", "deaf"} {
		inBubble(t, func(t *testing.T) {
			x := share(t, rogue)
			_ = x.a.Close(t.Context()) // names what busy left
			was := x.c.Counters(0)
			bufs := make([]*vfio.Buffer, 64)
			for i := range bufs { // of the memory that a had
				var err error
				bufs[i], err = x.space.Alloc(4096, vfio.BufferOptions{})
				require.NoError(t, err)
				require.Equal(t, make([]byte, 4096), bufs[i].Bytes(), "what a left there is gone")
			}
			time.Sleep(3 * time.Second)
			is := x.c.Counters(0)
			require.Greater(t, is.RogueTries-was.RogueTries, uint64(10_000))
			spoiled := 0
			for _, b := range bufs {
				if slices.ContainsFunc(b.Bytes(), func(v byte) bool { return v != 0 }) {
					spoiled++
				}
				require.NoError(t, b.Free())
			}
			if rogue == "" {
				require.Equal(t, is.RogueTries-was.RogueTries, is.DMABlocked-was.DMABlocked)
				require.Zero(t, is.RogueLanded)
				require.Zero(t, spoiled)
				require.NoError(t, x.b.Conn().NOP(t.Context()), "the other works on")
			} else {
				require.Greater(t, is.RogueLanded, was.RogueLanded, "nothing here stops it")
				require.NotZero(t, spoiled)
			}
			_ = x.b.Close(t.Context())
			_ = x.space.Close()
		})
	}
}

// TestZeroedBeforeReuse: what one user of an address space, or the device, left in
// memory is not there for the next, also where the device wrote after the memory
// was freed but not unmapped.
func TestZeroedBeforeReuse(t *testing.T) {
	c := chip(t, "sim:cx5")
	tr := c.Function(0)
	defer func() { require.NoError(t, tr.Close()) }()
	for _, kind := range []vfio.MemoryKind{vfio.MemoryHeap, vfio.MemoryMemFD} {
		space, err := vfio.NewAddressSpace(tr.DMA(), vfio.SpaceOptions{Memory: kind})
		require.NoError(t, err)
		var wg sync.WaitGroup
		for size := 64; size <= 1<<20; size *= 4 {
			a, err := space.Alloc(size, vfio.BufferOptions{Name: "secret"})
			require.NoError(t, err)
			m, at := a.Bytes(), a.IOVA()
			for i := range m {
				m[i] = 0xa5
			}
			require.NoError(t, a.Free())
			wg.Go(func() { // the device, through a mapping that is still there
				for i := range m {
					m[i] = 0x5a
				}
			})
			wg.Wait()
			b, err := space.Alloc(size, vfio.BufferOptions{Name: "next"})
			require.NoError(t, err)
			require.Equal(t, at, b.IOVA(), "the same place, or this shows nothing")
			require.Equal(t, make([]byte, size), b.Bytes(), "%s, %d bytes", kind, size)
			require.NoError(t, b.Free())
		}
		require.NoError(t, space.Close())
	}
}
