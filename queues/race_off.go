//go:build !race

package queues

// raceEnabled: see race_on.go. Without the detector a doorbell record is one
// plain aligned store: an atomic one is XCHG on amd64, which waits for every
// store before it.
const raceEnabled = false
