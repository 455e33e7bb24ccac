package sim

import "time"

const (
	devinfoCX7 = "published ibv_devinfo of a ConnectX-7 with an InfiniBand port, firmware 28.40.1000: "
	lspciCX7   = "published lspci -vv of a ConnectX-7, firmware 28.40.1000: "
)

// cx7 is a ConnectX-7. Its identity and configuration space are a real one's; no
// source publishes its capabilities, so they are the ConnectX-6 Dx's.
var cx7 = profile{
	name: "cx7", deviceID: 0x1021, revision: 0, subsystem: 0x0051, port: PortIB,
	firmware: Version{28, 40, 1000}, psid: "MT_0000000834", hwID: 0x218,
	linkWidth: 16, linkSpeed: 5,
	issi: 1 << 1, bootPages: 6, initPages: 1024, clockKHz: 1000000,
	realTime: true, swReset: true, dtor: true,
	cmdExecTO: 60 * time.Second, cmdQInitTO: 8 * time.Second,
	tracer: true, trcVer: 0, traceLogMax: 12,
	fields: append(append(carried("ConnectX-5", cx5Fields), carried("ConnectX-6 Dx", cx6dxFields)...), cx7Fields...),

	srcFirmware:  sourced{Real, devinfoCX7 + "fw_ver"},
	srcPSID:      sourced{Real, devinfoCX7 + "board_id"},
	srcISSI:      sourced{Chosen, "as the ConnectX-5's"},
	srcBoot:      sourced{Chosen, "as the ConnectX-5's"},
	srcInit:      sourced{Chosen, "as the ConnectX-5's"},
	srcClock:     sourced{Chosen, "as the ConnectX-6 Dx's"},
	srcTimeouts:  sourced{Chosen, "as the ConnectX-5's"},
	srcLink:      sourced{Real, lspciCX7 + "link capabilities"},
	srcCaps:      uncertainCaps,
	srcTracer:    sourced{Chosen, "as the ConnectX-5's"},
	srcRevision:  sourced{Real, devinfoCX7 + "hw_ver, which is the PCI revision (mlx5_ib main.c)"},
	srcSubsystem: sourced{Real, "published lspci of a ConnectX-7 with an InfiniBand port"},
	srcBAR:       sourced{Real, lspciCX7 + "region 0"},
	srcMSIX:      sourced{Real, lspciCX7 + "MSI-X"},
}

// cx7Fields are what is known of the device's capabilities.
var cx7Fields = []capField{
	general("num_ports", 1, Real, devinfoCX7+"phys_port_cnt"),
}
