package sim

import (
	"time"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// devinfoCX6Dx is what a real ConnectX-6 Dx with an Ethernet port said of itself.
// Limits are powers of two there, and mlx5_ib's main.c says which capability each
// is made of.
const devinfoCX6Dx = "published ibv_devinfo -vv of a ConnectX-6 Dx, firmware 22.36.1010: "

// cx6dx is a ConnectX-6 Dx: the limits and identity that a real one showed to
// verbs, and for everything that verbs do not show the ConnectX-5's values.
var cx6dx = profile{
	name: "cx6dx", deviceID: 0x101d, revision: 0, subsystem: 0x0016, port: PortEth,
	firmware: Version{22, 36, 1010}, psid: "MT_0000000359", hwID: 0x212,
	linkWidth: 16, linkSpeed: 4,
	issi: 1 << 1, bootPages: 6, initPages: 1024, clockKHz: 1000000,
	realTime: true, swReset: true, dtor: true,
	cmdExecTO: 60 * time.Second, cmdQInitTO: 8 * time.Second,
	tracer: true, trcVer: 0, traceLogMax: 12,
	fields: append(carried("ConnectX-5", cx5Fields), cx6dxFields...),

	srcFirmware: sourced{Real, devinfoCX6Dx + "fw_ver"},
	srcPSID:     sourced{Real, devinfoCX6Dx + "board_id"},
	srcISSI:     sourced{Chosen, "as the ConnectX-5's"},
	srcBoot:     sourced{Chosen, "as the ConnectX-5's"},
	srcInit:     sourced{Chosen, "as the ConnectX-5's"},
	srcClock:    sourced{Real, devinfoCX6Dx + "hca_core_clock"},
	srcTimeouts: sourced{Chosen, "as the ConnectX-5's"},
	srcLink:     sourced{Real, "published lspci of a ConnectX-6 Dx: link capabilities"},
	srcCaps:     uncertainCaps,
	srcTracer:   sourced{Chosen, "as the ConnectX-5's"},
	srcRevision: sourced{Real, devinfoCX6Dx + "hw_ver, which is the PCI revision (mlx5_ib main.c)"},
	srcBAR:      sourced{Real, "published lspci of a ConnectX-6 Dx: region 0"},
	srcMSIX:     sourced{Derived, "published lspci of a BlueField-2, which has a ConnectX-6 Dx inside; 63 completion vectors in " + devinfoCX6Dx + "num_comp_vectors"},
	foreign: map[PortType]sourced{PortIB: {Chosen,
		"a ConnectX-6 Dx has Ethernet ports only; drivers that use nothing else can be tried with port=ib"}},
}

// uncertainCaps is where the capabilities of a device come from that no field of
// its own profile names.
var uncertainCaps = sourced{Chosen, "as the ConnectX-4's: not published for this device"}

// cx6dxFields are capabilities of the real device, as mlx5_ib computes from them
// what ibv_devinfo prints. What it prints of ODP, device memory and offloads the
// model does not have and does not offer.
var cx6dxFields = []capField{
	{prm.CapGeneral, "log_max_qp", 17, 14, Chosen, devinfoCX6Dx + "max_qp 131072, so at least 17 are allowed (Linux sets 17 or 18 where it can); the power-on value is the ConnectX-4's"},
	general("log_max_qp_sz", 15, Real, devinfoCX6Dx+"max_qp_wr 32768 (newer Linux divides it by the blocks of the longest WQE)"),
	general("log_max_cq", 24, Real, devinfoCX6Dx+"max_cq"),
	general("log_max_cq_sz", 22, Real, devinfoCX6Dx+"max_cqe, one less than the power"),
	general("log_max_mkey", 24, Real, devinfoCX6Dx+"max_mr"),
	general("log_max_pd", 23, Real, devinfoCX6Dx+"max_pd"),
	general("log_max_srq", 23, Real, devinfoCX6Dx+"max_srq"),
	general("log_max_srq_sz", 15, Real, devinfoCX6Dx+"max_srq_wr, one less than the power"),
	general("log_max_ra_req_qp", 4, Real, devinfoCX6Dx+"max_qp_rd_atom"),
	general("log_max_ra_res_qp", 4, Real, devinfoCX6Dx+"max_qp_init_rd_atom"),
	general("log_max_mcg", 21, Real, devinfoCX6Dx+"max_mcast_grp"),
	general("max_qp_mcg", 240, Real, devinfoCX6Dx+"max_mcast_qp_attach"),
	general("local_ca_ack_delay", 16, Real, devinfoCX6Dx+"local_ca_ack_delay"),
	general("log_max_rq", 23, Real, devinfoCX6Dx+"max_wq_type_rq"),
	general("log_max_rqt", 19, Real, devinfoCX6Dx+"max_rwq_indirection_tables"),
	general("log_max_rqt_size", 11, Real, devinfoCX6Dx+"max_rwq_indirection_table_size"),
	general("log_max_msg", 30, Real, devinfoCX6Dx+"max_msg_sz"),
	general("num_ports", 1, Real, devinfoCX6Dx+"phys_port_cnt"),
	general("apm", 1, Real, devinfoCX6Dx+"device_cap_flags, AUTO_PATH_MIG"),
	general("pkv", 1, Real, devinfoCX6Dx+"device_cap_flags, BAD_PKEY_CNTR"),
	general("qkv", 1, Real, devinfoCX6Dx+"device_cap_flags, BAD_QKEY_CNTR"),
	general("xrc", 1, Real, devinfoCX6Dx+"device_cap_flags, XRC"),
	general("atomic", 1, Real, devinfoCX6Dx+"atomic_cap ATOMIC_HCA"),
	general("device_frequency_khz", 1000000, Real, devinfoCX6Dx+"hca_core_clock"),
	general("device_frequency_mhz", 1000, Derived, "as device_frequency_khz"),
}
