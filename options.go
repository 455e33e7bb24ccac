package mlxvfio

import (
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/mlxvfio/mlxvfio/cmdif"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// TeardownKind says how Close takes the device down.
type TeardownKind uint8

const (
	// TeardownRegular destroys every object, reclaims every page and disables
	// the function: the ledger of pages proves that nothing was left behind.
	TeardownRegular TeardownKind = iota
	// TeardownFast prepares firmware, switches the interface off through
	// nic_interface and frees all memory at once (capability fast_teardown).
	// Where the device cannot, Close does TeardownRegular and logs it.
	TeardownFast
	// TeardownForced asks firmware to drop its claim to all host memory in one
	// command (capability force_teardown). Where the device cannot, or answers
	// that it failed, Close does TeardownRegular and logs it.
	TeardownForced
)

// String is the word used in messages.
func (k TeardownKind) String() string {
	switch k {
	case TeardownFast:
		return "fast"
	case TeardownForced:
		return "forced"
	}
	return "regular"
}

// Options tune Open. The zero value brings a function up with a reset first,
// commands completed by events, and everything silent.
type Options struct {
	// Logger receives what happens; nil is silent.
	Logger *slog.Logger
	// Polled uses no interrupts at all: commands are polled, and so are the
	// event queues, each PollInterval. A function without MSI-X is driven so in
	// any case.
	Polled bool
	// PollInterval is how often event queues are looked at without interrupts;
	// 0 is 1 ms.
	PollInterval time.Duration
	// CompletionVectors are MSI-X vectors attached beyond the three the driver
	// uses itself, for completion queues: HCA.Vectors gives them. Vectors are
	// attached all at once, since adding one later would interrupt the others.
	CompletionVectors int
	// CommandTimeout is the longest a command may take; 0 takes the device's own
	// limit (cmd_exec_to) or 60 s.
	CommandTimeout time.Duration
	// CommandSlots bounds the commands in flight, page commands not counted; 0 is as
	// many as the device's queue holds. 1 sends one at a time, in order: for finding
	// out what a device chokes on, and for traces that are easy to read.
	CommandSlots int
	// FirmwareTimeout is the longest to wait for firmware to boot; 0 is Linux'
	// 120 s before the command queue is published, and the device's own limit
	// after it.
	FirmwareTimeout time.Duration
	// VerifyChecksums asks the device to sign its answers and checks them.
	VerifyChecksums bool
	// Teardown is how Close takes the device down.
	Teardown TeardownKind
	// SkipReset opens the function as it is. By default it is reset first, so
	// that what a killed predecessor left behind (firmware that believes it is
	// initialized and owns pages) is gone.
	SkipReset bool
	// Space is the address space to take DMA memory from, shared with other
	// functions of one I/O address space; nil makes a private one.
	Space *vfio.AddressSpace
	// Memory is what a private address space is made of.
	Memory vfio.MemoryKind
	// PageLimit bounds the 4 KiB pages firmware may hold at a time. A request
	// beyond it is answered "cannot give". 0 is half of what the host has available
	// at the time of Open (MemAvailable of /proc/meminfo; the limit of a control
	// group is not looked at), but at least 64 MiB; where the host does not say, 4
	// GiB. Negative is no bound: firmware is then trusted with all memory.
	PageLimit int
	// Capabilities are values that the caller wants capabilities to have, instead of
	// the driver's. A request that the device cannot be asked fails the bring-up
	// before anything is set, with a *CapRequestError; what the device made of the
	// others is in CapReport. It must not be changed after Open.
	Capabilities []CapRequest
	// Trace, if set, sees every command of the bring-up and after it.
	Trace cmdif.TraceFunc
	// BeforeStage is called before a stage of the bring-up runs. An error it
	// returns fails the stage: fault tests use it, and so may a caller that
	// wants to stop half-way.
	BeforeStage func(stage string) error
	// OnStage is called after each stage, and after each undo, on the goroutine
	// of Open or Close.
	OnStage func(StageEvent)

	// park makes a device that cannot be asked any more keep its memory, without a
	// reset: whoever recovers it says when it may be freed.
	park bool
	// upTo names the last stage of a bring-up that stops half-way.
	upTo string

	// skipUndo names a stage whose undo is left out: a leak planted by the test
	// that proves that leaks are found.
	skipUndo string
}

// privateSlabMax keeps the slabs of a private address space small: the memory
// of all of them is pinned by the kernel, and the large pieces, firmware's pages,
// are exactly as large as firmware asks.
const privateSlabMax = 8 << 20

// Bounds of the default page limit, in pages.
const (
	leastPageLimit   = 64 << 20 / fwPageSize
	unknownPageLimit = 4 << 30 / fwPageSize
)

// pageLimit turns Options.PageLimit into what the ledger takes: 0 is no bound.
func pageLimit(option int) int {
	switch {
	case option > 0:
		return option
	case option < 0:
		return 0
	}
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return unknownPageLimit
	}
	return defaultPageLimit(string(b))
}

// defaultPageLimit is half of the available memory in the text of /proc/meminfo.
func defaultPageLimit(meminfo string) int {
	for line := range strings.Lines(meminfo) {
		var kib int
		if _, err := fmt.Sscanf(line, "MemAvailable: %d kB", &kib); err == nil {
			return max(kib*1024/fwPageSize/2, leastPageLimit)
		}
	}
	return unknownPageLimit
}

func (o *Options) defaults() {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.PollInterval <= 0 {
		o.PollInterval = time.Millisecond
	}
}
