package cmdif

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// loadSeeds is how many seeds the load tests run under: so many, or what
// MLXVFIO_SEEDS says.
func loadSeeds(t *testing.T, n uint64) uint64 {
	if s := os.Getenv("MLXVFIO_SEEDS"); s != "" {
		v, err := strconv.ParseUint(s, 10, 32)
		require.NoError(t, err, "MLXVFIO_SEEDS")
		return v
	}
	if testing.Short() {
		return min(n, 4)
	}
	return n
}

// Thousands of commands of all kinds from many callers, on a device that answers at
// once, late, too late, never, out of order, with foreign tokens, refusals, lost and
// doubled events; callers that leave before, while and after their command is sent;
// changes of the mode; and an end in the middle. What must hold is in load.judge and
// in the checks of device, callers and auditor.
//
// The seed decides what happens to which command. The order in which goroutines run
// is not the seed's; -cpu 1 leaves little of that.
func TestUnderLoad(t *testing.T) {
	for seed := range loadSeeds(t, 15) {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { runLoad(t, planOf(seed, false)) })
		})
	}
}

// The same on the wall clock, smaller and quicker: for the race detector.
func TestUnderLoadRealTime(t *testing.T) {
	for seed := range loadSeeds(t, 5) {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			before := runtime.NumGoroutine()
			runLoad(t, planOf(seed, true))
			for end := time.Now().Add(10 * time.Second); runtime.NumGoroutine() > before; time.Sleep(time.Millisecond) {
				if time.Now().After(end) {
					b := make([]byte, 1<<16)
					t.Fatalf("goroutines are left:\n%s", b[:runtime.Stack(b, true)])
				}
			}
		})
	}
}

// ending is how a run ends.
type ending uint8

const (
	endQuiet ending = iota // everything is answered but what never is
	endClose               // Close in the middle
	endDead                // Dead in the middle, as health does it
	endFatal               // firmware gives up in the middle; the Conn finds out by itself
	endGone                // all ones in the middle
	endings
)

func (e ending) String() string {
	return [...]string{"quiet", "close", "dead", "fatal", "gone"}[e]
}

// plan is what a seed says about a whole run.
type plan struct {
	seed          uint64
	wall          bool // on the wall clock
	logEntries    uint32
	maxSlots      int
	events        bool // from the start
	switches      int  // changes of the mode in the middle
	callers, each int
	nevers        int64 // commands that never complete
	end           ending
	timeout       time.Duration
	slack         time.Duration // how late an answer may be
}

func planOf(seed uint64, wall bool) plan {
	r := rand.New(rand.NewPCG(seed, 1))
	p := plan{
		seed: seed, wall: wall,
		logEntries: []uint32{5, 5, 5, 5, 3, 2, 1, 0}[r.IntN(8)],
		maxSlots:   []int{0, 0, 0, 0, 1, 3, 100}[r.IntN(7)],
		events:     r.IntN(2) == 1,
		switches:   r.IntN(5),
		callers:    20 + r.IntN(300),
		nevers:     []int64{0, 1, 5, 40}[r.IntN(4)],
		end:        ending(seed % uint64(endings)),
		timeout:    2 * time.Second,
		slack:      2 * longestSleep,
	}
	p.each = 3000/p.callers + 1
	if wall {
		p.timeout, p.slack = 200*time.Millisecond, 20*time.Second
		p.callers, p.switches = 20+r.IntN(40), r.IntN(3)
		p.each = 600/p.callers + 1
	}
	return p
}

func (p plan) String() string {
	return fmt.Sprintf("seed %d: %d entries, MaxSlots %d, events %v, %d switches, %d × %d commands, up to %d never answered, end %v; again with MLXVFIO_SEEDS=%d and this test's name",
		p.seed, 1<<p.logEntries, p.maxSlots, p.events, p.switches, p.callers, p.each, p.nevers, p.end, p.seed+1)
}

// load is a run.
type load struct {
	plan
	*bench
	t *testing.T

	mu    sync.Mutex
	cmds  map[uint64]*tracked // by id
	q     *fakeEQ
	hasEQ atomic.Bool

	neverLeft atomic.Int64
	ended     atomic.Bool // the end in the middle has begun: any command may fail
	endedAt   time.Time
}

// tracked is what is known about a command.
type tracked struct {
	id      uint64
	fate    fate
	seen    int // by the device
	givenUp bool
	lates   int
	cancel  context.CancelFunc // for a cancellation at the moment of completion
}

func runLoad(t *testing.T, p plan) {
	t.Log(p)
	f := newFake(t)
	f.set(0x14, p.logEntries<<4|6)
	dev, seg := f.device()
	l := &load{plan: p, t: t, cmds: map[uint64]*tracked{}}
	l.neverLeft.Store(p.nevers)
	c, err := Open(context.Background(), dev, seg, Options{
		Timeout: p.timeout, MaxSlots: p.maxSlots, OnLate: l.onLate,
		History: 4 * p.callers * p.each, NotReady: p.timeout / 4,
	})
	require.NoError(t, err)
	l.bench = &bench{fake: f, dev: dev, seg: seg, conn: c}
	l.q = &fakeEQ{conn: c}
	f.onCommand(l.serve)
	if p.events {
		l.switchMode()
	}

	var callers, others sync.WaitGroup
	stop := make(chan struct{})
	for w := range p.callers {
		callers.Go(func() { l.caller(w) })
	}
	others.Go(func() { l.audit(stop) })
	others.Go(func() { l.switcher(stop) })
	others.Go(func() { l.ender() })
	callers.Wait()
	close(stop)
	others.Wait()
	l.judge()
}

// switchMode changes polled mode into event mode or back. The EQ is made and
// destroyed by commands.
func (l *load) switchMode() {
	eqCommand := func(ctx context.Context, op prm.Opcode) error {
		return l.conn.Exec(ctx, msg(op, 16, 0), make([]byte, 16))
	}
	if l.conn.EventMode() {
		if err := l.conn.SwitchToPolling(context.Background()); err != nil && l.conn.Err() == nil {
			l.t.Errorf("to polling: %v", err)
		}
		l.hasEQ.Store(false)
		return
	}
	err := l.conn.SwitchToEvents(context.Background(), func(ctx context.Context) (EventQueue, error) {
		if err := eqCommand(ctx, prm.OpCreateEQ); err != nil {
			return nil, err
		}
		l.hasEQ.Store(true)
		return l.q, nil
	})
	// One-entry queues may be blocked for ever; then nothing can be switched.
	if err != nil && l.conn.Err() == nil && !errors.Is(err, ErrQuarantined) {
		l.t.Errorf("to events: %v", err)
	}
}

func (l *load) switcher(stop chan struct{}) {
	r := rand.New(rand.NewPCG(l.seed, 2))
	for range l.switches {
		select {
		case <-stop:
			return
		case <-time.After(time.Duration(r.IntN(int(l.timeout)))):
		}
		l.switchMode()
	}
}

// audit looks at the numbers all the time: no slot is nowhere.
func (l *load) audit(stop chan struct{}) {
	r := rand.New(rand.NewPCG(l.seed, 3))
	for {
		select {
		case <-stop:
			return
		case <-time.After(time.Duration(1 + r.IntN(int(l.timeout/20)))):
		}
		l.sum()
	}
}

func (l *load) sum() Stats {
	st := l.conn.Stats()
	if st.Free+st.Active+st.Quarantined != st.Slots || len(st.Unanswered) != st.Quarantined || st.Free < 0 || st.Waiting < 0 {
		l.t.Errorf("slots do not add up: %d free, %d active, %d quarantined (%d listed) of %d",
			st.Free, st.Active, st.Quarantined, len(st.Unanswered), st.Slots)
	}
	return st
}

// ender brings the end in the middle.
func (l *load) ender() {
	if l.end == endQuiet {
		return
	}
	r := rand.New(rand.NewPCG(l.seed, 4))
	time.Sleep(time.Duration(r.IntN(int(3 * l.timeout))))
	l.mu.Lock()
	l.endedAt = time.Now()
	l.mu.Unlock()
	l.ended.Store(true)
	switch l.end {
	case endClose:
		l.offBus()
		l.close()
	case endDead:
		l.conn.Dead(errBroken)
	case endFatal:
		l.offBus() // it answers nothing any more
		l.bench.fake.mu.Lock()
		b := prm.AsHealthBuffer(l.bar[0x200:0x240])
		b.SetSynd(prm.SyndFWInternalErr)
		b.SetRFR(true)
		l.bench.fake.mu.Unlock()
	case endGone:
		l.offBus()
		l.gone.Store(true)
	}
}

// judge is the end: every command is accounted for.
func (l *load) judge() {
	t := l.t
	if l.end == endClose {
		return // closed, and the close has been checked
	}
	defer func() {
		l.offBus()
		l.close()
	}()
	if !l.ended.Load() {
		l.account()
		l.worksOn()
		return
	}
	st := l.sum()
	require.Zero(t, st.Active)
	require.Zero(t, st.Waiting)
}

// told is how many late answers were reported.
func (l *load) told() (n uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, x := range l.cmds {
		n += uint64(x.lates)
	}
	return n
}

// account compares the numbers at the end with what happened to each command.
func (l *load) account() {
	t := l.t
	// Whatever comes late has come.
	var st Stats
	for wait := 4 * l.timeout; ; wait -= l.timeout / 10 {
		if st = l.sum(); wait <= 0 || st.Quarantined == int(l.nevers-l.neverLeft.Load()) && l.told() == st.Late {
			break
		}
		time.Sleep(l.timeout / 10)
	}
	require.Zero(t, st.Active)
	require.Zero(t, st.Waiting)
	var count, sent uint64
	for _, o := range st.Ops {
		if o.Opcode != prm.OpCreateEQ {
			count += o.Count
		}
	}
	held := map[uint64]bool{}
	for _, r := range st.Unanswered {
		held[binary.BigEndian.Uint64(r.In[8:])] = true
	}
	boxesHeld := 0
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, x := range l.cmds {
		sent += uint64(x.seen)
		never := x.fate.kind == fateNever && x.seen > 0
		if never != held[x.id] {
			t.Errorf("command %x: fate %+v, quarantined at the end: %v", x.id, x.fate, held[x.id])
		}
		if want := x.givenUp && !never; want != (x.lates == 1) || x.lates > 1 {
			t.Errorf("command %x: fate %+v, given up %v: reported late %d times", x.id, x.fate, x.givenUp, x.lates)
		}
	}
	for _, r := range st.Unanswered {
		boxesHeld += boxes(r.InLen) + boxes(r.OutLen)
	}
	require.Equal(t, boxesHeld, st.MailboxesInUse, "exactly the commands that never completed hold mailboxes")
	require.Equal(t, sent, count)
	require.Equal(t, int(l.nevers-l.neverLeft.Load()), st.Quarantined)
}

// worksOn asserts that a command passes, unless every slot is gone.
func (l *load) worksOn() {
	st := l.sum()
	l.onCommand(echo)
	l.hasEQ.Store(false)
	if st.Free > 0 && !l.conn.stalled(classNormal) {
		in, out := msg(prm.OpNop, 600, 9), make([]byte, 600)
		require.NoError(l.t, l.conn.ExecPolled(context.Background(), in, out), "it works on")
		require.Equal(l.t, echoed(in), out)
	}
}

func (c *Conn) stalled(cl class) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stalledLocked(cl)
}

// onLate hears what came late: the data of that very command, once.
func (l *load) onLate(x Late) {
	id := binary.BigEndian.Uint64(x.In[8:])
	l.mu.Lock()
	defer l.mu.Unlock()
	k := l.cmds[id]
	if k == nil {
		l.t.Errorf("late answer of command %x, which nobody sent", id)
		return
	}
	k.lates++
	switch {
	case x.Reply == nil:
		l.t.Errorf("command %x: no reply in its late answer, outcome %v", id, x.Outcome)
	case x.Status != prm.StatusOK:
		if x.Syndrome != uint32(id) {
			l.t.Errorf("command %x: late refusal of another one, syndrome %x", id, x.Syndrome)
		}
	default:
		checkReply(l.t, id, x.Reply)
	}
}

var _ vfio.Transport = (*fake)(nil)
