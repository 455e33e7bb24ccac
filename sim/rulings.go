package sim

// Ruling is a decision of the model where facts are silent or disagree. Hardware
// may overrule each one day.
type Ruling struct {
	Name   string `json:"name"`
	Text   string `json:"text"`
	Source string `json:"source"` // what is known about it
}

// Rulings lists the model's decisions.
func Rulings() []Ruling {
	return []Ruling{
		{"interface step", "a QUERY_ISSI that is refused or does not offer ISSI 1 lets the driver go on with ISSI 0 and without SET_ISSI; where 1 is offered SET_ISSI must come", "Linux main.c (mlx5_core_set_issi) sends no SET_ISSI then"},
		{"out of order", "a command in the wrong phase is refused with BAD_SYS_STATE", "no source; hardware's own answer is not known"},
		{"order of checks", "opcode, phase, op_mod, input length, output length, user context, then the command's own", "no source"},
		{"boot pages", "SET_HCA_CAP and INIT_HCA want the boot pages first; queries, registers and ISSI do not", "Linux main.c sends both after the boot pages; the rest has no source"},
		{"init pages", "INIT_HCA without them is refused with NO_RES", "no source; BAD_SYS_STATE would do as well"},
		{"init page count", "it does not depend on the capabilities that were set", "one real count is known: 12,868"},
		{"pages checked", "pages given must be aligned, new and reachable by DMA, or all of them are refused with BAD_PARAM", "no source; firmware would fail later and worse"},
		{"pages used", "firmware does not write into the pages it is given", "what a real one keeps there is unknown"},
		{"take while running", "between INIT_HCA and TEARDOWN_HCA only pages that firmware offered come back; otherwise any, in random order", "drivers take any order; the rest has no source"},
		{"pages after teardown", "they stay firmware's, unused, until taken; ENABLE_HCA, DISABLE_HCA, a forced or fast teardown and every reset drop the rest", "rdma-core mlx5_vfio.c takes none back and disables nothing at close"},
		{"teardown with objects", "a graceful teardown destroys them", "no source"},
		{"objects still used", "what another object works with cannot be destroyed: RES_BUSY", "no source"},
		{"truncation", "an output shorter than the answer cuts it, down to the command's minimum; what lies beyond the answer is not written", "snabb asks for short QUERY_HCA_CAP outputs"},
		{"failed command", "only status and syndrome are written, output mailboxes stay as they were", "no source"},
		{"longer chains", "mailboxes beyond the length of a message are not looked at", "Linux cmd.c reuses longer chains"},
		{"head alignment", "the pointers in the entry are 512-byte granular, next pointers 1024", "ifc widths of the two fields"},
		{"mailbox without memory", "delivery status FW_ERR", "no source"},
		{"signatures", "entries are signed until INIT_HCA, afterwards only with cmdif_checksum 3; with it inputs are verified and output mailboxes signed, from INIT_HCA on", "golden: entries signed up to INIT_HCA, no mailbox ever; the rest is inferred from the names"},
		{"capability types", "a known type that the device lacks reads as zeros; an unknown one is BAD_PARAM", "tools query types without asking whether they exist; no source for the answer"},
		{"writing capabilities", "only the writable fields change, values above the maximum are BAD_PARAM, everything else in the input is ignored", "Linux main.c sends zeros for the rest of the atomic capabilities and keeps using them"},
		{"event queues", "an event goes to the lowest-numbered queue whose mask has it", "no source"},
		{"event queue overrun", "the entry is lost, the queue's status becomes EQ_WRITE_FAILURE and the health buffer shows a syndrome without recovery", "Linux health.c has the syndrome; the rest has no source"},
		{"event queue pages", "addresses must be aligned to the page size", "golden: they were"},
		{"doorbell protection", "an event queue hears only doorbells of the UAR it was created with", "no source"},
		{"lowest number first", "UARs and event queues reuse the lowest free number, other objects go round before reusing one", "golden: both start at 0x10"},
		{"narrow stores", "registers take whole dwords; narrower stores are dropped", "every driver stores dwords"},
		{"UAR reads", "UAR pages and holes of BAR 0 read as zero", "no source"},
		{"memory off", "with memory decoding off or outside D0 reads give all ones and writes vanish", "PCI: unsupported request"},
		{"opening", "the first handle finds memory decoding on and bus mastering off; closing the last resets the function", "vfio-pci"},
		{"reset verb", "FLR with configuration space saved and restored; FLR through device control clears it", "vfio-pci; PCIe"},
		{"health counter", "one every 10 ms, never 0", "no source states a rate; Linux health.c and rdma-core only want it to move"},
		{"health after a reset", "an FLR, a firmware reset and the end of a fast teardown empty the health buffer", "Linux health.c after a firmware reset; FLR by its nature"},
		{"health time", "seconds since the epoch", "Linux prints it as a bare number and sets the device's clock through register MRTC"},
		{"nic_interface_supported", "a bit mask: full driver and disabled", "Linux mlx5_ifc.h names the values and does not say whether they are bits"},
		{"firmware reset", "it takes all functions of the chip, which then read DISABLED with a clean health buffer", "Linux health.c asks for it, waits for DISABLED and comes up again; functions that did not ask see it too"},
		{"no real-time clock", "without the capability the real-time words read as zero", "no source"},
		{"port", "the cable is in, the link is up at 100 Gb/s and InfiniBand has a subnet manager: LID is the function's number plus one", "no source"},
		{"other functions", "function ids, vports and ports other than the function's own are refused: the model has no VFs", "no source"},
		{"cx4 clock", "device_frequency_khz is 0 as captured, so newer Linux kernels warn that they have no hardware clock", "golden"},
		{"cx4 timeouts", "the timeout registers read zero: not supported, and with them DTOR", "Linux lib/tout.c: 0 is not supported"},
		{"first numbers", "CQs from 0x400, QPs from 0x40, shared receive queues from 0x10, Q counter sets from 1", "0 and 1 are InfiniBand's special QPs; counter_set_id 0 is no set; the rest has no source"},
		{"QP state matrix", "each transition from its own state only, 2ERR and 2RST from any; otherwise BAD_QP_STATE", "IB; Linux qp.c sends no other"},
		{"send queue drained", "no command leads to SQD: current headers have none", "the 0x508 of the first Linux headers is gone from later ones"},
		{"creation holds", "PD, CQs and pm_state are CREATE_QP's; RST2INIT does not change them", "Linux repeats them there, rdma-core's users leave them zero"},
		{"atomic fields", "atomic_mode and atomic_like_write_en are taken by RST2INIT, by INIT2RTR and later together with RAE", "Linux sends the first, NVIDIA GDS the second, with remote atomic access"},
		{"port and P_Key", "INIT2RTR takes the path but its port and, unless selected, its P_Key index stay those of INIT", "Linux mlx5_ib qp.c (opt_mask): PKEY_INDEX is optional there, the port is not named"},
		{"opt_param_mask", "a bit that Linux's table (mlx5_ib qp.c, opt_mask) does not list for transition and service type is BAD_PARAM", "Linux masks them with it before it sends"},
		{"back to RST", "2RST restores the context of CREATE_QP and leaves the set of counters", "no source"},
		{"QP0, QP1 and UMR", "the queues can be created, the UMR queue without a PD; no management datagram arrives, and the capabilities say that UMR does nothing", "mlx5_ib insists on them"},
		{"raw send queues", "they carry NOPs only and share the QPs' numbers", "mlx5_core finds out about write combining with one"},
		{"queues that are not there", "the CQ of a queue that a QP does not have is not looked at", "Linux sets both, rdma-core's users need not"},
		{"page_offset", "it counts sixty-fourths of a page", "Linux mlx5_ib mem.c; 64 bytes only for 4096-byte pages"},
		{"CQ overrun", "the consumer index in the doorbell record is looked up when the ring seems full; the entry that does not fit is lost, the queue is dead, CQ_ERROR tells", "no source for what comes after the event"},
		{"arm sequence number", "kept, not compared", "arming is a level for Linux and mlx5_ib; no source for repeated numbers"},
		{"moderation", "of CQs and vectors: kept, not applied; events come at once", "no source for exact times"},
		{"completion compression", "refused at CREATE_CQ", "no source for what the model would have to compress when"},
		{"BlueFlame", "the first eight bytes of a buffer are the doorbell, the rest is ignored: the entry is read from memory", "a device may take the bytes from the buffer instead"},
		{"halves of doorbells", "two 4-byte stores in ascending order are one 8-byte doorbell", "Linux mlx5_write64 on 32 bits"},
		{"receive limit", "the event comes once, when fewer entries are left than the limit, and at once where that is so when it is armed", "IB: SRQ limit reached"},
		{"shared uid", "uid 0xffff is no user context: what is created with it belongs to nobody", "Linux mlx5_ib, MLX5_SHARED_RESOURCE_UID"},
		{"user memory", "CQs, QPs and RMPs lie in it; SRQs, XRC SRQs and translations of memory keys do not", "the layouts have no fields for those"},
		{"port up again", "setting the administrative state raises PORT_CHANGE with the outcome even where nothing changed", "rdma-core's VFIO test brings a port up that is up and waits for the event"},
		{"subnet agent", "MAD_IFC answers Get of NodeDescription, NodeInfo, GUIDInfo, PortInfo and P_KeyTable; everything else is a status in the datagram", "IB volume 1, chapter 14"},
		{"load", "a command takes an exponentially distributed time of mean 1/RATE seconds, each on its own", "no source"},
	}
}
