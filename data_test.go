package mlxvfio_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio"
	"github.com/mlxvfio/mlxvfio/atomics"
	"github.com/mlxvfio/mlxvfio/cmdif"
	"github.com/mlxvfio/mlxvfio/initseg"
	"github.com/mlxvfio/mlxvfio/queues"
	"github.com/mlxvfio/mlxvfio/sim"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// A DataPath leaves nothing behind, whether it is closed by itself or with the
// function.
func TestDataPathGivesBack(t *testing.T) {
	for _, words := range []string{"sim:cx5", "sim:cx5,port=eth", "sim:cx4,port=ib"} {
		for _, vectors := range []int{0, 1} {
			for _, by := range []string{"itself", "function"} {
				h, c := opened(t, words, mlxvfio.Options{CompletionVectors: vectors})
				before := h.Stats().DMA.LiveBuffers
				d, err := h.OpenData(t.Context(), mlxvfio.DataOptions{})
				require.NoError(t, err)
				require.Equal(t, vectors == 1, d.EventMode())
				m, err := d.Memory(t.Context(), 5000, 0, queues.AccessAll)
				require.NoError(t, err)
				require.Equal(t, 5000, m.Mem.Len())
				require.Zero(t, m.Addr%4096)
				a, b, err := mlxvfio.Connect(t.Context(), d, d, queues.QPOptions{})
				require.NoError(t, err)
				require.NotEqual(t, a.Number(), b.Number())
				require.Equal(t, 2, c.State(0).QPs)
				if by == "itself" {
					require.NoError(t, d.Close(t.Context()))
					require.Zero(t, c.State(0).QPs)
					require.Equal(t, before, h.Stats().DMA.LiveBuffers)
					require.NoError(t, d.Close(t.Context()), "a second time")
				}
				closed(t, h, c)
			}
		}
	}
}

// What an owner of queue pairs, or of all that a DataPath is made of, has given back
// by himself is not in the way of Close, and the pages still come home.
func TestDataPathGivenBackByOwner(t *testing.T) {
	for _, vectors := range []int{0, 1} {
		for _, by := range []string{"itself", "function"} {
			h, d, c := dataPath(t, "sim:cx5", vectors, mlxvfio.DataOptions{})
			ctx := t.Context()
			a, b, err := mlxvfio.Connect(ctx, d, d, queues.QPOptions{})
			require.NoError(t, err)
			require.False(t, a.Destroyed())
			require.NoError(t, a.Destroy(ctx))
			require.True(t, a.Destroyed())
			err = a.Destroy(ctx)
			require.ErrorIs(t, err, queues.ErrDestroyed)
			require.ErrorIs(t, err, vfio.ErrClosed)
			if by == "itself" {
				require.NoError(t, b.Destroy(ctx))
				require.NoError(t, d.CQ().Destroy(ctx))
				require.NoError(t, d.Channel().Close(ctx))
				require.NoError(t, d.PD().Free(ctx))
				require.NoError(t, d.UAR().Free(ctx))
				require.NoError(t, d.Close(ctx))
			}
			closed(t, h, c)
		}
	}
}

// A DataPath does not grow with the queue pairs that come and go.
func TestDataPathForgetsDestroyed(t *testing.T) {
	h, d, c := dataPath(t, "sim:cx5", 0, mlxvfio.DataOptions{})
	var made int
	for i := range 20 {
		a, b, err := mlxvfio.Connect(t.Context(), d, d, queues.QPOptions{})
		require.NoError(t, err)
		if i == 0 {
			made = d.Made()
		}
		require.Equal(t, made, d.Made())
		require.NoError(t, b.Destroy(t.Context()))
		require.NoError(t, a.Destroy(t.Context()))
	}
	closed(t, h, c)
}

// A connection that fails leaves no queue pair, on either side.
func TestConnectFails(t *testing.T) {
	for _, fault := range []string{"CREATE_QP#2", "INIT2RTR_QP#1", "INIT2RTR_QP#2", "RTR2RTS_QP#2"} {
		h, d, c := dataPath(t, "sim:cx5,fault=status@"+fault+"=BAD_RES_STATE_ERR", 0, mlxvfio.DataOptions{})
		a, b, err := mlxvfio.Connect(t.Context(), d, d, queues.QPOptions{})
		var ce *cmdif.CommandError
		require.ErrorAs(t, err, &ce, fault)
		require.Nil(t, a)
		require.Nil(t, b)
		require.Zero(t, c.State(0).QPs, fault)
		closed(t, h, c)
	}
}

// dataPath opens a function of its own with a DataPath.
func dataPath(t *testing.T, words string, vectors int, o mlxvfio.DataOptions) (*mlxvfio.HCA, *mlxvfio.DataPath, *sim.Chip) {
	h, c := opened(t, words, mlxvfio.Options{CompletionVectors: vectors})
	d, err := h.OpenData(t.Context(), o)
	require.NoError(t, err)
	return h, d, c
}

// Every operation leaves in memory what it must, by interrupt and by polling, on
// either link layer.
func TestExerciser(t *testing.T) {
	for _, words := range []string{"sim:cx5", "sim:cx5,port=eth", "sim:cx4,port=ib", "sim:cx5,fault=memory-order"} {
		for vectors := range 2 {
			h, d, c := dataPath(t, words, vectors, mlxvfio.DataOptions{})
			x, err := mlxvfio.NewExerciser(t.Context(), d, d, 3)
			require.NoError(t, err)
			for _, step := range []func(context.Context) (string, error){x.Sends, x.Writes, x.Reads, x.Atomics} {
				note, err := step(t.Context())
				require.NoError(t, err, "%s, %d vectors", words, vectors)
				require.Contains(t, note, "all memory compared")
			}
			closed(t, h, c)
		}
	}
}

// Two functions on one wire: both sides' memory is compared.
func TestExerciserTwoHosts(t *testing.T) {
	for vectors := range 2 {
		a, b := chip(t, "sim:cx5"), chip(t, "sim:cx5")
		require.NoError(t, sim.Link(a, b))
		var ds []*mlxvfio.DataPath
		for _, c := range []*sim.Chip{a, b} {
			h, err := mlxvfio.Open(t.Context(), c.Function(0), mlxvfio.Options{CompletionVectors: vectors})
			require.NoError(t, err)
			d, err := h.OpenData(t.Context(), mlxvfio.DataOptions{})
			require.NoError(t, err)
			ds = append(ds, d)
		}
		x, err := mlxvfio.NewExerciser(t.Context(), ds[0], ds[1], 4)
		require.NoError(t, err)
		for _, step := range []func(context.Context) (string, error){x.Sends, x.Writes, x.Reads, x.Atomics} {
			_, err := step(t.Context())
			require.NoError(t, err)
		}
		closed(t, ds[0].HCA(), a)
		closed(t, ds[1].HCA(), b)
	}
}

// A device that does an atomic wrong is told by the memory that is wrong.
func TestExerciserFinds(t *testing.T) {
	h, d, c := dataPath(t, "sim:cx5", 0, mlxvfio.DataOptions{})
	x, err := mlxvfio.NewExerciser(t.Context(), d, d, 5)
	require.NoError(t, err)
	_, err = x.Probe(t.Context())
	require.NoError(t, err)
	require.NoError(t, c.SetFault("mask-order", ""))
	_, err = x.Atomics(t.Context())
	var de *mlxvfio.DataError
	require.ErrorAs(t, err, &de)
	require.Equal(t, "remote", de.Side)
	require.NotEqual(t, de.Want, de.Got)
	require.ErrorContains(t, err, "of 1 bytes")
	_, err = x.Probe(t.Context())
	var fe *atomics.FaultError
	require.ErrorAs(t, err, &fe)
	require.NoError(t, c.ClearFault(""))
	closed(t, h, c)
}

// Waiting for nothing is an error, not a panic.
func TestIdleWithout(t *testing.T) {
	for _, idle := range []atomics.Idle{mlxvfio.Idle(), mlxvfio.Idle(nil), mlxvfio.Idle(nil, nil)} {
		var ve *vfio.Error
		require.ErrorAs(t, idle(t.Context()), &ve)
		require.NotEmpty(t, ve.Remedy)
	}
}

// Work that never completes ends the wait: a message for which nobody has posted
// a receive WQE is offered for ever.
func TestIdleEndsStuck(t *testing.T) {
	for vectors := range 2 {
		h, d, c := dataPath(t, "sim:cx5", vectors, mlxvfio.DataOptions{Stuck: 300 * time.Millisecond})
		m, err := d.Memory(t.Context(), 64, 0, queues.LocalWrite)
		require.NoError(t, err)
		a, _, err := mlxvfio.Connect(t.Context(), d, d, queues.QPOptions{})
		require.NoError(t, err)
		require.NoError(t, a.SQ.Send(1, queues.Signalled, m.SGE(0, 8)))
		a.SQ.Ring()
		idle := mlxvfio.Idle(d)
		start := time.Now()
		for err == nil {
			err = idle(t.Context())
		}
		var se *mlxvfio.StuckError
		require.ErrorAs(t, err, &se)
		require.GreaterOrEqual(t, time.Since(start), 300*time.Millisecond)

		// A caller that was busy elsewhere is not stuck.
		time.Sleep(1100 * time.Millisecond)
		require.NoError(t, mlxvfio.Idle(d)(t.Context()))

		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		err = nil
		for range 2000 { // polling looks at the context each time
			if err = idle(ctx); err != nil {
				break
			}
		}
		require.Error(t, err)
		closed(t, h, c)
	}
}

// A device that dies under open queue pairs: waiting ends, and closing the
// function frees the host's part of the DataPath.
func TestDataPathOfDeadDevice(t *testing.T) {
	for _, fault := range []string{"all-ones", "fatal"} {
		for vectors := range 2 {
			h, d, c := dataPath(t, "sim:cx5", vectors, mlxvfio.DataOptions{})
			m, err := d.Memory(t.Context(), 4096, 0, queues.AccessAll)
			require.NoError(t, err)
			a, _, err := mlxvfio.Connect(t.Context(), d, d, queues.QPOptions{})
			require.NoError(t, err)
			require.NoError(t, c.SetFault(fault, ""))
			require.NoError(t, a.SQ.Write(1, queues.Signalled, m.SGE(0, 8), m.Remote(64)))
			idle := mlxvfio.Idle(d)
			for err == nil {
				err = idle(t.Context())
			}
			var de *cmdif.DeadError
			require.ErrorAs(t, err, &de)
			require.Equal(t, h.Device().Info().Name, de.Device)
			require.ErrorContains(t, err, "data path data: device does not answer commands any more: ")
			require.ErrorIs(t, h.Conn().Err(), de.Err, "commands need not find out again")
			if fault == "all-ones" {
				require.ErrorIs(t, err, vfio.ErrGone)
				require.ErrorContains(t, err, ": device reads all ones; check that the function is present")
			} else {
				as[*initseg.FatalError](t, err)
				require.ErrorContains(t, err, "FW_INTERNAL_ERR")
				require.ErrorContains(t, err, "; reset the function and open it again")
			}
			ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
			require.Error(t, h.Close(ctx))
			cancel()
			require.Zero(t, h.Stats().DMA.LiveBuffers, "%s: memory is left", fault)
			require.Zero(t, h.Stats().DMA.Mappings)
		}
	}
}
