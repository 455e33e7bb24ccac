package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/mlxvfio/mlxvfio/health"
	"github.com/mlxvfio/mlxvfio/health/blackbox"
)

// boxKeeper keeps a black box up to date while a function is watched: each sample as
// it is taken, and the rest after each change and now and then. Its methods do
// nothing on nil.
type boxKeeper struct {
	path  string
	p     *patient
	rec   *blackbox.Recorder
	kick  chan struct{}
	stop  chan struct{}
	begun bool
	done  chan struct{}

	sampleBuf []byte       // of the monitor's goroutine
	state     health.State // same
	seen      bool

	mu  sync.Mutex
	err error
}

// boxPeriod is how old the sections of a black box become.
const boxPeriod = 5 * time.Second

func newBoxKeeper(path string, p *patient) (*boxKeeper, error) {
	r, err := blackbox.NewRecorder(path, blackbox.RecorderOptions{})
	if errors.Is(err, blackbox.ErrBusy) {
		return nil, &unavailable{fmt.Errorf("--blackbox: %w", err)}
	}
	if err != nil {
		return nil, usagef("--blackbox: %v; name a file in a folder that exists and that you may write to", err)
	}
	return &boxKeeper{path: path, p: p, rec: r, kick: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{}),
		sampleBuf: make([]byte, 0, health.SampleSize)}, nil
}

// sample is called on the monitor's goroutine: one system call, into the page cache.
func (k *boxKeeper) sample(s health.Sample, v health.Verdict) {
	k.sampleBuf = health.AppendSample(k.sampleBuf[:0], &s, v.State)
	k.keep(k.rec.Append(k.sampleBuf))
	if !k.seen || v.State != k.state {
		k.seen, k.state = true, v.State
		select {
		case k.kick <- struct{}{}:
		default:
		}
	}
}

// keep remembers the first error: the watch goes on without a black box.
func (k *boxKeeper) keep(err error) {
	if err == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.err == nil {
		k.err = err
	}
}

// begin keeps the sections up to date until end.
func (k *boxKeeper) begin() {
	if k == nil {
		return
	}
	k.begun = true
	go func() {
		defer close(k.done)
		t := time.NewTicker(boxPeriod)
		defer t.Stop()
		for {
			select {
			case <-k.stop:
				k.update("the watch has ended")
				return
			case <-k.kick:
			case <-t.C:
			}
			k.update("a function is being watched")
		}
	}()
}

func (k *boxKeeper) update(why string) {
	k.keep(k.rec.Update(k.p.evidence(why).Collect(context.Background())))
}

// end takes the last sections down, while the function is still open.
func (k *boxKeeper) end() {
	if k == nil || !k.begun {
		return
	}
	k.begun = false
	close(k.stop)
	<-k.done
}

// close closes the file, when nothing samples any more.
func (k *boxKeeper) close() error {
	k.end()
	err := k.rec.Close()
	k.mu.Lock()
	defer k.mu.Unlock()
	if err = errors.Join(k.err, err); err != nil {
		return fmt.Errorf("the black box %s is not complete: %w; the device is not concerned", k.path, err)
	}
	return nil
}
