//go:build !race

package vfio

// raceEnabled: see race_on.go.
const raceEnabled = false
