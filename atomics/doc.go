// Package atomics knows what a ConnectX does with atomic operations: which
// masks a WQE must carry so that a 1-, 2- or 4-byte variable changes and its
// neighbours do not, in which byte order the responder and the reply count,
// how large an argument may be, and when an RDMA WRITE is atomic.
//
//	Op ──Encode(order)──▶ Request ──▶ queues.SendQueue ──▶ device
//	                         │                              │
//	                      Execute (software responder)   reply bytes
//	                         │                              │
//	                         └──────── Extract ◀────────────┘
//
// An Op says what is wanted in the terms of the variable: its address, its size,
// its old and new value. A Request is what a masked atomic WQE says: an aligned
// word, and operands with masks in its numbers. Encode goes from one to the
// other, Extract gets the old value out of the returned word, Execute is a
// responder in software, and Apply does the Op itself on memory without any
// masks: it is what the others are measured against.
//
// Caps holds the device's atomic capabilities and the rules that follow from
// them. Probe finds the byte orders on the device itself; a Client uses what
// Probe found. Package litmus, below, proves what a device guarantees.
//
// Numbers are read from memory in the memory order the device uses (Order): on
// a device that treats its words as big-endian numbers, a 2-byte counter is two
// bytes with the most significant one first, whatever the host is.
//
// Sources: Linux qp.h and main.c, rdma-core qp.c, UCX ib_mlx5.h and rc_mlx5.inl,
// NVIDIA's MLNX_OFED documentation ("Advanced Transport"), a public program that
// probes masked atomics on hardware; rulings A1 to A10 of docs/sources.md.
//
// # Concurrency
//
// Ops, Requests, Caps, Profiles and the functions on them are values and safe for
// concurrent use. A Client and the queue pair under it belong to one caller at a time, as
// its CQ does. No goroutine is started.
//
// # What it never does
//
// It takes no byte order on trust where Probe was asked, and posts nothing that the
// device does not offer or that the rules refuse: the error comes before the doorbell.
package atomics
