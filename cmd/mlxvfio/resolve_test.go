package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"syscall"
	"testing"

	"github.com/mlxvfio/mlxvfio"
	"github.com/mlxvfio/mlxvfio/cmdif"
	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/pci"
	"github.com/mlxvfio/mlxvfio/sim"
	"github.com/mlxvfio/mlxvfio/vfio"
	"github.com/stretchr/testify/require"
)

func TestParseDev(t *testing.T) {
	bdf := pci.BDF{Bus: 0x3b, Device: 0, Function: 1}
	for text, want := range map[string]devArg{
		"0000:3b:00.1":                     {kind: devKernel, bdf: bdf},
		"3b:00.1":                          {kind: devKernel, bdf: bdf},
		"10000:3b:00.1":                    {kind: devKernel, bdf: pci.BDF{Domain: 0x10000, Bus: 0x3b, Function: 1}},
		"sysfs:3b:00.1":                    {kind: devSysfs, bdf: bdf},
		"vfio-user:/run/a:b,c.sock":        {kind: devSocket, path: "/run/a:b,c.sock"},
		"vfio-user:sim":                    {kind: devSocket, path: "sim"},
		"sim":                              {kind: devSim},
		"sim:cx4":                          {kind: devSim, sim: sim.Options{Profile: "cx4"}},
		"sim:cx4,port=eth,seed=7":          {kind: devSim, sim: sim.Options{Profile: "cx4", Port: sim.PortEth, Seed: 7}},
		"sim,fault=lost@NOP,fault=reorder": {kind: devSim, sim: sim.Options{Faults: []sim.FaultSpec{{Name: "lost", Arg: "NOP"}, {Name: "reorder"}}}},
	} {
		got, err := parseDev(text)
		require.NoError(t, err, text)
		want.text = text
		require.Equal(t, want, got, text)
	}
}

func TestParseDevRefuses(t *testing.T) {
	for text, word := range map[string]string{
		"":                      "no device",
		"not-a-device":          "not-a-device",
		"3b:00":                 "3b:00",
		"3b:00.8":               "3b:00.8",
		"0000:3b:20.0":          "3b:20.0",
		"0000:3b:00.0 ":         "no device",
		"simple":                "no device",
		"sim:nosuch":            "cx5",
		"sim,fault=nosuch":      "nosuch",
		"sim,fault=late@never":  "late",
		"sim,port=token-ring":   "token-ring",
		"sim,colour=blue":       "colour",
		"sim,load=-1":           "load",
		"vfio-user:":            "names no socket",
		"sysfs:":                "sysfs:",
		"sysfs:vfio-user:/sock": "sysfs:vfio-user:/sock",
	} {
		_, err := parseDev(text)
		require.Error(t, err, text)
		require.Contains(t, err.Error(), word, text)
		require.Equal(t, exitUsage, exitCode(err), text)
		require.NotContains(t, err.Error(), "\n")
	}
}

func TestExitCode(t *testing.T) {
	refused := &cmdif.CommandError{Opcode: prm.OpNop, Status: prm.StatusBadParam}
	verr := func(err error) error { return &vfio.Error{Op: "x", Target: "y", Err: err} }
	for _, c := range []struct {
		code int
		err  error
	}{
		{exitOK, nil},
		{exitFailed, errors.New("anything")},
		{exitFailed, refused},
		{exitFailed, &cmdif.TimeoutError{Opcode: prm.OpNop}},
		{exitFailed, &timeUpError{}},
		{exitFailed, verr(vfio.ErrGone)},
		{exitFailed, &mlxvfio.StageError{Err: refused}},
		{exitFailed, &pci.Error{Err: pci.ErrProbe}},
		{exitUsage, usagef("x")},
		{exitUsage, fmt.Errorf("around: %w", usagef("x"))},
		{exitUsage, &sim.UsageError{Word: "x"}},
		{exitUnavailable, verr(vfio.ErrBusy)},
		{exitUnavailable, verr(vfio.ErrNoIOMMU)},
		{exitUnavailable, verr(syscall.EPERM)},
		{exitUnavailable, verr(syscall.EACCES)},
		{exitUnavailable, verr(fs.ErrNotExist)},
		{exitUnavailable, &mlxvfio.StageError{Err: verr(syscall.EBUSY)}},
		{exitUnavailable, &pci.Error{Err: fmt.Errorf("%w: detail", pci.ErrGroupNotViable)}},
		{exitUnavailable, &pci.Error{Err: pci.ErrBusy}},
		{exitUnavailable, unavailableUnless(errors.New("open failed"))},
		{exitUnsupported, verr(vfio.ErrNotSupported)},
		{exitUnsupported, unavailableUnless(verr(vfio.ErrNotSupported))},
		{exitUnsupported, &pci.Error{Err: pci.ErrNotMellanox}},
		{exitFailed, unavailableUnless(fmt.Errorf("connect: %w", context.DeadlineExceeded))},
	} {
		require.Equal(t, c.code, exitCode(c.err), "%T: %v", c.err, c.err)
	}
}

func TestErrorLine(t *testing.T) {
	err := errors.Join(
		&mlxvfio.StageError{Stage: "init-hca", Remedy: "do that", Ledger: mlxvfio.PageLedger{Given: 6, Returned: 6},
			Err: &cmdif.CommandError{Opcode: prm.OpInitHCA, Status: prm.StatusBadParam, Syndrome: 0x51}},
		errors.New("second"))
	l := newErrorLine(err, 1)
	require.NotContains(t, l.Error, "\n")
	require.Contains(t, l.Error, "second")
	require.Equal(t, "init-hca", l.Stage)
	require.Equal(t, 6, l.Pages.Returned)
	require.Equal(t, "INIT_HCA", l.Opcode)
	require.Equal(t, prm.StatusBadParam.String(), l.Status)
	require.EqualValues(t, 0x51, l.Syndrome)
	require.Equal(t, "do that", l.Remedy)
	require.Equal(t, "this way", newErrorLine(&vfio.Error{Err: vfio.ErrBusy, Remedy: "this way"}, 3).Remedy)
}
