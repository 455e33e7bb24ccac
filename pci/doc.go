// Package pci knows PCI functions the way Linux shows them: it finds the
// mlx5 functions of a machine, reads and decodes their configuration space,
// and moves a function between its host driver and vfio-pci and back.
//
// # Four parts
//
//   - Discovery: [List] and [Inspect] read one sysfs folder per function and
//     return a [Function]. They only read. What judges a machine works from
//     this one structure and from [Function.InUse].
//   - Configuration space: [ParseConfig] works on a byte slice, so bytes from
//     sysfs, from a VFIO config region and from a pasted hexdump take the same
//     way. Capability chains are untrusted input: every walk is bounded.
//   - Binding: [Bind] and [Unbind] use driver_override, never new_id, because
//     an override names one function while new_id makes vfio-pci claim every
//     function with that id.
//   - Doctor: [Diagnose] finds every reason why an open of a function would
//     fail, each a [Finding] with what was seen and a command that helps, and
//     the [Way] that an open goes: by the function's own file and iommufd, by its
//     IOMMU group, or without IOMMU.
//
// # The bind transaction
//
// Before the first sysfs write, Bind stores what it is about to change (driver
// and driver_override) in a journal file: temporary file, fsync, rename, fsync
// of the folder. The journal stays as long as the function is on vfio-pci;
// Unbind restores from it and removes it last. Hence at every instant either
// nothing has been changed or the journal tells how to undo it, also after
// SIGKILL. Whether a journal belongs to a finished or to an interrupted bind is
// not stored (that would be one more write to lose): [Journals] derives it from
// the state of the function.
//
//	host driver ──journal──▶ override written ──▶ unbound ──▶ probed, verified
//	     ▲                         │                 │              │
//	     └──── restore: override back, leave vfio-pci, probe, verify ┘
//
// Writes go only to the function's own folder (driver_override), to
// drivers_probe, and to the bind and unbind files of a driver. A bind without
// IOMMU, which Options.UnsafeNoIOMMU must allow, also turns the kernel's switch of
// that mode on, and the Unbind of the last such function turns it off; a mark
// beside the journals says so in between.
//
// # Names
//
// A [BDF] is parsed into numbers before any path is made of it, and names that
// come back from sysfs or from a journal (drivers) must be plain file names.
// Tests and tools may point [Options] at another sysfs root, another procfs
// root, another journal folder and another [FS].
//
// # Concurrency
//
// All functions are safe for concurrent use and keep no state of their own. Bind and
// Unbind lock their function, against other processes too: of two at a time one gets
// ErrBusy.
//
// # What it never does
//
// It opens no device, maps no register and sends no command. Discovery and doctor write
// nothing at all.
package pci
