package main

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"syscall"
	"time"
)

// child is a process of ours: waited for by one goroutine, ended by its own handle, never outliving this process.
type child struct {
	cmd  *exec.Cmd
	gone chan struct{} // closed when it has ended; err is then set
	err  error
}

// startChild starts cmd. The kernel kills the child when the starting thread ends, hence the lock that main takes: all
// children are started from the first thread, which lives as long as the process.
func startChild(cmd *exec.Cmd) (*child, error) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	c := &child{cmd: cmd, gone: make(chan struct{})}
	go func() {
		c.err = cmd.Wait()
		close(c.gone)
	}()
	return c, nil
}

// stop asks with SIGTERM, waits for grace, then kills; it returns when the child has ended. A child that had ended
// before is no error.
func (c *child) stop(grace time.Duration) {
	if grace > 0 {
		_ = c.cmd.Process.Signal(syscall.SIGTERM) // an ended process cannot be signalled, and need not be
		select {
		case <-c.gone:
			return
		case <-time.After(grace):
		}
	}
	_ = c.cmd.Process.Kill() // as above
	<-c.gone
}

// ended says whether the child has ended.
func (c *child) ended() bool {
	select {
	case <-c.gone:
		return true
	default:
		return false
	}
}

// model is a running "mlxvfio serve".
type model struct {
	*child
	program, control, log string

	sockets  []string // one for each function
	ready    string   // the line that says that it is ready
	firmware string   // what it says there its firmware is
}

// firmwareOf finds the version in the line that says that a model is ready.
var firmwareOf = regexp.MustCompile(`firmware (\d+\.\d+\.\d+)`)

// serveModel starts the device model, with a socket in dir for each function, and waits for the line that says it is
// ready. Its output goes to logFile.
func serveModel(program, words string, functions int, dir, name, logFile string, flags ...string) (*model, error) {
	log, err := os.Create(logFile)
	if err != nil {
		return nil, err
	}
	m := &model{program: program, control: filepath.Join(dir, name+".ctl"), log: logFile}
	args := []string{"serve", words}
	for i := range functions {
		s := name
		if i > 0 {
			s = fmt.Sprintf("%s.%d", name, i)
		}
		m.sockets = append(m.sockets, filepath.Join(dir, s+".sock"))
		args = append(args, "--socket", m.sockets[i])
	}
	cmd := exec.Command(program, slices.Concat(args, []string{"--control", m.control}, flags)...)
	r, w := io.Pipe()
	cmd.Stdout, cmd.Stderr = io.MultiWriter(log, w), log
	ready := make(chan string, 1)
	go func() { // ends when the writer is closed, after the child's end
		in := bufio.NewReader(r)
		line, err := in.ReadString('\n')
		if err == nil {
			ready <- line
		}
		_, _ = io.Copy(io.Discard, in) // the log has it
	}()
	m.child, err = startChild(cmd)
	if err != nil {
		return nil, fmt.Errorf("start the device model: %w", err)
	}
	go func() {
		<-m.gone
		_ = w.Close() // a PipeWriter's Close reports nothing
		_ = log.Close()
	}()
	select {
	case m.ready = <-ready:
		if f := firmwareOf.FindStringSubmatch(m.ready); f != nil {
			m.firmware = f[1]
		}
	case <-m.gone:
		return nil, fmt.Errorf("the device model ended at once: %w: %s", cmp.Or(m.err, errors.New("exit status 0")), lastLines(logFile, 3))
	case <-time.After(20 * time.Second):
		m.stop(time.Second)
		return nil, fmt.Errorf("the device model was not ready after 20 s: %s", lastLines(logFile, 3))
	}
	if m.firmware == "" {
		m.stop(time.Second)
		return nil, fmt.Errorf("the device model does not say its firmware version: %s", lastLines(logFile, 1))
	}
	for _, s := range m.sockets {
		if st, err := os.Stat(s); err != nil || st.Mode()&os.ModeSocket == 0 {
			m.stop(time.Second)
			return nil, fmt.Errorf("the device model says that it is ready, but %s is no socket: %w", s, cmp.Or(err, fs.ErrInvalid))
		}
	}
	return m, nil
}
