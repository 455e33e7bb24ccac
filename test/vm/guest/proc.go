//go:build linux

package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// process is a program that runs or ran. Its output goes to files: a grandchild that keeps a pipe open could hold up
// whoever reads it.
type process struct {
	cmd      *exec.Cmd
	out, err *os.File
	exited   chan error
	started  time.Time
}

// outcome of a program: code is its exit status, -1 when it was ended by a signal or did not start; failure says why.
type outcome struct {
	argv           []string
	stdout, stderr string
	code           int
	failure        error
	took           time.Duration
}

func (o outcome) ok() bool { return o.failure == nil }

func (o outcome) String() string {
	return fmt.Sprintf("%s: %v after %.2f s\n%s", strings.Join(o.argv, " "), errText(o.failure), o.took.Seconds(),
		brief(o.stdout+"\n"+o.stderr))
}

func (o outcome) transcript() string {
	return fmt.Sprintf("$ %s\n-- %v after %.2f s\n-- stdout\n%s\n-- stderr\n%s\n", strings.Join(o.argv, " "), errText(o.failure),
		o.took.Seconds(), o.stdout, o.stderr)
}

// launch starts a program; the caller must call wait or kill.
func launch(env []string, argv ...string) (*process, error) { return launchAs(nil, env, argv...) }

// runAs runs a program as a user without any capability, who may lock so many bytes of memory.
func runAs(uid uint32, memlock uint64, limit time.Duration, argv ...string) outcome {
	const rlimitMemlock = 8 // Linux asm-generic/resource.h
	var was syscall.Rlimit
	if err := syscall.Getrlimit(rlimitMemlock, &was); err != nil {
		return outcome{argv: argv, failure: err, code: -1}
	}
	// a child has its parent's limits
	if err := syscall.Setrlimit(rlimitMemlock, &syscall.Rlimit{Cur: memlock, Max: memlock}); err != nil {
		return outcome{argv: argv, failure: err, code: -1}
	}
	p, err := launchAs(&syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}, nil, argv...)
	err = errors.Join(err, syscall.Setrlimit(rlimitMemlock, &was))
	if err != nil {
		return outcome{argv: argv, failure: err, code: -1}
	}
	return p.wait(limit)
}

func launchAs(as *syscall.SysProcAttr, env []string, argv ...string) (*process, error) {
	p := &process{cmd: exec.Command(argv[0], argv[1:]...), exited: make(chan error, 1), started: time.Now()}
	for _, f := range []**os.File{&p.out, &p.err} {
		tmp, err := os.CreateTemp("", "out")
		if err != nil {
			return nil, err
		}
		*f = tmp
	}
	p.cmd.Stdout, p.cmd.Stderr = p.out, p.err
	p.cmd.Env, p.cmd.SysProcAttr = append(os.Environ(), env...), as
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() { p.exited <- p.cmd.Wait() }()
	return p, nil
}

// wait lets the program run for at most limit, then kills it.
func (p *process) wait(limit time.Duration) outcome {
	select {
	case err := <-p.exited:
		return p.outcome(err)
	case <-time.After(limit):
		o := p.kill()
		o.failure = fmt.Errorf("killed after its limit of %v (%w)", limit, o.failure)
		return o
	}
}

// errUnkillable is the state of a process that a driver keeps inside a system call.
var errUnkillable = errors.New("still there 5 s after SIGKILL: a driver does not return from a system call")

// kill sends SIGKILL and waits for the end.
func (p *process) kill() outcome {
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return p.outcome(err)
	}
	select {
	case err := <-p.exited:
		return p.outcome(err)
	case <-time.After(5 * time.Second):
		return p.outcome(errUnkillable)
	}
}

func (p *process) outcome(err error) outcome {
	o := outcome{argv: p.cmd.Args, failure: err, code: -1, took: time.Since(p.started)}
	if p.cmd.ProcessState != nil && !errors.Is(err, errUnkillable) {
		o.code = p.cmd.ProcessState.ExitCode()
	}
	o.stdout, o.stderr = readFile(p.out.Name()), readFile(p.err.Name())
	for _, f := range []*os.File{p.out, p.err} {
		_ = f.Close() // the text is already read
		_ = os.Remove(f.Name())
	}
	return o
}

// printed waits until the program's standard output has the text, the program ends, or limit is over.
func (p *process) printed(text string, limit time.Duration) bool {
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if strings.Contains(readFile(p.out.Name())+"\n", text) { // readFile trims the last newline
			return true
		}
		if !p.alive() {
			return false
		}
	}
	return false
}

// alive says whether the program runs still; a zombie does not.
func (p *process) alive() bool {
	_, after, ok := strings.Cut(readFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid)), ") ")
	return ok && !strings.HasPrefix(after, "Z")
}

// run runs a program within limit.
func run(limit time.Duration, argv ...string) outcome { return runWith(nil, limit, argv...) }

func runWith(env []string, limit time.Duration, argv ...string) outcome {
	p, err := launch(env, argv...)
	if err != nil {
		return outcome{argv: argv, failure: err, code: -1}
	}
	return p.wait(limit)
}

// within runs f and waits at most limit for it: a driver can hold a write to sysfs for minutes.
func within(limit time.Duration, f func() error) error {
	c := make(chan error, 1)
	go func() { c <- f() }()
	select {
	case err := <-c:
		return err
	case <-time.After(limit):
		return fmt.Errorf("not done after %v", limit)
	}
}

func readFile(p string) string {
	b, err := os.ReadFile(p)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// isBusy says whether an error is the kernel's "somebody else has it".
func isBusy(err error) bool { return errors.Is(err, syscall.EBUSY) }
