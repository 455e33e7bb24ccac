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
//
// # Concurrency
//
// Transports, Devices, AddressSpaces and Windows may be used by several goroutines at
// once; who accesses the same bytes of a Mem orders that with its atomic methods. A
// Vector has one waiter. Nothing here starts a goroutine. What uses a Device is stopped
// before its Close; after it, methods answer ErrClosed.
//
// # What it never does
//
// It knows no register and no command of the device. It opens no function that was not
// asked for, changes no driver binding (package pci does), and lets a device
// reach no memory but the buffers that were allocated for it.
package vfio
