package sim

import (
	"time"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// cx5 is a ConnectX-5: the ConnectX-4's capabilities with what a newer device
// adds and what Linux and rdma-core demand of it.
var cx5 = profile{
	name: "cx5", deviceID: 0x1017, subsystem: 0x0008, port: PortIB,
	firmware: Version{16, 35, 4030}, psid: "MT_0000000008", hwID: 0x20d,
	linkWidth: 16, linkSpeed: 3,
	issi: 1 << 1, bootPages: 6, initPages: 1024, clockKHz: 156250,
	realTime: true, swReset: true, dtor: true,
	cmdExecTO: 60 * time.Second, cmdQInitTO: 8 * time.Second,
	tracer: true, trcVer: 0, traceLogMax: 12,
	fields: cx5Fields,

	srcFirmware: sourced{Chosen, "a version of the ConnectX-5's major number"},
	srcPSID:     sourced{Chosen, "any board"},
	srcISSI:     sourced{Derived, "as the ConnectX-4's"},
	srcBoot:     sourced{Derived, "as the ConnectX-4's"},
	srcInit:     sourced{Chosen, "4 MiB: enough to need several mailboxes and mappings, quick in a virtual machine"},
	srcClock:    sourced{Chosen, "device_frequency_khz"},
	srcTimeouts: sourced{Chosen, "Linux's default for commands, four times its default for the queue"},
	srcLink:     sourced{Chosen, "PCIe 3.0 x16"},
	srcCaps:     sourced{Derived, "as the ConnectX-4's"},
	srcTracer:   sourced{Chosen, "no source says which device has which version or how large a buffer may be; Linux uses 256 KiB"},
}

// cx5Fields are the fields in which the ConnectX-5 differs.
var cx5Fields = []capField{
	general("device_frequency_mhz", 156, Chosen, "as the next"),
	general("device_frequency_khz", 156250, Chosen, "Linux refuses a clock without it (mlx5_init_clock)"),
	general("mcam_reg", 1, Derived, "register masks; gates the tracer registers"),
	general("pcam_reg", 1, Derived, "register masks of the port"),
	general("driver_version", 1, Derived, "Linux main.c (mlx5_set_driver_version) sends SET_DRIVER_VERSION where it is set"),
	general("umem_uid_0", 1, Derived, "rdma-core mlx5_vfio.c refuses a device without"),
	general("log_max_umem", 20, Chosen, "user memory of DEVX objects"),
	general("log_max_uctx", 10, Chosen, "user contexts of DEVX"),
	general("uctx_cap", 3, Chosen, "raw transmit and internal resources (Linux mlx5_ifc.h, uctx_cap)"),
	general("force_teardown", 1, Chosen, "Linux main.c: the shutdown path, after fast_teardown"),
	general("fast_teardown", 1, Chosen, "Linux main.c: the shutdown path tries it first"),
	{prm.CapGeneral, "release_all_pages", 1, 0, Chosen, "writable in Linux's handle_hca_cap"},
	general("cc_query_allowed", 0, Derived, "the model has no congestion control; Linux queries it where it is allowed"),
	general("cc_modify_allowed", 0, Derived, "as cc_query_allowed"),
	general("umr_modify_entity_size_disabled", 1, Derived, "the model does not carry out UMR; with this Linux creates keys by command"),
	general("umr_modify_atomic_disabled", 1, Derived, "as umr_modify_entity_size_disabled"),
	general("umr_indirect_mkey_disabled", 1, Derived, "as umr_modify_entity_size_disabled"),
	general("native_port_num", 1, Derived, "the first physical port"),
	general("log_max_atomic_size_qp", 8, Derived, "as atomic_size_qp"),
	general("log_max_atomic_size_dc", 8, Derived, "as atomic_size_dc"),
	{prm.CapAtomic, "atomic_size_qp", 0x1fc, 0x1fc, Chosen, "4 to 256 bytes, what masked fetch-and-add can carry in a WQE of 63 units of 16 bytes"},
	{prm.CapAtomic, "atomic_size_dc", 0x1fc, 0x1fc, Chosen, "as atomic_size_qp"},
	{prm.CapAtomic, "supported_atomic_req_8B_endianness_mode_1", 1, 1, Derived, "Linux main.c (handle_hca_cap_atomic) selects the mode where it is offered"},
}
