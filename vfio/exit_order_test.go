package vfio

import (
	"io"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// What no-IOMMU mode relies on (see raise): of the files of a process that is
// killed, the kernel closes the one with the highest number first. The child's files
// here are socket ends; epoll tells the hangups of the other ends in the order in
// which they happened.
func TestExitOrder(t *testing.T) {
	const env = "MLXVFIO_TEST_EXIT_ORDER"
	const high = 700
	if os.Getenv(env) != "" { // the child: descriptors 3 … 6, of which 4 moves up
		up, err := unix.FcntlInt(4, unix.F_DUPFD_CLOEXEC, high)
		require.NoError(t, err)
		require.GreaterOrEqual(t, up, high)
		require.NoError(t, unix.Close(4))
		_, err = os.Stdout.WriteString("ready\n")
		require.NoError(t, err)
		select {}
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestExitOrder$")
	cmd.Env = append(os.Environ(), env+"=1")
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	require.NoError(t, err)
	defer func() { require.NoError(t, unix.Close(ep)) }()
	const files = 4
	for i := range files {
		p, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		require.NoError(t, err)
		far := os.NewFile(uintptr(p[1]), "far")
		defer func() { require.NoError(t, unix.Close(p[0])) }()
		defer func() { _ = far.Close() }() // closed below unless that failed
		cmd.ExtraFiles = append(cmd.ExtraFiles, far)
		require.NoError(t, unix.EpollCtl(ep, unix.EPOLL_CTL_ADD, p[0], &unix.EpollEvent{Events: unix.EPOLLRDHUP, Fd: int32(i)}))
	}
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	for _, f := range cmd.ExtraFiles {
		require.NoError(t, f.Close())
	}
	line := make([]byte, 6)
	_, err = io.ReadFull(out, line)
	require.NoError(t, err)
	require.Equal(t, "ready\n", string(line))
	require.NoError(t, cmd.Process.Kill())
	require.Error(t, cmd.Wait())
	var order []int
	events := make([]unix.EpollEvent, files)
	n, err := unix.EpollWait(ep, events, 5000)
	require.NoError(t, err)
	for _, e := range events[:n] {
		order = append(order, int(e.Fd))
	}
	require.Equal(t, []int{1, 3, 2, 0}, order, "the one that was moved up goes first")
}
