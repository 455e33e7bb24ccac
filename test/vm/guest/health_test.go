//go:build linux

package main

import (
	"encoding/binary"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// as mlx5_core of Linux 6.12 prints them
const healthLog = `mlx5_core 0000:01:00.0: poll_health:785:(pid 0): Fatal error 5 detected
mlx5_core 0000:01:00.0: print_health_info:431:(pid 0): Health issue observed, High temperature, severity(4) WARNING:
mlx5_core 0000:01:00.0: print_health_info:443:(pid 0): hw_id 0x00000099
mlx5_core 0000:01:00.0: print_health_info:431:(pid 0): Health issue observed, unrecoverable hardware error, severity(2) CRITICAL:
mlx5_core 0000:01:00.0: print_health_info:435:(pid 0): assert_var[0] 0x0000000a
mlx5_core 0000:01:00.0: print_health_info:435:(pid 0): assert_var[1] 0x0000000b
mlx5_core 0000:01:00.0: print_health_info:435:(pid 0): assert_var[2] 0x0000000c
mlx5_core 0000:01:00.0: print_health_info:435:(pid 0): assert_var[3] 0x0000000d
mlx5_core 0000:01:00.0: print_health_info:435:(pid 0): assert_var[4] 0x0000000e
mlx5_core 0000:01:00.0: print_health_info:435:(pid 0): assert_var[5] 0x0000000f
mlx5_core 0000:01:00.0: print_health_info:438:(pid 0): assert_exit_ptr 0x12345678
mlx5_core 0000:02:00.0: print_health_info:438:(pid 0): assert_exit_ptr 0x99999999
mlx5_core 0000:01:00.0: print_health_info:439:(pid 0): assert_callra 0x9abcdef0
mlx5_core 0000:01:00.0: print_health_info:440:(pid 0): fw_ver 16.35.4030
mlx5_core 0000:01:00.0: print_health_info:442:(pid 0): time 1700000000
mlx5_core 0000:01:00.0: print_health_info:443:(pid 0): hw_id 0x0000020d
mlx5_core 0000:01:00.0: print_health_info:444:(pid 0): rfr 1
mlx5_core 0000:01:00.0: print_health_info:445:(pid 0): severity 2 (CRITICAL)
mlx5_core 0000:01:00.0: print_health_info:446:(pid 0): irisc_index 7
mlx5_core 0000:01:00.0: print_health_info:447:(pid 0): synd 0x8: unrecoverable hardware error
mlx5_core 0000:01:00.0: print_health_info:449:(pid 0): ext_synd 0xbeef
mlx5_core 0000:01:00.0: print_health_info:450:(pid 0): raw fw_ver 0x10230fbe`

func TestTwoReadingsOfABuffer(t *testing.T) {
	var log []record
	for line := range strings.Lines(healthLog) {
		log = append(log, record{text: strings.TrimSpace(line)})
	}
	theirs := kernelBuffer(log, "0000:01:00.0")
	b := &bufferSaid{
		AssertVar: [6]uint32{10, 11, 12, 13, 14, 15}, AssertExitPtr: 0x12345678, AssertCallRA: 0x9abcdef0, Time: 1700000000, FWVersion: 0x10230fbe,
		HWID: 0x20d, RFR: true, Severity: 2, SeverityName: "CRITICAL", IRISCIndex: 7, Synd: 8, ExtSynd: 0xbeef,
	}
	ours := ourBuffer(b, "16.35.4030")
	delete(ours, "crr")
	require.Len(t, ours, 17)
	require.Empty(t, difference(theirs, ours))
	// each field by itself
	for name := range ours {
		wrong := ourBuffer(b, "16.35.4030")
		delete(wrong, "crr")
		wrong[name] += "1"
		require.Len(t, difference(theirs, wrong), 1, name)
		delete(wrong, name)
		require.Len(t, difference(theirs, wrong), 1, name)
	}
	require.Len(t, difference(theirs, ourBuffer(b, "16.35.4030")), 1, "crr, which this driver does not print")
	// a later driver
	log = append(log, record{text: "mlx5_core 0000:01:00.0: print_health_info:452:(pid 0): crr 1"}, record{text: "mlx5_core 0000:01:00.0: print_health_info:460:(pid 0): Cold reset is required"})
	b.CRR = true
	require.Empty(t, difference(kernelBuffer(log, "0000:01:00.0"), ourBuffer(b, "16.35.4030")))
	require.Empty(t, kernelBuffer(log, "0000:03:00.0"))
}

func TestSaidLines(t *testing.T) {
	lines, err := saidLines(`{"is":"verdict","at":"2026-11-30T03:15:01.5Z","what":{"verdict":{"state":"healthy","condition":"ok","exit_code":0}}}` + "\n" +
		`{"is":"verdict","at":"2026-11-30T03:15:02.5Z","what":{"verdict":{"state":"fatal","condition":"fatal-rfr","exit_code":1},"buffer":{"synd":8}}}` + "\n")
	require.NoError(t, err)
	var e eventSaid
	at, err := one(lines, "verdict", &e)
	require.NoError(t, err)
	require.Equal(t, 2, at.Second())
	require.Equal(t, verdictSaid{"fatal", "fatal-rfr", 1}, e.Verdict)
	require.Equal(t, uint8(8), e.Buffer.Synd)
	_, err = one(lines, "report", &e)
	require.ErrorContains(t, err, "report")
	_, err = saidLines("{\"is\":\"ver")
	require.Error(t, err)
}

func TestSicknessesAreDistinct(t *testing.T) {
	seen := map[string]bool{}
	for _, s := range sicknesses {
		require.False(t, seen[s.name])
		seen[s.name] = true
		require.NotEqual(t, s.by == "", s.next == "", s.name)
		l := limitsSaid{Period: 100 * time.Millisecond, Stall: 2 * time.Second}
		require.Greater(t, s.within(l), time.Duration(0))
	}
}

func TestAttributes(t *testing.T) {
	b := []byte{5, 0, 116, 0, 1, 0, 0, 0, 12, 0, 117, 0x40, 7, 0, 0, 0, 0, 0, 0, 0}
	a, err := attributes(b)
	require.NoError(t, err)
	require.Equal(t, []attribute{{116, []byte{1}}, {117, []byte{7, 0, 0, 0, 0, 0, 0, 0}}}, a)
	for n := 1; n < len(b); n++ {
		if n != 5 && n != 6 && n != 7 && n != 8 { // cut between two, the padding aside
			_, err := attributes(b[:n])
			require.Error(t, err, n)
		}
	}
	_, err = attributes([]byte{3, 0, 1, 0})
	require.Error(t, err)
}

func TestConfigCapabilities(t *testing.T) {
	c := make(config, 4096)
	c[0x34] = 0x40
	c[0x40], c[0x41] = 0x01, 0x60
	c[0x60], c[0x61] = capExpress, 0
	require.Equal(t, 0x60, c.capability(capExpress))
	require.Zero(t, c.capability(0x11))
	c[0x61] = 0x40 // a ring
	require.Zero(t, c.capability(0x11))
	require.False(t, c.extended(extCapErrors))
	binary.LittleEndian.PutUint32(c[0x100:], 0x15010003)
	binary.LittleEndian.PutUint32(c[0x150:], 0x10020001)
	require.True(t, c.extended(extCapErrors))
	require.False(t, c.extended(7), "a ring ends")
	require.False(t, c[:256].extended(extCapErrors))
	speed, width := linkText(3, 16)
	require.Equal(t, []string{"8.0 GT/s PCIe", "16"}, []string{speed, width})
	speed, _ = linkText(9, 1)
	require.Equal(t, "Unknown", speed)
}

func TestCountersOfErrorsAreJudged(t *testing.T) {
	require.NoError(t, judgeCounters("RxErr 0\nBadTLP 2\nBadDLLP 0\nRollover 0\nTimeout 0\nNonFatalErr 1\nTOTAL_ERR_COR 3\n", "TOTAL_ERR_COR"))
	require.NoError(t, judgeCounters("A 0\nB 0\nC 0\nD 0\nE 0\nRx Overflow 1\nTOTAL 1\n", "TOTAL"))
	for _, bad := range []string{"", "RxErr 0\n", "A 0\nB 0\nC 0\nD 0\nE 0\nF 1\nTOTAL 2\n", "A 0\nB 0\nC x\nD 0\nE 0\nF 1\nTOTAL 1\n", "A 0\nB 0\nC 0\nD 0\nE 0\nF 1\n"} {
		require.Error(t, judgeCounters(bad, "TOTAL"), bad)
	}
}
