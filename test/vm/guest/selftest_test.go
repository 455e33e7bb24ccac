//go:build linux

package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// as "mlxvfio selftest --json" prints it, with most stages left out
const goodSelftest = `{"schema":"mlxvfio.selftest/1","device":"0000:01:00.0","backend":"type1","firmware":"16.35.4030","mode":"event","vectors":3,
"stages":[{"stage":"open","ms":2.119},{"stage":"ready","ms":1.285}],
"checks":[{"check":"event-mode","ok":true,"ms":1.849,"note":"1 command, 1 completion event, 2 wake-ups"},{"check":"health","ok":true,"ms":0.299},
{"check":"command-burst","ok":true},{"check":"capabilities","ok":true},{"check":"atomics-preflight","ok":true},{"check":"data-path","ok":true},
{"check":"send","ok":true},{"check":"write","ok":true},{"check":"read","ok":true},{"check":"atomics-probe","ok":true},{"check":"atomics","ok":true},
{"check":"nop","ok":true},{"check":"datagrams","ok":true},{"check":"cross-channel","ok":true},{"check":"opcodes","ok":true}],
"opcodes":[{"service":"RC","opcode":"NOP","done":142},{"service":"RC","opcode":"SEND","done":31},{"service":"RC","opcode":"SEND_IMM","done":12},
{"service":"RC","opcode":"RDMA_WRITE","done":39},{"service":"RC","opcode":"RDMA_WRITE_IMM","done":12},{"service":"RC","opcode":"RDMA_READ","done":24},
{"service":"RC","opcode":"ATOMIC_CS","done":4},{"service":"RC","opcode":"ATOMIC_FA","done":4},{"service":"RC","opcode":"ATOMIC_MASKED_CS","done":256},
{"service":"RC","opcode":"ATOMIC_MASKED_FA","done":164},{"service":"RC","opcode":"SEND_EN","done":8},{"service":"RC","opcode":"WAIT","done":8},
{"service":"UD","opcode":"SEND","done":54},{"service":"UD","opcode":"SEND_IMM","done":32}],
"teardown":[{"stage":"open","ms":234.987}],"bring_up_ms":311.57,"commands":551,
"pages":{"given":1030,"returned":1030,"dropped":0,"outstanding":0,"peak":1030,"requests":0,"reclaims":0,"refused":0,"strays":0,"chunks":0},
"dma":{"mappings":0,"map_calls":2,"unmap_calls":2,"mapped_bytes":0,"live_buffers":0,"live_bytes":0},"verdict":"pass"}`

func TestJudgeSelftest(t *testing.T) {
	want := expectation{"0000:01:00.0", "type1", "16.35.4030", []string{"open", "ready"}, 2, false}
	require.NoError(t, judgeSelftest(goodSelftest, want))
	for _, c := range []struct{ from, to, complaint string }{
		{`"verdict":"pass"`, `"verdict":"fail"`, "verdict"},
		{`selftest/1`, `info/1`, "schema"},
		{`0000:01:00.0`, `0000:02:00.0`, "device"},
		{`"type1"`, `"sim"`, "over"},
		{`16.35.4030`, `16.35.4031`, "firmware"},
		{`"event","vectors"`, `"polled","vectors"`, "polled mode"},
		{`"vectors":3`, `"vectors":2`, "2 vectors"},
		{`{"stage":"open","ms":2.119},`, ``, "stages [ready]"},
		{`"ms":1.285`, `"ms":1.285,"error":"no"`, "stage ready: no"},
		{`"ms":234.987`, `"ms":1,"error":"no"`, "teardown of open: no"},
		{`"teardown":[{"stage":"open","ms":234.987}]`, `"teardown":[]`, "no teardown"},
		{`"ok":true,"ms":0.299`, `"ok":false,"ms":0.299`, "check health"},
		{`1 completion event,`, `0 completion events,`, "did not count"},
		{`2 wake-ups`, `0 wake-ups`, "did not count"},
		{`1 command, 1 c`, `skipped: 1 command, 1 c`, "check event-mode"},
		{`"check":"event-mode"`, `"check":"other"`, "did not count"},
		{`,{"check":"atomics","ok":true}`, ``, "not made: [atomics]"},
		{`{"check":"write","ok":true}`, `{"check":"write","ok":true,"note":"skipped: no data"}`, "check write"},
		{`,{"check":"cross-channel","ok":true}`, ``, "not made: [cross-channel]"},
		{`{"check":"datagrams","ok":true}`, `{"check":"datagrams","ok":true,"note":"not supported by this device: no"}`, "check datagrams"},
		{`"opcode":"WAIT","done":8`, `"opcode":"WAIT","done":0`, "WAIT was done 0 times"},
		{`"opcode":"WAIT","done":8`, `"opcode":"WAIT","done":0,"note":"not supported by this device"`, "not supported"},
		{`,{"service":"RC","opcode":"WAIT","done":8}`, ``, "not done: [RC WAIT]"},
		{`{"service":"UD","opcode":"SEND","done":54}`, `{"service":"RC","opcode":"SEND","done":54}`, "not done: [UD SEND]"},
		{`"returned":1030,"dropped":0`, `"returned":1029,"dropped":1`, "ledger"},
		{`"outstanding":0`, `"outstanding":1`, "ledger"},
		{`"outstanding":0,`, ``, "ledger has <nil> outstanding"},
		{`"chunks":0`, `"chunks":1`, "ledger"},
		{`"given":1030,"returned":1030`, `"given":0,"returned":0`, "ledger"},
		{`"mappings":0`, `"mappings":1`, "DMA memory"},
		{`"live_buffers":0`, `"live_buffers":1`, "DMA memory"},
		{`"live_buffers"`, `"LiveBuffers"`, "DMA memory"},
		{`"unmap_calls":2`, `"unmap_calls":1`, "UNMAP_DMA"},
		{`"map_calls":2,"unmap_calls":2`, `"map_calls":3,"unmap_calls":3`, "MAP_DMA"},
		{`"map_calls":2,"unmap_calls":2,`, ``, "MAP_DMA"},
		{`{"schema"`, `schema`, "not one object"},
	} {
		require.Equal(t, 1, strings.Count(goodSelftest, c.from), c.from)
		require.ErrorContains(t, judgeSelftest(strings.Replace(goodSelftest, c.from, c.to, 1), want), c.complaint, "%s → %s", c.from, c.to)
	}
	require.ErrorContains(t, judgeSelftest(goodSelftest+goodSelftest, want), "not one object")
	require.ErrorContains(t, judgeSelftest(goodSelftest, expectation{want.bdf, want.backend, want.firmware, want.stages, 2, true}), "want none and polled")
	polled := strings.NewReplacer(`"event","vectors":3`, `"polled","vectors":0`, `1 command, 1 completion event, 2 wake-ups`, `skipped: polled`).Replace(goodSelftest)
	require.NoError(t, judgeSelftest(polled, expectation{want.bdf, want.backend, want.firmware, want.stages, 2, true}))
	want.firmware = ""
	require.ErrorContains(t, judgeSelftest(goodSelftest, want), "firmware", "a guest that was not told the version")
}

func TestCountInterrupts(t *testing.T) {
	const table = `           CPU0       CPU1
 24:          0          5  PCI-MSIX-0000:00:02.0   0-edge      pciehp
 29:         51          2  PCI-MSIX-0000:01:00.0   0-edge      vfio-msix[0](0000:01:00.0)
 30:          0          0  PCI-MSIX-0000:01:00.0   1-edge      vfio-msix[1](0000:01:00.0)
 31:          7          0  PCI-MSIX-0000:02:00.0   0-edge      vfio-msix[0](0000:02:00.0)
NMI:          0          0   Non-maskable interrupts
`
	require.Equal(t, map[int]int{0: 53, 1: 0}, countInterrupts(table, "0000:01:00.0"))
	require.Equal(t, map[int]int{0: 7}, countInterrupts(table, "0000:02:00.0"))
	require.Empty(t, countInterrupts(table, "0000:03:00.0"))
}

func TestExpectedComplaints(t *testing.T) {
	rest, missing := without([]string{"<4> A: as usual", "<3> B", "<4> A: as usual"}, []string{"as usual", "never said"})
	require.Equal(t, []string{"<3> B"}, rest)
	require.Equal(t, []string{"never said"}, missing)
}
