// Package initseg gives typed access to the initialization segment: the first
// bytes of BAR 0, through which a driver and the firmware of a ConnectX
// function meet before any command can be sent.
//
// Every dword is big-endian and accessed as one aligned 32-bit word. A Segment
// is a view over a vfio.Window and holds no state of its own, so all reads are
// safe for concurrent use; the methods that write say who may call them.
//
// Sources: Linux device.h (mlx5_init_seg, health_buffer), mlx5_ifc.h
// (initial_seg), main.c, cmd.c, health.c, fw_reset.c and lib/tout.c; OpenBSD
// if_mcx.c, illumos mlxcx_reg.h and NVIDIA's nodnic header agree except where a
// comment says otherwise.
//
// Nothing here sends a command, starts a goroutine or changes the device behind the
// caller's back: only the methods whose names say so (PublishQueue, RingDoorbell,
// SetNICInterface, ClearInterrupt, AckReset) write.
package initseg
