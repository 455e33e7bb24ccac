package vfio

import "testing"

// FakeKernel is the fake at the system call table, for tests of the package's
// outside: a function, how to raise its interrupts, and what must be left at the
// end.
func FakeKernel(t *testing.T) (open func() (Transport, error), raise func(i int), clean func()) {
	k := newFakeKernel(t)
	const bdf = "0000:01:00.0"
	return func() (Transport, error) { return OpenGroup(bdf, k.options()) },
		func(i int) { k.raise(bdf, i) },
		func() { k.requireClean(t) }
}
