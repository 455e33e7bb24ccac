package health

import "slices"

// Condition names the cause of a verdict. The names are stable.
type Condition string

// Conditions, in the order in which they are tested: the first that holds is the
// verdict. Linux tests its fatal sensors in this order (health.c,
// mlx5_health_check_fatal_sensors); its second one, PCI offline, is known to the
// kernel alone.
const (
	AllOnes           Condition = "all-ones"
	PCICommError      Condition = "pci-comm-error"
	NICDisabled       Condition = "nic-disabled"
	NICSWReset        Condition = "nic-sw-reset"
	FatalCRR          Condition = "fatal-crr"
	FatalRFR          Condition = "fatal-rfr"
	InRecovery        Condition = "recovery"
	SyndromeStopped   Condition = "syndrome-stopped"
	CounterStopped    Condition = "counter-stopped"
	CommandsDead      Condition = "commands-dead"
	NonFatalCRR       Condition = "nonfatal-crr"
	SyndromeNonFatal  Condition = "syndrome-nonfatal"
	OverdueCommands   Condition = "overdue-commands"
	LateCompletions   Condition = "late-completions"
	LostInterrupts    Condition = "lost-interrupts"
	ForeignReplies    Condition = "foreign-replies"
	PCIReadError      Condition = "pci-read-error"
	PCIeErrors        Condition = "pcie-errors"
	HighTemperature   Condition = "high-temperature"
	InsufficientPower Condition = "insufficient-power"
	NICNotFull        Condition = "nic-not-full"
	Starting          Condition = "starting"
	StaleError        Condition = "stale-error"
	NICIdle           Condition = "nic-idle"
	OK                Condition = "ok"
)

// ConditionInfo is one row of the table of conditions.
type ConditionInfo struct {
	Condition Condition `json:"condition"`
	State     State     `json:"state"`
	ExitCode  int       `json:"exit_code"`
	// Meaning says when the condition holds.
	Meaning string `json:"meaning"`
	// Keeps says what a bundle must hold of it before anything is reset.
	Keeps string `json:"keeps"`
	// Remedy is what to do.
	Remedy string `json:"remedy"`
}

// Exit codes of a command line that ends with a verdict.
const (
	exitHealthy = 0
	exitProblem = 1
)

const (
	keepsNothing  = "nothing beyond the history"
	keepsRaw      = "history, raw health buffer as evidence only, initialization segment"
	keepsDecoded  = "history, health buffer raw and decoded, initialization segment, last commands"
	keepsCommands = "history, last commands with those in flight, event queues"
	keepsAll      = "history, health buffer raw and decoded, initialization segment, last commands, ledger of pages"
	keepsHistory  = "history, last commands"
	keepsEnv      = "history, environment"
)

// conditionTable is in the order of the tests.
var conditionTable = []ConditionInfo{
	{AllOnes, Gone, exitProblem, "all four dwords of a sample read all ones, twice in a row", "history up to the last answer, last commands, ledger of pages", "check that the function is present and powered (lspci) and that its link is up; re-plug it or reset the slot"},
	{PCICommError, Fatal, exitProblem, "part of the four dwords read all ones, twice in a row; for the firmware version at 0x230 that is Linux' sensor 1", keepsRaw, "reset the function; if it comes back, look at the slot and the cable of its riser"},
	{NICDisabled, Fatal, exitProblem, "nic_interface reads 1 (disabled) though the function was up: Linux' sensor 3", keepsAll, "bring the function up again"},
	{NICSWReset, Fatal, exitProblem, "nic_interface reads 7: a software reset is going on, asked for by some function of the device: Linux' sensor 4", keepsAll, "wait until nic_interface reads 1, then bring the function up again; do not reset it a second time"},
	{FatalCRR, Fatal, exitProblem, "a syndrome with rfr and crr set: firmware says that only a cold reset helps", keepsAll, "power the host off and on"},
	{FatalRFR, Fatal, exitProblem, "a syndrome with rfr set: firmware asks for a reset: Linux' sensor 5", keepsAll, "save a bundle, then recover the function (software reset, else FLR)"},
	{InRecovery, Recovering, exitProblem, "a recovery is going on", keepsNothing, "wait for its report"},
	{SyndromeStopped, Stalled, exitProblem, "the counter has not moved for the stall limit, and the health buffer shows a syndrome without rfr", keepsDecoded, "save a bundle, then recover the function"},
	{CounterStopped, Stalled, exitProblem, "the counter has not moved for the stall limit, and there is no syndrome: firmware does not answer and the health buffer explains nothing", keepsRaw, "save a bundle, then recover the function"},
	{CommandsDead, Stalled, exitProblem, "the counter moves, but a command is overdue for the stall limit and nothing was answered since it was sent", keepsCommands, "save a bundle, then reset the function: a link that is up does not help while commands are dead"},
	{NonFatalCRR, Degraded, exitProblem, "a syndrome with crr, without rfr: the function goes on working, and firmware asks for a cold reset", keepsDecoded, "plan a cold reset of the host"},
	{SyndromeNonFatal, Degraded, exitProblem, "a syndrome without rfr: the function goes on working", keepsDecoded, "read what firmware says; no reset is asked for"},
	{OverdueCommands, Degraded, exitProblem, "the device holds a command past its deadline; others are answered, or it is too early to say that none is", keepsCommands, "look at the command; its slot stays held until the device answers or is reset"},
	{LateCompletions, Degraded, exitProblem, "commands completed after they had been given up", keepsCommands, "firmware is slow: raise the command time-out, and watch the latencies"},
	{LostInterrupts, Degraded, exitProblem, "completions were found by polling though an interrupt was due", keepsCommands, "look at the interrupts of the function (/proc/interrupts, MSI-X, IOMMU remapping)"},
	{ForeignReplies, Degraded, exitProblem, "entries of the command queue came back with another command's token", keepsCommands, "report it with the bundle: firmware mixes up commands"},
	{PCIReadError, Degraded, exitProblem, "a read gave all ones once and was right when repeated", keepsHistory, "look at the PCIe error counters of the function and of the port above it"},
	{PCIeErrors, Degraded, exitProblem, "non-fatal or fatal AER counters of the function have grown", keepsEnv, "look at the slot, the riser and the port above it"},
	{HighTemperature, Degraded, exitProblem, "the ASIC is at or above its high threshold (register MTMP)", keepsEnv, "check the air flow"},
	{InsufficientPower, Degraded, exitProblem, "the slot does not give the power the adapter wants (register MPEIN)", keepsEnv, "use a slot with more power, or plug in the auxiliary power"},
	{NICNotFull, Degraded, exitProblem, "nic_interface reads 2 to 6: not the full driver interface", keepsHistory, "the function is in a pre-boot or unknown mode; bring it up or reset it"},
	{Starting, Unknown, exitProblem, "not long enough watched: the counter has not been seen moving yet", keepsNothing, "wait for the stall limit"},
	{StaleError, Healthy, exitHealthy, "the counter moves; the health buffer holds the error that was there at the first look after a reset, unchanged: stale", "the stale buffer, marked as such", ""},
	{NICIdle, Healthy, exitHealthy, "the counter moves; nic_interface has read 1 (disabled) from the first look on, on a function that the watcher did not bring up: no driver uses it", keepsNothing, ""},
	{OK, Healthy, exitHealthy, "the counter moves, no syndrome", keepsNothing, ""},
}

// Conditions is the table of conditions, in the order of the tests: condition →
// state → exit code → what is kept → remedy. The caller owns the slice.
func Conditions() []ConditionInfo { return slices.Clone(conditionTable) }

// Info is the condition's row of the table; the zero row for one that does not
// exist.
func (c Condition) Info() ConditionInfo {
	for i := range conditionTable {
		if conditionTable[i].Condition == c {
			return conditionTable[i]
		}
	}
	return ConditionInfo{}
}
