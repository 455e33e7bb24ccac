// Package queues holds what firmware keeps on behalf of software and software
// drives without firmware: doorbell pages (UAR) and event queues (EQ) in this
// part of the house; protection domains, memory keys, completion queues and
// queue pairs follow the same pattern.
//
// Every object is created by one command, is driven through DMA memory and a
// doorbell, and is given back in two steps that can be taken apart: Destroy
// tells firmware and then frees the host memory; Release frees the host memory
// alone, for a device that is reset, disabled or gone.
//
//	Dev ── UAR ── doorbells of BAR0
//	 └──── EQ ─── ring of 64-byte EQEs, consumer index written to the UAR
//
// Nothing here starts a goroutine. An EQ belongs to one goroutine at a time.
package queues
