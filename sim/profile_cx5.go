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
	build: buildCX5,
}

func buildCX5(t PortType) capPair {
	p := buildCX4(PortEth)
	p.apply(cx5Fields)
	if t == PortIB {
		p.apply(ibPort)
	}
	return p
}

// capField is a capability that differs from the ConnectX-4's.
type capField struct {
	typ  prm.CapType
	name string
	max  uint64
	cur  uint64
	why  string // source or reason of the choice
}

// apply sets fields in both sets.
func (p *capPair) apply(fields []capField) {
	for _, f := range fields {
		s := prm.CapStruct(f.typ)
		p.max.set(f.typ)
		p.cur.set(f.typ)
		mustPut(s, p.max[f.typ], f.name, f.max)
		mustPut(s, p.cur[f.typ], f.name, f.cur)
	}
}

// both is a field whose power-on value is its maximum.
func both(name string, v uint64, why string) capField {
	return capField{prm.CapGeneral, name, v, v, why}
}

// ibPort turns a device's port from Ethernet to InfiniBand.
var ibPort = []capField{
	both("port_type", 0, "0 is InfiniBand (caps.md 4.3)"),
	both("ib_virt", 1, "lets drivers use QUERY_HCA_VPORT_CONTEXT, as rdma-core does on InfiniBand ports"),
	both("eth_net_offloads", 0, "an InfiniBand port has no Ethernet offloads"),
	both("nic_flow_table", 0, "no flow tables without Ethernet offloads"),
	both("eswitch_manager", 0, "no e-switch on an InfiniBand port"),
	both("roce", 0, "RoCE runs on Ethernet"),
	both("ets", 0, "Ethernet traffic classes"),
	both("log_max_l2_table", 0, "MAC addresses of Ethernet"),
}

// cx5Fields are the fields in which the ConnectX-5 differs.
var cx5Fields = []capField{
	both("device_frequency_mhz", 156, "as the next"),
	both("device_frequency_khz", 156250, "Linux refuses a clock without it (mlx5_init_clock)"),
	both("mcam_reg", 1, "register masks; gates the tracer registers"),
	both("pcam_reg", 1, "register masks of the port"),
	both("driver_version", 1, "SET_DRIVER_VERSION in judge/demands/core-ib.txt"),
	both("umem_uid_0", 1, "rdma-core's VFIO provider refuses a device without (judge demand 11)"),
	both("log_max_umem", 20, "user memory of DEVX objects"),
	both("log_max_uctx", 10, "user contexts of DEVX"),
	both("uctx_cap", 3, "raw transmit and internal resources (caps.md 4.3)"),
	both("force_teardown", 1, "Linux's shutdown path (command-interface.md 2.10)"),
	both("fast_teardown", 1, "Linux's shutdown path (command-interface.md 2.10)"),
	{prm.CapGeneral, "release_all_pages", 1, 0, "writable in Linux's handle_hca_cap"},
	both("native_port_num", 1, "the first physical port"),
	both("log_max_atomic_size_qp", 8, "as atomic_size_qp"),
	both("log_max_atomic_size_dc", 8, "as atomic_size_dc"),
	{prm.CapAtomic, "atomic_size_qp", 0x1fc, 0x1fc, "4 to 256 bytes, what masked atomics can carry (decisions W4)"},
	{prm.CapAtomic, "atomic_size_dc", 0x1fc, 0x1fc, "as atomic_size_qp"},
	{prm.CapAtomic, "supported_atomic_req_8B_endianness_mode_1", 1, 1, "SET_HCA_CAP atomic in judge/demands/core-ib.txt"},
}
