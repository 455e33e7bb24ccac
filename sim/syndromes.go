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
	syndUARBusy:          {Status: prm.StatusResBusy, Text: "an event queue still uses the UAR"},
	syndOutOfUARs:        {Status: prm.StatusNoRes, Text: "all UARs are allocated"},
	syndEQSize:           {Status: prm.StatusBadParam, Text: "the event queue is larger than log_max_eq_sz"},
	syndEQVector:         {Status: prm.StatusBadIndex, Text: "the interrupt vector does not exist"},
	syndEQPage:           {Status: prm.StatusBadParam, Text: "the event queue's page size, offset or page list does not hold its entries"},
	syndNoEQ:             {Status: prm.StatusBadRes, Text: "the event queue does not exist"},
	syndOutOfEQs:         {Status: prm.StatusNoRes, Text: "all event queues exist already"},
	syndNoPD:             {Status: prm.StatusBadRes, Text: "the protection domain does not exist"},
	syndPDBusy:           {Status: prm.StatusResBusy, Text: "memory keys still use the protection domain"},
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
