package sim

import "time"

const devinfoBF3 = "published ibv_devinfo of a BlueField-3 with an InfiniBand port, firmware 32.47.1088: "

// bf3 is the ConnectX-7 inside a BlueField-3 as its host sees it: a physical
// function, not the one of the embedded cores (the model has no ECPF, so
// embedded_cpu reads 0). Its identity is a real one's, the capabilities are the
// ConnectX-7's but for what verbs showed.
var bf3 = profile{
	name: "bf3", deviceID: 0xa2dc, revision: 1, subsystem: 0x0051, port: PortIB,
	firmware: Version{32, 47, 1088}, psid: "MT_0000000965", hwID: 0x21c,
	linkWidth: 16, linkSpeed: 5,
	issi: 1 << 1, bootPages: 6, initPages: 1024, clockKHz: 1000000,
	realTime: true, swReset: true, dtor: true,
	cmdExecTO: 60 * time.Second, cmdQInitTO: 8 * time.Second,
	tracer: true, trcVer: 0, traceLogMax: 12,
	fields: append(append(carried("ConnectX-5", cx5Fields), carried("ConnectX-6 Dx", cx6dxFields)...), bf3Fields...),

	srcFirmware:  sourced{Real, devinfoBF3 + "fw_ver"},
	srcPSID:      sourced{Real, devinfoBF3 + "board_id"},
	srcISSI:      sourced{Chosen, "as the ConnectX-5's"},
	srcBoot:      sourced{Chosen, "as the ConnectX-5's"},
	srcInit:      sourced{Chosen, "as the ConnectX-5's"},
	srcClock:     sourced{Chosen, "as the ConnectX-6 Dx's"},
	srcTimeouts:  sourced{Chosen, "as the ConnectX-5's"},
	srcLink:      sourced{Real, "NVIDIA's BlueField-3 DPU Controller manual: PCIe 5.0 through an x16 edge connector"},
	srcCaps:      uncertainCaps,
	srcTracer:    sourced{Chosen, "as the ConnectX-5's"},
	srcRevision:  sourced{Real, devinfoBF3 + "hw_ver, which is the PCI revision (mlx5_ib main.c); published lspci of a BlueField-3 says rev 01 too"},
	srcSubsystem: sourced{Chosen, "as the ConnectX-7's"},
	srcBAR:       sourced{Chosen, "as the ConnectX-7's and the BlueField-2's"},
	srcMSIX:      sourced{Chosen, "as the ConnectX-7's and the BlueField-2's"},
}

// bf3Fields are what is known of the device's capabilities.
var bf3Fields = []capField{
	general("log_max_ra_req_qp", 4, Real, devinfoBF3+"max_qp_rd_atom"),
	general("atomic", 1, Real, devinfoBF3+"atomic_cap ATOMIC_HCA"),
	general("apm", 1, Real, devinfoBF3+"device_cap_flags 0x21361c36, bit 4"),
	general("pkv", 1, Real, devinfoBF3+"device_cap_flags, bit 1"),
	general("qkv", 1, Real, devinfoBF3+"device_cap_flags, bit 2"),
	general("xrc", 1, Real, devinfoBF3+"device_cap_flags, bit 20"),
}
