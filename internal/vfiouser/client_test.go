package vfiouser

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/mlxvfio/mlxvfio/vfio"
	"github.com/mlxvfio/mlxvfio/vfio/vfiotest"
)

// isError asserts that err is a *vfio.Error around want that names the socket.
func isError(t *testing.T, err, want error) {
	t.Helper()
	var e *vfio.Error
	require.ErrorAs(t, err, &e)
	require.ErrorIs(t, err, want)
	require.Contains(t, e.Target, "vfio-user:")
	require.NotEmpty(t, e.Op)
}

func TestClientSeesTheFunction(t *testing.T) {
	noLeaks(t)
	d := newDevice(vfiotest.RAMOptions{BAR0: 1 << 20, Vectors: 64})
	path := serve(t, d, Options{})
	c := dial(t, path, Options{})
	info, err := c.Info()
	require.NoError(t, err)
	require.Equal(t, vfio.DeviceInfo{Name: "vfio-user:" + path, Backend: "vfio-user", Regions: 9, IRQs: 5, CanReset: true}, info)
	for i := range vfio.NumRegions {
		want, err := d.RegionInfo(i)
		require.NoError(t, err)
		got, err := c.RegionInfo(i)
		require.NoError(t, err)
		require.Equal(t, want, got)
		areas, err := c.MapRegion(i)
		require.NoError(t, err)
		require.Empty(t, areas)
	}
	for i := range vfio.NumIRQs {
		want, err := d.IRQInfo(i)
		require.NoError(t, err)
		got, err := c.IRQInfo(i)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	for _, i := range []int{-1, 9} {
		_, err = c.RegionInfo(i)
		isError(t, err, vfio.ErrRange)
		_, err = c.MapRegion(i)
		isError(t, err, vfio.ErrRange)
		_, err = c.IRQInfo(i)
		isError(t, err, vfio.ErrRange)
		isError(t, c.ReadRegion(i, 0, make([]byte, 4)), vfio.ErrRange)
		isError(t, c.SetIRQs(i, 0, nil), vfio.ErrRange)
	}
	limits, err := c.DMA().Limits()
	require.NoError(t, err)
	require.Equal(t, vfio.DMALimits{
		Ranges: []vfio.IOVARange{{First: 0, Last: 1<<48 - 1}}, PageSizes: 4096, MaxMappings: 65535, NeedsFile: true,
	}, limits)
}

// TestContract runs the suite of every transport: client ⇄ socket ⇄ server ⇄ RAM.
func TestContract(t *testing.T) {
	for name, o := range map[string]Options{"answered": {}, "posted": {PostedWrites: true}} {
		t.Run(name, func(t *testing.T) {
			var d *device // of the transport opened last
			vfiotest.Run(t, func(t *testing.T) vfio.Transport {
				d = newDevice(vfiotest.RAMOptions{Vectors: 64})
				c, err := Dial(t.Context(), serve(t, d, Options{}), o)
				require.NoError(t, err)
				return c
			}, vfiotest.Options{
				Scratch: []vfio.Span{{Offset: 0, Size: 256}, {Offset: 0x8000, Size: 64}},
				Raise:   func(_ *testing.T, _ vfio.Transport, i int) { d.Raise(i) },
				Access: func(_ vfio.Transport, iova uint64, p []byte, write bool) error {
					return d.Memory().Access(iova, p, write)
				},
			})
		})
	}
}

// TestContractTwoSockets chains a second server to the client of the first: the
// memory's file travels on, so does the eventfd.
func TestContractTwoSockets(t *testing.T) {
	var d *device
	vfiotest.Run(t, func(t *testing.T) vfio.Transport {
		d = newDevice(vfiotest.RAMOptions{Vectors: 8})
		far := dial(t, serve(t, d, Options{}), Options{})
		c, err := Dial(t.Context(), serve(t, far, Options{}), Options{})
		require.NoError(t, err)
		return c
	}, vfiotest.Options{
		Raise: func(_ *testing.T, _ vfio.Transport, i int) { d.Raise(i) },
		Access: func(_ vfio.Transport, iova uint64, p []byte, write bool) error {
			return d.Memory().Access(iova, p, write)
		},
	})
}

func TestClientRegions(t *testing.T) {
	for _, posted := range []bool{false, true} {
		d := newDevice(vfiotest.RAMOptions{})
		c := dial(t, serve(t, d, Options{}), Options{PostedWrites: posted})
		require.NoError(t, c.WriteRegion(0, 0x100, []byte("doorbell")))
		p := make([]byte, 8)
		require.NoError(t, c.ReadRegion(0, 0x100, p))
		require.Equal(t, "doorbell", string(p))
		require.Equal(t, []write{{0, 0x100, "doorbell"}}, d.seen())
		all := make([]byte, 4096)
		require.NoError(t, c.ReadRegion(vfio.RegionConfig, 0, all))
		require.Equal(t, "\xb3\x15\x17\x10", string(all[:4]))
		require.NoError(t, c.WriteRegion(vfio.RegionConfig, 0x41, []byte("any size")))
		for _, a := range []struct {
			region, n int
			off       uint64
		}{{0, 8, 64<<10 - 4}, {0, 4, 1<<64 - 4}, {0, 3, 0}, {0, 16, 0}, {0, 0, 0}, {0, 4, 2}, {vfio.RegionConfig, 2, 4095}} {
			isError(t, c.ReadRegion(a.region, a.off, make([]byte, a.n)), vfio.ErrRange)
			isError(t, c.WriteRegion(a.region, a.off, make([]byte, a.n)), vfio.ErrRange)
		}
		isError(t, c.ReadRegion(1, 0, make([]byte, 4)), vfio.ErrNotFound)
		require.NoError(t, c.Reset())
		require.Equal(t, 1, d.Resets())
	}
}

func TestClientInterrupts(t *testing.T) {
	noLeaks(t)
	d := newDevice(vfiotest.RAMOptions{Vectors: 64})
	c := dial(t, serve(t, d, Options{}), Options{})
	vs := make([]*vfio.Vector, 64)
	for i := range vs {
		v, err := c.NewVector()
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, v.Close()) })
		vs[i] = v
	}
	some := append([]*vfio.Vector{}, vs...)
	for _, i := range []int{0, 17, 18, 63} {
		some[i] = nil
	}
	for _, set := range [][]*vfio.Vector{vs, some, vs} {
		require.NoError(t, c.SetIRQs(vfio.IRQMSIX, 0, set))
		for i, v := range set {
			require.Equal(t, v != nil, d.Raise(i), "vector %d", i)
			require.Equal(t, v != nil, vs[i].TryWait(), "vector %d", i)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	go func() { d.Raise(5) }()
	require.NoError(t, vs[5].Wait(ctx))

	require.NoError(t, c.SetIRQs(vfio.IRQMSIX, 0, nil))
	require.False(t, d.Raise(5))
	isError(t, c.SetIRQs(vfio.IRQMSIX, 60, vs[:5]), vfio.ErrRange)
	isError(t, c.SetIRQs(vfio.IRQMSIX, -1, vs[:1]), vfio.ErrRange)
	isError(t, c.SetIRQs(vfio.IRQMSI, 0, vs[:1]), vfio.ErrRange)
	isError(t, c.SetIRQs(vfio.IRQMSIX, 0, []*vfio.Vector{vfio.NewChanVector()}), vfio.ErrNotSupported)
}

// picky is a function that takes no vectors from number 20 on.
type picky struct{ *device }

func (p picky) SetIRQs(index, start int, vs []*vfio.Vector) error {
	if start+len(vs) > 20 {
		return &vfio.Error{Op: "set IRQs", Err: unix.ENOSPC}
	}
	return p.device.SetIRQs(index, start, vs)
}

// TestClientInterruptsAllOrNone: a refused portion takes the ones before along.
func TestClientInterruptsAllOrNone(t *testing.T) {
	noLeaks(t)
	d := newDevice(vfiotest.RAMOptions{Vectors: 64})
	c := dial(t, serve(t, picky{d}, Options{}), Options{})
	vs := make([]*vfio.Vector, 40)
	for i := range vs {
		v, err := c.NewVector()
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, v.Close()) })
		vs[i] = v
	}
	before := countFDs(t)
	isError(t, c.SetIRQs(vfio.IRQMSIX, 0, vs), vfio.ErrNoSpace)
	require.False(t, d.Raise(0))
	require.Equal(t, before, countFDs(t))
}

func TestClientDMA(t *testing.T) {
	noLeaks(t)
	d := newDevice(vfiotest.RAMOptions{})
	c := dial(t, serve(t, d, Options{}), Options{})
	fd, mem := memfd(t, 1<<20)
	m := c.DMA()
	half := vfio.Mapping{IOVA: 0x100000, Bytes: mem[1<<19:], FD: fd, Offset: 1 << 19}
	require.NoError(t, m.Map(half))
	copy(mem[1<<19:], "from the driver")
	got := make([]byte, 15)
	require.NoError(t, d.Memory().Access(0x100000, got, false))
	require.Equal(t, "from the driver", string(got))
	require.NoError(t, d.Memory().Access(0x100000+1<<19-4, []byte("back"), true))
	require.Equal(t, "back", string(mem[1<<20-4:]))
	require.NoError(t, m.Map(vfio.Mapping{IOVA: 1 << 40, Bytes: mem[:4096], FD: fd, ReadOnly: true}))
	require.ErrorIs(t, d.Memory().Access(1<<40, got, true), vfio.ErrNotSupported)

	isError(t, m.Map(vfio.Mapping{IOVA: 0x17f000, Bytes: mem[:8192], FD: fd}), vfio.ErrExists)
	isError(t, m.Map(half), vfio.ErrExists)
	err := m.Map(vfio.Mapping{IOVA: 0x1000, Bytes: make([]byte, 4096), FD: -1})
	isError(t, err, vfio.ErrNotSupported)
	require.ErrorContains(t, err, "memfd")
	for _, bad := range []vfio.Mapping{
		{IOVA: 0x1001, Bytes: mem[:4096], FD: fd}, {IOVA: 0x1000, Bytes: mem[:4097], FD: fd}, {IOVA: 0x1000, Bytes: mem[:4096], FD: fd, Offset: 7},
		{IOVA: 0x1000, FD: fd}, {IOVA: 1<<64 - 4096, Bytes: mem[:8192], FD: fd}, {IOVA: 0x1000, Bytes: mem[:4096], FD: fd, Offset: -4096},
		{IOVA: 0xfee00000, Bytes: mem[:4096], FD: fd}, // refused by the function
	} {
		isError(t, m.Map(bad), vfio.ErrRange)
	}
	require.ErrorContains(t, m.Map(vfio.Mapping{IOVA: 1 << 48, Bytes: mem[:4096], FD: fd}), "bus addresses end at 0xffffffffffff")
	isError(t, m.Unmap(0x100000, 4096), vfio.ErrNotFound)
	isError(t, m.Unmap(0x100000, 0), vfio.ErrNotFound)
	isError(t, m.Unmap(0x50000000, 4096), vfio.ErrNotFound)
	require.NoError(t, m.Unmap(0x100000, 1<<19))
	require.ErrorIs(t, d.Memory().Access(0x100000, got, false), vfio.ErrNotFound, "gone at once")
	require.NoError(t, m.Map(half), "and free again")
}

func TestClientMapsNoMoreThanTheServerTakes(t *testing.T) {
	c := dial(t, serve(t, newDevice(vfiotest.RAMOptions{}), Options{MaxMappings: 2}), Options{})
	fd, mem := memfd(t, 1<<16)
	for i, want := range []uint32{2, 1, 1} {
		l, err := c.DMA().Limits()
		require.NoError(t, err)
		require.Equal(t, want, l.MaxMappings)
		err = c.DMA().Map(vfio.Mapping{IOVA: uint64(i+1) << 16, Bytes: mem[:4096], FD: fd})
		if i < 2 {
			require.NoError(t, err)
		} else {
			isError(t, err, vfio.ErrNoSpace)
		}
	}
}

// TestClientDeviceStack: the driver's own objects over the socket.
func TestClientDeviceStack(t *testing.T) {
	noLeaks(t)
	d := newDevice(vfiotest.RAMOptions{})
	c := dial(t, serve(t, d, Options{}), Options{})
	dev, err := vfio.NewDevice(c, vfio.DeviceOptions{})
	require.NoError(t, err)
	w, err := dev.Window(0)
	require.NoError(t, err)
	w.WriteBE32(0x20, 0x01020304)
	require.Equal(t, []write{{0, 0x20, "\x01\x02\x03\x04"}}, d.seen())
	require.Equal(t, uint32(0x01020304), w.ReadBE32(0x20))
	b, err := dev.Space().Alloc(8192, vfio.BufferOptions{Name: "test"})
	require.NoError(t, err)
	b.StoreBE32(4096, 0xcafe)
	got := make([]byte, 4)
	require.NoError(t, d.Memory().Access(b.IOVA()+4096, got, false))
	require.Equal(t, []byte{0, 0, 0xca, 0xfe}, got)
	require.NoError(t, b.Free())
	vs, err := dev.EnableVectors(3)
	require.NoError(t, err)
	require.True(t, d.Raise(2))
	require.NoError(t, vs[2].Wait(t.Context()))
	require.NoError(t, dev.Close())
	require.Empty(t, d.Memory().Mappings())
	require.False(t, d.Raise(2))
}

func TestClientClosed(t *testing.T) {
	noLeaks(t)
	d := newDevice(vfiotest.RAMOptions{})
	path := serve(t, d, Options{})
	c, err := Dial(t.Context(), path, Options{})
	require.NoError(t, err)
	fd, mem := memfd(t, 1<<16)
	require.NoError(t, c.DMA().Map(vfio.Mapping{IOVA: 0x10000, Bytes: mem, FD: fd}))
	require.NoError(t, c.Close())
	require.Empty(t, d.Memory().Mappings(), "Close waits for the server to let go")
	require.Equal(t, 1, d.Resets())
	require.NoError(t, c.Close(), "a second call does nothing")
	_, err = c.Info()
	isError(t, err, vfio.ErrClosed)
	_, err = c.RegionInfo(0)
	isError(t, err, vfio.ErrClosed)
	_, err = c.MapRegion(0)
	isError(t, err, vfio.ErrClosed)
	_, err = c.IRQInfo(0)
	isError(t, err, vfio.ErrClosed)
	_, err = c.NewVector()
	isError(t, err, vfio.ErrClosed)
	_, err = c.DMA().Limits()
	isError(t, err, vfio.ErrClosed)
	isError(t, c.ReadRegion(0, 0, make([]byte, 4)), vfio.ErrClosed)
	isError(t, c.WriteRegion(0, 0, make([]byte, 4)), vfio.ErrClosed)
	isError(t, c.SetIRQs(vfio.IRQMSIX, 0, nil), vfio.ErrClosed)
	isError(t, c.Reset(), vfio.ErrClosed)
	isError(t, c.DMA().Map(vfio.Mapping{IOVA: 0x10000, Bytes: mem, FD: fd}), vfio.ErrClosed)
	isError(t, c.DMA().Unmap(0x10000, 1<<16), vfio.ErrClosed)
	dial(t, path, Options{})
}

// TestServerGone: everything fails at once, and a Window reads all ones.
func TestServerGone(t *testing.T) {
	noLeaks(t)
	d := newDevice(vfiotest.RAMOptions{})
	path := filepath.Join(t.TempDir(), "s")
	l, err := Listen(path)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, l, d, Options{}) }()
	c := dial(t, path, Options{})
	dev, err := vfio.NewDevice(c, vfio.DeviceOptions{})
	require.NoError(t, err)
	w, err := dev.Window(0)
	require.NoError(t, err)
	require.Equal(t, uint32(0), w.ReadBE32(0))
	_, err = dev.Space().Alloc(4096, vfio.BufferOptions{})
	require.NoError(t, err)
	cancel()
	require.NoError(t, <-done)

	begin := time.Now()
	require.Equal(t, ^uint32(0), w.ReadBE32(0))
	isError(t, w.Err(), vfio.ErrGone)
	for range 3 {
		err := c.Reset()
		isError(t, err, vfio.ErrGone)
		isError(t, err, ErrServerGone)
		require.ErrorContains(t, err, "the vfio-user server closed the connection; restart the server")
	}
	fd, mem := memfd(t, 4096)
	isError(t, c.DMA().Map(vfio.Mapping{IOVA: 0x1000, Bytes: mem, FD: fd}), vfio.ErrGone)
	_ = dev.Close() // it may say what it could not do; it must not hang
	require.Less(t, time.Since(begin), 5*time.Second)
}

// TestReconnect: clients one after another, each with a full stay, some of them
// waiting for the one before.
func TestReconnect(t *testing.T) {
	noLeaks(t)
	d := newDevice(vfiotest.RAMOptions{})
	path := serve(t, d, Options{})
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			c, err := Dial(context.Background(), path, Options{})
			if err != nil {
				t.Error(err)
				return
			}
			p := make([]byte, 4)
			err = errors.Join(c.ReadRegion(0, 0, p), c.WriteRegion(0, 0, []byte{1, 2, 3, 4}), c.Close())
			if err != nil || p[0] != 0 {
				t.Errorf("read %x, %v", p, err)
			}
		})
	}
	wg.Wait()
	require.Equal(t, 8, d.Resets())
}

// TestConcurrentCalls: one connection, many goroutines.
func TestConcurrentCalls(t *testing.T) {
	d := newDevice(vfiotest.RAMOptions{})
	c := dial(t, serve(t, d, Options{}), Options{})
	var wg sync.WaitGroup
	for g := range uint64(8) {
		wg.Go(func() {
			for i := range uint64(200) {
				want := le.AppendUint64(nil, g<<32|i)
				p := make([]byte, 8)
				if err := errors.Join(c.WriteRegion(0, g*8, want), c.ReadRegion(0, g*8, p)); err != nil || string(p) != string(want) {
					t.Errorf("goroutine %d: wrote %x, read %x, %v", g, want, p, err)
					return
				}
			}
		})
	}
	wg.Wait()
}

func TestDialFails(t *testing.T) {
	noLeaks(t)
	dir := t.TempDir()
	begin := time.Now()
	_, err := Dial(t.Context(), filepath.Join(dir, "absent"), Options{})
	isError(t, err, os.ErrNotExist)
	require.ErrorContains(t, err, "start the server first")
	require.GreaterOrEqual(t, time.Since(begin), connectRetry, "it is patient")

	_, err = Dial(t.Context(), filepath.Join(dir, string(make([]byte, 120))), Options{})
	isError(t, err, unix.ENAMETOOLONG)

	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	begin = time.Now()
	_, err = Dial(ctx, filepath.Join(dir, "absent"), Options{})
	isError(t, err, context.DeadlineExceeded)
	require.Less(t, time.Since(begin), connectRetry)
}

func TestDialWaitsForTheServer(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		time.Sleep(200 * time.Millisecond)
		l, err := net.Listen("unix", path)
		if err == nil {
			err = Serve(ctx, l, newDevice(vfiotest.RAMOptions{}), Options{})
		}
		done <- err
	}()
	c, err := Dial(t.Context(), path, Options{})
	require.NoError(t, err)
	require.NoError(t, c.Close())
	cancel()
	require.NoError(t, <-done)
}

// TestSilentClient: a client that connects and says nothing, or says it a byte at
// a time, does not keep others out.
func TestSilentClient(t *testing.T) {
	noLeaks(t)
	path := serve(t, newDevice(vfiotest.RAMOptions{}), Options{Timeout: 100 * time.Millisecond})
	for _, dribble := range []bool{false, true} {
		r := rawDial(t, path, false)
		stop := make(chan struct{})
		done := make(chan struct{})
		go func() {
			defer close(done)
			m := r.message(cmdVersion, 0, version{}.appendTo(nil))
			for i := 0; dribble && i < len(m); i++ {
				if unix.Sendto(r.fd, m[i:i+1], unix.MSG_NOSIGNAL, nil) != nil {
					return
				}
				select {
				case <-stop:
					return
				case <-time.After(50 * time.Millisecond):
				}
			}
		}()
		begin := time.Now()
		c, err := Dial(t.Context(), path, Options{Timeout: 5 * time.Second})
		require.NoError(t, err)
		require.Less(t, time.Since(begin), time.Second)
		require.NoError(t, c.Close())
		close(stop)
		<-done
		r.close()
	}
}

// TestDialOfABusyServer waits for its turn, no longer than it may.
func TestDialOfABusyServer(t *testing.T) {
	noLeaks(t)
	path := serve(t, newDevice(vfiotest.RAMOptions{}), Options{})
	first, err := Dial(t.Context(), path, Options{})
	require.NoError(t, err)
	_, err = Dial(t.Context(), path, Options{Timeout: 50 * time.Millisecond})
	isError(t, err, ErrLateReply)
	require.ErrorContains(t, err, "serves another client")
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = Dial(ctx, path, Options{})
	isError(t, err, context.DeadlineExceeded)
	isError(t, err, ErrLateReply)
	require.ErrorContains(t, err, "serves another client")
	ctx, cancel = context.WithCancel(t.Context())
	time.AfterFunc(20*time.Millisecond, cancel)
	_, err = Dial(ctx, path, Options{})
	isError(t, err, context.Canceled)
	require.ErrorContains(t, err, "serves another client")
	time.AfterFunc(50*time.Millisecond, func() { _ = first.Close() })
	second, err := Dial(t.Context(), path, Options{})
	require.NoError(t, err)
	require.NoError(t, second.Close())
}
