package blackbox

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

var small = RecorderOptions{ImageBytes: 4096, Records: 4, RecordBytes: 32}

// leaves reads what is in dir, name by name.
func leaves(t *testing.T, dir string) []string {
	t.Helper()
	list, err := os.ReadDir(dir)
	require.NoError(t, err)
	var names []string
	for _, e := range list {
		names = append(names, e.Name())
	}
	return names
}

// TestRecorderBusy: the file that a Recorder keeps is taken by nobody, neither under its
// own name nor through a link, nor as the previous one of another, and nothing changes.
// Once it is closed it is evidence as ever.
func TestRecorderBusy(t *testing.T) {
	dir := t.TempDir()
	path, link := filepath.Join(dir, "box"), filepath.Join(dir, "link")
	r, err := NewRecorder(path, small)
	require.NoError(t, err)
	require.NoError(t, r.Append([]byte("evidence")))
	require.NoError(t, os.Symlink(path, link))
	prev, err := NewRecorder(filepath.Join(dir, "other.previous"), small)
	require.NoError(t, err)
	other, err := NewRecorder(filepath.Join(dir, "other"), small)
	require.NoError(t, err)
	require.NoError(t, other.Append([]byte("other")))
	require.NoError(t, other.Close())
	before := leaves(t, dir)

	for _, c := range []struct{ path, busy string }{
		{path, path}, {link, link}, {filepath.Join(dir, "other"), filepath.Join(dir, "other.previous")},
	} {
		_, err := NewRecorder(c.path, small)
		var be *BusyError
		require.ErrorAs(t, err, &be)
		require.ErrorIs(t, err, ErrBusy)
		require.Equal(t, c.busy, be.Path)
		require.ErrorContains(t, err, "end that watch, or name another file")
	}
	require.ErrorIs(t, Write(path, someSections(), Options{}), ErrBusy)
	require.Equal(t, before, leaves(t, dir))
	require.NoError(t, r.Append([]byte("more")))
	b, err := Read(path)
	require.NoError(t, err)
	require.Equal(t, [][]byte{[]byte("evidence"), []byte("more")}, b.Samples)
	b, err = Read(filepath.Join(dir, "other"))
	require.NoError(t, err)
	require.Equal(t, [][]byte{[]byte("other")}, b.Samples)

	require.NoError(t, r.Close())
	require.NoError(t, prev.Close())
	r, err = NewRecorder(path, small)
	require.NoError(t, err)
	require.NoError(t, r.Close())
	b, err = Read(path + ".previous")
	require.NoError(t, err)
	require.Len(t, b.Samples, 2)
	require.NoError(t, Write(path, someSections(), Options{}))
}

// TestRecorderBusyOfAProcess: another process has the lock as long as it lives, and no
// longer, though it is killed.
func TestRecorderBusyOfAProcess(t *testing.T) {
	if path := os.Getenv("BLACKBOX_HOLDER"); path != "" {
		r, err := NewRecorder(path, small)
		if err != nil {
			panic(err)
		}
		if err := r.Append([]byte("of the other process")); err != nil {
			panic(err)
		}
		fmt.Println("held")
		select {}
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "box")
	cmd := exec.Command(os.Args[0], "-test.run=^TestRecorderBusyOfAProcess$")
	cmd.Env = append(os.Environ(), "BLACKBOX_HOLDER="+path)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	defer func() { _ = cmd.Process.Kill() }()
	said := make([]byte, 5)
	_, err = out.Read(said)
	require.NoError(t, err)
	_, err = NewRecorder(path, small)
	require.ErrorIs(t, err, ErrBusy)
	require.Equal(t, []string{"box"}, leaves(t, dir))
	require.NoError(t, cmd.Process.Signal(syscall.SIGKILL))
	require.Error(t, cmd.Wait())
	r, err := NewRecorder(path, small)
	require.NoError(t, err)
	defer r.Close()
	b, err := Read(path + ".previous")
	require.NoError(t, err)
	require.Equal(t, "of the other process", string(b.Samples[0]))
}

// TestRecordersTogether: of several that start on one path, where there is nothing or
// the evidence of an earlier one, exactly one gets it, its file is the one that is there
// in the end, and the earlier one is kept.
func TestRecordersTogether(t *testing.T) {
	for _, hard := range []bool{true, false} {
		for round := range 40 {
			dir := t.TempDir()
			path := filepath.Join(dir, "box")
			earlier := round%2 == 1
			if earlier {
				r, err := NewRecorder(path, small)
				require.NoError(t, err)
				require.NoError(t, r.Append([]byte("earlier")))
				require.NoError(t, r.Close())
			}
			d := realDisk
			n := 4
			if !hard { // the file system has no hard links: one after the other is told apart
				d.link = func(string, string) error { return syscall.EPERM }
				n = 1
			}
			start := make(chan struct{})
			got, errs := make([]*Recorder, n), make([]error, n)
			var wg sync.WaitGroup
			for i := range n {
				wg.Go(func() {
					<-start
					if got[i], errs[i] = d.recorder(path, small); errs[i] == nil {
						errs[i] = got[i].Append(fmt.Appendf(nil, "winner %d", i))
					}
				})
			}
			close(start)
			wg.Wait()
			winners := 0
			for i, r := range got {
				if r == nil {
					require.ErrorIs(t, errs[i], ErrBusy)
					continue
				}
				require.NoError(t, errs[i])
				winners++
				b, err := Read(path)
				require.NoError(t, err)
				require.Equal(t, fmt.Sprintf("winner %d", i), string(b.Samples[0]))
				_, err = d.recorder(path, small)
				require.ErrorIs(t, err, ErrBusy)
			}
			require.Equal(t, 1, winners)
			want := "box"
			if earlier {
				want += " box.previous"
				b, err := Read(path + ".previous")
				require.NoError(t, err)
				require.Equal(t, "earlier", string(b.Samples[0]))
			}
			require.Equal(t, want, strings.Join(leaves(t, dir), " "))
			for _, r := range got {
				if r != nil {
					require.NoError(t, r.Close())
				}
			}
		}
	}
}

// TestRecorderLinkToNothing: it is refused, and stays.
func TestRecorderLinkToNothing(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "box")
	require.NoError(t, os.Symlink(filepath.Join(dir, "nowhere"), path))
	_, err := NewRecorder(path, small)
	require.ErrorContains(t, err, "a symbolic link to nothing; remove it")
	require.Equal(t, []string{"box"}, leaves(t, dir))
}
