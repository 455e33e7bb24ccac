package sim

// dataRulings are the decisions of the data engine that Rulings does not name
// itself.
func dataRulings() []Ruling {
	return []Ruling{
		{"when work is done", "a doorbell returns when everything it started is complete, except under a load or fault and for what takes time: RNR, timeouts, the rest of an interrupted WRITE", "no source"},
		{"overlap", "what may overlap is chosen by the seed: packets on their way, queues with something to send, and READs not yet answered take turns at random", "fences exist because operations overlap"},
		{"READ without a fence", "its data is read when the answer is sent: later WRITEs, SENDs and atomics of the same QP may come first", "IB, work request operation ordering: fence required"},
		{"units", "a WRITE that is atomic is one unit toward every operation of the device; toward the host's processors each aligned 8-byte word of it is, as of any WRITE up to 1024 bytes", "no source"},
		{"atomic size not allowed", "a size that the requester's capabilities lack is LOCAL_QP_OP_ERR, one that the responder's atomic_mode or capabilities lack is REMOTE_INVAL_REQ_ERR", "no source"},
		{"operations closed", "a QP without rre, rwe or rae refuses with a NAK for an invalid request, a key without the right with one for access", "IB; not seen on hardware"},
		{"host memory out of reach", "an access that the I/O address space refuses is LOCAL_PROT_ERR for the QP's own lists, and for the peer's a remote operation error with WQ_CATAS_ERROR", "no source"},
		{"errors of the responder", "a refusal moves the responder's QP to error after the NAK is out; an access violation or invalid request raises its event, unless a receive completion tells", "IB"},
		{"WRITE with immediate refused", "a receive entry that is posted completes with LOCAL_ACCESS_ERR", "ibverbs' meaning of LOC_ACCESS_ERR"},
		{"SEND with invalidate", "the key must belong to the PD and have en_rinval; otherwise both sides end with REMOTE_INVAL_REQ_ERR", "no source"},
		{"unreliable services", "an error of the sender stops the send queue (SQER); a datagram too long for its entry ends the receiver", "IB; not seen on hardware"},
		{"entries checked", "ctrl must name the QP and the entry's own index, ds what was posted, opmod is for masked atomics only, fm is at most 4: anything else is LOCAL_QP_OP_ERR", "no source"},
		{"opcodes not modelled", "UMR, LOCAL_INVAL, BIND_MW, LSO, PSV and the later ones are LOCAL_QP_OP_ERR", "no source"},
		{"receive signatures", "with wq_signature receive entries begin with a signature segment, which is not verified", "rdma-core mlx5 qp.c"},
		{"completion modes", "an entry that asks for a completion with the first error only has none when it is flushed", "the names in illumos mlxcx"},
		{"byte_cnt of a sender", "the length for READs and atomics, 0 otherwise", "mlx5_ib cq.c reads it for those only"},
		{"receives in error", "a receive queue in error is looked at after 50 µs and then ever more rarely, every 100 ms at last, and what was posted is flushed", "mlx5_ib drains a queue by posting to it in error"},
		{"broken queues", "a ring or record that cannot be read, or that claims more entries than there are, is WQ_CATAS_ERROR and the end of the QP; of a shared queue SRQ_CATAS_ERROR too", "no source"},
		{"lost completion queue", "its QPs get WQ_CATAS_ERROR and go to error", "no source"},
		{"WAIT and SEND_EN", "max_index counts: completions written, blocks or entries enabled; SEND_EN and RECV_EN need cd_master, WAIT does not", "DPDK mlx5_txpp.c"},
		{"who may talk to a connected QP", "packets whose source is not the QP's path are dropped", "IB, packet validation"},
		{"loopback", "functions of a chip reach one another whether the port is up or not; the link to another chip needs it up on both", "unknown on hardware"},
		{"RoCE addresses", "a packet reaches the function whose table has both its GID and its MAC; roce_en is not asked", "a test program that works with rdma-core does not set it"},
		{"route header of a datagram", "its length counts BTH, DETH, immediate, data padded to 4 and ICRC, in RoCE version 2 UDP's header too; identification, flags and checksum of an IPv4 header are 0", "IBTA 8.3 and the RoCEv2 annex for the lengths; what hardware leaves in an IPv4 header is not known"},
		{"two ends of a link", "at the second end LIDs begin at 0x11 and the fifth byte of a MAC is 1", "no source"},
		{"multicast", "datagrams to a group are lost", "not modelled"},
	}
}
