// Package trace decodes what the firmware tracer of a ConnectX writes: blocks of
// 32 events of 8 bytes, each block closed by a timestamp event; messages of up to
// eight events whose first names a printf format in the firmware's string
// database. It needs no device: the live reader, the capture file and a raw ring
// image all end here.
//
// The way of the data, one direction only:
//
//	[]byte of a block → Event words → Decoder (messages by event id and number)
//	   → Message{Time, Format, Params} → AppendText, AppendJSON, AppendLine
//
// Layouts are those of Linux fw_tracer.h and of mstflint's register database; how
// the gaps between them are filled (docs/sources.md, the project's rulings) is
// said where it matters. Formats come from firmware, so nothing here hands one to
// a printf: they are compiled once into literal pieces and a small set of checked
// conversions.
//
// A Decoder belongs to one goroutine; Strings, Formats and a DB are not changed after they
// were made and may be shared. No goroutine is started, and no file is opened but by
// ReadDB and DB.Write.
package trace
