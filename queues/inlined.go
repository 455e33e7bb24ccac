package queues

// inlined calls f, and has the compiler put f where the caller of its caller is.
//
// A function whose body is one call of inlined counts as small, whatever f holds,
// so it is inlined where it is called. There f is a closure that is called once,
// which is inlined up to ten times the size of a function. A hot path written like
// this costs its caller no call, no list passed in registers and no frame, which are
// a good part of what one WQE or CQE takes. Should a compiler decide otherwise, it is
// a call like others: f does not escape, and nothing is allocated.
func inlined(f func() (int, error)) (int, error) { return f() }
