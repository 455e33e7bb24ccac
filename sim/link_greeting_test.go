package sim

import (
	"errors"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestLinkWhy: who is no peer is named at both ends, and forgotten once there is one
// or nobody; only what cannot fit is final.
func TestLinkWhy(t *testing.T) {
	path := filepath.Join(t.TempDir(), "wire")
	join := func(o Options) (*LinkPort, func()) {
		c := newChip(t, o)
		p, err := c.JoinLink(path)
		require.NoError(t, err)
		return p, func() { require.NoError(t, p.Close()); require.NoError(t, c.Close()) }
	}
	why := func(p *LinkPort, final bool, words ...string) {
		t.Helper()
		var e *LinkError
		require.Eventually(t, func() bool {
			return errors.As(p.Err(), &e) && e.Final == final
		}, 5*time.Second, time.Millisecond)
		for _, w := range append(words, path) {
			require.ErrorContains(t, e, w)
		}
		require.NotEmpty(t, e.Remedy)
		require.False(t, p.Connected())
	}
	a, closeA := join(Options{Port: PortIB})
	require.NoError(t, a.Err(), "nobody is there")

	b, closeB := join(Options{Port: PortEth})
	why(b, true, "the other end has an ib port, this one an eth port", "same port=")
	why(a, true, "the other end has an eth port, this one an ib port")
	closeB()

	b, closeB = join(Options{Port: PortIB})
	require.Eventually(t, func() bool { return a.Connected() && b.Connected() }, 5*time.Second, time.Millisecond)
	require.NoError(t, a.Err())
	require.NoError(t, b.Err())

	c, closeC := join(Options{Port: PortIB})
	why(c, false, "says nothing", "another model may have this end", "wait until one leaves")
	closeB()
	require.Eventually(t, func() bool { return c.Err() == nil && c.Connected() }, 5*time.Second, time.Millisecond, "the third takes the place")
	closeA()
	require.Eventually(t, func() bool { return !c.Connected() && c.Err() == nil }, 5*time.Second, time.Millisecond)
	closeC()
}

// TestLinkToAnother: servers that are no link.
func TestLinkToAnother(t *testing.T) {
	for name, x := range map[string]struct {
		answer string
		want   string
	}{
		"hangs up":        {"", "is no link"},
		"speaks":          {"220 mail.example.org\n", "is no link"},
		"of old":          {linkMagic + "\x01\x00\x01", "version 1, this one version 2"},
		"of old, long":    {linkMagic + "\x09\x00\x01 and so on, and on", "version 9, this one version 2"},
		"breaks off":      {linkMagic, "is no link"},
		"breaks off late": {linkMagic + "\x02\x00", "is no link"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "s")
			l, err := net.Listen("unix", path)
			require.NoError(t, err)
			heard := make(chan string, 100)
			done := make(chan struct{})
			go func() {
				defer close(done)
				for {
					c, err := l.Accept()
					if err != nil {
						return
					}
					b := make([]byte, 64)
					n, _ := c.Read(b)
					heard <- string(b[:n])
					_, _ = c.Write([]byte(x.answer))
					_ = c.Close()
				}
			}()
			c := newChip(t, Options{})
			p, err := c.JoinLink(path)
			require.NoError(t, err)
			require.Eventually(t, func() bool {
				var e *LinkError
				return errors.As(p.Err(), &e) && e.Final
			}, 5*time.Second, time.Millisecond)
			require.ErrorContains(t, p.Err(), x.want)
			require.NoError(t, l.Close())
			<-done
			require.Eventually(t, func() bool { return p.Err() == nil }, 5*time.Second, time.Millisecond, "whom it was about is gone")
			require.NoError(t, p.Close())
			require.NoError(t, c.Close())
			greeting := <-heard
			require.Len(t, greeting, 16, "a header of vfio-user")
			require.Equal(t, byte('\n'), greeting[15], "a line")
		})
	}
}
