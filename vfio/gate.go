package vfio

import "sync"

// gate knows the Windows on a mapped region, so that a transport that is closed
// under them can turn them away: an access to memory that is unmapped ends the
// process. Areas and Windows hold it; what is left of the mapping goes when
// nothing does.
type gate struct {
	mu      sync.Mutex
	shut    bool
	windows map[*Window]struct{}
}

// enter lets a Window in; false if the mapping is gone.
func (g *gate) enter(w *Window) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.shut {
		return false
	}
	if g.windows == nil {
		g.windows = map[*Window]struct{}{}
	}
	g.windows[w] = struct{}{}
	return true
}

// leave is called by a Window that was closed.
func (g *gate) leave(w *Window) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.windows, w)
}

// close turns every Window away and tells whether there was one: an access of it
// may be on its way still.
func (g *gate) close() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut = true
	for w := range g.windows {
		w.block()
	}
	busy := len(g.windows) > 0
	g.windows = nil
	return busy
}
