// Package sim is the device model: a ConnectX function in process, a
// vfio.Transport with configuration space, BAR0, an I/O address space, MSI-X,
// firmware and fault injection. Linux's mlx5_core and rdma-core's VFIO provider
// run on it unmodified over vfio-user.
//
// What is in it and how it flows:
//
//	Transport (function.go) ── config space (config.go), IOMMU (iommu.go), MSI-X (irq.go)
//	    │ BAR0 access
//	bar.go ── init segment (initseg.go) ── command queue (cmdq.go, mailbox.go)
//	    │                                        │
//	    └── UAR doorbells (uar.go)          firmware (fw.go): phases, handler table,
//	            │                           refusals (refuse.go, syndromes.go)
//	        event queues (eq.go)                 │
//	        completion queues (cqobj.go)    objects (objects.go), pages, capabilities, registers,
//	        data engine (dataEngine)        keys (mkey.go), queues (fw_cq.go, fw_qp.go, fw_srq.go)
//
// All functions of a chip share its firmware tracer (tracer.go), which writes
// what firmware does into the memory of the one that owns it.
//
// The firmware half owns the objects of the data path and their states
// (cqobj.go, qpobj.go, srqobj.go, qpstate.go); the engine behind the interface
// dataEngine moves the data. Locks: a chip's lock guards its functions, objects
// and engine; below it are an I/O address space's, a link's and a vector's own.
// Nothing that holds them waits, and two chips' locks are never held at once:
// what one chip sends to another is carried after its lock was given back.
//
// Beside them stands what a device tells of itself: health buffer and counter
// (health.go), what ails firmware (illness.go, faults_health.go), what heals it
// (reset.go, hotreset.go, fw_mfrl.go), the vendor-specific capability (vsc.go),
// temperature and PCIe registers (fw_environment.go). All functions of a chip
// share one firmware, so each sees what another one's reset does.
//
// One Chip holds what its functions share: the clock, the scheduler, the seed
// and the wire. A doorbell is a synchronous call: by default the command is
// executed, its entry handed back and its event written before the store
// returns. Under a load or a fault the completion is an event of the scheduler,
// which runs on the chip's clock; a seed decides every choice. Counters and
// timers are computed when they are read. The chip starts a goroutine only
// while events are pending on the wall clock, and Close waits for it; a link over
// a socket (JoinLink) has goroutines of its own, for which LinkPort.Close waits.
//
// Every value the model shows is tagged real, derived or chosen with its source
// (Values); every refusal has a status and a syndrome of the model's own list
// (Syndromes); every fault has a name (Faults). What the facts leave open is
// decided once and listed in Rulings.
//
// The model shares with the driver only internal/prm and the types of package
// vfio. It reaches host memory only through the mappings given to its Mapper
// and interrupts only through vfio.Vector.
//
// A Chip and its functions are safe for concurrent use. The model opens no device and no
// file, and, but for JoinLink, no socket; packages of the driver never import it, so that
// nothing of it can be left in a program that drives hardware.
package sim
