package mmio

import (
	"sync/atomic"
	"unsafe"
)

// Load32 reads one aligned 32-bit word of device memory.
func Load32(p unsafe.Pointer) uint32 { return atomic.LoadUint32((*uint32)(p)) }

// Load64 reads one aligned 64-bit word of device memory.
func Load64(p unsafe.Pointer) uint64 { return atomic.LoadUint64((*uint64)(p)) }

// Store32 writes one aligned 32-bit word of device memory with one store
// instruction.
//
//go:noescape
func Store32(p unsafe.Pointer, v uint32)

// Store64 writes one aligned 64-bit word of device memory with one store
// instruction.
//
//go:noescape
func Store64(p unsafe.Pointer, v uint64)

// Copy64 copies n bytes, a multiple of 64, from ordinary memory to
// write-combining device memory in ascending 8-byte stores (BlueFlame).
//
//go:noescape
func Copy64(dst, src unsafe.Pointer, n uintptr)

// ToDevice orders earlier stores to ordinary memory (a WQE, a command entry, a
// doorbell record) before a following store to device memory.
//
//go:noescape
func ToDevice()

// FromDevice orders the load of an ownership word before the loads of what it
// guards.
//
//go:noescape
func FromDevice()

// FlushWC pushes write-combining buffers out after a BlueFlame copy.
//
//go:noescape
func FlushWC()
