// Package mmio holds the loads, stores and barriers that touch device memory.
//
// Stores are assembly: one MOV (amd64) or STR (arm64) of exactly the given
// width. An atomic store would be XCHG on amd64, a locked read-modify-write that
// uncached memory turns into a read and a write on the bus; two plain Go stores
// may be merged. Loads are atomic loads, which compile to a plain load of the
// given width. All values are in host order; callers swap.
//
// Barriers are named after their purpose, see docs/ordering.md.
package mmio
