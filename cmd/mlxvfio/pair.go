package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/mlxvfio/mlxvfio"
	"github.com/mlxvfio/mlxvfio/atomics/litmus"
	"github.com/mlxvfio/mlxvfio/sim"
	"github.com/spf13/cobra"
)

// peerFlag is the flag that names the function at the other end.
func (a *app) peerFlag(c *cobra.Command, to *string) {
	c.Flags().StringVar(to, "peer", "", "function `DEV` at the other end (default: DEV itself, by loopback)")
	completes(c, "peer", a.completeDevice)
}

// dataSession is a function, or two that are connected: requests go from the first
// to the second, which are the same without --peer.
type dataSession struct {
	from, to *session
}

func (p *dataSession) two() bool { return p.from != p.to }

// pairHead is deviceHead for a pair.
type pairHead struct {
	deviceHead
	// Peer is the function that requests go to, absent by loopback.
	Peer *deviceHead `json:"peer,omitempty"`
	// Mode is "event" or "polled": how completions are waited for.
	Mode string `json:"mode"`
}

func (p *dataSession) head() pairHead {
	h := pairHead{deviceHead: p.from.head(), Mode: "polled"}
	if _, v := p.from.CompletionVectors(); len(v) > 0 {
		h.Mode = "event"
	}
	if p.two() {
		peer := p.to.head()
		h.Peer = &peer
	}
	return h
}

func (h pairHead) String() string {
	if h.Peer == nil {
		return fmt.Sprintf("%v, loopback, %s mode", h.deviceHead, h.Mode)
	}
	return fmt.Sprintf("%v → %v, %s mode", h.deviceHead, *h.Peer, h.Mode)
}

// withPair brings DEV up, and the peer if there is one, with an interrupt for
// completions each; it runs fn and gives both back. Two embedded models are put on
// one wire.
func (a *app) withPair(ctx context.Context, dev, peer string, fn func(ctx context.Context, p *dataSession) error) error {
	o := mlxvfio.Options{CompletionVectors: 1}
	if peer == "" {
		return a.withDevice(ctx, dev, o, func(ctx context.Context, s *session) error { return fn(ctx, &dataSession{s, s}) })
	}
	if a.record != "" {
		return usagef("--record takes one function; leave --peer out")
	}
	near, far, err := a.parsePair(dev, peer)
	if err != nil {
		return err
	}
	err = a.withFunction(ctx, near, o, func(ctx context.Context, from *session) error {
		return a.withFunction(ctx, far, o, func(ctx context.Context, to *session) error {
			return fn(ctx, &dataSession{from, to})
		})
	})
	// A model that was not opened because the other one failed is still there.
	for _, arg := range []devArg{near, far} {
		if arg.chip != nil {
			err = errors.Join(err, arg.chip.Close())
		}
	}
	return err
}

// parsePair reads two DEV arguments. Two embedded models are made and put on one
// wire, which must be done before either is opened.
func (a *app) parsePair(dev, peer string) (near, far devArg, err error) {
	if near, err = parseDev(dev); err != nil {
		return near, far, err
	}
	if far, err = parseDev(peer); err != nil {
		return near, far, err
	}
	switch {
	case near.kind != devSim && dev == peer:
		return near, far, usagef("--peer %s is DEV itself; leave it out for loopback", peer)
	case near.kind != far.kind && (near.kind == devSim || far.kind == devSim):
		return near, far, usagef("%s and %s have no wire between them: an embedded model reaches another embedded model only", dev, peer)
	case near.kind != devSim:
		return near, far, nil
	}
	if near.chip, err = a.newChip(near); err != nil {
		return near, far, err
	}
	if far.chip, err = a.newChip(far); err == nil {
		far.also = " (peer)" // models of one profile have one name
		err = sim.Link(near.chip, far.chip)
	}
	if err == nil {
		return near, far, nil
	}
	err = errors.Join(err, near.chip.Close())
	if far.chip != nil {
		err = errors.Join(err, far.chip.Close())
	}
	var le *sim.LinkError
	if errors.As(err, &le) {
		err = usagef("%s --peer %s: %v", dev, peer, err)
	}
	return near, far, err
}

// dataPaths opens what moving data takes on both functions. They are closed with
// the functions.
func (p *dataSession) dataPaths(ctx context.Context, o mlxvfio.DataOptions) (from, to *mlxvfio.DataPath, err error) {
	if from, err = p.from.OpenData(ctx, o); err != nil || !p.two() {
		return from, from, err
	}
	o.Name = "peer"
	to, err = p.to.OpenData(ctx, o)
	return from, to, err
}

// host is a function as a litmus rig takes it.
func (s *session) host(name string) (litmus.Host, error) {
	h := litmus.Host{Name: name, Dev: s.Queues()}
	if first, vs := s.CompletionVectors(); len(vs) > 0 {
		h.Vector, h.Index = vs[0], uint16(first)
	}
	var err error
	h.Caps, err = s.AtomicCaps()
	return h, err
}
