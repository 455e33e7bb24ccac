package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/test/vm/internal/wire"
)

// TestMain lets this binary stand in for QEMU: with the variable set it plays the guest that the variable describes,
// on the report socket of its command line.
func TestMain(m *testing.M) {
	if act := os.Getenv("VMRUN_TEST_ACT"); act != "" {
		os.Exit(play(act, os.Args))
	}
	os.Exit(m.Run())
}

func play(act string, args []string) int {
	var path string
	for _, a := range args {
		if _, p, ok := strings.Cut(a, "id=report,path="); ok {
			path = p
		}
	}
	conn, err := net.Dial("unix", path)
	if err != nil {
		return 3
	}
	say := func(m wire.Message) {
		if b, err := m.Line(); err == nil {
			_, _ = conn.Write(b)
		}
	}
	fmt.Println("the console")
	say(wire.Message{Kind: wire.KindStep, Name: "s/step"})
	say(wire.Message{Kind: wire.KindCheck, Name: "s/complete", Status: wire.Pass})
	switch act {
	case "asks":
		in := bufio.NewScanner(conn)
		for _, words := range []string{"fault fatal@now", "refuse me"} {
			say(wire.Message{Kind: wire.KindAsk, Name: wire.ModelName(0), Detail: words})
			if !in.Scan() {
				return 4
			}
			say(wire.Message{Kind: wire.KindFile, Name: strings.Fields(words)[0], Detail: in.Text()})
		}
		say(wire.Message{Kind: wire.KindAsk, Name: wire.ModelName(7), Detail: "state"})
		in.Scan()
		say(wire.Message{Kind: wire.KindFile, Name: "nobody", Detail: in.Text()})
		say(wire.Message{Kind: wire.KindEnd})
		return 0
	case "good":
		say(wire.Message{Kind: wire.KindFile, Name: "dmesg.txt", Detail: "log"})
		say(wire.Message{Kind: wire.KindEnd})
		return 0
	case "dies":
		fmt.Fprintln(os.Stderr, "qemu: fatal")
		return 1
	case "garbles":
		_, _ = conn.Write([]byte("noise\n"))
		say(wire.Message{Kind: wire.KindEnd})
		return 0
	}
	time.Sleep(time.Minute) // hangs
	return 0
}

// standIn is a machine whose QEMU is this test binary.
func standIn(t *testing.T, act string) machine {
	t.Helper()
	t.Setenv("VMRUN_TEST_ACT", act)
	self, err := os.Executable()
	require.NoError(t, err)
	m := machine{qemu: self, out: t.TempDir(), grace: 500 * time.Millisecond}
	m.run = wire.Run{Scenarios: []string{"s"}, Limit: 500 * time.Millisecond}
	return m
}

func TestBootReportsHowTheMachineEnded(t *testing.T) {
	for act, want := range map[string]map[string]wire.Status{
		"good":    {"s/complete": wire.Pass, "machine/complete": wire.Pass},
		"dies":    {"s/complete": wire.Pass, "machine/complete": wire.Fail},
		"garbles": {"s/complete": wire.Pass, "machine/report": wire.Fail, "machine/complete": wire.Pass},
		"hangs":   {"s/complete": wire.Pass, "machine/limit": wire.Fail, "machine/complete": wire.Fail},
	} {
		t.Run(act, func(t *testing.T) {
			m := standIn(t, act)
			l, err := m.boot(t.Context(), nil)
			require.NoError(t, err)
			require.Equal(t, want, statuses(l.checks))
			b, err := os.ReadFile(filepath.Join(m.out, "console.log"))
			require.NoError(t, err)
			require.Equal(t, "the console\n", string(b))
			switch act {
			case "good":
				require.FileExists(t, filepath.Join(m.out, "dmesg.txt"))
			case "dies":
				last := l.checks[len(l.checks)-1].Detail
				require.Contains(t, last, "qemu: fatal")
				require.Contains(t, last, `last step "s/step"`)
			}
		})
	}
}

func TestTheGuestAsksTheModel(t *testing.T) {
	tell := script(t, `[ "$4" = refuse ] && { echo no such word >&2; exit 1; }; echo "{\"told\":\"$*\"}"`)
	live, err := startChild(exec.Command("/bin/sleep", "60"))
	require.NoError(t, err)
	defer live.stop(0)
	m := standIn(t, "asks")
	l, err := m.boot(t.Context(), []*model{{child: live, program: tell, control: "/the/control"}})
	require.NoError(t, err)
	require.Equal(t, wire.Pass, statuses(l.checks)["machine/complete"])
	answer := func(name string) (a wire.Message) {
		b, err := os.ReadFile(filepath.Join(m.out, name))
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(b, &a))
		require.Equal(t, wire.KindAnswer, a.Kind)
		return a
	}
	require.Equal(t, wire.Message{Kind: wire.KindAnswer, Name: "model0", Status: wire.Pass, Detail: `{"told":"tell /the/control --json fault fatal@now"}` + "\n"}, answer("fault"))
	refused := answer("refuse")
	require.Equal(t, wire.Fail, refused.Status)
	require.Contains(t, refused.Detail, "no such word")
	require.Equal(t, wire.Message{Kind: wire.KindAnswer, Name: "model7", Status: wire.Fail, Detail: "there is no such model"}, answer("nobody"))
}

func TestBootBlamesADeadModel(t *testing.T) {
	dead, err := startChild(exec.Command("/bin/false"))
	require.NoError(t, err)
	<-dead.gone
	logFile := filepath.Join(t.TempDir(), "model.log")
	require.NoError(t, os.WriteFile(logFile, []byte("the last words\n"), 0o600))
	l, err := standIn(t, "hangs").boot(t.Context(), []*model{{child: dead, log: logFile}})
	require.NoError(t, err)
	require.Equal(t, wire.Fail, statuses(l.checks)["machine/server"])
}

// script writes an executable shell script.
func script(t *testing.T, body string) string {
	t.Helper()
	p := filepath.Join(t.TempDir(), "serve")
	require.NoError(t, os.WriteFile(p, []byte("#!/bin/sh\n"+body), 0o700))
	return p
}

func TestServeModelWaitsForTheReadyLine(t *testing.T) {
	dir := t.TempDir()
	_, err := serveModel(script(t, "echo no such profile >&2; exit 2\n"), "sim:x", 1, dir, "m", filepath.Join(dir, "log"))
	require.ErrorContains(t, err, "no such profile")

	_, err = serveModel(script(t, "echo ready; exec sleep 60\n"), "sim:x", 1, dir, "m", filepath.Join(dir, "log"))
	require.ErrorContains(t, err, "firmware version: ready")

	_, err = serveModel(script(t, "echo firmware 1.2.3; exec sleep 60\n"), "sim:x", 1, dir, "m", filepath.Join(dir, "log"))
	require.ErrorContains(t, err, "is no socket")

	// a listening socket at the path that the program was told
	l, err := net.Listen("unix", filepath.Join(dir, "ok.sock"))
	require.NoError(t, err)
	defer func() { require.NoError(t, l.Close()) }()
	m, err := serveModel(script(t, "sleep 0.2; echo ready, firmware 16.35.4030 on \"$@\"; exec sleep 60\n"), "sim:cx5", 1, dir, "ok", filepath.Join(dir, "log"))
	require.NoError(t, err)
	require.False(t, m.ended())
	require.Equal(t, "16.35.4030", m.firmware)
	m.stop(5 * time.Second)
	require.True(t, m.ended())
	b, err := os.ReadFile(filepath.Join(dir, "log"))
	require.NoError(t, err)
	require.Equal(t, fmt.Sprintf("ready, firmware 16.35.4030 on serve sim:cx5 --socket %[1]s/ok.sock --control %[1]s/ok.ctl\n", dir), string(b))
}

func TestArgsPlugEachDeviceBehindItsOwnPort(t *testing.T) {
	d, err := vfioUserDevice("mlx0", "/tmp/a b.sock", false)
	require.NoError(t, err)
	m := machine{devices: []string{"nvme,bus={bus}", d}, run: wire.Run{Scenarios: []string{"s"}, Limit: time.Second}}
	args := strings.Join(m.args("/tmp/report"), "\n")
	require.Contains(t, args, "nvme,bus=port0")
	_, object, ok := strings.Cut(args, "port1,chassis=2,slot=2\n-device\n")
	require.True(t, ok, args)
	object, _, _ = strings.Cut(object, "\n")
	var got struct {
		Driver, Bus string
		Socket      struct{ Type, Path string }
	}
	require.NoError(t, json.Unmarshal([]byte(object), &got))
	require.Equal(t, "vfio-user-pci", got.Driver)
	require.Equal(t, "port1", got.Bus)
	require.Equal(t, "/tmp/a b.sock", got.Socket.Path)
	require.Contains(t, args, "intel-iommu,intremap=on,caching-mode=on")
	require.NotContains(t, object, "multifunction")
}

func TestArgsPlugTwoFunctionsIntoOneSlot(t *testing.T) {
	d, err := vfioUserDevice("mlx0", "/tmp/s", true)
	require.NoError(t, err)
	m := machine{devices: []string{"nvme,bus={bus}", d}, beside: "pci-serial,bus={bus},addr=0x0.0x1", iommu: []string{},
		run: wire.Run{Scenarios: []string{"s"}, Limit: time.Second}}
	args := strings.Join(m.args("/tmp/report"), "\n")
	require.Contains(t, args, `"multifunction":true`)
	require.Contains(t, args, "\npci-serial,bus=port1,addr=0x0.0x1")
	require.Equal(t, 1, strings.Count(args, "pci-serial"))
	require.NotContains(t, args, "intel-iommu,", "a machine without")
}
