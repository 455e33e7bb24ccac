package mlxvfio

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/mlxvfio/mlxvfio/cmdif"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// Firmware pages are 4096 bytes whatever the host's page size is.
const fwPageSize = 4096

// Function names a function towards firmware, as page requests do: 0 is the
// function itself, n+1 VF n of this PF.
type Function = cmdif.Function

func functionName(f Function) string {
	if f.EmbeddedCPU {
		return fmt.Sprintf("embedded function %d", f.ID)
	}
	return fmt.Sprintf("function %d", f.ID)
}

// markOf is the owner of a page in a chunk: 0 is nobody.
func markOf(f Function) uint32 {
	m := uint32(f.ID) + 1
	if f.EmbeddedCPU {
		m |= 1 << 31
	}
	return m
}

// PageLedger is a snapshot of the account of host pages that firmware holds.
// Given − Returned − Dropped = Outstanding always holds.
type PageLedger struct {
	Given       int `json:"given"`    // handed to firmware so far
	Returned    int `json:"returned"` // given back by firmware, page by page
	Dropped     int `json:"dropped"`  // claims that ended at once: release-all, fast or forced teardown, reset
	Outstanding int `json:"outstanding"`
	Peak        int `json:"peak"` // most outstanding at a time
	// Functions with a claim, by id.
	Functions []FunctionPages `json:"functions,omitempty"`
	// Requests and Reclaims count page events with positive and negative
	// counts; Refused those answered "cannot give"; Strays the addresses
	// firmware returned that it did not hold.
	Requests int `json:"requests"`
	Reclaims int `json:"reclaims"`
	Refused  int `json:"refused"`
	Strays   int `json:"strays"`
	// Chunks of DMA memory the pages are cut from, and their bytes.
	Chunks     int `json:"chunks"`
	ChunkBytes int `json:"chunk_bytes"`
}

// FunctionPages are the pages one function holds.
type FunctionPages struct {
	Function Function `json:"function"`
	Pages    int      `json:"pages"`
}

// chunk is a piece of DMA memory cut into pages.
type chunk struct {
	buf   *vfio.Buffer
	base  uint64
	owner []uint32 // markOf per page
	free  []int32  // pages nobody holds, used as a stack
}

// ledger accounts for every page and owns their memory. Only the page worker
// changes it; snapshots may be taken by anyone.
type ledger struct {
	space *vfio.AddressSpace
	limit int // most pages outstanding; 0 is no bound

	mu     sync.Mutex
	chunks []*chunk // ascending by base
	held   map[Function]int
	nfree  int
	s      PageLedger
}

func newLedger(space *vfio.AddressSpace, limit int) *ledger {
	return &ledger{space: space, limit: limit, held: map[Function]int{}}
}

// minChunk and maxChunk bound the pages of a chunk. A chunk is one allocation of
// DMA memory: as large as what is missing, so that few mappings are needed and
// no memory is pinned for nothing.
const (
	minChunk = 64
	maxChunk = 16384
)

// ensure makes sure that n free pages exist. It stops between two chunks when ctx
// is over. On failure nothing has changed but that there may be more free pages
// than before.
func (l *ledger) ensure(ctx context.Context, n int) error {
	l.mu.Lock()
	missing, out := n-l.nfree, l.s.Outstanding
	l.mu.Unlock()
	if l.limit > 0 && out+n > l.limit {
		return &vfio.Error{Op: fmt.Sprintf("give %d pages to firmware", n),
			Err:    fmt.Errorf("%w: %d are out, the limit is %d", vfio.ErrNoSpace, out, l.limit),
			Remedy: "raise Options.PageLimit if the request is sound"}
	}
	size := min(missing, maxChunk)
	var first error // the refusal of the whole says what is needed
	for missing > 0 {
		if ctx.Err() != nil {
			return fmt.Errorf("%d more pages for firmware: %w", missing, context.Cause(ctx))
		}
		c, err := l.newChunk(max(min(size, missing), minChunk))
		if err != nil {
			// A smaller piece may still be found; below minChunk it is not worth it.
			if first == nil {
				first = err
			}
			if errors.Is(err, vfio.ErrNoSpace) && size > minChunk {
				size /= 2
				continue
			}
			return fmt.Errorf("%d more pages (%d KiB) for firmware: %w", missing, missing*fwPageSize/1024, first)
		}
		missing -= len(c.owner)
	}
	return nil
}

func (l *ledger) newChunk(pages int) (*chunk, error) {
	buf, err := l.space.Alloc(pages*fwPageSize, vfio.BufferOptions{Align: fwPageSize, Name: "firmware pages"})
	if err != nil {
		return nil, err
	}
	c := &chunk{buf: buf, base: buf.IOVA(), owner: make([]uint32, pages), free: make([]int32, pages)}
	for i := range c.free {
		c.free[i] = int32(pages - 1 - i) // the stack gives the lowest page first
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	at, _ := slices.BinarySearchFunc(l.chunks, c.base, func(c *chunk, b uint64) int { return cmp.Compare(c.base, b) })
	l.chunks = slices.Insert(l.chunks, at, c)
	l.nfree += pages
	l.s.Chunks++
	l.s.ChunkBytes += buf.Size()
	return c, nil
}

// take books len(pas) free pages to f and fills in their addresses. ensure must
// have found them.
func (l *ledger) take(f Function, pas []uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for _, c := range l.chunks {
		for n < len(pas) && len(c.free) > 0 {
			i := c.free[len(c.free)-1]
			c.free = c.free[:len(c.free)-1]
			c.owner[i] = markOf(f)
			pas[n] = c.base + uint64(i)*fwPageSize
			n++
		}
	}
	if n < len(pas) {
		panic("mlxvfio: page ledger: take without ensure")
	}
	l.nfree -= n
	l.held[f] += n
	l.s.Given += n
	l.s.Outstanding += n
	l.s.Peak = max(l.s.Peak, l.s.Outstanding)
}

// untake takes back pages that firmware refused: it never held them.
func (l *ledger) untake(f Function, pas []uint64) {
	n, _ := l.putBack(f, pas)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.s.Given -= n
}

// returned books pages that firmware gave back. An address that f does not hold
// is an error and changes nothing: firmware's word is checked, not trusted.
func (l *ledger) returned(f Function, pas []uint64) error {
	n, strays := l.putBack(f, pas)
	l.mu.Lock()
	l.s.Returned += n
	l.s.Strays += len(strays)
	l.mu.Unlock()
	if len(strays) > 0 {
		return fmt.Errorf("%s returned %d pages it does not hold, the first at %#x; firmware and driver disagree: reset the function", functionName(f), len(strays), strays[0])
	}
	return nil
}

func (l *ledger) putBack(f Function, pas []uint64) (n int, strays []uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, pa := range pas {
		c, i := l.find(pa)
		if c == nil || c.owner[i] != markOf(f) {
			strays = append(strays, pa)
			continue
		}
		c.owner[i] = 0
		c.free = append(c.free, int32(i))
		n++
	}
	l.release(f, n)
	return n, strays
}

// find locates a page by its bus address. Called with mu held.
func (l *ledger) find(pa uint64) (*chunk, int) {
	at, exact := slices.BinarySearchFunc(l.chunks, pa, func(c *chunk, b uint64) int { return cmp.Compare(c.base, b) })
	if !exact {
		at--
	}
	if at < 0 || pa%fwPageSize != 0 {
		return nil, 0
	}
	c := l.chunks[at]
	if i := (pa - c.base) / fwPageSize; i < uint64(len(c.owner)) {
		return c, int(i)
	}
	return nil, 0
}

// release moves n pages from f to the free ones. Called with mu held.
func (l *ledger) release(f Function, n int) {
	l.nfree += n
	l.s.Outstanding -= n
	if l.held[f] -= n; l.held[f] == 0 {
		delete(l.held, f)
	}
}

// drop ends all claims of f.
func (l *ledger) drop(f Function) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for _, c := range l.chunks {
		for i, o := range c.owner {
			if o == markOf(f) {
				c.owner[i] = 0
				c.free = append(c.free, int32(i))
				n++
			}
		}
	}
	l.release(f, n)
	l.s.Dropped += n
	return n
}

// functions lists who holds pages, by id.
func (l *ledger) functions() []FunctionPages {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.functionsLocked()
}

func (l *ledger) functionsLocked() []FunctionPages {
	var fs []FunctionPages
	for f, n := range l.held {
		fs = append(fs, FunctionPages{f, n})
	}
	slices.SortFunc(fs, func(a, b FunctionPages) int { return cmp.Compare(markOf(a.Function), markOf(b.Function)) })
	return fs
}

// dropAll ends all claims: the device was reset or let go of host memory.
func (l *ledger) dropAll() int {
	n := 0
	for _, f := range l.functions() {
		n += l.drop(f.Function)
	}
	return n
}

// trim frees chunks nobody holds a page of, but keeps spare pages for the next
// request.
func (l *ledger) trim(spare int) error {
	l.mu.Lock()
	var idle []*chunk
	l.chunks = slices.DeleteFunc(l.chunks, func(c *chunk) bool {
		if len(c.free) < len(c.owner) || l.nfree-len(c.owner) < spare {
			return false
		}
		l.nfree -= len(c.owner)
		l.s.Chunks--
		l.s.ChunkBytes -= len(c.owner) * fwPageSize
		idle = append(idle, c)
		return true
	})
	l.mu.Unlock()
	var errs []error
	for _, c := range idle {
		errs = append(errs, c.buf.Free())
	}
	return errors.Join(errs...)
}

// snapshot copies the account.
func (l *ledger) snapshot() PageLedger {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.s
	s.Functions = l.functionsLocked()
	return s
}

// count books an event in the snapshot's counters.
func (l *ledger) count(f func(*PageLedger)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f(&l.s)
}
