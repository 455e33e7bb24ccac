package vfio

import "testing"

// FakeKernel is the fake at the system call table, for tests of the package's
// outside: a function by that backend, how to raise its interrupts, and what must
// be left at the end.
func FakeKernel(t *testing.T, backend string) (open func() (Transport, error), raise func(i int), clean func()) {
	k := backends[backend].kernel(t)
	const bdf = "0000:01:00.0"
	o := k.options()
	o.Backend = backend
	backends[backend].set(&o)
	return func() (Transport, error) { return Open(bdf, o) },
		func(i int) { k.raise(bdf, i) },
		func() { k.requireClean(t) }
}
