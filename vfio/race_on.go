//go:build race

package vfio

// raceEnabled: the race detector sees Go memory only, so MemoryAuto prefers it.
const raceEnabled = true
