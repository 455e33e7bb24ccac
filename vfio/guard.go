package vfio

import "runtime/debug"

// Guarded calls access(m, at) and answers false when m was not all there. Memory
// that another process gave (a vfio-user client's file) can be truncated by it, or
// turn out to have no page left behind it, at any moment; the access then raises
// SIGBUS, which would end this process. Guarded makes that the failure of one
// access, as an IOMMU does it. How much of the access took place is not known.
// Any other panic passes.
//
// access must do nothing but touch m: no lock of its own, no other memory. The
// cost is a few nanoseconds and no allocation; memory of this process's own needs
// no guard.
func Guarded(m Mem, at int, access func(m Mem, at int)) (ok bool) {
	old := debug.SetPanicOnFault(true) // of this goroutine
	defer func() {
		debug.SetPanicOnFault(old)
		if ok {
			return
		}
		e := recover()
		if e == nil { // runtime.Goexit
			return
		}
		if _, fault := e.(interface{ Addr() uintptr }); !fault {
			panic(e)
		}
	}()
	access(m, at)
	return true
}
