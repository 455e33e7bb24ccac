// Package export writes the messages of a trace for people and for other programs:
// the kernel tracepoint's text, JSON lines, CSV, the Chrome trace JSON that Perfetto
// reads, and a report as one HTML file.
//
// What firmware says is data everywhere: texts and format strings come escaped
// (printable ASCII), and each form adds its own quoting. docs/tracer.md describes
// columns and keys. Parquet is written by the command, since it takes a library.
package export
