package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/mlxvfio/mlxvfio/test/vm/internal/wire"
)

// machine is one virtual machine about to run.
type machine struct {
	qemu, kernel, initrd string
	iommu                []string // QEMU arguments; the default is an intel-iommu that remaps interrupts
	devices              []string // QEMU device objects (JSON or words without a bus), each behind a root port of its own
	beside               string   // a QEMU device in the slot of the last one; without ACS between them they are one IOMMU group
	ports                string   // further words for the root ports
	append               string   // further words of the kernel command line
	run                  wire.Run
	out                  string        // folder for console.log, qemu.log and what the guest sends
	console              io.Writer     // a live copy of the console, or nil
	grace                time.Duration // beyond the guest's own limit
}

var remappingIOMMU = []string{"-device", "intel-iommu,intremap=on,caching-mode=on"}

func (m machine) args(reportSocket string) []string {
	iommu := m.iommu
	if iommu == nil {
		iommu = remappingIOMMU
	}
	args := []string{
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		// emulation in threads, and two of them: atomics of the guest and of the model must meet on the same memory
		"-accel", "tcg,thread=multi", "-cpu", "qemu64", "-smp", "2", "-m", "1G",
		"-object", "memory-backend-memfd,id=mem,size=1G,share=on", "-machine", "q35,memory-backend=mem",
		"-chardev", "stdio,id=console,signal=off", "-serial", "chardev:console",
		"-chardev", "socket,id=report,path=" + reportSocket, "-serial", "chardev:report",
	}
	args = append(args, iommu...)
	for i, d := range m.devices {
		port := fmt.Sprintf("port%d", i)
		slot := []string{fmt.Sprintf("pcie-root-port,id=%s,chassis=%d,slot=%d%s", port, i+1, i+1, m.ports), d}
		if m.beside != "" && i == len(m.devices)-1 {
			slot = append(slot, m.beside)
		}
		for _, f := range slot {
			args = append(args, "-device", strings.ReplaceAll(f, "{bus}", port))
		}
	}
	// no_timer_check: on a busy host this kernel would take the emulated timer for dead, and panic
	words := "console=ttyS0 rdinit=/init panic=-1 loglevel=5 printk.devkmsg=on no_timer_check intel_iommu=on iommu=nopt " + m.run.Words()
	if m.append != "" {
		words += " " + m.append
	}
	return append(args, "-kernel", m.kernel, "-initrd", m.initrd, "-append", words)
}

// vfioUserDevice is the QEMU device for a socket that a vfio-user server listens on; shared says that its slot has
// further functions.
func vfioUserDevice(id, socket string, shared bool) (string, error) {
	d := map[string]any{
		"driver": "vfio-user-pci", "id": id, "bus": "{bus}", "socket": map[string]string{"type": "unix", "path": socket},
	}
	if shared {
		d["addr"], d["multifunction"] = "0x0.0x0", true
	}
	b, err := json.Marshal(d)
	return string(b), err
}

// check is a line of the report.
type check struct {
	Name   string      `json:"name"`
	Status wire.Status `json:"status"`
	Detail string      `json:"detail,omitempty"`
	At     float64     `json:"at"` // seconds after QEMU's start
}

// log collects the checks of a machine while it runs. It is safe for concurrent use.
type log struct {
	mu     sync.Mutex
	start  time.Time
	checks []check
	step   string
}

func (l *log) add(name string, status wire.Status, format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := float64(time.Since(l.start).Milliseconds()/10) / 100
	l.checks = append(l.checks, check{name, status, fmt.Sprintf(format, args...), at})
}

// verdict adds a check that passed if err is nil.
func (l *log) verdict(name string, err error, format string, args ...any) {
	if err != nil {
		l.add(name, wire.Fail, "%v; %s", err, fmt.Sprintf(format, args...))
		return
	}
	l.add(name, wire.Pass, format, args...)
}

func (l *log) setStep(s string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.step = s
}

func (l *log) lastStep() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.step
}

// boot runs the machine until it powers off, ends or uses up its time, and returns what it reported. servers are
// watched: one that ends while the guest runs is a failed check. The error is for a machine that could not be started.
func (m machine) boot(ctx context.Context, servers []*model) (*log, error) {
	sockets, err := os.MkdirTemp("", "vmrun")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(sockets) }() // in the temporary folder
	path := filepath.Join(sockets, "report")
	listener, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = listener.Close() }() // ends the wait for a QEMU that never connected
	consoleLog, err := os.Create(filepath.Join(m.out, "console.log"))
	if err != nil {
		return nil, err
	}
	defer func() { _ = consoleLog.Close() }()
	qemuLog, err := os.Create(filepath.Join(m.out, "qemu.log"))
	if err != nil {
		return nil, err
	}
	defer func() { _ = qemuLog.Close() }()

	cmd := exec.Command(m.qemu, m.args(path)...)
	cmd.Stdout = consoleLog
	if m.console != nil {
		cmd.Stdout = io.MultiWriter(consoleLog, m.console)
	}
	cmd.Stderr = qemuLog
	l := &log{start: time.Now(), step: "boot"}
	q, err := startChild(cmd)
	if err != nil {
		return nil, fmt.Errorf("start QEMU: %w", err)
	}
	ended := make(chan bool, 1) // whether the guest said so
	go func() { ended <- m.listen(ctx, listener, l, servers) }()

	over := time.NewTimer(m.run.Limit + m.grace) // the guest gives up by itself before
	defer over.Stop()
	complete := false
	select {
	case complete = <-ended:
		select { // a driver may hold up the power-off
		case <-q.gone:
		case <-time.After(5 * time.Second):
			l.add("machine/power-off", wire.Fail, "still on 5 s after the report's end")
		}
	case <-q.gone:
	case <-over.C:
		l.add("machine/limit", wire.Fail, "no end %v after the start", time.Since(l.start).Round(time.Second))
	case <-ctx.Done():
	}
	// before QEMU's end is brought about, or a server would be blamed for following it
	for _, s := range servers {
		if s.ended() && !complete {
			l.add("machine/server", wire.Fail, "the device model ended under the guest (%v): %s", s.err, lastLines(s.log, 3))
		}
	}
	q.stop(0)
	if !complete { // QEMU may have gone first, with the last lines still on their way, or even its connection
		select {
		case complete = <-ended:
		case <-time.After(time.Second):
		}
	}
	if ctx.Err() != nil {
		return nil, fmt.Errorf("stopped during %s: %w", l.lastStep(), context.Cause(ctx))
	}
	if complete {
		l.add("machine/complete", wire.Pass, "")
	} else {
		l.add("machine/complete", wire.Fail, "the guest never said that it was done; last step %q; QEMU: %v; %s", l.lastStep(), q.err,
			lastLines(qemuLog.Name(), 3))
	}
	return l, nil
}

// listen takes the report until the guest says that it is done or the line is cut, and passes on what the guest wants the
// models to be told.
func (m machine) listen(ctx context.Context, listener net.Listener, l *log, servers []*model) bool {
	conn, err := listener.Accept()
	if err != nil {
		return false
	}
	defer func() { _ = conn.Close() }() // an answer that is lost is missed by the guest
	in := bufio.NewReaderSize(conn, 64<<10)
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			return false
		}
		var msg wire.Message
		if err := json.Unmarshal(line, &msg); err != nil {
			l.add("machine/report", wire.Fail, "not a message: %q: %v", line, err)
			continue
		}
		switch msg.Kind {
		case wire.KindCheck:
			l.add(msg.Name, msg.Status, "%s", msg.Detail)
		case wire.KindStep:
			l.setStep(msg.Name)
		case wire.KindAsk:
			line, err := tellModel(ctx, servers, msg).Line()
			if err == nil {
				_, err = conn.Write(line)
			}
			if err != nil {
				l.add("machine/answer", wire.Fail, "%v", err)
			}
		case wire.KindFile:
			if err := keepFile(m.out, msg.Name, msg.Detail); err != nil {
				l.add("machine/file", wire.Fail, "%v", err)
			}
		case wire.KindEnd:
			return true
		default:
			l.add("machine/report", wire.Fail, "message of unknown kind %q", msg.Kind)
		}
	}
}

// tellModel asks the model that the guest names.
func tellModel(ctx context.Context, servers []*model, ask wire.Message) wire.Message {
	answer := wire.Message{Kind: wire.KindAnswer, Name: ask.Name, Status: wire.Fail, Detail: "there is no such model"}
	for i, s := range servers {
		if wire.ModelName(i) != ask.Name {
			continue
		}
		said, err := s.tell(ctx, strings.Fields(ask.Detail)...)
		answer.Detail = said
		if err == nil {
			answer.Status = wire.Pass
		}
	}
	return answer
}
