package sim

// ring is a queue that grows: of packets, QPs and operations, where push and pop
// happen for every message. The zero value is empty.
type ring[T any] struct {
	buf  []*T // a power of two
	head int
	n    int
}

// firstRing is how many entries a ring begins with.
const firstRing = 16

// at is entry i, counted from the oldest.
func (r *ring[T]) at(i int) *T { return r.buf[(r.head+i)&(len(r.buf)-1)] }

func (r *ring[T]) push(x *T) {
	if r.n == len(r.buf) {
		r.grow()
	}
	r.buf[(r.head+r.n)&(len(r.buf)-1)] = x
	r.n++
}

func (r *ring[T]) grow() {
	b := make([]*T, max(firstRing, 2*len(r.buf)))
	for i := range r.n {
		b[i] = r.at(i)
	}
	r.buf, r.head = b, 0
}

func (r *ring[T]) pop() *T {
	x := r.buf[r.head]
	r.buf[r.head] = nil
	r.head = (r.head + 1) & (len(r.buf) - 1)
	r.n--
	return x
}
