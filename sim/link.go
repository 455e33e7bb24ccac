package sim

// uplink is the way to another chip. The chip's lock is held in every call.
type uplink interface {
	// send takes the packet's content; the packet stays the caller's.
	send(p *packet)
	// full asks the sender to wait: what makes room again starts the work again.
	full() bool
}
