package health

import "time"

// SetWall gives a Monitor that has not started another wall clock.
func (m *Monitor) SetWall(wall func() time.Time) { m.wall = wall }

// Prepare makes a Monitor ready for Tick without its goroutines.
func (m *Monitor) Prepare() {
	start := m.wall()
	m.started = start
	m.mono = func() time.Duration { return time.Since(start) }
}

// Tick takes and judges one sample.
func (m *Monitor) Tick() { m.tick() }
