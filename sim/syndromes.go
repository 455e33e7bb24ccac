package sim

import "github.com/mlxvfio/mlxvfio/internal/prm"

// synd is a reason of the model to refuse a command; 0 is success.
type synd uint32

// Syndromes. A real device's are firmware-specific and unpublished; these are
// the model's own, and each always comes with the same status.
const (
	syndOK synd = 0

	syndNotEnabled synd = 0x51de00 + iota
	syndEnabled
	syndNoISSI
	syndISSISet
	syndNotInit
	syndInit
	syndTornDown
	syndReservedOpcode
	syndNotModelled
	syndOpMod
	syndInputShort
	syndOutputShort
	syndUID
	syndFunctionID
	syndISSI
	syndBootPages
	syndInitPages
	syndPageAlign
	syndPageTwice
	syndPageUnmapped
	syndPageCount
	syndCapType
	syndCapAboveMax
	syndProfile
	syndProfileCap
	syndRegister
	syndRegisterShort
	syndRegisterReadOnly
	syndRegisterIndex
	syndNoUAR
	syndUARBusy
	syndOutOfUARs
	syndEQSize
	syndEQVector
	syndEQPage
	syndNoEQ
	syndOutOfEQs
	syndNoPD
	syndPDBusy
	syndOutOfPDs
	syndNoMKey
	syndMKeyMode
	syndMKeyPage
	syndMKeyLength
	syndOutOfMKeys
	syndNoUMEM
	syndUMEMPage
	syndUMEMUID
	syndOutOfUMEMs
	syndNoUCTX
	syndUCTXBusy
	syndUCTXCap
	syndOutOfUCTXs
	syndNoTD
	syndOutOfTDs
	syndPort
	syndVport
	syndVportState
	syndVportField
	syndTableIndex
	syndInjected
	syndPageStarvation
	syndEQBusy
	syndUMEMBusy
	syndRecord
	syndQueuePage
	syndMKeyTranslations
	syndMKeyRange
	syndMKeySignature
	syndMKeyUMEM
	syndMKeyAtomic
	syndNoCQ
	syndCQSize
	syndCQEntry
	syndCQBusy
	syndCQField
	syndCQShrink
	syndOutOfCQs
	syndNoQP
	syndQPState
	syndQPType
	syndQPQueue
	syndQPSize
	syndQPPath
	syndQPMTU
	syndQPMessage
	syndQPDepth
	syndQPAtomic
	syndQPField
	syndQPOptional
	syndOutOfQPs
	syndNoSQ
	syndSQState
	syndNoSRQ
	syndSRQKind
	syndSRQSize
	syndSRQLimit
	syndSRQBusy
	syndSRQUMEM
	syndRMPState
	syndOutOfSRQs
	syndNoXRCD
	syndXRCDBusy
	syndOutOfXRCDs
	syndNoCounters
	syndCountersBusy
	syndOutOfCounters
	syndRoceOff
	syndRoceIndex
	syndRoceAddress
	syndVector
	syndResetLevel
	syndResetBusy
	syndTraceConf
	syndTraceStatus
	syndTraceSection
	syndTraceKey
	syndEnd
)

// Syndrome is one entry of the model's list.
type Syndrome struct {
	Code   uint32
	Status prm.CommandStatus
	Text   string
}

var syndromes = map[synd]Syndrome{
	syndNotEnabled:       {Status: prm.StatusBadSysState, Text: "the function is not enabled: send ENABLE_HCA first"},
	syndEnabled:          {Status: prm.StatusBadSysState, Text: "the function is enabled already"},
	syndNoISSI:           {Status: prm.StatusBadSysState, Text: "no ISSI is set: send QUERY_ISSI and SET_ISSI first"},
	syndISSISet:          {Status: prm.StatusBadSysState, Text: "the ISSI can be set only once after ENABLE_HCA"},
	syndNotInit:          {Status: prm.StatusBadSysState, Text: "the device is not initialized: send INIT_HCA first"},
	syndInit:             {Status: prm.StatusBadSysState, Text: "not possible once the device is initialized"},
	syndTornDown:         {Status: prm.StatusBadSysState, Text: "the device was torn down: only pages can be taken back and the function disabled"},
	syndReservedOpcode:   {Status: prm.StatusBadOp, Text: "the opcode has no command"},
	syndNotModelled:      {Status: prm.StatusBadOp, Text: "the command exists but the model does not implement it"},
	syndOpMod:            {Status: prm.StatusBadOp, Text: "the command has no such op_mod"},
	syndInputShort:       {Status: prm.StatusBadInpLen, Text: "the input ends before the command does"},
	syndOutputShort:      {Status: prm.StatusBadOutpLen, Text: "the output cannot take the answer"},
	syndUID:              {Status: prm.StatusBadParam, Text: "the user context of the uid does not exist"},
	syndFunctionID:       {Status: prm.StatusBadParam, Text: "the function id is not one that this function may speak for"},
	syndISSI:             {Status: prm.StatusBadParam, Text: "the ISSI is not among those that QUERY_ISSI offers"},
	syndBootPages:        {Status: prm.StatusBadSysState, Text: "boot pages are missing: QUERY_PAGES and MANAGE_PAGES first"},
	syndInitPages:        {Status: prm.StatusNoRes, Text: "init pages are missing: QUERY_PAGES and MANAGE_PAGES first"},
	syndPageAlign:        {Status: prm.StatusBadParam, Text: "a page address is not a multiple of 4096"},
	syndPageTwice:        {Status: prm.StatusBadParam, Text: "a page is firmware's already"},
	syndPageUnmapped:     {Status: prm.StatusBadParam, Text: "a page cannot be reached by DMA: map it first"},
	syndPageCount:        {Status: prm.StatusBadInpLen, Text: "the input holds fewer page addresses than it counts"},
	syndCapType:          {Status: prm.StatusBadParam, Text: "the capability type does not exist"},
	syndCapAboveMax:      {Status: prm.StatusBadParam, Text: "a capability is set above its maximum"},
	syndProfile:          {Status: prm.StatusBadParam, Text: "the teardown profile does not exist"},
	syndProfileCap:       {Status: prm.StatusBadParam, Text: "the teardown profile needs a capability that the device lacks"},
	syndRegister:         {Status: prm.StatusBadParam, Text: "the register does not exist on this device"},
	syndRegisterShort:    {Status: prm.StatusBadInpLen, Text: "the register image is too short"},
	syndRegisterReadOnly: {Status: prm.StatusBadParam, Text: "the register cannot be written"},
	syndRegisterIndex:    {Status: prm.StatusBadParam, Text: "an index field of the register selects nothing"},
	syndNoUAR:            {Status: prm.StatusBadRes, Text: "the UAR is not allocated"},
	syndUARBusy:          {Status: prm.StatusResBusy, Text: "queues still use the UAR"},
	syndOutOfUARs:        {Status: prm.StatusNoRes, Text: "all UARs are allocated"},
	syndEQSize:           {Status: prm.StatusBadParam, Text: "the event queue is larger than log_max_eq_sz"},
	syndEQVector:         {Status: prm.StatusBadIndex, Text: "the interrupt vector does not exist"},
	syndEQPage:           {Status: prm.StatusBadParam, Text: "the event queue's page size, offset or page list does not hold its entries"},
	syndNoEQ:             {Status: prm.StatusBadRes, Text: "the event queue does not exist"},
	syndOutOfEQs:         {Status: prm.StatusNoRes, Text: "all event queues exist already"},
	syndNoPD:             {Status: prm.StatusBadRes, Text: "the protection domain does not exist"},
	syndPDBusy:           {Status: prm.StatusResBusy, Text: "memory keys or queues still use the protection domain"},
	syndOutOfPDs:         {Status: prm.StatusNoRes, Text: "all protection domains are allocated"},
	syndNoMKey:           {Status: prm.StatusBadRes, Text: "the memory key does not exist"},
	syndMKeyMode:         {Status: prm.StatusBadParam, Text: "the memory key's access mode is not supported"},
	syndMKeyPage:         {Status: prm.StatusBadParam, Text: "the memory key's page size is smaller than log_pg_sz"},
	syndMKeyLength:       {Status: prm.StatusBadParam, Text: "the translations do not cover the memory key's length"},
	syndOutOfMKeys:       {Status: prm.StatusNoRes, Text: "all memory keys exist already"},
	syndNoUMEM:           {Status: prm.StatusBadRes, Text: "the user memory does not exist"},
	syndUMEMPage:         {Status: prm.StatusBadParam, Text: "the user memory's page offset lies outside its first page, or it has no pages"},
	syndUMEMUID:          {Status: prm.StatusBadParam, Text: "user memory without a user context needs the umem_uid_0 capability"},
	syndOutOfUMEMs:       {Status: prm.StatusNoRes, Text: "all user memories exist already"},
	syndNoUCTX:           {Status: prm.StatusBadRes, Text: "the user context does not exist"},
	syndUCTXBusy:         {Status: prm.StatusResBusy, Text: "objects still use the user context"},
	syndUCTXCap:          {Status: prm.StatusBadParam, Text: "a user context asks for a right that uctx_cap does not offer"},
	syndOutOfUCTXs:       {Status: prm.StatusNoRes, Text: "all user contexts exist already, or the device has none"},
	syndNoTD:             {Status: prm.StatusBadRes, Text: "the transport domain does not exist"},
	syndOutOfTDs:         {Status: prm.StatusNoRes, Text: "all transport domains are allocated"},
	syndPort:             {Status: prm.StatusBadIndex, Text: "the port does not exist"},
	syndVport:            {Status: prm.StatusBadIndex, Text: "the virtual port does not exist"},
	syndVportState:       {Status: prm.StatusBadParam, Text: "the virtual port has no such state"},
	syndVportField:       {Status: prm.StatusBadParam, Text: "the virtual port's field cannot be changed on this device"},
	syndTableIndex:       {Status: prm.StatusBadIndex, Text: "the table has no such index"},
	syndInjected:         {Status: prm.StatusInternal, Text: "a fault was injected"},
	syndPageStarvation:   {Status: prm.StatusNoRes, Text: "a fault makes firmware want more pages than it was given"},
	syndEQBusy:           {Status: prm.StatusResBusy, Text: "completion queues still raise their events on the event queue"},
	syndUMEMBusy:         {Status: prm.StatusResBusy, Text: "queues or doorbell records still lie in the user memory"},
	syndRecord:           {Status: prm.StatusBadParam, Text: "the doorbell record is not aligned to 8 bytes or lies outside its user memory"},
	syndQueuePage:        {Status: prm.StatusBadParam, Text: "the queue's page size, offset, page list or user memory does not hold its entries"},
	syndMKeyTranslations: {Status: prm.StatusBadParam, Text: "the memory key has more translations than translations_octword_size says, or more than log_max_klm_list_size allows"},
	syndMKeyRange:        {Status: prm.StatusBadParam, Text: "the memory key's range goes beyond the address space"},
	syndMKeySignature:    {Status: prm.StatusBadParam, Text: "the model has no signature offload: bsf_en must be 0"},
	syndMKeyUMEM:         {Status: prm.StatusBadParam, Text: "the model takes a memory key's translations from the command only, not from user memory"},
	syndMKeyAtomic:       {Status: prm.StatusBadParam, Text: "the memory key allows atomics, which the device does not have"},
	syndNoCQ:             {Status: prm.StatusBadRes, Text: "the completion queue does not exist"},
	syndCQSize:           {Status: prm.StatusBadParam, Text: "the completion queue is larger than log_max_cq_sz"},
	syndCQEntry:          {Status: prm.StatusBadParam, Text: "the completion queue asks for compression, an APU or an entry size that the model does not have"},
	syndCQBusy:           {Status: prm.StatusResBusy, Text: "work queues still complete on the completion queue"},
	syndCQField:          {Status: prm.StatusBadParam, Text: "the completion queue's field cannot be changed on this device"},
	syndCQShrink:         {Status: prm.StatusBadSizeOutsCQEs, Text: "the unpolled completions do not fit the new size"},
	syndOutOfCQs:         {Status: prm.StatusNoRes, Text: "all completion queues exist already"},
	syndNoQP:             {Status: prm.StatusBadRes, Text: "the queue pair does not exist"},
	syndQPState:          {Status: prm.StatusBadQPState, Text: "the command is not possible in the queue pair's state"},
	syndQPType:           {Status: prm.StatusBadParam, Text: "the queue pair's service type is not supported, or not the one it was created with"},
	syndQPQueue:          {Status: prm.StatusBadParam, Text: "the queue pair's receive queue type does not exist or does not fit its service type"},
	syndQPSize:           {Status: prm.StatusBadParam, Text: "a work queue is larger than log_max_qp_sz, or its stride than max_wqe_sz_rq"},
	syndQPPath:           {Status: prm.StatusBadParam, Text: "the path names a port, P_Key, GID index or rate that does not exist, or misses what the port type needs"},
	syndQPMTU:            {Status: prm.StatusBadParam, Text: "the path MTU does not exist or is larger than the port's"},
	syndQPMessage:        {Status: prm.StatusBadParam, Text: "log_msg_max is larger than the capability log_max_msg"},
	syndQPDepth:          {Status: prm.StatusBadParam, Text: "log_rra_max or log_sra_max is larger than the capability"},
	syndQPAtomic:         {Status: prm.StatusBadParam, Text: "atomic_mode does not exist or allows sizes that atomic_size_qp lacks, or the device has no atomics"},
	syndQPField:          {Status: prm.StatusBadParam, Text: "a field of the queue pair's context asks for what the device lacks"},
	syndQPOptional:       {Status: prm.StatusBadParam, Text: "opt_param_mask has a bit that the transition does not take for this service type"},
	syndOutOfQPs:         {Status: prm.StatusNoRes, Text: "log_max_qp queue pairs exist already"},
	syndNoSQ:             {Status: prm.StatusBadRes, Text: "the send queue does not exist"},
	syndSQState:          {Status: prm.StatusBadResState, Text: "the send queue is not in the state that the command begins with, or cannot go to the other"},
	syndNoSRQ:            {Status: prm.StatusBadRes, Text: "the shared receive queue does not exist"},
	syndSRQKind:          {Status: prm.StatusBadRes, Text: "the number belongs to a shared receive queue of another kind"},
	syndSRQSize:          {Status: prm.StatusBadParam, Text: "the shared receive queue is larger than log_max_srq_sz, its stride than max_wqe_sz_rq, or its type does not exist"},
	syndSRQLimit:         {Status: prm.StatusBadParam, Text: "the limit is not below the size of the shared receive queue"},
	syndSRQBusy:          {Status: prm.StatusResBusy, Text: "queue pairs still receive from the shared receive queue"},
	syndSRQUMEM:          {Status: prm.StatusBadParam, Text: "the model takes this queue's buffer and doorbell record by address only, not in user memory"},
	syndRMPState:         {Status: prm.StatusBadResState, Text: "an RMP is created, and stays, in the state READY and is linked or cyclic"},
	syndOutOfSRQs:        {Status: prm.StatusNoRes, Text: "all shared receive queues exist already"},
	syndNoXRCD:           {Status: prm.StatusBadRes, Text: "the XRC domain does not exist"},
	syndXRCDBusy:         {Status: prm.StatusResBusy, Text: "queues still belong to the XRC domain"},
	syndOutOfXRCDs:       {Status: prm.StatusNoRes, Text: "all XRC domains are allocated"},
	syndNoCounters:       {Status: prm.StatusBadRes, Text: "the set of Q counters does not exist"},
	syndCountersBusy:     {Status: prm.StatusResBusy, Text: "queue pairs still count in the set"},
	syndOutOfCounters:    {Status: prm.StatusNoRes, Text: "all sets of Q counters are allocated"},
	syndRoceOff:          {Status: prm.StatusBadParam, Text: "the port has no RoCE: it is not an Ethernet port, or the roce capability is off"},
	syndRoceIndex:        {Status: prm.StatusBadIndex, Text: "the RoCE address index is not below roce_address_table_size"},
	syndRoceAddress:      {Status: prm.StatusBadParam, Text: "the RoCE version or layer 3 type is not among the device's"},
	syndTraceConf:        {Status: prm.StatusBadParam, Text: "the tracer has no such mode, or no buffer that large"},
	syndTraceStatus:      {Status: prm.StatusBadParam, Text: "trace_status is 0 or 1"},
	syndTraceSection:     {Status: prm.StatusBadParam, Text: "the string database has no such section, or the read is not in units of 64 bytes inside it"},
	syndTraceKey:         {Status: prm.StatusBadParam, Text: "a fault makes the tracer refuse a memory key that it could not write through"},
	syndVector:           {Status: prm.StatusBadIndex, Text: "there is no such interrupt vector to moderate"},
	syndResetLevel:       {Status: prm.StatusBadParam, Text: "the reset level or type is not among those that MFRL offers"},
	syndResetBusy:        {Status: prm.StatusBadSysState, Text: "a firmware reset is negotiated or carried out already, or there is none to answer"},
}

func init() {
	for s := range syndromes {
		e := syndromes[s]
		e.Code = uint32(s)
		syndromes[s] = e
	}
}

// Syndromes lists every reason for which the model refuses a command.
func Syndromes() []Syndrome {
	var l []Syndrome
	for s := syndNotEnabled; s < syndEnd; s++ {
		if e, ok := syndromes[s]; ok {
			l = append(l, e)
		}
	}
	return l
}

// SyndromeText explains a syndrome of the model; empty for one that is not its own.
func SyndromeText(code uint32) string { return syndromes[synd(code)].Text }

func (s synd) status() prm.CommandStatus { return syndromes[s].Status }
