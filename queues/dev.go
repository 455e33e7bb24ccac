package queues

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/mlxvfio/mlxvfio/cmdif"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// Dev is an initialized function as its queues see it: the way to issue
// commands, the memory both sides share, and the doorbell pages of BAR0. The
// root package makes one once INIT_HCA is through. The fields are set before its
// first use and not changed; all methods are safe for concurrent use.
type Dev struct {
	// Conn issues the commands that create and destroy objects.
	Conn *cmdif.Conn
	// Space is where the memory of rings comes from.
	Space *vfio.AddressSpace
	// BAR is the window on BAR0; UAR pages lie in it.
	BAR *vfio.Window
	// Layout says where in BAR a UAR index lies.
	Layout UARLayout
	// WideEvents says that firmware reads all four words of an event mask
	// (capability event_cap); without it only types 0 … 63 can be asked for.
	WideEvents bool
	// Caps are what queues go by. With the zero value limits are left to
	// firmware and nothing optional is used.
	Caps Caps

	variants atomic.Uint32 // memory keys created: the low byte of the next

	mu      sync.Mutex
	orphans []*vfio.Buffer
	held    []*vfio.Buffer    // by memory keys of which nobody knows whether they exist
	objects map[object]uint64 // that exist, with births when they were made
	births  uint64
	cqs     map[uint32]*CQ         // by number, for events
	failed  []*CQ                  // CQs in error whose EventChannel has not heard of it
	waiters map[uint8]*vfio.Vector // by EQN: what EventChannels wait for
	roce    RoCEAddress            // what EnableRoCE set
}

// name is what tells the function from others.
func (d *Dev) name() string { return d.Conn.Device().Info().Name }

// orphan keeps memory of an object whose creation has no answer: firmware may
// have the address, so the memory must stay until the device is reset.
func (d *Dev) orphan(b *vfio.Buffer) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.orphans = append(d.orphans, b)
}

// unhold lets go of a buffer that a memory key was to cover; if the command has no
// answer, only when ReleaseOrphans is called.
func (d *Dev) unhold(b *vfio.Buffer, now bool) {
	if now {
		b.Unhold()
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.held = append(d.held, b)
}

// Orphan hands memory over to ReleaseOrphans, for an owner that cannot free it yet:
// a memory key may exist over it (vfio.ErrInUse).
func (d *Dev) Orphan(b *vfio.Buffer) { d.orphan(b) }

// ReleaseOrphans frees the memory of objects whose creation never got an answer.
// Call it when the device has been reset or cannot reach memory any more. Memory that
// a key covers which Abandon has not ended yet stays for the next call.
func (d *Dev) ReleaseOrphans() error {
	d.mu.Lock()
	bs, held := d.orphans, d.held
	d.orphans, d.held = nil, nil
	d.mu.Unlock()
	for _, b := range held {
		b.Unhold()
	}
	var errs []error
	for _, b := range bs {
		err := b.Free()
		if errors.Is(err, vfio.ErrInUse) {
			d.orphan(b)
			err = nil
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// answered tells whether the device is through with a command that failed, or
// never got it: it then holds no address of it. After a time-out or a cancelled
// wait it may.
func answered(err error) bool { return !cmdif.Unanswered(err) }

// exec sends one command; what says in the caller's words what was attempted.
func (d *Dev) exec(ctx context.Context, what string, in, out []byte) error {
	if err := d.Conn.Exec(ctx, in, out); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}
