// Package queues holds what firmware keeps on behalf of software and software
// drives without firmware: doorbell pages (UAR), event queues (EQ), protection
// domains (PD), memory keys (MKey), completion queues (CQ), queue pairs (QP) and
// shared receive queues (SRQ).
//
// Every object is created by one command, is driven through DMA memory and a
// doorbell, and is given back in two steps that can be taken apart: Destroy
// tells firmware and then frees the host memory; Release frees the host memory
// alone, for a device that is reset, disabled or gone. What others still use is
// not destroyed, and what is destroyed answers vfio.ErrClosed: both without a
// command. A creation that fails leaves nothing; one that gets no answer leaves
// its memory to Dev.ReleaseOrphans, since the device may know the address.
//
//	Dev ─┬─ UAR ── doorbells of BAR0
//	     ├─ EQ ─── ring of 64-byte EQEs; with an interrupt: EventChannel
//	     ├─ PD ─┬─ MKey ── page table over DMA memory
//	     │      ├─ SRQ ─── list of receive WQEs
//	     │      └─ QP ─┬── SQ: ring of 64-byte blocks, rung in the UAR
//	     │             └── RQ: ring of receive WQEs, no doorbell
//	     └─ CQ ─── ring of 64-byte CQEs, armed in the UAR, tells an EQ
//
// Control (commands, may wait) and data (posting and polling, never waits, takes
// no lock, allocates nothing) are apart: SendQueue, RecvQueue, SRQRing and CQRing
// work on any memory, with or without a device. docs/ordering.md explains the
// barriers between them and the device.
//
// Nothing here starts a goroutine. An EQ belongs to one goroutine at a time, a CQ
// together with the queues that complete on it to one caller at a time.
package queues
