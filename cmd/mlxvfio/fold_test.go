package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mlxvfio/mlxvfio"
	"github.com/mlxvfio/mlxvfio/cmdif"
	"github.com/mlxvfio/mlxvfio/health"
	"github.com/mlxvfio/mlxvfio/health/blackbox"
	"github.com/mlxvfio/mlxvfio/initseg"
	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/queues"
	"github.com/mlxvfio/mlxvfio/vfio"
	"github.com/stretchr/testify/require"
)

// TestDeathSaidOnce: of errors that were joined, at whatever depth, those that follow
// from a death that was said are left out, and nothing else.
func TestDeathSaidOnce(t *testing.T) {
	lost := func(target, op string) error {
		return &vfio.Error{Op: op, Target: target, Err: vfio.ErrGone, Remedy: "restart it"}
	}
	deadOf := func(device string, op prm.Opcode, why error) error {
		return &cmdif.DeadError{Device: device, Opcode: op, Err: why}
	}
	dead := func(op prm.Opcode, why error) error {
		device := "a"
		var ve *vfio.Error
		if errors.As(why, &ve) {
			device = ve.Target
		}
		return deadOf(device, op, why)
	}
	inUseOf := func(device string) error {
		return &queues.ObjectError{Device: device, Op: "free UAR 1", Err: queues.ErrInUse, Detail: "8 objects use it; destroy them first"}
	}
	inUse := inUseOf("a")
	refused := &cmdif.CommandError{Opcode: prm.OpDestroyCQ, Status: prm.StatusBadParam}
	left := fmt.Errorf("undo open: %w", &mlxvfio.LeftError{Objects: []string{"memory key 1"}})
	a, b := lost("a", "write"), lost("b", "write")
	how := "; the memory is free; the device can be opened again"
	mkey := dead(prm.OpDestroyMKey, a)
	fatal := &initseg.FatalError{Syndrome: prm.SyndFWInternalErr, Severity: prm.SeverityCritical}
	seen := fmt.Errorf("data path: %w; close the function", fatal)
	wreck := &vfio.Error{Op: "bring the function up", Target: "b", Err: fmt.Errorf("%w: the device was cut off", vfio.ErrInUse)}
	stage := func(device string) error {
		return &mlxvfio.StageError{Device: device, Stage: "init-hca", Err: refused, Undo: []error{inUseOf(device)}}
	}
	sick := &health.VerdictError{Verdict: health.Verdict{State: health.Fatal, Condition: health.FatalRFR, Explanation: "it is sick"}}
	for _, c := range []struct {
		err  error
		want string
	}{
		{errors.New("x"), "x"},
		{errors.Join(errors.New("x\ny"), nil, errors.New("z")), "x; y; z"},
		{errors.Join(a, a), a.Error()},
		{errors.Join(a, lost("a", "read")), a.Error()},
		{errors.Join(a, b), a.Error() + "; " + b.Error()},
		{fmt.Errorf("dev: %w", errors.Join(errors.New("stuck"), errors.Join(mkey, dead(prm.OpDestroyQP, a)), inUse)), "dev: stuck; " + mkey.Error()},
		{errors.Join(mkey, refused), mkey.Error() + "; " + refused.Error()},
		{errors.Join(inUse, refused), inUse.Error() + "; " + refused.Error()},
		{errors.Join(a, &mlxvfio.CloseError{Device: "a", Errs: []error{dead(prm.OpDestroyQP, a), lost("host", "unmap"), left}}), a.Error() + "; a: the memory is free; the device can be opened again"},
		{errors.Join(a, &mlxvfio.CloseError{Device: "a", Errs: []error{a, refused}}), a.Error() + "; a: regular teardown: " + refused.Error() + how},
		{errors.Join(a, &mlxvfio.CloseError{Device: "b", Errs: []error{b}}), a.Error() + "; b: regular teardown: " + b.Error() + how},
		{errors.Join(a, &mlxvfio.CloseError{Device: "b", Errs: []error{left}}), a.Error() + "; b: regular teardown: " + left.Error() + how}, // b lives
		{errors.Join(seen, dead(prm.OpDestroyMKey, fatal), &mlxvfio.CloseError{Device: "a", Errs: []error{fatal, left}}), seen.Error() + "; a: the memory is free; the device can be opened again"},
		{errors.Join(dead(0, fatal), &mlxvfio.CloseError{Device: "a", Errs: []error{fatal, refused}}), dead(0, fatal).Error() + "; a: regular teardown: " + refused.Error() + how},
		{&mlxvfio.CloseError{Device: "a", Errs: []error{left}}, "a: regular teardown: " + left.Error() + how},
		// What is in use of a device that lives, or of nobody knows which, does not follow
		// from the death of another.
		{errors.Join(a, inUse), a.Error()},
		{errors.Join(mkey, inUse, inUseOf("b")), mkey.Error() + "; " + inUseOf("b").Error()},
		{errors.Join(a, inUseOf("b")), a.Error() + "; " + inUseOf("b").Error()},
		{errors.Join(mkey, inUseOf("")), mkey.Error() + "; " + inUseOf("").Error()},
		{errors.Join(mkey, wreck), mkey.Error() + "; " + wreck.Error()},
		{errors.Join(mkey, stage("b")), mkey.Error() + "; " + stage("b").Error()},
		{errors.Join(mkey, stage("a")), mkey.Error()},
		// Two that die of the same have both died.
		{errors.Join(deadOf("a", prm.OpDestroyQP, sick), deadOf("a", prm.OpDestroyCQ, sick)), deadOf("a", prm.OpDestroyQP, sick).Error()},
		{errors.Join(deadOf("a", prm.OpDestroyQP, sick), deadOf("b", prm.OpDestroyCQ, sick)), deadOf("a", prm.OpDestroyQP, sick).Error() + "; " + deadOf("b", prm.OpDestroyCQ, sick).Error()},
		{errors.Join(deadOf("a", prm.OpDestroyQP, sick), &mlxvfio.CloseError{Device: "b", Errs: []error{deadOf("b", prm.OpDestroyCQ, sick), left}}),
			deadOf("a", prm.OpDestroyQP, sick).Error() + "; b: regular teardown: " + deadOf("b", prm.OpDestroyCQ, sick).Error() + how},
	} {
		require.Equal(t, c.want, oneLine(c.err))
	}
}

// TestPeerHasItsOwnName: of two models of one profile the error says which one failed.
func TestPeerHasItsOwnName(t *testing.T) {
	const refusing = "sim,fault=status@INIT_HCA=BAD_PARAM_ERR"
	refuses(t, cli(t, "litmus", "sim", "--peer", refusing), exitFailed, "sim:cx5.0 (peer): bring-up stage init-hca")
	refuses(t, cli(t, "litmus", refusing, "--peer", "sim"), exitFailed, "sim:cx5.0: bring-up stage init-hca")
}

// TestKilledServerSaidOnce: when the server of a function is killed, the error line says
// so once, with the remedy, and nobody is told to destroy anything first.
func TestKilledServerSaidOnce(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	dir := socketDir(t)
	for i, args := range [][]string{
		{"litmus", "--peer", "PEER", "--for", "1h"}, {"litmus", "--peer", "PEER", "--for", "1h", "--json"},
		{"bench", "--iters", "10000000", "--op", "add"}, {"trace", "record", "-o", filepath.Join(dir, "x")},
		{"trace", "record", "-o", filepath.Join(dir, "y"), "--json"},
	} {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			t.Parallel()
			name := func(s string) string { return filepath.Join(dir, fmt.Sprint(s, i)) }
			near := start(t, "serve", "cx5,load=200", "--socket", name("n"), "--link", name("w"), "--control", name("c"))
			near.says("ready")
			far := start(t, "serve", "cx5,seed=2", "--socket", name("f"), "--link", name("w"))
			far.says("ready")
			words := 1
			if args[0] == "trace" {
				words = 2
			}
			full := append(append(append([]string{}, args[:words]...), "vfio-user:"+name("n")), args[words:]...)
			for j := range full {
				if full[j] == "PEER" {
					full[j] = "vfio-user:" + name("f")
				}
			}
			p := start(t, full...)
			require.Eventually(t, func() bool {
				st := servedState(t, name("c"))
				return st.QPs > 0 || st.TracerOwned > 0
			}, 20*time.Second, 10*time.Millisecond)
			time.Sleep(300 * time.Millisecond)
			require.NoError(t, near.cmd.Process.Kill())
			o := p.ends()
			require.Equal(t, exitFailed, o.code, o.err)
			require.Equal(t, 1, strings.Count(o.err, "server closed the connection"), o.err)
			require.LessOrEqual(t, strings.Count(o.err, "restart the server"), 2, o.err) // JSON has the remedy in a field as well
			require.NotContains(t, o.err, "still in use")
			require.NotContains(t, o.err, "destroy them first")
			require.NotContains(t, o.err, "lspci")
			require.Contains(t, o.err, "the memory is free; the device can be opened again")
			if args[0] == "trace" {
				require.Contains(t, o.out, "16.35.4030", "the firmware as it was read when there was a device")
				require.NotContains(t, o.out, "65535")
			}
		})
	}
}

// TestDeathAtWork: a function that dies while data moves is found dead by what waits for
// completions, long before it would be called stuck, and the line says it once.
func TestDeathAtWork(t *testing.T) {
	dir := socketDir(t)
	i := 0
	for _, args := range [][]string{
		{"litmus", "--for", "1h"}, {"litmus", "--for", "1h", "--polled"}, {"litmus", "--for", "1h", "--peer", "PEER"},
		{"bench", "--iters", "10000000", "--op", "add"},
	} {
		for fault, says := range map[string]string{"fatal": "FW_INTERNAL_ERR", "all-ones": "reads all ones"} {
			i++
			name := func(s string) string { return filepath.Join(dir, fmt.Sprint(s, i)) }
			near, far, wire, control := name("n"), name("f"), name("w"), name("c")
			t.Run(strings.Join(args, " ")+" "+fault, func(t *testing.T) {
				t.Parallel()
				start(t, "serve", "cx5", "--socket", near, "--link", wire, "--control", control).says("ready")
				full := append([]string{args[0], "vfio-user:" + near}, args[1:]...)
				if j := slices.Index(full, "PEER"); j > 0 {
					start(t, "serve", "cx5,seed=2", "--socket", far, "--link", wire).says("ready")
					full[j] = "vfio-user:" + far
				}
				p := start(t, full...)
				require.Eventually(t, func() bool { return servedState(t, control).QPs > 0 }, 20*time.Second, 10*time.Millisecond)
				time.Sleep(300 * time.Millisecond) // anywhere in a run, or between two
				works(t, "tell", control, "fault", fault)
				o := p.ends()
				refuses(t, o, exitFailed, says, "can be opened again")
				require.Equal(t, 1, strings.Count(o.err, says), o.err)
				require.NotContains(t, o.err, "no completion for")
				require.NotContains(t, o.err, "nothing has completed for")
				require.NotContains(t, o.err, "destroy them first")
			})
		}
	}
}

// TestHeadOfADeadDevice: the firmware in a head is what was read while the device
// answered.
func TestHeadOfADeadDevice(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	path := filepath.Join(t.TempDir(), "x")
	works(t, "trace", "record", "sim,load=100", "--for", "20ms", "-o", path) // the strings are in the cache then
	dir := socketDir(t)
	sock, control := filepath.Join(dir, "s"), filepath.Join(dir, "c")
	dies := func(more ...string) outcome { // once blocks are recorded
		t.Helper()
		require.NoError(t, os.Remove(path))
		served := start(t, "serve", "sim,load=100", "--socket", sock, "--control", control)
		served.says("ready")
		p := start(t, append([]string{"trace", "record", "vfio-user:" + sock, "--for", "1h", "--force", "-o", path}, more...)...)
		begun := int64(0)
		require.Eventually(t, func() bool {
			f, err := os.Stat(path)
			if err == nil && begun == 0 {
				begun = f.Size()
			}
			return err == nil && begun > 0 && f.Size() > begun
		}, 60*time.Second, 10*time.Millisecond)
		works(t, "tell", control, "fault", "all-ones")
		o := p.ends()
		require.NoError(t, served.cmd.Process.Kill())
		served.ends()
		return o
	}
	o := dies()
	require.Contains(t, o.out, ", firmware 16.35.4030\n")
	require.Contains(t, o.out, "device lost")
	refuses(t, o, exitFailed, "reads all ones", "the function was reset and the memory is free")
	require.Equal(t, 1, strings.Count(o.err, "reads all ones"), o.err)
	o = dies("--json")
	require.Equal(t, "16.35.4030", decodeOne(t, "trace-record/1", o.out)["firmware"])
}

// TestHealthBlackBoxOfAnother: a second watch does not take the black box of one that
// goes on: it says so and ends, and the first goes on. The file of one that was killed is
// free, and is kept.
func TestHealthBlackBoxOfAnother(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "box")
	watch := []string{"health", "watch", "sim", "--period", "10ms", "--for", "1m", "--blackbox", path}
	first := start(t, watch...)
	first.says("healthy (ok)")
	for range 2 {
		o := cli(t, watch...)
		refuses(t, o, exitUnavailable, "--blackbox", path+" is the black box of a watch that goes on", "end that watch, or name another file")
		require.Empty(t, o.out)
	}
	o := cli(t, append(watch, "--json")...)
	require.EqualValues(t, exitUnavailable, decodeOne(t, "error/1", o.err)["exit"])
	left, err := filepath.Glob(filepath.Join(dir, "*"))
	require.NoError(t, err)
	require.Equal(t, []string{path}, left)
	before, err := blackbox.Read(path)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		b, err := blackbox.Read(path)
		return err == nil && len(b.Samples) > len(before.Samples)
	}, 10*time.Second, 10*time.Millisecond, "the first one goes on")
	require.NoError(t, first.cmd.Process.Kill())
	first.ends()
	works(t, "health", "watch", "sim", "--once", "--period", "50ms", "--blackbox", path)
	b, err := blackbox.Read(path + ".previous")
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(b.Samples), len(before.Samples))
}
