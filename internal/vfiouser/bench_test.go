package vfiouser

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/mlxvfio/mlxvfio/vfio"
	"github.com/mlxvfio/mlxvfio/vfio/vfiotest"
)

// benchClient is a client of a served RAM device; both ends allocate nothing
// per access of their own.
func benchClient(b *testing.B, o Options) vfio.Transport {
	b.Helper()
	path := filepath.Join(b.TempDir(), "s")
	l, err := Listen(path)
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, l, vfiotest.NewRAM(vfiotest.RAMOptions{}), o) }()
	c, err := Dial(ctx, path, o)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = c.Close()
		cancel()
		if err := <-done; err != nil {
			b.Error(err)
		}
	})
	return c
}

func BenchmarkRead(b *testing.B) {
	c := benchClient(b, Options{})
	p := make([]byte, 4)
	b.ReportAllocs()
	for b.Loop() {
		if err := c.ReadRegion(0, 0, p); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkWrite(b *testing.B) {
	for name, o := range map[string]Options{"answered": {}, "posted": {PostedWrites: true}} {
		b.Run(name, func(b *testing.B) {
			c := benchClient(b, o)
			p := make([]byte, 8)
			b.ReportAllocs()
			for b.Loop() {
				if err := c.WriteRegion(0, 0, p); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
