package mlxvfio

import (
	"context"
	"fmt"
	"time"
)

// StageEvent reports a stage of the bring-up, or its undo, when it is over.
type StageEvent struct {
	// Stage is the name, Index its place in Stages.
	Stage string
	Index int
	// Undo says that the stage was undone rather than done.
	Undo     bool
	Duration time.Duration
	// Note says what was found or why there was nothing to do: "ISSI 1", "6
	// pages", "skipped: no MSI-X".
	Note string
	Err  error
}

// StageInfo describes a stage.
type StageInfo struct{ Name, Doc string }

// stage is a row of the state machine. up does it and says what it found; down
// undoes it. down is asked for its part of the device only when live is true:
// otherwise the device has been reset, switched off or is gone, and nothing but
// host resources is left to free. A stage that fails cleans up what it has begun,
// or counts as done so that it is undone with the rest.
type stage struct {
	name, doc string
	up        func(*HCA, context.Context) (string, error)
	down      func(h *HCA, ctx context.Context, live bool) error
}

// bringUp is the order in which a function comes up: that of Linux main.c
// (mlx5_function_setup, mlx5_load), with what rdma-core's mlx5_vfio.c adds.
// Teardown walks it backwards.
var bringUp = []stage{
	{"open", "query the function, map BAR0, make its address space", (*HCA).upOpen, (*HCA).downOpen},
	{"reset", "function level reset: drop whatever an earlier owner left", (*HCA).upReset, nil},
	{"bus-master", "memory decoding and bus mastering on", (*HCA).upBusMaster, (*HCA).downBusMaster},
	{"wait-firmware", "wait until firmware has booted, check the interface revision", (*HCA).upWaitFirmware, nil},
	{"command-queue", "publish the command queue, wait until firmware took it", (*HCA).upCommandQueue, (*HCA).downCommandQueue},
	{"enable-hca", "ENABLE_HCA", (*HCA).upEnable, (*HCA).downEnable},
	{"issi", "agree on an interface step sequence id", (*HCA).upISSI, nil},
	{"boot-pages", "start the page worker, give boot pages", (*HCA).upBootPages, (*HCA).downBootPages},
	{"dtor", "read the device's own time limits (register DTOR)", (*HCA).upDTOR, nil},
	{"host-endianness", "tell firmware the host's byte order (physical functions)", (*HCA).upHostEndianness, nil},
	{"query-caps", "read the capabilities that can be set", (*HCA).upQueryCaps, nil},
	{"set-caps", "SET_HCA_CAP, clamped to the maxima", (*HCA).upSetCaps, nil},
	{"init-pages", "give the pages INIT_HCA needs", (*HCA).upInitPages, nil},
	{"init-hca", "INIT_HCA", (*HCA).upInit, (*HCA).downInit},
	{"driver-version", "SET_DRIVER_VERSION where it exists", (*HCA).upDriverVersion, nil},
	{"query-caps-again", "read every capability type, current and maximum", (*HCA).upQueryCapsAgain, nil},
	{"query-adapter", "vendor and board id", (*HCA).upQueryAdapter, nil},
	{"registers", "which management registers exist (register MCAM)", (*HCA).upRegisters, nil},
	{"alloc-uar", "a doorbell page for the driver's own event queues", (*HCA).upUAR, (*HCA).downUAR},
	{"vectors", "attach MSI-X vectors, start the event loops", (*HCA).upVectors, (*HCA).downVectors},
	{"command-eq", "event queue for command completions; commands switch to it", (*HCA).upCommandEQ, (*HCA).downCommandEQ},
	{"event-mode", "see a command complete by an event", (*HCA).upEventMode, nil},
	{"async-eq", "event queue for device events", (*HCA).upAsyncEQ, (*HCA).downAsyncEQ},
	{"pages-eq", "event queue for page requests", (*HCA).upPagesEQ, (*HCA).downPagesEQ},
	{"ready", "ask firmware whether the event queues are in order, see their interrupts arrive", (*HCA).upReady, (*HCA).downReady},
}

// Stages lists the bring-up in order.
func Stages() []StageInfo {
	s := make([]StageInfo, len(bringUp))
	for i, st := range bringUp {
		s[i] = StageInfo{st.name, st.doc}
	}
	return s
}

// runUp walks the table. It answers the index of the stage that failed, or −1.
func (h *HCA) runUp(ctx context.Context) (int, error) {
	for i := range bringUp {
		st := &bringUp[i]
		start := time.Now()
		note, err := "", error(nil)
		if h.o.BeforeStage != nil {
			err = h.o.BeforeStage(st.name)
		}
		if err == nil {
			err = context.Cause(ctx)
		}
		if err == nil {
			note, err = st.up(h, ctx)
		}
		if err == nil {
			h.done = i + 1
		}
		h.report(StageEvent{Stage: st.name, Index: i, Duration: time.Since(start), Note: note, Err: err})
		if err != nil {
			return i, err
		}
		if st.name == h.o.upTo {
			break
		}
	}
	return -1, nil
}

// runDown undoes the stages that are done, last one first. The first failure of
// a stage's device part ends the conversation with the device: it is isolated,
// and from there only host resources are freed.
func (h *HCA) runDown(ctx context.Context) []error {
	var errs []error
	for ; h.done > 0; h.done-- {
		i := h.done - 1
		st := &bringUp[i]
		if h.parked {
			return errs // the rest waits for release
		}
		if st.down == nil || st.name == h.o.skipUndo {
			continue
		}
		start := time.Now()
		err := st.down(h, ctx, h.live)
		if err != nil && h.live && !isHostOnly(err) {
			errs = append(errs, fmt.Errorf("undo %s: %w", st.name, err))
			errs = append(errs, h.isolate(err)...)
			if h.parked {
				return errs // this stage included
			}
			if again := st.down(h, ctx, false); again != nil {
				errs = append(errs, fmt.Errorf("undo %s: %w", st.name, again))
			}
		} else if h.parked {
			return append(errs, err) // the stage itself found the device lost
		} else if err != nil {
			errs = append(errs, fmt.Errorf("undo %s: %w", st.name, err))
		}
		h.report(StageEvent{Stage: st.name, Index: i, Undo: true, Duration: time.Since(start), Err: err})
	}
	return errs
}

func (h *HCA) report(e StageEvent) {
	if e.Undo {
		h.log.Debug("stage undone", "op", e.Stage, "duration", e.Duration, "error", e.Err)
	} else {
		h.times = append(h.times, e)
		h.log.Debug("stage", "op", e.Stage, "duration", e.Duration, "note", e.Note, "error", e.Err)
	}
	if h.o.OnStage != nil {
		h.o.OnStage(e)
	}
}
