// Package vfio is the seam between the driver and whatever carries a
// ConnectX function: the kernel's VFIO, a vfio-user socket, or the model.
//
// Data flows one way through it:
//
//	Transport ── verbs of one function (regions, DMA map/unmap, interrupts, reset)
//	    │
//	 Device ──── one opened function: Windows on its BARs, Vectors, bus mastering
//	    │
//	AddressSpace ─ IOVA allocator and DMA memory over a Mapper; shared by functions
//	    │
//	 Buffer/Mem ── memory that host and device both see
//
// Everything above this package speaks to Device, AddressSpace, Window, Mem and
// Vector only, so the same driver runs on every Transport. Recorders, fault
// injectors and unplugged devices are decorators over Transport.
package vfio
