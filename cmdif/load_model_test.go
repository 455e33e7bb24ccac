package cmdif_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio"
	"github.com/mlxvfio/mlxvfio/cmdif"
	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/sim"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// Many callers on the model, whose firmware is busy: completions late, out of order,
// lost by chance, without their event or with two, and with another token. Each
// question has an answer of its own, known from quiet times; every caller gets that or
// an error, and in the end the function is given back.
func TestUnderLoadOnModel(t *testing.T) {
	for seed := range uint64(4) {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { onModel(t, seed, seed%2 == 1) })
		})
	}
}

// question is a command and its answer.
type question struct {
	in     []byte
	answer string
}

func onModel(t *testing.T, seed uint64, polled bool) {
	c, err := sim.New(sim.Options{Seed: seed, Load: 20000})
	require.NoError(t, err)
	ctx := context.Background()
	h, err := mlxvfio.Open(ctx, c.Function(0), mlxvfio.Options{Polled: polled, CommandTimeout: 200 * time.Millisecond, Memory: vfio.MemoryHeap})
	require.NoError(t, err)
	conn := h.Conn()

	// Capabilities of every type the model answers, current and maximum, and what is
	// told of the board: with mailboxes and without.
	var qs []question
	ask := func(op prm.Opcode, opMod uint16, out int) {
		in := make([]byte, 16)
		prm.AsCmdIn(in).SetOpcode(op)
		prm.AsCmdIn(in).SetOpMod(opMod)
		b := make([]byte, out)
		if err := conn.Exec(ctx, in, b); err == nil {
			qs = append(qs, question{in, string(b)})
		}
	}
	for kind := range uint16(0x14) {
		ask(prm.OpQueryHCACap, kind<<1, 4112)
		ask(prm.OpQueryHCACap, kind<<1|1, 4112)
	}
	ask(prm.OpQueryAdapter, 0, prm.QueryAdapterOutSize)
	ask(prm.OpQueryISSI, 0, prm.QueryISSIOutSize)
	ask(prm.OpQuerySpecialContexts, 0, 16)
	distinct := map[string]bool{}
	for _, q := range qs {
		distinct[q.answer] = true
	}
	require.Greater(t, len(distinct), 8, "answers that tell questions apart")

	for _, x := range []sim.FaultSpec{
		{Name: "late", Arg: "%3=500ms"}, {Name: "late", Arg: "%10=20ms"}, {Name: "lost", Arg: "QUERY_ADAPTER%3"},
		{Name: "lost-event", Arg: "%5"}, {Name: "duplicate", Arg: "%5"}, {Name: "token", Arg: "QUERY_ISSI%3"},
	} {
		require.NoError(t, c.SetFault(x.Name, x.Arg))
	}
	pds := sync.Map{}
	var good, unanswered, unsent atomic.Int64
	judge := func(err error) bool {
		switch {
		case err == nil:
			good.Add(1)
			return true
		case cmdif.Unanswered(err):
			unanswered.Add(1)
		case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled), errors.Is(err, cmdif.ErrQuarantined):
			unsent.Add(1)
		default:
			t.Errorf("%v", err)
		}
		return false
	}
	var wg sync.WaitGroup
	for w := range 100 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(w)))
			for range 15 {
				ctx, cancel := context.WithCancel(ctx)
				if r.IntN(12) == 0 {
					stop := time.AfterFunc(time.Duration(r.IntN(int(5*time.Millisecond))), cancel)
					defer stop.Stop()
				}
				if r.IntN(6) == 0 { // an answer that nobody had before
					in, out := make([]byte, prm.AllocPDInSize), make([]byte, prm.AllocPDOutSize)
					prm.AsCmdIn(in).SetOpcode(prm.OpAllocPD)
					if judge(conn.Exec(ctx, in, out)) {
						if _, twice := pds.LoadOrStore(prm.AsAllocPDOut(out).PD(), w); twice {
							t.Errorf("protection domain %d was given to two callers", prm.AsAllocPDOut(out).PD())
						}
					}
				} else {
					q := qs[r.IntN(len(qs))]
					out := make([]byte, len(q.answer))
					if judge(conn.Exec(ctx, q.in, out)) && string(out) != q.answer {
						t.Errorf("%v op_mod %x got the answer of another command", prm.AsCmdIn(q.in).Opcode(), prm.AsCmdIn(q.in).OpMod())
					}
				}
				cancel()
				st := conn.Stats()
				if st.Free+st.Active+st.Quarantined != st.Slots {
					t.Errorf("slots do not add up: %+v", st)
				}
			}
		})
	}
	wg.Wait()
	require.NoError(t, c.ClearFault(""))
	time.Sleep(2 * time.Second) // what is late has come
	st := conn.Stats()
	t.Logf("seed %d: %d answered, %d given up, %d not sent; %d late, %d never, %d foreign, %d recovered, %d lost interrupts",
		seed, good.Load(), unanswered.Load(), unsent.Load(), st.Late, st.Quarantined, st.Foreign, st.Recovered, st.LostInterrupts)
	require.Greater(t, good.Load(), int64(300))
	require.Positive(t, st.Late)
	require.Equal(t, uint64(unanswered.Load()), st.Late+uint64(st.Quarantined), "each command given up came late, or is listed")
	require.Zero(t, st.Active)
	for _, r := range st.Unanswered {
		require.Contains(t, []prm.Opcode{prm.OpQueryAdapter, prm.OpQueryISSI}, r.Opcode, "only these are lost, or come back as another's")
	}
	require.NoError(t, h.Close(ctx))
	require.NoError(t, c.Close())
}
