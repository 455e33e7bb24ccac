//go:build linux

package main

import (
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/mlxvfio/mlxvfio/test/vm/internal/wire"
)

// reporter sends what happens to the host, and prints it on the console among the kernel's lines. It is safe for
// concurrent use.
type reporter struct {
	mu   sync.Mutex
	port *os.File // nil: console only
}

func (r *reporter) send(m wire.Message) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fmt.Println(m.Console())
	if r.port == nil {
		return
	}
	line, err := m.Line()
	if err == nil {
		_, err = r.port.Write(line)
	}
	if err != nil {
		fmt.Println(wire.Marker+"report port:", err)
	}
}

func (r *reporter) check(name string, ok bool, format string, args ...any) bool {
	m := wire.Message{Kind: wire.KindCheck, Name: name, Status: wire.Pass, Detail: fmt.Sprintf(format, args...)}
	if !ok {
		m.Status = wire.Fail
	}
	r.send(m)
	return ok
}

func (r *reporter) skip(name, format string, args ...any) {
	r.send(wire.Message{Kind: wire.KindCheck, Name: name, Status: wire.Skip, Detail: fmt.Sprintf(format, args...)})
}

// bench is what scenarios work with: the report, prefixed with the scenario's name, and the functions under test.
type bench struct {
	*reporter
	name     string
	bdfs     []string
	firmware map[string]string // version by BDF, as the model says it
	models   map[string]string // words by BDF, as the model was started
	mods     *modules
	host     *host
	backend  string   // the way into VFIO that the program must take
	words    []string // after every verb

	stageNames []string // once the program was asked
	expected   []string // what the kernel's log will complain about, rightly
	allowed    []string // what it may
}

// expect announces a complaint of the kernel that holds the text: it must come, and it is no failure.
func (b *bench) expect(text string) { b.expected = append(b.expected, text) }

// allow announces one that may come, or not.
func (b *bench) allow(text string) { b.allowed = append(b.allowed, text) }

func (b *bench) check(name string, ok bool, format string, args ...any) bool {
	return b.reporter.check(b.name+"/"+name, ok, format, args...)
}

func (b *bench) skip(name, format string, args ...any) {
	b.reporter.skip(b.name+"/"+name, format, args...)
}

func (b *bench) step(format string, args ...any) {
	b.send(wire.Message{Kind: wire.KindStep, Name: b.name + "/" + fmt.Sprintf(format, args...)})
}

func (b *bench) keep(name, text string) {
	b.send(wire.Message{Kind: wire.KindFile, Name: outputName(b.name + "/" + name), Detail: text})
}

// scenario runs one by name, within its limit, and then asks the kernel log whether anything went wrong that no check
// has seen. It returns false when the scenario did not come back.
func (b *bench) scenario(name string) bool {
	s, ok := find(name)
	if !ok {
		b.reporter.check(name+"/complete", false, "no such scenario")
		return true
	}
	sub := &bench{reporter: b.reporter, name: name, bdfs: b.bdfs, firmware: b.firmware, models: b.models, mods: b.mods, host: b.host, backend: b.backend, words: b.words}
	if b.backend == noIOMMU { // the kernel says so each time, at a level that looks bad
		sub.allow(noIOMMUOpened)
	}
	sub.step("begin")
	log := watchLog()
	defer log.close()
	start := time.Now()
	back := make(chan string, 1)
	go func() {
		defer func() {
			if r := recover(); r != nil {
				back <- fmt.Sprintf("panic: %v\n%s", r, debug.Stack())
			}
		}()
		s.run(sub)
		back <- ""
	}()
	select {
	case broken := <-back:
		c, missing := without(complaints(log.read()), sub.expected)
		c, _ = without(c, sub.allowed)
		sub.check("kernel-log", len(c) == 0, "%s", strings.Join(c, "\n"))
		if len(sub.expected) > 0 {
			sub.check("kernel-log-expected", len(missing) == 0, "the kernel must say %q, and did not say %q", sub.expected, missing)
		}
		sub.check("complete", broken == "", "%.1f s %s", time.Since(start).Seconds(), broken)
		return true
	case <-time.After(s.limit):
		sub.check("complete", false, "not done after its limit of %v", s.limit)
		return false
	}
}

func errText(err error) string {
	if err == nil {
		return "ok"
	}
	return err.Error()
}

// brief cuts a text that is too long for a detail; the whole of it goes into a file.
func brief(s string) string {
	s = strings.TrimSpace(s)
	if len(s) <= 700 {
		return s
	}
	return s[:350] + " ... " + s[len(s)-350:]
}
