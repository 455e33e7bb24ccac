package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/mlxvfio/mlxvfio"
	"github.com/mlxvfio/mlxvfio/atomics"
	"github.com/mlxvfio/mlxvfio/queues"
	"github.com/spf13/cobra"
)

func (a *app) atomicProbeVerb() *cobra.Command {
	var peer string
	var seed uint64
	c := a.verb("probe DEV", "find out in which byte orders the device reads and returns the words of atomics", 1, 1, func(ctx context.Context, args []string) error {
		return a.atomicProbe(ctx, args[0], peer, seed)
	})
	c.Long = `probe stores patterns of distinct bytes and does each kind of atomic WQE in each size, to see where every byte lands
and in which order the old value comes back; then it compares random operations with what they mean. What is wrong
with a form is named, and the exit code is 1.`
	c.Example = examples(
		"mlxvfio atomic probe sim", "the byte orders of the model",
		"mlxvfio atomic probe sim,fault=memory-order", "of one that takes memory as big-endian")
	a.peerFlag(c, &peer)
	c.Flags().Uint64Var(&seed, "seed", 1, "`NUMBER` that decides the random operations")
	return c
}

func (a *app) atomicProbe(ctx context.Context, dev, peer string, seed uint64) error {
	return a.withPair(ctx, dev, peer, func(ctx context.Context, p *dataSession) error {
		l, err := p.atomicLink(ctx)
		if err != nil {
			return err
		}
		prof, err := l.probe(ctx, seed)
		if err != nil {
			return fmt.Errorf("%s: %w", dev, err)
		}
		r := &probeResult{
			pairHead: p.head(), Caps: l.caps, MaxAtomicSize: prof.MaxAtomicSize, MaxWrite: l.link.a.SQ.PeerAtomic(),
			AtomicMode: l.link.b.AtomicMode().String(), AtomicWrites: l.link.b.AtomicWrites(), WordOrder: prof.Order(), Forms: prof.Forms,
		}
		return errors.Join(a.print("atomic-probe/1", r), prof.Err())
	})
}

// qpPair is a connected pair of queue pairs.
type qpPair struct{ a, b *queues.QP }

// atomicLink is a connection with memory for atomics on both sides.
type atomicLink struct {
	from, to      *mlxvfio.DataPath
	link          qpPair
	caps          atomics.Caps
	local, target atomics.Memory
}

// atomicLink connects DEV with the other end and refuses devices without atomics.
func (p *dataSession) atomicLink(ctx context.Context) (*atomicLink, error) {
	caps, err := mlxvfio.SharedAtomics(p.from.HCA, p.to.HCA)
	if err != nil {
		return nil, err
	}
	if _, err := caps.AtomicMode(); err != nil {
		return nil, fmt.Errorf("%s: %w", p.from.arg.text, err)
	}
	l := &atomicLink{caps: caps}
	if l.from, l.to, err = p.dataPaths(ctx, mlxvfio.DataOptions{}); err != nil {
		return nil, err
	}
	if l.link.a, l.link.b, err = mlxvfio.Connect(ctx, l.from, l.to, queues.QPOptions{}); err != nil {
		return nil, err
	}
	if l.local, err = l.from.Memory(ctx, 3*atomics.ReplySize, 0, queues.LocalWrite); err != nil {
		return nil, err
	}
	l.target, err = l.to.Memory(ctx, atomics.ReplySize, 0, queues.AccessAll)
	return l, err
}

func (l *atomicLink) probe(ctx context.Context, seed uint64) (atomics.Profile, error) {
	return mlxvfio.Probe(ctx, l.from, l.to, l.link.a, l.local, l.target, seed)
}

// probeResult is what probe found.
type probeResult struct {
	pairHead
	Caps          atomics.Caps `json:"caps"`
	MaxAtomicSize int          `json:"max_atomic_size"`
	// AtomicMode and AtomicWrites are those of the responder's queue pair, as read
	// back; MaxWrite is up to how many bytes it claims to write atomically.
	AtomicMode   string `json:"atomic_mode"`
	AtomicWrites bool   `json:"atomic_writes"`
	MaxWrite     int    `json:"max_atomic_write"`
	// WordOrder is the order of 4-byte words, which the masks of 1- and 2-byte
	// operations follow.
	WordOrder atomics.Order  `json:"word_order"`
	Forms     []atomics.Form `json:"forms"`
}

func (r *probeResult) text(w io.Writer) {
	fmt.Fprintln(w, r.pairHead)
	fmt.Fprintf(w, "%v\n", r.Caps)
	fmt.Fprintf(w, "responder: atomic_mode %s, %s\n\n", r.AtomicMode, writesText(r.MaxWrite))
	rows := [][]string{{"WQE", "BYTES", "MEMORY", "REPLY", "COMPARED", "WRONG", "FAULT"}}
	for _, f := range r.Forms {
		fault := string(f.Fault)
		if f.Detail != "" {
			fault += ": " + f.Detail
		}
		rows = append(rows, []string{f.Name, fmt.Sprint(f.Size), f.Memory.String(), f.Reply.String(), fmt.Sprint(f.Runs), fmt.Sprint(f.Wrong), fault})
	}
	table(w, rows)
	fmt.Fprintf(w, "\nwords of 4 bytes are %v in memory: that half of mlxvfio atomic table holds for 1 and 2 bytes\n", r.WordOrder)
}

func writesText(most int) string {
	if most == 0 {
		return "no atomic writes"
	}
	return fmt.Sprintf("writes are atomic inside aligned blocks of %d bytes", most)
}
