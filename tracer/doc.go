// Package tracer takes the firmware tracer of a function: it acquires it, has the
// device write its traces into memory, reads them as they come, and gives the tracer
// back, whatever happens in between.
//
//	Port (ACCESS_REG) ── registers MTRC_CAP, MTRC_CONF, MTRC_STDB, MTRC_CTRL
//	   │
//	Owner ── acquire, look, lose, release: MTRC_CAP.trace_owner
//	   │
//	Open ── buffer rules ── strings ── configure ── Capture
//	                                     │  control: events, ownership, arming, clocks
//	                                     └─ reader: ring → queue → Capture.Next
//
// A Capture is a capture.Source. Its reader never waits for whoever takes the
// records: what finds no room in the queue is counted, and a gap record says exactly
// what is missing. Package trace decodes, package capture stores.
//
// One function of a chip, or a tool, owns the tracer at a time. Ownership is lost by
// somebody else's taking it, which an event tells, or nobody does; so it is looked at
// by the clock too. Nothing here takes the tracer again once it was released or lost:
// open anew for that.
//
// Layouts and the order of steps are those of Linux fw_tracer.c and of mstflint's
// register database; what they leave open is ruled in docs/sources.md.
//
// # Concurrency
//
// Next and Ready of a Capture are for one goroutine, everything else may be called by
// any. A Capture has two goroutines, for which Close waits.
//
// # What it never does
//
// It takes the tracer from nobody: ownership is asked for, and a busy tracer is an
// ErrBusy or a wait, as Options say. Firmware's formats reach no printf.
package tracer
