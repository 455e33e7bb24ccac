// Package cmdif is the command interface of a ConnectX function: the command
// queue engine and the commands that act on the HCA as a whole.
//
// A command is an input and an output of bytes. The engine puts it into one of
// the queue's entries (slots), hands longer inputs and outputs over in chains of
// 512-byte mailboxes, rings the doorbell in the initialization segment and waits
// for the ownership bit to come back:
//
//	Exec ─ admit (free slot) ─ build entry+mailboxes ─ doorbell ─ wait ─ check, copy out ─ release
//	                                                               │
//	                                  time is up, ctx cancelled ───┴─► quarantine
//
// Waiting is polled or, after SwitchToEvents, driven by the command event queue,
// whose owner calls Complete. A command whose waiter gave up keeps its slot and
// its memory until the device hands the entry back (then it is counted as a late
// completion) or until the device was reset and the Conn is closed: firmware may
// still write there.
//
// Slots run in parallel. The last one is reserved for page commands, which must
// never wait behind a command that itself waits for pages; throttled opcodes use
// at most half of the others (Linux cmd.c).
//
// Sources: Linux cmd.c, main.c, fw.c and pagealloc.c; rdma-core mlx5_vfio.c.
//
// # Concurrency
//
// All methods of Conn are safe for concurrent use; Close says what must have ended before
// it. The package starts no goroutine: a command runs on that of its caller. The
// goroutine that owns the command event queue must not send commands, since it would
// wait for itself.
//
// # What it never does
//
// It sends no command twice, gives up no memory that firmware may still write, and lets
// no answer reach another caller than the one who asked. Nothing here decides what is to
// be done about an error: CommandError, TimeoutError and their kin say what happened.
package cmdif
