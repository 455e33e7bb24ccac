package mmio

import "unsafe"

// Doorbell stores n to the doorbell record at word, in ordinary memory, and then v
// to the register at reg, each with one store instruction: what was stored before
// the call is visible to the device before n, and n before v. It does what
// ToDevice, a store, ToDevice and Store64 do, for the price of one call.
//
// Stores to ordinary memory keep their order among themselves and before a later
// store to uncached memory, and the compiler moves none across another or across
// the call.
func Doorbell(word *uint32, n uint32, reg unsafe.Pointer, v uint64) {
	*word = n
	Store64(reg, v)
}
