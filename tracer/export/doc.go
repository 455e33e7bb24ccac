// Package export writes the messages of a trace for people and for other programs:
// the kernel tracepoint's text, JSON lines, CSV, the Chrome trace JSON that Perfetto
// reads, and a report as one HTML file.
//
// What firmware says is data everywhere: texts and format strings come escaped
// (printable ASCII), and each form adds its own quoting. docs/tracer.md describes
// columns and keys. Parquet is written by the command, since it takes a library.
//
// A Sink belongs to one goroutine and starts none. It writes to the io.Writer that it was
// given, which stays the caller's, opens no file, and keeps nothing of a message beyond
// the call, but for the Report, which keeps what it draws.
package export
