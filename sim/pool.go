package sim

// pool numbers objects of one kind: from first, at most limit of them. Numbers
// are given in ascending order and a freed one is used again only when the
// numbers have gone round (rotate) or at once (the lowest free one).
type pool[T any] struct {
	first, limit uint32
	rotate       bool
	next         uint32 // offset at which the search begins
	objs         map[uint32]T
}

func (p *pool[T]) init(first, limit uint32, rotate bool) {
	*p = pool[T]{first: first, limit: limit, rotate: rotate, objs: map[uint32]T{}}
}

// add numbers an object; false when all numbers are taken.
func (p *pool[T]) add(v T) (uint32, bool) {
	if uint32(len(p.objs)) >= p.limit {
		return 0, false
	}
	i := uint32(0)
	if p.rotate {
		i = p.next
	}
	for {
		if i >= p.limit {
			i = 0
		}
		if _, taken := p.objs[p.first+i]; !taken {
			break
		}
		i++
	}
	p.next = i + 1
	p.objs[p.first+i] = v
	return p.first + i, true
}

func (p *pool[T]) get(n uint32) (T, bool) {
	v, ok := p.objs[n]
	return v, ok
}

func (p *pool[T]) remove(n uint32) { delete(p.objs, n) }
func (p *pool[T]) len() int        { return len(p.objs) }

// log2 limit of a capability: 1 << log, without overflow.
func limitOf(log uint8) uint32 { return 1 << min(log, 24) }
