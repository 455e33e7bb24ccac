package main

import (
	"bytes"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"
)

// lineWriter writes lines on a goroutine of its own: a terminal that was stopped, or
// a pipe that nobody empties, holds up nothing but the output.
type lineWriter struct {
	w       io.Writer
	queue   chan []byte
	failed  chan struct{} // closed at the first error
	done    chan struct{}
	ending  sync.Once
	writing atomic.Bool
	dropped atomic.Uint64
	stuck   atomic.Bool
	err     error // read after failed or done
}

const (
	lineQueue = 1024            // lines that wait
	lineGrace = 2 * time.Second // for them at the end
)

func newLineWriter(w io.Writer) *lineWriter {
	l := &lineWriter{w: w, queue: make(chan []byte, lineQueue), failed: make(chan struct{}), done: make(chan struct{})}
	go l.run()
	return l
}

func (l *lineWriter) run() {
	defer close(l.done)
	for b := range l.queue {
		l.writing.Store(true)
		if l.err == nil {
			if _, err := l.w.Write(b); err != nil {
				l.err = err
				close(l.failed)
			}
		}
		l.writing.Store(false)
	}
}

// put takes a line, or drops it where too many wait.
func (l *lineWriter) put(b []byte) {
	select {
	case l.queue <- b:
	default:
		l.dropped.Add(1)
	}
}

// json takes an object as a line.
func (l *lineWriter) json(schema string, v any) {
	var b bytes.Buffer
	if err := writeJSON(&b, schema, v); err != nil {
		panic(fmt.Sprintf("%s does not fit JSON: %v", schema, err)) // plain data: a mistake of this program
	}
	l.put(b.Bytes())
}

// idle tells whether nothing waits.
func (l *lineWriter) idle() bool { return len(l.queue) == 0 && !l.writing.Load() }

func (l *lineWriter) lost() uint64 { return l.dropped.Load() }

// end writes what waits, as far as it is taken in time. Nothing may be put after it.
func (l *lineWriter) end() {
	l.ending.Do(func() {
		close(l.queue)
		t := time.NewTimer(lineGrace)
		defer t.Stop()
		select {
		case <-l.done:
		case <-t.C:
			l.stuck.Store(true)
		}
	})
}

// error is why lines are missing, after end. Standard output that is stuck has no
// reader that could be told anything.
func (l *lineWriter) error() error {
	if l.stuck.Load() {
		return fmt.Errorf("the output was not taken: %d lines wait, %d were lost; the watch went on meanwhile", len(l.queue)+1, l.lost())
	}
	return l.err
}
