package litmus

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/mlxvfio/mlxvfio/atomics"
	"github.com/mlxvfio/mlxvfio/queues"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// Host is a function that takes part in a Rig.
type Host struct {
	// Name tells hosts apart: "a", "b".
	Name string
	Dev  *queues.Dev
	// Caps are its atomic capabilities.
	Caps atomics.Caps
	// Vector, if set, is the interrupt by which its completions are waited for,
	// and Index its number; without it they are polled.
	Vector *vfio.Vector
	Index  uint16
}

// BuildOptions say which queue pairs a Rig gets.
type BuildOptions struct {
	// Name of the Rig, for the card.
	Name string
	// Responder owns the target memory.
	Responder Host
	// Requesters have Queues queue pairs each, connected to the responder, which
	// may be one of them: then by loopback. Empty means the responder alone.
	Requesters []Host
	// Queues for each requester; 0 is 4 with one requester and 2 with several.
	Queues int
	// NoAtomicWrites connects to queue pairs of the responder that do not write
	// atomically, to see the difference.
	NoAtomicWrites bool
	// NoProbe assumes the byte orders instead of probing them.
	NoProbe bool
	// Connect tunes the connections.
	Connect queues.ConnectOptions
	// Idle replaces the way to wait, for a model whose clock does not move by
	// itself; nil waits for interrupts where hosts have them, and polls.
	Idle atomics.Idle
}

// Bench is a Rig with everything it is made of.
type Bench struct {
	Rig   Rig
	hosts map[*queues.Dev]*station
	order []*station
	qps   []stationQP
	quiet time.Time // since when nothing completes, or when the functions were looked at
}

// stationQP is a queue pair and whose it is.
type stationQP struct {
	of *station
	qp *queues.QP
}

// station is what a Bench has on one function.
type station struct {
	host    Host
	uar     *queues.UAR
	channel *queues.EventChannel
	pd      *queues.PD
	cq      *queues.CQ
	bufs    []*vfio.Buffer
	keys    []*queues.MKey
	seen    uint32 // consumer index when the CQ was armed last
	polled  uint32 // consumer index at the last look
}

// stepLimit bounds a step of a Build, which goes on when the caller's context is
// over, and the closing of what a failed Build made.
const stepLimit = 3 * time.Second

// outlive is a context for what is not to be left half done.
func outlive(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), stepLimit)
}

// Build makes queue pairs, memory and keys, connects and probes. Close the Bench
// when done; a Build that fails has closed what it made.
//
// Cancelling ctx ends Build after the step it is at, so that no command is left of
// which nobody knows what it made, and what was made is closed: that takes what
// those commands take, at most 3 s each.
func Build(ctx context.Context, o BuildOptions) (*Bench, error) {
	if len(o.Requesters) == 0 {
		o.Requesters = []Host{o.Responder}
	}
	if o.Queues <= 0 {
		o.Queues = 4
		if len(o.Requesters) > 1 {
			o.Queues = 2
		}
	}
	b := &Bench{hosts: map[*queues.Dev]*station{}}
	if err := b.build(ctx, o); err != nil {
		return nil, errors.Join(fmt.Errorf("build queue pairs for %s: %w", o.Name, err), b.undo(ctx))
	}
	return b, nil
}

// undo closes what was made, also when ctx is over.
func (b *Bench) undo(ctx context.Context) error {
	ctx, cancel := outlive(ctx)
	defer cancel()
	return b.Close(ctx)
}

func (b *Bench) build(ctx context.Context, o BuildOptions) error {
	responder, err := b.station(ctx, o.Responder, o)
	if err != nil {
		return err
	}
	b.Rig = Rig{Name: o.Name, Caps: o.Responder.Caps, Idle: o.Idle}
	if o.Idle == nil {
		b.Rig.Idle = b.idle
	}
	making, made := outlive(ctx)
	b.Rig.Target, err = responder.memory(making, "litmus target", TargetSize, queues.LocalWrite|queues.RemoteRead|queues.RemoteWrite|queues.RemoteAtomic)
	made()
	if err != nil {
		return err
	}
	for _, h := range o.Requesters {
		from, err := b.station(ctx, h, o)
		if err != nil {
			return err
		}
		b.Rig.Caps = h.Caps.And(b.Rig.Caps)
		for i := range o.Queues {
			if err := b.connect(ctx, from, responder, fmt.Sprintf("%s %d", h.Name, i), o); err != nil {
				return err
			}
		}
	}
	for i := range b.Rig.Requesters {
		q := &b.Rig.Requesters[i]
		q.Profile = atomics.Assume(b.Rig.Caps)
		if o.NoProbe {
			continue
		}
		q.Profile, err = atomics.Probe(ctx, atomics.ProbeOptions{
			Conn: q.Conn, Caps: b.Rig.Caps, Local: q.Local, Target: b.Rig.Target, Idle: b.Rig.Idle, Seed: uint64(i),
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// station makes what every queue pair of a function needs, once.
func (b *Bench) station(ctx context.Context, h Host, o BuildOptions) (*station, error) {
	if s := b.hosts[h.Dev]; s != nil {
		return s, nil
	}
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	ctx, cancel := outlive(ctx)
	defer cancel()
	s := &station{host: h}
	b.hosts[h.Dev], b.order = s, append(b.order, s)
	var err error
	if s.uar, err = h.Dev.AllocUAR(ctx); err != nil {
		return nil, err
	}
	ch := queues.EventChannelOptions{Name: "litmus", Vector: h.Vector, Index: h.Index, UAR: s.uar}
	if s.channel, err = h.Dev.NewEventChannel(ctx, ch); err != nil {
		return nil, err
	}
	if s.pd, err = h.Dev.AllocPD(ctx); err != nil {
		return nil, err
	}
	// Every queue pair may have all its operations and messages complete here.
	log := uint8(8)
	for 1<<log < 2*o.Queues*len(o.Requesters)*(slots+recvs) {
		log++
	}
	s.cq, err = h.Dev.CreateCQ(ctx, queues.CQOptions{Name: "litmus", LogSize: log, EQ: s.channel.EQ(), UAR: s.uar})
	return s, err
}

// memory gives registered memory of n bytes, aligned to TargetAlign.
func (s *station) memory(ctx context.Context, name string, n int, access queues.Access) (atomics.Memory, error) {
	buf, err := s.host.Dev.Space.Alloc(n, vfio.BufferOptions{Align: TargetAlign, Name: name})
	if err != nil {
		return atomics.Memory{}, err
	}
	key, err := s.host.Dev.CreateMKey(ctx, queues.MKeyOptions{PD: s.pd, Buffer: buf, Access: access})
	if err != nil {
		return atomics.Memory{}, errors.Join(err, s.give(buf))
	}
	s.bufs, s.keys = append(s.bufs, buf), append(s.keys, key)
	return atomics.Memory{Mem: buf.Mem, Addr: key.Start(), LKey: key.Key(), RKey: key.Key()}, nil
}

// give frees memory, or, where a memory key over it may exist, because the command
// that was to make or to end it has no answer, hands it to whoever takes the device
// down.
func (s *station) give(buf *vfio.Buffer) error {
	err := buf.Free()
	if errors.Is(err, vfio.ErrInUse) {
		s.host.Dev.Orphan(buf)
		return nil
	}
	return err
}

// connect makes a pair of queue pairs and the requester on it.
func (b *Bench) connect(ctx context.Context, from, to *station, name string, o BuildOptions) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	ctx, cancel := outlive(ctx)
	defer cancel()
	local, err := from.memory(ctx, "litmus "+name, LocalSize, queues.LocalWrite)
	if err != nil {
		return err
	}
	messages, err := to.memory(ctx, "litmus messages "+name, max(AcceptSize, 4096), queues.LocalWrite)
	if err != nil {
		return err
	}
	a, err := from.qp(ctx, "litmus "+name, o)
	if err != nil {
		return err
	}
	b.qps = append(b.qps, stationQP{from, a})
	z, err := to.qp(ctx, "litmus responder of "+name, o)
	if err != nil {
		return err
	}
	b.qps = append(b.qps, stationQP{to, z})
	if err := queues.ConnectPair(ctx, a, z, o.Connect); err != nil {
		return err
	}
	most := 0
	if z.AtomicWrites() {
		most = queues.AtomicModeSize(z.AtomicMode())
	}
	if len(b.Rig.Requesters) == 0 || most < b.Rig.MaxWrite {
		b.Rig.MaxWrite = most
	}
	b.Rig.Requesters = append(b.Rig.Requesters, Requester{
		Host: from.host.Name, Conn: atomics.Conn{SQ: a.SQ, RQ: a.RQ, CQ: from.cq}, Local: local,
		Accept: Accept{RQ: z.RQ, CQ: to.cq, QPN: z.Number(), Local: messages},
	})
	return nil
}

func (s *station) qp(ctx context.Context, name string, o BuildOptions) (*queues.QP, error) {
	return s.host.Dev.CreateQP(ctx, queues.QPOptions{
		Name: name, PD: s.pd, SendCQ: s.cq, UAR: s.uar, LogSQ: 7, LogRQ: 4, RecvSGEs: 1, NoAtomicWrites: o.NoAtomicWrites,
	})
}

// Close destroys what Build made, queue pairs first. Memory that the device may
// still reach, because its key could not be destroyed, goes to Dev.Orphan: it is
// freed when the device has been taken down. A device that is found dead is not asked
// any more: the error says so once, and its objects end when it is taken down. Nor
// does the error name an object that stays because what uses it could not be
// destroyed, which it says (what another device met explains nothing), or because the
// time of ctx was over for one before it.
func (b *Bench) Close(ctx context.Context) error {
	c := closing{failed: map[*queues.Dev]bool{}}
	for _, q := range b.qps {
		c.end(ctx, q.of.host.Dev, q.qp.Destroy)
	}
	b.qps = nil
	for _, s := range b.order {
		s.close(ctx, &c)
	}
	b.order = nil
	return errors.Join(c.errs...)
}

// closing are the failures of a Close, and whose objects they are.
type closing struct {
	errs   []error
	failed map[*queues.Dev]bool
}

// end destroys an object of d.
func (c *closing) end(ctx context.Context, d *queues.Dev, destroy func(context.Context) error) {
	if c.failed[d] && d.Conn.Err() != nil || len(c.errs) > 0 && ctx.Err() != nil {
		return
	}
	if err := destroy(ctx); err != nil && (!c.failed[d] || !errors.Is(err, queues.ErrInUse)) {
		c.errs, c.failed[d] = append(c.errs, err), true
	}
}

func (s *station) close(ctx context.Context, c *closing) {
	d := s.host.Dev
	for _, k := range s.keys {
		c.end(ctx, d, k.Destroy)
	}
	for _, m := range s.bufs {
		if err := s.give(m); err != nil {
			c.errs = append(c.errs, err)
		}
	}
	if s.cq != nil {
		c.end(ctx, d, s.cq.Destroy)
	}
	if s.pd != nil {
		c.end(ctx, d, s.pd.Free)
	}
	if s.channel != nil {
		c.end(ctx, d, s.channel.Close)
	}
	if s.uar != nil {
		c.end(ctx, d, s.uar.Free)
	}
}
