package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/mlxvfio/mlxvfio/sim"
)

// The control protocol: a client sends one line of words and gets one line back,
// "ok", "ok ANSWER" or "error REASON"; then it may send another.

var controlWords = []wordRow{
	{"fault NAME[@ARG]", "raise a fault, now"},
	{"clear [NAME]", "end a fault, or all of them"},
	{"power-cycle", "take the power away from the device and give it back, as a cold reset does"},
	{"trace N [KIND]", "write N messages of the load into the firmware trace, now: plain (default), or edge with formats on which decoders differ"},
	{"trace-memory DIR", "write the trace buffer of the function that traces, and the string database, into a folder, as trace decode --ring reads them"},
	{"state", "what firmware holds: phase, pages, objects, faults"},
}

// longestLine bounds a line of the control protocol.
const longestLine = 64 << 10

// serveControl answers until ctx is over. It closes l and returns when every
// connection has ended.
func serveControl(ctx context.Context, l net.Listener, m *server) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	defer context.AfterFunc(ctx, func() { _ = l.Close() })() // a second Close is harmless
	defer func() { _ = l.Close() }()
	for {
		c, err := l.Accept()
		switch {
		case ctx.Err() != nil:
			if err == nil {
				_ = c.Close() // nothing was said yet
			}
			return nil
		case err != nil:
			return fmt.Errorf("control socket: %w", err)
		}
		wg.Go(func() {
			stop := context.AfterFunc(ctx, func() { _ = c.Close() }) // ends the read below
			defer stop()
			defer func() { _ = c.Close() }()
			talk(c, m)
		})
	}
}

// talk answers the lines of one connection until the other side has enough.
func talk(c net.Conn, m *server) {
	in := bufio.NewScanner(c)
	in.Buffer(nil, longestLine)
	for in.Scan() {
		answer, err := obey(m, strings.Fields(in.Text()))
		switch {
		case err != nil:
			answer = "error " + oneLine(err)
		case answer == "":
			answer = "ok"
		default:
			answer = "ok " + answer
		}
		if _, err := fmt.Fprintln(c, answer); err != nil {
			return // the other side left
		}
	}
	if errors.Is(in.Err(), bufio.ErrTooLong) {
		fmt.Fprintf(c, "error a line has more than %d bytes\n", longestLine)
	}
}

// obey does what the words say.
func obey(m *server, words []string) (string, error) {
	if len(words) == 0 {
		return "", errors.New("no word; there are: " + knownWords())
	}
	verb, args := words[0], words[1:]
	switch verb {
	case "fault":
		if len(args) != 1 {
			return "", errors.New("want: fault NAME[@ARG]")
		}
		name, arg, _ := strings.Cut(args[0], "@")
		return "", m.chip.SetFault(name, arg)
	case "clear":
		if len(args) > 1 {
			return "", errors.New("want: clear [NAME]")
		}
		return "", m.chip.ClearFault(strings.Join(args, ""))
	case "power-cycle":
		if len(args) > 0 {
			return "", errors.New("want: power-cycle")
		}
		m.chip.PowerCycle()
		return "", nil
	case "trace":
		return emitTrace(m, args)
	case "trace-memory":
		return "", traceMemory(m, args)
	case "state":
		if len(args) > 0 {
			return "", errors.New("want: state")
		}
		b, err := json.Marshal(stateOf(m))
		return string(b), err
	}
	return "", fmt.Errorf("unknown word %q; there are: %s", verb, knownWords())
}

func knownWords() string {
	var names []string
	for _, w := range controlWords {
		names = append(names, w.Word)
	}
	return strings.Join(names, ", ")
}

// chipState is the answer to state.
type chipState struct {
	Model     string          `json:"model"`
	Firmware  string          `json:"firmware"`
	Port      string          `json:"port"`
	Link      *linkState      `json:"link,omitempty"`
	Tracer    sim.TraceStats  `json:"tracer"`
	Functions []functionState `json:"functions"`
}

type functionState struct {
	State    sim.State    `json:"state"`
	Counters sim.Counters `json:"counters"`
}

func stateOf(m *server) chipState {
	chip := m.chip
	s := chipState{Model: chip.Profile(), Firmware: chip.Firmware().String(), Port: chip.Port().String(), Link: m.link.state(), Tracer: chip.TraceStats()}
	for i := range chip.Functions() {
		s.Functions = append(s.Functions, functionState{chip.State(i), chip.Counters(i)})
	}
	return s
}

// answerLimit is how long tell waits where --timeout does not say.
const answerLimit = 5 * time.Second

// ask sends one line to a control socket and gives the answer without its "ok".
// refused holds the reason of an "error" answer.
func ask(ctx context.Context, path, line string) (answer, refused string, err error) {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", path)
	if st, serr := os.Stat(path); err != nil && serr == nil && st.Mode()&fs.ModeSocket == 0 {
		return "", "", &unavailable{fmt.Errorf("%s: it is no socket; give the path that mlxvfio serve --control made", path)}
	}
	if err != nil {
		return "", "", &unavailable{fmt.Errorf("%s: no model listens there: %w; start it with mlxvfio serve --socket PATH --control %s", path, err, path)}
	}
	defer func() { _ = c.Close() }()                         // everything was said
	defer context.AfterFunc(ctx, func() { _ = c.Close() })() // ends the read below
	if _, err := fmt.Fprintln(c, line); err != nil {
		return "", "", fmt.Errorf("%s: send %q: %w", path, line, err)
	}
	text, err := bufio.NewReader(c).ReadString('\n')
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return "", "", fmt.Errorf("%s: no answer to %q: %w; is it the socket of serve --control? That of --socket is for drivers", path, line, err)
	}
	word, rest, _ := strings.Cut(strings.TrimSpace(text), " ")
	switch word {
	case "ok":
		return rest, "", nil
	case "error":
		return "", rest, nil
	}
	return "", "", fmt.Errorf("%s: answered %q: this is no control socket of mlxvfio serve", path, strings.TrimSpace(text))
}
