// Package health watches the firmware of a ConnectX function from outside: it
// tells within seconds that firmware is sick and what it said, without being held
// up by the command interface that may be dead with it.
//
// Data flows one way:
//
//	BAR0 ── Sampler ── Sample (4 dwords) ──┐
//	          └─ ReadBuffer ── Buffer ─────┤
//	cmdif.Conn ── Signals ── watchdog ─────┼── judge ── Verdict ── events, slog, report
//	registers, sysfs ── prober ────────────┘      └── history, counter rate
//
// A Monitor has one goroutine that samples and judges; it reads four dwords of
// BAR0 a period and sends no command. Whatever needs a command (temperature, PCIe
// link and slot power) is done by a second goroutine, the prober, whose requests
// have deadlines. The judge is a plain state machine over samples and monotonic
// time: Conditions is its table.
//
// Sources: Linux health.c, fw_reset.c, lib/tout.c and device.h, mlx5_ifc.h
// (health_buffer, initial_seg), rdma-core mlx5_vfio.c, NVIDIA's nodnic header, and
// the mstflint register database for MTMP and MPEIN.
//
// # Concurrency
//
// A Monitor's methods are safe for concurrent use; Stop waits for its goroutines. Recover
// is one call at a time for a function, and runs on its caller's goroutine.
//
// # What it never does
//
// Looking changes nothing: no command, no reset, no write to a register. Only Recover
// does that, never above the rung it was allowed, and hot-reset and MFRL, which hit other
// functions too, only with consent.
package health
