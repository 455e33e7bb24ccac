package mlxvfio

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/mlxvfio/mlxvfio/atomics"
	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/queues"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// AtomicCaps are the atomic capabilities in force; the zero value on a device
// without atomics.
func (h *HCA) AtomicCaps() (atomics.Caps, error) {
	return atomics.ParseCaps(h.currentCap(prm.CapAtomic), h.currentCap(prm.CapGeneral))
}

// DataOptions tune OpenData. The zero value is good.
type DataOptions struct {
	// Name appears in messages and names the memory; "" is "data".
	Name string
	// LogCQ is log2 of the entries of the CQ; 0 is 10. Everything outstanding on
	// the queue pairs completes there.
	LogCQ uint8
	// Polled waits for nothing: Idle lets other goroutines run, and polls on.
	// Without a completion vector (Options.CompletionVectors) it is so in any case.
	Polled bool
	// Stuck is how long Idle waits while nothing completes before it takes the
	// device for stuck; 0 is 10 s.
	Stuck time.Duration
}

// DataPath is what moving data takes, made at once and given back at once: a
// protection domain, a doorbell page, a CQ that everything completes on, the
// interrupt that tells of it, and the memory and queue pairs made from these. It
// belongs to one caller at a time.
//
//	DataPath ── PD ── memory keys over DMA memory (Memory)
//	   │         └─── queue pairs (QP) ── SQ, RQ
//	   └── CQ ◀──────────┘
//	       └── event channel ── completion vector
type DataPath struct {
	hca     *HCA
	o       DataOptions
	pd      *queues.PD
	uar     *queues.UAR
	channel *queues.EventChannel // nil when polled
	cq      *queues.CQ
	made    []madeObject // newest last

	// What Idle remembers: entries polled when it was called last, and since when
	// there are no more.
	seen         uint32
	since, asked time.Time
	spins        uint
}

// madeObject is something to be given back: by the device and the host, or,
// where the device does not answer any more, by the host alone.
type madeObject struct {
	what    string
	destroy func(ctx context.Context) error
	release func() error
	gone    func() bool // whether its owner has given it back already; nil: no
}

const (
	defaultLogDataCQ = 10
	defaultStuck     = 10 * time.Second
)

// OpenData makes a DataPath. Close gives it back; HCA.Close does so too, for one
// that is still open. Errors are those of package queues.
func (h *HCA) OpenData(ctx context.Context, o DataOptions) (*DataPath, error) {
	if o.Name == "" {
		o.Name = "data"
	}
	if o.LogCQ == 0 {
		o.LogCQ = defaultLogDataCQ
	}
	if o.Stuck <= 0 {
		o.Stuck = defaultStuck
	}
	d := &DataPath{hca: h, o: o}
	h.dataPaths.add(d)
	if err := d.open(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("open data path %s: %w", o.Name, err), d.abandon(ctx))
	}
	return d, nil
}

func (d *DataPath) open(ctx context.Context) (err error) {
	q := d.hca.queues
	if d.uar, err = q.AllocUAR(ctx); err != nil {
		return err
	}
	d.push("doorbell page", d.uar.Free, func() error { d.uar.Release(); return nil })
	if d.pd, err = q.AllocPD(ctx); err != nil {
		return err
	}
	d.push("protection domain", d.pd.Free, func() error { d.pd.Release(); return nil })
	eq, err := d.openChannel(ctx)
	if err != nil {
		return err
	}
	d.cq, err = q.CreateCQ(ctx, queues.CQOptions{Name: d.o.Name, LogSize: d.o.LogCQ, EQ: eq, UAR: d.uar})
	if err != nil {
		return err
	}
	d.push("CQ", d.cq.Destroy, d.cq.Release)
	return nil
}

// openChannel makes the event queue that the CQ reports to: with a completion
// vector if there is one. A CQ needs an event queue even if it is polled.
func (d *DataPath) openChannel(ctx context.Context) (*queues.EQ, error) {
	o := queues.EventChannelOptions{Name: d.o.Name, UAR: d.uar}
	first, vs := d.hca.CompletionVectors()
	if len(vs) == 0 || d.o.Polled {
		d.o.Polled = true
	} else {
		o.Vector, o.Index = vs[0], uint16(first)
	}
	c, err := d.hca.queues.NewEventChannel(ctx, o)
	if err != nil {
		return nil, err
	}
	d.push("event channel", c.Close, c.Release)
	d.channel = c
	return c.EQ(), nil
}

func (d *DataPath) push(what string, destroy func(context.Context) error, release func() error) {
	d.made = append(d.made, madeObject{what: what, destroy: destroy, release: release})
}

// HCA is the function it belongs to.
func (d *DataPath) HCA() *HCA { return d.hca }

// CQ is where everything completes.
func (d *DataPath) CQ() *queues.CQ { return d.cq }

// PD is the protection domain.
func (d *DataPath) PD() *queues.PD { return d.pd }

// UAR is the doorbell page.
func (d *DataPath) UAR() *queues.UAR { return d.uar }

// Channel is the event channel that the CQ reports to.
func (d *DataPath) Channel() *queues.EventChannel { return d.channel }

// EventMode tells whether Idle waits for interrupts.
func (d *DataPath) EventMode() bool { return !d.o.Polled }

// Memory gives size zeroed bytes of DMA memory, aligned to align (a power of two;
// 0 is 4096), and a memory key with these rights over them. They are given back
// with the DataPath.
func (d *DataPath) Memory(ctx context.Context, size, align int, access queues.Access) (atomics.Memory, error) {
	if align == 0 {
		align = fwPageSize
	}
	b, err := d.hca.space.Alloc(size, vfio.BufferOptions{Align: align, Name: d.o.Name + " memory"})
	if err != nil {
		return atomics.Memory{}, err
	}
	m, err := d.hca.queues.CreateMKey(ctx, queues.MKeyOptions{PD: d.pd, Buffer: b, Access: access})
	if err != nil {
		free := b.Free()
		if errors.Is(free, vfio.ErrInUse) {
			// No answer: the key may exist.
			d.hca.queues.Orphan(b)
			free = nil
		}
		return atomics.Memory{}, errors.Join(err, free)
	}
	d.push("memory", func(context.Context) error { return b.Free() }, b.Free)
	d.push("memory key", m.Destroy, func() error { m.Release(); return nil })
	return atomics.Memory{Mem: b.Mem, Addr: m.Start(), LKey: m.Key(), RKey: m.Key()}, nil
}

// addCQ creates one more CQ, which Idle does not look at. It is destroyed with the
// DataPath.
func (d *DataPath) addCQ(ctx context.Context, name string) (*queues.CQ, error) {
	q, err := d.hca.queues.CreateCQ(ctx, queues.CQOptions{Name: name, LogSize: d.o.LogCQ, EQ: d.channel.EQ(), UAR: d.uar})
	if err != nil {
		return nil, err
	}
	d.push("CQ", q.Destroy, q.Release)
	return q, nil
}

// QP creates a queue pair with the DataPath's protection domain, doorbell page and,
// where the options name none, CQ. It is destroyed with the DataPath, unless its
// owner has done so before.
func (d *DataPath) QP(ctx context.Context, o queues.QPOptions) (*queues.QP, error) {
	o.PD, o.UAR = d.pd, d.uar
	if o.SendCQ == nil {
		o.SendCQ = d.cq
	}
	if o.RecvCQ == nil {
		o.RecvCQ = d.cq
	}
	if o.Name == "" {
		o.Name = d.o.Name
	}
	q, err := d.hca.queues.CreateQP(ctx, o)
	if err != nil {
		return nil, err
	}
	d.made = slices.DeleteFunc(d.made, func(o madeObject) bool { return o.gone != nil && o.gone() })
	d.made = append(d.made, madeObject{"queue pair", q.Destroy, q.Release, q.Destroyed})
	return q, nil
}

// Conn is a queue pair of this DataPath as package atomics uses it.
func (d *DataPath) Conn(q *queues.QP) atomics.Conn {
	return atomics.Conn{SQ: q.SQ, RQ: q.RQ, CQ: d.cq}
}

// Connect makes a queue pair on each of two DataPaths, of one function or of two
// that share a network, and connects them. Both may be the same DataPath. When that
// fails, what was made is destroyed, now or with its DataPath.
func Connect(ctx context.Context, from, to *DataPath, o queues.QPOptions) (a, b *queues.QP, err error) {
	if a, err = from.QP(ctx, o); err != nil {
		return nil, nil, err
	}
	if b, err = to.QP(ctx, o); err != nil {
		_ = a.Destroy(ctx)
		return nil, nil, err
	}
	if err := queues.ConnectPair(ctx, a, b, queues.ConnectOptions{}); err != nil {
		_, _ = a.Destroy(ctx), b.Destroy(ctx)
		return nil, nil, err
	}
	return a, b, nil
}

// Close gives everything back that its owner has not, newest first: firmware first,
// then the memory. If firmware does not give an object back, Close stops there;
// HCA.Close then cuts the device off and frees the rest. A second call does nothing.
func (d *DataPath) Close(ctx context.Context) error {
	for len(d.made) > 0 {
		o := d.made[len(d.made)-1]
		if err := o.destroy(ctx); err != nil && !errors.Is(err, queues.ErrDestroyed) {
			return fmt.Errorf("close data path %s: give back the %s: %w", d.o.Name, o.what, err)
		}
		d.made = d.made[:len(d.made)-1]
	}
	if d.hca.dataPaths.remove(d) == 0 {
		return d.hca.queues.DisableRoCE(ctx)
	}
	return nil
}

// abandonData bounds what a failing OpenData may spend on giving back.
const abandonData = 10 * time.Second

// abandon closes a DataPath whose opening failed, perhaps because of ctx.
func (d *DataPath) abandon(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), abandonData)
	defer cancel()
	return d.Close(ctx)
}

// Release frees the host's part alone: only for a device that was reset or cannot
// reach memory any more. HCA.Close does it where that is so.
func (d *DataPath) Release() error {
	var errs []error
	for _, o := range slices.Backward(d.made) {
		if o.release != nil {
			errs = append(errs, o.release())
		}
	}
	d.made = nil
	d.hca.dataPaths.remove(d)
	return errors.Join(errs...)
}

// dataPathSet are the DataPaths of a function that are open.
type dataPathSet struct {
	mu   sync.Mutex
	open []*DataPath
}

func (s *dataPathSet) add(d *DataPath) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open = append(s.open, d)
}

// remove answers how many are left.
func (s *dataPathSet) remove(d *DataPath) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open = slices.DeleteFunc(s.open, func(o *DataPath) bool { return o == d })
	return len(s.open)
}

func (s *dataPathSet) list() []*DataPath {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.open)
}

// downData gives back what is still open when the function is closed. The queues
// of a device that is loose keep their memory.
func (h *HCA) downData(ctx context.Context, live bool) error {
	if h.loose {
		return nil
	}
	var errs []error
	for _, d := range slices.Backward(h.dataPaths.list()) {
		if !live {
			errs = append(errs, hostOnly(d.Release()))
		} else if err := d.Close(ctx); err != nil {
			return err
		}
	}
	return errors.Join(errs...)
}
