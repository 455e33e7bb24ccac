package vfiouser

import (
	"errors"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/mlxvfio/mlxvfio"
	"github.com/mlxvfio/mlxvfio/cmdif"
	"github.com/mlxvfio/mlxvfio/internal/drivertest"
	"github.com/mlxvfio/mlxvfio/internal/faultdoc"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// The stages before and after the driver's own.
const (
	dialing = "dial"
	closing = "close"
)

// signalThreads interrupts whatever the threads of this process wait for. A read of
// a socket with a time limit answers EINTR then (signal(7)).
func signalThreads() {
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return
	}
	for _, task := range tasks {
		if tid, err := strconv.Atoi(task.Name()); err == nil {
			_ = unix.Tgkill(os.Getpid(), tid, unix.SIGURG)
		}
	}
}

// life is what a driver does from the first byte to the last one. at hears of each
// stage that begins.
func (b *broker) life(t *testing.T, timeout time.Duration, at func(stage string)) (up bool, err error) {
	at(dialing)
	tr, err := Dial(t.Context(), b.path, Options{Timeout: timeout})
	if err != nil {
		return false, err
	}
	w := drivertest.Watch(tr)
	h, err := mlxvfio.Open(t.Context(), w, mlxvfio.Options{
		CommandTimeout: 2 * time.Second, FirmwareTimeout: 2 * time.Second,
		BeforeStage: func(name string) error { at(name); return nil },
	})
	if err != nil {
		var se *mlxvfio.StageError
		require.ErrorAs(t, err, &se)
		drivertest.Balanced(t, se.Ledger)
		w.Check(t)
		return false, err
	}
	at(closing)
	err = h.Close(t.Context())
	drivertest.Balanced(t, h.Ledger())
	w.Check(t)
	return true, err
}

var socketNames = faultdoc.Names{
	"ErrGone": vfio.ErrGone, "ErrNoSpace": vfio.ErrNoSpace, "ErrNotSupported": vfio.ErrNotSupported, "ErrRange": vfio.ErrRange, "ErrNotFound": vfio.ErrNotFound,
	"ErrExists": vfio.ErrExists, "ErrServerGone": ErrServerGone, "ErrLateReply": ErrLateReply, "ErrProtocol": ErrProtocol, "ErrDead": cmdif.ErrDead, "ErrClosed": vfio.ErrClosed,
}

// TestSocketFaultTable: the driver over a socket, and everything a server can do
// wrong, in the place of the answer to the first message of each stage.
func TestSocketFaultTable(t *testing.T) {
	stages := []string{dialing}
	for _, s := range mlxvfio.Stages() {
		stages = append(stages, s.Name)
	}
	stages = append(stages, closing)

	// Where there are messages at all.
	var talks []string
	b := newBroker(t)
	stage := ""
	b.heard = func(uint16) {
		if !slices.Contains(talks, stage) {
			talks = append(talks, stage)
		}
	}
	up, err := b.life(t, 0, func(s string) {
		b.mu.Lock()
		stage = s
		b.mu.Unlock()
	})
	require.NoError(t, err)
	require.True(t, up)
	b.heard = nil

	table := faultdoc.New("vfio-user", "TestSocketFaultTable", stages...)
	for _, k := range socketKinds() {
		for _, stage := range stages {
			if !slices.Contains(talks, stage) || len(k.stages) > 0 && !slices.Contains(k.stages, stage) {
				continue
			}
			row := table.Row(k.name, k.variant, stage)
			t.Run(k.name+k.variant+"/"+stage, func(t *testing.T) {
				base := drivertest.Now()
				b.t = t
				socketRow(t, b, &k, stage, row)
				base.Check(t)
			})
		}
	}
	b.t = t
	table.Check(t)
}

func socketRow(t *testing.T, b *broker, k *socketKind, stage string, row *faultdoc.Row) {
	attempt := func(timeout time.Duration) (bool, error) {
		return b.life(t, timeout, func(s string) {
			if s == stage {
				b.arm(k.do)
			}
		})
	}
	timeout := k.timeout
	up, err := attempt(timeout)
	// A busy machine may keep a good answer from a client in a hurry before the
	// stage has come.
	for timeout > 0 && timeout < 10*time.Second && !b.wasMet() {
		timeout *= 5
		up, err = attempt(timeout)
	}
	if b.wasMet() {
		row.Raised()
	}
	b.arm(nil)
	if k.after != nil {
		k.after(b)
	}
	switch {
	case err == nil:
		row.Saw("comes up, goes down")
	case up:
		row.Saw("comes up; Close: %s", describe(err, k))
	default:
		row.Saw("%s", describe(err, k))
	}
	if k.passes {
		require.NoError(t, err)
	}
	if err != nil {
		for _, want := range k.want {
			require.ErrorIs(t, err, want)
		}
		var ve *vfio.Error
		var ie *mlxvfio.InterruptError // whose texts end in one
		var de *cmdif.DeadError
		require.True(t, errors.As(err, &ve) && ve.Remedy != "" || errors.As(err, &ie) || errors.As(err, &de), "no remedy: %v", err)
		require.NotContains(t, err.Error(), "\n", "an error is one line")
	}
	require.Eventually(t, func() bool {
		s := b.chip.State(0)
		return s.Handles == 1 && s.Mappings == 0 && s.Vectors == 0 // the server's handle
	}, 2*time.Second, time.Millisecond, "the server holds what the client had: %+v", b.chip.State(0))
	up, err = b.life(t, 0, func(string) {})
	require.NoError(t, err, "the next open")
	require.True(t, up)
	row.Then("nothing left on either side, the next open works")
}

// describe calls the errno that the server answered by one name.
func describe(err error, k *socketKind) string {
	names := faultdoc.Names{}
	for w, e := range socketNames {
		names[w] = e
	}
	if k.variant != "" {
		names["the errno"] = k.want[0]
	}
	return names.Describe(err, "Error", "StageError", "CloseError", "I/O timeout")
}
