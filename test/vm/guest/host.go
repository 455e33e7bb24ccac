//go:build linux

package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/mlxvfio/mlxvfio/test/vm/internal/wire"
)

// askLimit bounds what the host does when it is asked: it starts a program.
const askLimit = 15 * time.Second

// host is the other side of the report port, which answers when it is asked. It is safe for concurrent use.
type host struct {
	port    *os.File
	mu      sync.Mutex // held from a question to its answer
	answers chan wire.Message
}

// listen takes answers until the machine is off. What it cannot read is an answer that never comes.
func (h *host) listen() {
	in := bufio.NewReaderSize(h.port, 64<<10)
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			close(h.answers)
			return
		}
		var m wire.Message
		if json.Unmarshal(line, &m) == nil && m.Kind == wire.KindAnswer {
			h.answers <- m
		}
	}
}

// tell says words to the function's model, through the host, and returns its answer (JSON).
func (b *bench) tell(bdf, words string) (string, error) {
	h := b.host
	if h.port == nil {
		return "", fmt.Errorf("tell the model %q: there is no report port", words)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.answers == nil {
		h.answers = make(chan wire.Message, 1)
		go h.listen()
	}
	select {
	case <-h.answers: // to a question that nobody waited for any longer
	default:
	}
	b.send(wire.Message{Kind: wire.KindAsk, Name: wire.ModelName(slices.Index(b.bdfs, bdf)), Detail: words})
	select {
	case m, ok := <-h.answers:
		switch {
		case !ok:
			return "", fmt.Errorf("tell the model %q: the report port cannot be read", words)
		case m.Status != wire.Pass:
			return "", fmt.Errorf("tell the model %q: %s", words, m.Detail)
		}
		return m.Detail, nil
	case <-time.After(askLimit):
		return "", fmt.Errorf("tell the model %q: no answer after %v", words, askLimit)
	}
}

// told is tell as a check.
func (b *bench) told(name, bdf, words string) bool {
	_, err := b.tell(bdf, words)
	return b.check(name, err == nil, "%s: %v", words, errText(err))
}

// counter is a count of the function's model.
func (b *bench) counter(bdf, name string) (float64, error) {
	return b.modelNumber(bdf, "counters", name)
}

// stateOf is a number of the state of the function's model.
func (b *bench) stateOf(bdf, name string) (float64, error) { return b.modelNumber(bdf, "state", name) }

func (b *bench) modelNumber(bdf, part, name string) (float64, error) {
	said, err := b.tell(bdf, "state")
	if err != nil {
		return 0, err
	}
	var s struct {
		Answer struct {
			Functions []map[string]any
		}
	}
	if err := json.Unmarshal([]byte(said), &s); err != nil || len(s.Answer.Functions) != 1 {
		return 0, fmt.Errorf("the model's state: %v: %s", errText(err), said)
	}
	n, ok := at(s.Answer.Functions[0], part, name).(float64)
	if !ok {
		return 0, fmt.Errorf("the model has no number %s among its %s: %s", name, part, said)
	}
	return n, nil
}
