// Package mlxvfio drives a function of an NVIDIA/Mellanox ConnectX (mlx5) adapter from
// user space, through Linux VFIO or anything else that is a vfio.Transport: a socket of
// the vfio-user protocol, or the device model of package sim.
//
//	vfio.Transport ── Open ──▶ HCA ── Close ──▶ nothing left
//	                            ├─ Conn ────────── commands and registers (package cmdif)
//	                            ├─ Queues ──────── PD, MKey, CQ, QP, SRQ (package queues)
//	                            ├─ OpenData ────── what moving data takes, made at once
//	                            ├─ AtomicCaps ──── package atomics
//	                            ├─ Subscribe ───── events of the device
//	                            ├─ Monitor ─────── package health
//	                            └─ OpenTracer ──── package tracer
//
// Open resets the function and brings it up stage by stage (Stages): firmware's boot,
// the command queue, pages, capabilities, INIT_HCA, event queues on MSI-X. A stage that
// fails is a *StageError, and everything before it is undone in reverse order. Close
// takes the function down in order; the PageLedger must balance then.
//
// A Recoverable is a function that can be opened again after a recovery of package
// health, with everything that was made on it given up first.
//
// # Concurrency
//
// An HCA is safe for concurrent use, except that nothing may run beside Close. A
// DataPath belongs to one caller at a time. The event queues of the driver have a
// goroutine each, and firmware's pages have one; Close waits for all of them. A context
// ends the waiting of its caller, never the device: what firmware does not answer keeps
// its memory until the function was reset.
//
// # What it never does
//
// It binds no driver (package pci does), uses no kernel driver of the vendor's and no
// cgo, and logs nothing unless it is given a Logger. It does not panic for what a device,
// the kernel or an argument holds: a transport, operation or DataPath that is nil is an
// error with a remedy, as is a queue larger than memory. A nil context or a nil receiver,
// and an access beyond a Window or Mem, are mistakes of the program and do panic. Memory
// that the device may still reach is not given back to the host, whatever goes wrong.
//
// docs/theory.md explains the packages and the life cycles, docs/sources.md where each
// fact comes from.
package mlxvfio
