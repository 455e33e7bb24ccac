// Package prm holds the layouts of the ConnectX programmer's reference manual
// (PRM): structures, commands, contexts, registers, event and work queue
// entries, opcodes and enumerations. It does no I/O and imports nothing of
// this module.
//
// # Views
//
// Every structure is an array of bytes with typed getters and setters:
//
//	eqc := prm.AsEQC(buf)       // a view: no copy, no allocation
//	eqc.SetLogEQSize(7)         // writes 5 bits and nothing else
//	if eqc.Status() == prm.EQStatusWriteFailure { … }
//
// All fields are big-endian. A getter reads, and a setter writes, the smallest
// naturally aligned unit (1, 2, 4 or 8 bytes) that holds the field; bits that
// have no name keep their value. A setter keeps the low bits of a value that
// is too wide: Put and Writer refuse it instead. Views hold no lock and use
// plain loads and stores, so they are not for ownership words in memory that a
// device writes at the same time, nor for registers of a BAR.
//
// # Descriptors
//
// From the same table comes a Struct (EQCStruct, StructByName("eqc")) with
// which code that learns names at run time works: Lookup, Get, Put, Write,
// Decode, Dump. Paths are dotted and indexed:
// "eq_context_entry.log_eq_size", "string_db_param[2].string_db_size".
//
// # Tables
//
// tables/*.prm are the source; internal/prmgen turns them into *_gen.go
// (go generate). The notation is the PRM's:
//
//	struct eqc 0x40                    # name and bytes
//	0x00 31:28 status EQStatus         # dword, bits, name, enumeration
//	0x00 18 ec                         # one bit
//	0x38 63:0 dbr_addr                 # the 64-bit word at that offset
//	0x10 16x8 rgid_rip                 # an array: count x bits
//	0x10 {eqc} eq_context_entry        # a nested structure
//	0x10 8x{mtrc_string_db_param} string_db_param
//	0x110 *x64 pas                     # flexible tail after the fixed part
//	0x24 31:0 inval_rkey alias         # another name for bits named before
//
//	union event_auto 0x1c              # its members overlap
//
//	enum EQStatus uint8 EQStatus       # Go type, base, prefix of constants
//	0xa EQ_WRITE_FAILURE WriteFailure "text"
//
//	command 0x301 CREATE_EQ create_eq_in create_eq_out [min_in=n] [min_out=n]
//	register 0x900a MTMP mtmp_reg
//	capability 0x03 ATOMIC atomic_caps
//
// The generator refuses overlaps, fields that cross a dword (a field that ends
// at bit 0 of a 64-bit word excepted), fields out of the structure's size,
// names declared twice and unknown types. snake_case becomes CamelCase with
// the PRM's initialisms in capitals: log_eq_size is LogEQSize.
//
// # Witnesses
//
// A wrong offset here would be shared by the driver and its model, so three
// independent witnesses speak against one:
//
//   - testdata/*.csv: offsets computed from the public headers of other
//     drivers and checked there with a C compiler. Every field and size of the
//     tables equals its row, in both directions; what differs is listed by
//     name with its reason (witness_test.go).
//   - The bytes a real ConnectX-4 exchanged with Linux: every captured input
//     decodes and encodes to itself, and its capabilities decode to known
//     facts (golden_test.go).
//   - Linux's own mlx5_core, which runs on the model (test/vm).
package prm
