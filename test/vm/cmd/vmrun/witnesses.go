package main

import "slices"

const (
	pyverbsTraffic = "pyverbs-test_mlx5vfio_rc_qp_send_imm_traffic"
	pyverbsEvent   = "pyverbs-test_mlx5vfio_async_event"
)

// healthDumps are reports that a device without a core dump register does not have.
var healthDumps = []string{"devlink-health-dump-fw"}

// healthSteps are the checks that a run with a fault has before and after it.
var healthSteps = []string{
	"insmod-mlx5_core", "before-fw", "before-fw_fatal", "fault-cmd", "reporter-counts", "diagnose",
	"still-bound", "commands-work", "quiet-after", "unbind-after", "guest-completed",
}

// laterChip is the life of mlx5_core on a model of another chip: it must come up, and let go, as on the first.
func laterChip(profile, device string) witness {
	return witness{
		Scenario: "mlx5_core",
		Port:     "ib",
		Profile:  profile,
		Required: []string{
			"insmod-mlx5_core", "firmware-version", "vendor-specific-capability", "devlink-health-dump-fw_fatal", "health-poll",
			"rebind-1-pages", "rebind-2-pages", "rebind-3-pages", "rmmod-mlx5_core", "rmmod-log", "guest-completed",
		},
		Log:   []string{"[15b3:" + device + "]"}, // the kernel enumerated that chip
		Skips: append([]string{"running-fw-query", "netdev"}, healthDumps...),
	}
}

// witnesses are what "make vm" asks, in order.
var witnesses = []witness{
	{
		Scenario: "mlx5_core",
		Port:     "ib",
		Required: []string{
			"insmod-mlx5_core", "firmware-version", "vendor-specific-capability", "devlink-health-dump-fw_fatal", "health-poll",
			"rebind-1-pages", "rebind-2-pages", "rebind-3-pages", "rmmod-mlx5_core", "rmmod-log", "guest-completed",
		},
		Skips: append([]string{"running-fw-query", "netdev"}, healthDumps...),
	},
	laterChip("cx6dx", "101d"), laterChip("cx7", "1021"), laterChip("bf3", "a2dc"),
	{
		// A fatal error: mlx5_core sees it, reads every field as it was written, resets the firmware under the semaphore
		// of the vendor-specific capability and comes up again.
		Scenario: "health",
		Port:     "ib",
		Fault: "fatal@HW_FATAL_ERR+sev=CRITICAL+irisc=7+ext=0xbeef+time=1700000000+exit=0x12345678+callra=0x9abcdef0" +
			"+assert=0xa/0xb/0xc/0xd/0xe/0xf",
		Required: slices.Concat(healthSteps, []string{"log Health", "log-synd", "recovery", "fatal-reporter"}),
		Says: map[string]string{
			"log Health":          "unrecoverable hardware error, severity(2) CRITICAL",
			"log-synd":            "synd 0x8: unrecoverable hardware error",
			"log assert_var":      "assert_var[0] 0x0000000a",
			"log assert_exit_ptr": "assert_exit_ptr 0x12345678",
			"log assert_callra":   "assert_callra 0x9abcdef0",
			"log hw_id":           "hw_id 0x0000020d",
			"log irisc_index":     "irisc_index 7",
			"log ext_synd":        "ext_synd 0xbeef",
			"log raw":             "raw fw_ver 0x10230fbe",
			"recovery":            "health recovery succeeded",
		},
	},
	{
		// Two functions of one chip: both drivers read the error, one resets, the other notices and waits, both come up.
		Scenario:  "health",
		Port:      "ib",
		Functions: 2,
		Variant:   "two",
		Fault:     "fatal",
		Required:  slices.Concat(healthSteps, []string{"log Health", "log-synd", "recovery", "fatal-reporter"}),
		Early:     []string{"recovery", "fatal-reporter"},
		Log: []string{
			"mlx5_core 0000:01:00.0: poll_health", "mlx5_core 0000:02:00.0: poll_health", "Issuing FW Reset",
			"mlx5_core 0000:01:00.0: health recovery succeeded", "mlx5_core 0000:02:00.0: health recovery succeeded",
		},
	},
	{
		// One that asks for no recovery: the reporter counts it and the device goes on.
		Scenario: "health",
		Port:     "ib",
		Variant:  "nonfatal",
		Fault:    "syndrome@HIGH_TEMP_ERR",
		Required: slices.Concat(healthSteps, []string{"clear-cmd"}),
		Says:     map[string]string{"diagnose": "Syndrome: 16 Description: High temperature"},
		Skips:    []string{"log-synd", "recovery"}, // this kernel prints fatal ones only, and there is nothing to recover
	},
	{
		Scenario: "mlx5_ib",
		Port:     "ib",
		Required: []string{
			"insmod-mlx5_ib", "ib-device", "port-active", "ibv_devinfo", "rdma-link", "ibv_rc_pingpong", "ibv_ud_pingpong", "ibv_srq_pingpong",
			"ib_write_bw", "ib_read_bw", "ib_send_bw", "ib_atomic_bw-cs", "ib_atomic_bw-fa", "ib_send_lat", "ib_write_lat",
			"rdma-res", "log-ib", "rmmod-mlx5_ib", "rmmod-mlx5_core", "rmmod-log", "guest-completed",
		},
	},
	{
		Scenario: "rdma-core-vfio",
		Port:     "ib",
		Required: slices.Concat(vfioProbe("", "query-hca-vport"), vfioProbe("again-", "query-hca-vport"),
			[]string{pyverbsTraffic, pyverbsEvent, "kernel-log", "guest-completed"}),
		Skips: []string{"query-device", "again-query-device"}, // the VFIO provider has none
	},
	{
		Scenario: "rdma-core-vfio",
		Port:     "eth",
		Required: slices.Concat(vfioProbe("", "query-nic-vport", "set-roce-address"), vfioProbe("again-", "query-nic-vport", "set-roce-address"),
			[]string{pyverbsTraffic, pyverbsEvent, "kernel-log", "guest-completed"}),
		// pyverbs looks for a GID in sysfs, which needs a kernel's driver on an Ethernet port
		Skips: []string{"query-device", "again-query-device", pyverbsTraffic, pyverbsEvent},
	},
	{
		// mlx5_core owns the tracer and prints what our decoder makes of the same memory.
		Scenario: "fw_tracer",
		Port:     "ib",
		TraceCmd: traceCommand,
		Required: traceSteps,
		Also:     sameMessages,
	},
	{
		// Two functions of one chip: the driver that unbinds gives the tracer back, the other hears of it and takes it.
		Scenario:  "mlx5_core",
		Port:      "ib",
		Functions: 2,
		Variant:   "two",
		Required: []string{
			"insmod-mlx5_core", "rebind-1-pages", "rebind-2-pages", "rebind-3-pages", "rmmod-mlx5_core", "rmmod-log", "guest-completed",
		},
		Log: []string{
			"FWTracer: Ownership granted and active", "FWTracer: Ownership was not granted",
			"mlx5_core 0000:02:00.0: mlx5_fw_tracer_ownership_change", "FWTracer: Cleanup, is owner ? (1)", "FWTracer: Cleanup, is owner ? (0)",
		},
		Skips: append([]string{"running-fw-query", "netdev"}, healthDumps...),
	},
	{
		// Two functions of one chip: one of the drivers owns the tracer, the other does without.
		Scenario:  "fw_tracer",
		Port:      "ib",
		Functions: 2,
		Variant:   "two",
		TraceCmd:  traceCommand,
		Required:  traceSteps,
		Log: []string{
			"mlx5_core 0000:01:00.0: mlx5_fw_tracer_create", "mlx5_core 0000:02:00.0: mlx5_fw_tracer_create",
			"FWTracer: Ownership granted and active", "FWTracer: Ownership was not granted",
		},
		Also: func(out string) []check { return append(oneOwner(out), sameMessages(out)...) },
	},
	{
		Scenario:  "handover",
		Port:      "ib",
		GuestArgs: "selftest {bdf}",
		Required: []string{
			"to-vfio-bind", "guest-bin", "to-mlx5_core-bind", "guest-bin-2", "to-mlx5_core-2-bind", "final-unbind", "final-log", "guest-completed",
		},
		Skips: healthDumps,
	},
}
