//go:build race

package queues

// raceEnabled: doorbell records are stored atomically, so that the detector sees
// the model reading them as what it is.
const raceEnabled = true
