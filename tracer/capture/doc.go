// Package capture is what a trace capture consists of, live or on disk: blocks as
// they were read from the device's ring, gaps, the string database, clock samples,
// notes and the end. A Source gives these Records in order: the live reader of
// package tracer is one, and so is the Reader of a .mlxt file here, so that whoever
// decodes, analyses or exports works on either.
//
//	live ring ─┐                      ┌─ Writer ─ file.mlxt
//	           ├─ Source ─ Record ────┤
//	file.mlxt ─┘                      └─ Player ─ trace.Decoder ─ trace.Message
//
// docs/capture.md describes the file for other programs. It is written once from
// front to back, each record with its own checksum, so that a writer that is killed
// leaves a file that is good up to the last record it wrote.
//
// A Writer, Reader or Player belongs to one goroutine, and none is started. A Reader never
// goes on behind damage unless it is told to (ReaderOptions), and then says what it left
// out; Create replaces no file unless it is told to.
package capture
