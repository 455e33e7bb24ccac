package prm

// leftOutCaps are members of hca_cap_union that the tables do not hold:
// nothing here uses steering, emulation and crypto offloads.
var leftOutCaps = map[string]bool{
	"flow_table_eswitch_cap": true, "wqe_based_flow_table_cap": true, "port_selection_cap": true, "fpga_cap": true,
	"tls_cap": true, "virtio_emulation_cap": true, "macsec_cap": true, "crypto_cap": true, "ipsec_cap": true,
}

// factExemptions are rows of the facts that the tables deliberately differ from.
var factExemptions = map[string]string{
	"initial_seg.nic_interface": "ruling: 3 bits (10:8), because value 7 is used by Linux, rdma-core and the nodnic header; the ifc has 2",

	"qcam_access_reg_cap_mask.qcam_access_reg_cap_mask_127_to_20":                  "108 reserved mask bits in one field",
	"qcam_reg.qos_access_reg_cap_mask.reg_cap.qcam_access_reg_cap_mask_127_to_20":  "the same, flattened",
	"qcam_qos_feature_cap_mask.qcam_qos_feature_cap_mask_127_to_1":                 "127 reserved mask bits in one field",
	"qcam_reg.qos_feature_cap_mask.feature_cap.qcam_qos_feature_cap_mask_127_to_1": "the same, flattened",
	"event_auto.dropped_packet_logged":                                             "an empty structure: the ifc names no field of it",
	"eqe.event_data.dropped_packet_logged":                                         "the same, flattened",

	"qp_pas_or_qpc_ext_and_pas.qp_pas_list":                  "an empty structure whose tail begins where the union does",
	"query_qp_out.qp_pas_or_qpc_ext_and_pas.qp_pas_list":     "the same, flattened",
	"qp_pas_or_qpc_ext_and_pas.qp_pas_list.pas":              "the tail of that empty structure",
	"query_qp_out.qp_pas_or_qpc_ext_and_pas.qp_pas_list.pas": "the same, flattened",
}

// tableExemptions are fields of ifc structures that the ifc leaves reserved.
var tableExemptions = map[string]string{
	"initial_seg.fw_reset_supported":  "Linux health.c tests bit 30",
	"initial_seg.driver_reset_ack":    "Linux fw_reset.c writes bit 22",
	"initial_seg.recovery":            "nodnic header",
	"initial_seg.pre_boot_bios_hold":  "nodnic header",
	"initial_seg.initializing_state":  "nodnic header",
	"initial_seg.reset_state_machine": "Linux fw_reset.c reads bits 15:12",
	"initial_seg.pre_boot_action":     "nodnic header",
	"initial_seg.cmd_exec_to":         "device.h; TestCStructures",
	"initial_seg.cmd_q_init_to":       "device.h; TestCStructures",
	"initial_seg.internal_timer_h":    "device.h; TestCStructures",
	"initial_seg.internal_timer_l":    "device.h; TestCStructures",
	"initial_seg.real_time_h":         "device.h; TestCStructures",
	"initial_seg.real_time_l":         "device.h; TestCStructures",

	"health_buffer.assert_var": "device.h; TestCStructures",
	"health_buffer.crr":        "Linux 7.3 tests bit 30",

	"pages_req_event.embedded_cpu_function": "device.h; TestCStructures",
	"pages_req_event.release_all":           "device.h; TestCStructures",
	"event_auto.pages_req_event":            "device.h: data of event 0x0b",
	"event_auto.vport_change_event":         "device.h: data of event 0x0d",
	"event_auto.vhca_state_event":           "device.h: data of event 0x0f",
	"event_auto.port_module_event":          "device.h: data of event 0x16",
	"event_auto.temp_warning_event":         "device.h: data of event 0x17",
	"event_auto.xrq_error_event":            "device.h: data of event 0x18",
	"event_auto.sync_fw_update_event":       "device.h: data of event 0x22, sub-type 8",
	"event_auto.pps_event":                  "device.h: data of event 0x25",
	"event_auto.obj_change_event":           "device.h: data of event 0x27",

	"mtrc_cap.tracer_capabilities": "register database (ADB)",
	"mfrl_reg.pci_rescan_required": "register database (ADB)",
}

// structExemptions are structures without facts of their own in the CSV files.
var structExemptions = map[string]string{
	"general_obj_in_cmd_hdr_op_param":   "an unnamed union of the ifc; its members are rows of the parent",
	"mcam_reg_mng_access_reg_cap_mask":  "the same",
	"mcam_reg_mng_feature_cap_mask":     "the same",
	"pcam_reg_port_access_reg_cap_mask": "the same",
	"pcam_reg_feature_cap_mask":         "the same",
	"qcam_reg_qos_access_reg_cap_mask":  "the same",
	"qcam_reg_qos_feature_cap_mask":     "the same",
	"mgir_reg":                          "register database (ADB); Linux has no such structure",
	"mgir_hardware_info":                "the same",
	"mgir_fw_info":                      "the same",
	"wqe_wait_seg":                      "DPDK's public header",
}

// cMap relates a table to a C structure. pieces lists the table fields that
// make up one C field (by default the one of the same name, dots as
// underscores), gaps the number of bits of a C field without a name.
type cMap struct {
	name    string
	pieces  map[string][]string
	gaps    map[string]int
	leftOut map[string]string
	extra   map[string]string // table fields that the C structure does not have
	spans   map[string]string // table fields that join two C fields
	partial bool              // the ifc is the first witness; here only what device.h adds
}

type names = map[string][]string
type bits = map[string]int
type why = map[string]string

var opOwn = []string{"opcode", "format", "se", "owner"}

var cStructs = map[string]*cMap{
	"initial_seg": {name: "mlx5_init_seg", partial: true,
		pieces: names{
			"fw_rev":           {"fw_rev_minor", "fw_rev_major"},
			"cmdif_rev_fw_sub": {"cmd_interface_rev", "fw_rev_subminor"},
			"cmdq_addr_h":      {"cmdq_phy_addr_63_32"},
			"cmdq_addr_l_sz":   {"cmdq_phy_addr_31_12", "nic_interface", "log_cmdq_size", "log_cmdq_stride"},
			"cmd_dbell":        {"command_doorbell_vector"},
			"initializing": {"initializing", "fw_reset_supported", "nic_interface_supported", "embedded_cpu", "driver_reset_ack", "recovery",
				"pre_boot_bios_hold", "initializing_state", "reset_state_machine", "pre_boot_action"},
			"health":         {"health_buffer"},
			"health_counter": {"health_syndrome", "health_counter"},
		},
		gaps: bits{"cmdq_addr_l_sz": 1, "initializing": 32 - 20},
		leftOut: why{
			"ieee1588_clk":      "unused by every driver, and MSI-X tables lie there",
			"ieee1588_clk_type": "the same",
			"clr_intx":          "the same; clear_int at 0x100c is the one that ifc and OpenBSD have",
		}},
	"health_buffer": {name: "health_buffer", partial: true,
		pieces: names{"assert_exit_ptr": {"assert_existptr"}, "fw_ver": {"fw_version"}, "rfr_severity": {"rfr", "crr", "valid", "severity"}},
		gaps:   bits{"rfr_severity": 2}},
	"cmd_queue_entry": {name: "mlx5_cmd_layout", partial: true,
		pieces: names{
			"inlen":  {"input_length"},
			"in_ptr": {"input_mailbox_pointer_63_32", "input_mailbox_pointer_31_9"},
			"in":     {"command_input_inline_data"}, "out": {"command_output_inline_data"},
			"out_ptr": {"output_mailbox_pointer_63_32", "output_mailbox_pointer_31_9"},
			"outlen":  {"output_length"}, "sig": {"signature"}, "status_own": {"status", "ownership"},
		},
		gaps: bits{"in_ptr": 9, "out_ptr": 9}},
	"cmd_if_box": {name: "mlx5_cmd_prot_block", partial: true,
		pieces: names{"data": {"mailbox_data"}, "next": {"next_pointer_63_32", "next_pointer_31_10"}, "block_num": {"block_number"},
			"ctrl_sig": {"ctrl_signature"}, "sig": {"signature"}},
		gaps: bits{"next": 10}},
	"eqe": {name: "mlx5_eqe", partial: true,
		pieces: names{"type": {"event_type"}, "sub_type": {"event_sub_type"}, "data": {"event_data"}},
		gaps:   bits{"owner": 7}},
	"pages_req_event": {name: "mlx5_eqe_page_req", partial: true,
		pieces: names{"ec_function": {"embedded_cpu_function", "release_all"}, "func_id": {"function_id"}},
		gaps:   bits{"ec_function": 14}},

	"vport_change_event":   {name: "mlx5_eqe_vport_change"},
	"port_module_event":    {name: "mlx5_eqe_port_module"},
	"temp_warning_event":   {name: "mlx5_eqe_temp_warning"},
	"pps_event":            {name: "mlx5_eqe_pps"},
	"obj_change_event":     {name: "mlx5_eqe_obj_change"},
	"vhca_state_event":     {name: "mlx5_eqe_vhca_state"},
	"xrq_error_event":      {name: "mlx5_eqe_xrq_err", pieces: names{"type_xrqn": {"type", "xrqn"}}},
	"sync_fw_update_event": {name: "mlx5_eqe_sync_fw_update", gaps: bits{"sync_rst_state": 4}},

	"wqe_ctrl_seg": {name: "mlx5_wqe_ctrl_seg",
		pieces: names{"opmod_idx_opcode": {"opmod", "wqe_index", "opcode"}, "qpn_ds": {"qpn", "ds"}, "fm_ce_se": {"fm", "ce", "se"}},
		gaps:   bits{"qpn_ds": 2, "fm_ce_se": 2},
		extra:  why{"dci_stream_channel_id": "mlx5dv.h"}},
	"wqe_raddr_seg":             {name: "mlx5_wqe_raddr_seg"},
	"wqe_atomic_seg":            {name: "mlx5_wqe_atomic_seg"},
	"wqe_masked_atomic_seg":     {name: "mlx5_wqe_masked_atomic_seg"},
	"atomic_masked_cswap32_seg": {name: "uct_ib_mlx5_atomic_masked_cswap32_seg"},
	"atomic_masked_cswap64_seg": {name: "uct_ib_mlx5_atomic_masked_cswap64_seg"},
	"atomic_masked_fadd32_seg":  {name: "uct_ib_mlx5_atomic_masked_fadd32_seg", pieces: names{"filed_boundary": {"field_boundary"}}},
	"atomic_masked_fadd64_seg":  {name: "uct_ib_mlx5_atomic_masked_fadd64_seg", pieces: names{"filed_boundary": {"field_boundary"}}},
	"wqe_data_seg":              {name: "mlx5_wqe_data_seg", gaps: bits{"byte_count": 1}},
	"wqe_inline_seg": {name: "mlx5_wqe_inline_seg", pieces: names{"byte_count": {"inline", "byte_count"}},
		spans: why{"data": "inline data are bytes; the C tail is of words"}},
	"wqe_xrc_seg":      {name: "mlx5_wqe_xrc_seg"},
	"wqe_umr_ctrl_seg": {name: "mlx5_wqe_umr_ctrl_seg"},
	"wqe_srq_next_seg": {name: "mlx5_wqe_srq_next_seg"},
	"wqe_eth_seg":      {name: "mlx5_wqe_eth_seg", leftOut: why{"inline_hdr.data": "the C tail that begins at inline_hdr.start"}},
	"base_av": {name: "mlx5_base_av",
		pieces: names{"key.qkey.qkey": {"qkey"}, "key.dc_key": {"dc_key"}, "dqp_dct": {"ext", "dqp_dct"}, "stat_rate_sl": {"stat_rate", "sl"}, "fl_mlid": {"fl", "mlid"}},
		gaps:   bits{"dqp_dct": 7}},
	"av": {name: "mlx5_av",
		pieces: names{"key.qkey.qkey": {"base.qkey"}, "key.dc_key": {"base.dc_key"}, "dqp_dct": {"base.ext", "base.dqp_dct"},
			"stat_rate_sl": {"base.stat_rate", "base.sl"}, "fl_mlid": {"base.fl", "base.mlid"}, "rlid": {"base.rlid"},
			"udp_sport": {"base.udp_sport"}, "grh_gid_fl": {"grh", "sgid_index", "flow_label"}},
		gaps: bits{"dqp_dct": 7, "grh_gid_fl": 3}},
	"wqe_datagram_seg": {name: "mlx5_wqe_datagram_seg"},
	"klm":              {name: "mlx5_klm", gaps: bits{"bcount": 1}},
	"ksm":              {name: "mlx5_ksm"},

	"cqe64": {name: "mlx5_cqe64",
		pieces: names{"flags_rqpn": {"grh", "sl", "rqpn"}, "l4_l3_hdr_type": {"l4_hdr_type", "l3_hdr_type", "vlan_present"}, "srqn": {"srqn"},
			"timestamp_h": {"timestamp"}, "timestamp_l": {"timestamp"}, "sop_drop_qpn": {"s_wqe_opcode", "qpn"}, "op_own": opOwn},
		gaps:    bits{"flags_rqpn": 2, "l4_l3_hdr_type": 2, "srqn": 8},
		spans:   why{"timestamp": "one 64-bit number in two C words"},
		leftOut: why{"shampo.header_size": "header-data split of Ethernet", "shampo.header_entry_index": "the same", "shampo.data_offset": "the same"},
		extra:   why{"lro_num_seg": "high byte of the srqn word (illumos)", "user_index": "srqn with cqe_version 1", "sop_drop": "high byte of sop_drop_qpn, in its other use"}},
	"err_cqe": {name: "mlx5_err_cqe",
		pieces: names{"s_wqe_opcode_qpn": {"s_wqe_opcode", "qpn"}, "op_own": opOwn},
		extra:  why{"hw_err_synd": "NVSHMEM's debug copy", "hw_synd_type": "NVSHMEM's debug copy"}},
	"sig_err_cqe": {name: "mlx5_sig_err_cqe", pieces: names{"op_own": opOwn}},
	"mini_cqe8": {name: "mlx5_mini_cqe8",
		pieces: names{"s_wqe_info.wqe_counter": {"wqe_counter"}, "s_wqe_info.s_wqe_opcode": {"s_wqe_opcode"}}},
}
