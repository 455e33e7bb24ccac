package queues

// On amd64 stores to ordinary memory keep their order among themselves and
// before a later store to uncached memory, and loads keep theirs, so both
// barriers of package mmio are empty there; what is left of them is a call, which
// post and poll would pay for every WQE and CQE. The compiler keeps the order
// too: it moves no load across an atomic load and no store across a store that
// another one depends on, and the doorbell is a call into assembly
// (docs/ordering.md).

// toDevice orders the WQE before the doorbell record, and the record before the
// doorbell.
func toDevice() {}

// fromDevice orders the ownership word of a CQE before the rest of it.
func fromDevice() {}
