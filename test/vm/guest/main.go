//go:build linux

// Command guest is /init of the bench's virtual machine.
//
// Process 1 only supervises: it mounts what a Linux program expects, starts a worker (this binary again), reaps
// orphans, and powers the machine off when the worker is done, dies, or has used up its time. So a panic, a fatal
// runtime error or a system call that a driver never returns from ends the worker's report, not the machine's.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/mlxvfio/mlxvfio/test/vm/internal/wire"
)

// file descriptors of the worker beyond the standard ones
const (
	reportFD = 3 // the report port
	doneFD   = 4 // pipe to the supervisor: a byte means that every scenario was dealt with
)

func main() {
	switch {
	case os.Getpid() == 1:
		supervise()
	case len(os.Args) == 2 && os.Args[1] == "worker":
		work()
	case len(os.Args) == 2 && os.Args[1] == "sleep": // a program that outlives any limit, for the controls
		time.Sleep(time.Hour)
	default:
		fmt.Fprintln(os.Stderr, "guest: this is /init of the real-kernel bench; start it with test/vm/run")
		os.Exit(2)
	}
}

func supervise() {
	rep := &reporter{}
	defer powerOff(rep)
	defer func() {
		if r := recover(); r != nil {
			rep.check("init/panic", false, "%v\n%s", r, debug.Stack())
		}
	}()
	mountErr := mountAll()
	rep.port = openReportPort()
	rep.check("init/mounts", mountErr == nil, "%v", errText(mountErr))
	run, err := wire.ParseRun(readFile("/proc/cmdline"))
	if err != nil {
		rep.check("init/command-line", false, "%v", err)
		return
	}
	if run.HugePages > 0 {
		err := os.WriteFile("/proc/sys/vm/nr_hugepages", fmt.Append(nil, run.HugePages), 0)
		got := readFile("/proc/sys/vm/nr_hugepages")
		rep.check("init/huge-pages", err == nil && got == fmt.Sprint(run.HugePages), "asked for %d, have %s, %v", run.HugePages, got, errText(err))
	}
	rep.send(wire.Message{Kind: wire.KindStep, Name: "start the worker"})
	finished, exited, err := startWorker(rep.port)
	if err != nil {
		rep.check("init/worker", false, "%v", err)
		return
	}
	select {
	case <-finished:
	case status := <-exited:
		select {
		case <-finished: // it said so just before it went
		case <-time.After(100 * time.Millisecond):
			rep.check("init/worker", false, "died before it was done: %s", status)
		}
	case <-time.After(run.Limit):
		rep.check("init/limit", false, "not done after %v; the kernel log lists the blocked tasks", run.Limit)
		if err := os.WriteFile("/proc/sysrq-trigger", []byte("w"), 0); err == nil {
			time.Sleep(300 * time.Millisecond)
		}
	}
}

// startWorker runs the scenarios in a process of their own. The first channel closes when it says that it is done; the
// second carries its exit status. Every other child that ends (an orphan of a killed program) is reaped.
func startWorker(port *os.File) (<-chan struct{}, <-chan string, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	p, err := os.StartProcess("/init", []string{"/init", "worker"}, &os.ProcAttr{
		Dir: "/", Env: []string{"PATH=/bin", "HOME=/root", "TMPDIR=/tmp"},
		Files: []*os.File{os.Stdin, os.Stdout, os.Stderr, port, w},
	})
	if err != nil {
		return nil, nil, err
	}
	if err := w.Close(); err != nil {
		return nil, nil, err
	}
	finished, exited := make(chan struct{}), make(chan string, 1)
	go func() { // ends with the worker: the pipe's other end is then closed
		b := make([]byte, 1)
		if n, err := r.Read(b); err == nil && n == 1 {
			close(finished)
		}
	}()
	go func() { // ends when there is no child left
		for {
			var ws syscall.WaitStatus
			pid, err := syscall.Wait4(-1, &ws, 0, nil)
			if err == syscall.EINTR {
				continue
			}
			if err != nil {
				return
			}
			if pid == p.Pid {
				exited <- statusText(ws)
			}
		}
	}()
	return finished, exited, nil
}

func statusText(ws syscall.WaitStatus) string {
	if ws.Signaled() {
		return "signal " + ws.Signal().String()
	}
	return fmt.Sprintf("exit status %d", ws.ExitStatus())
}

// mountAll makes the file systems of a small Linux and takes the console as standard streams.
func mountAll() error {
	for _, m := range []struct{ dir, fs string }{
		{"/proc", "proc"}, {"/sys", "sysfs"}, {"/dev", "devtmpfs"}, {"/tmp", "tmpfs"}, {"/run", "tmpfs"}, {"/var", "tmpfs"},
		{"/dev/shm", "tmpfs"}, {"/dev/hugepages", "hugetlbfs"}, {"/sys/kernel/debug", "debugfs"},
	} {
		if err := os.MkdirAll(m.dir, 0o755); err != nil {
			return err
		}
		if err := syscall.Mount(m.fs, m.dir, m.fs, 0, ""); err != nil {
			return fmt.Errorf("mount %s on %s: %w", m.fs, m.dir, err)
		}
	}
	for _, d := range []string{"/var/lib", "/var/tmp", "/root"} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	return nil
}

// openReportPort opens the second serial port. Without it the console alone has the report and the host will say so.
func openReportPort() *os.File {
	for range 50 {
		f, err := os.OpenFile("/dev/ttyS1", os.O_RDWR|syscall.O_NOCTTY, 0)
		if err == nil {
			if err := rawLine(f); err != nil {
				fmt.Println(wire.Marker+"report port:", err)
			}
			return f
		}
		time.Sleep(20 * time.Millisecond)
	}
	return nil
}

// rawLine ends the terminal's own ways: it would send what the host says back to it.
func rawLine(f *os.File) error {
	var t syscall.Termios
	p := reflect.ValueOf(&t).Pointer()
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, f.Fd(), syscall.TCGETS, p); errno != 0 {
		return fmt.Errorf("TCGETS: %w", errno)
	}
	t.Iflag &^= syscall.BRKINT | syscall.ICRNL | syscall.INLCR | syscall.IGNCR | syscall.INPCK | syscall.ISTRIP | syscall.IXON
	t.Oflag &^= syscall.OPOST
	t.Lflag &^= syscall.ECHO | syscall.ECHONL | syscall.ICANON | syscall.IEXTEN | syscall.ISIG
	t.Cc[syscall.VMIN], t.Cc[syscall.VTIME] = 1, 0
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, f.Fd(), syscall.TCSETS, p); errno != 0 {
		return fmt.Errorf("TCSETS: %w", errno)
	}
	runtime.KeepAlive(&t)
	return nil
}

func powerOff(rep *reporter) {
	rep.send(wire.Message{Kind: wire.KindFile, Name: "dmesg.txt", Detail: wholeLog()})
	rep.send(wire.Message{Kind: wire.KindEnd})
	time.Sleep(200 * time.Millisecond) // the serial ports drain
	syscall.Sync()
	if err := syscall.Reboot(syscall.LINUX_REBOOT_CMD_POWER_OFF); err != nil {
		fmt.Println(wire.Marker+"power off:", err)
	}
	select {} // the host ends a machine that stays on
}

// work runs the scenarios that the kernel command line names.
func work() {
	rep := &reporter{port: os.NewFile(reportFD, "report")}
	done := os.NewFile(doneFD, "done")
	run, err := wire.ParseRun(readFile("/proc/cmdline"))
	if err != nil {
		rep.check("worker/command-line", false, "%v", err)
		return
	}
	b := &bench{reporter: rep, bdfs: functions(vendorMellanox), firmware: map[string]string{}, models: map[string]string{}, mods: &modules{}, host: &host{port: rep.port}, backend: run.Backend}
	if run.Backend == noIOMMU {
		b.words = []string{unsafeNoIOMMU}
	}
	for i, m := range run.Models {
		if i < len(b.bdfs) {
			b.models[b.bdfs[i]], b.firmware[b.bdfs[i]] = m.Words, m.Firmware
		}
	}
	ok := rep.check("worker/functions", len(b.bdfs) == len(run.Models), "%d functions of vendor %s, want %d: %v", len(b.bdfs), vendorMellanox, len(run.Models), b.bdfs)
	for _, m := range []string{"vfio_iommu_type1", "vfio_pci"} {
		err := b.mods.load(m, "")
		ok = rep.check("worker/load-"+m, err == nil, "%v", errText(err)) && ok
	}
	if ok {
		for _, name := range run.Scenarios {
			if !b.scenario(name) {
				break // one that never came back still holds the device; the host misses the rest
			}
		}
	}
	if _, err := done.Write([]byte{1}); err != nil {
		rep.check("worker/done", false, "%v", err)
	}
}

// outputName is a file name for what a program of this check printed.
func outputName(check string) string {
	return filepath.Clean("/" + check)[1:] + ".txt"
}
