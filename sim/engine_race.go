//go:build race

package sim

// raceDetector: it cannot see that a long copy is the device's, so there is none.
const raceDetector = true
