package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/mlxvfio/mlxvfio/internal/vfiouser"
	"github.com/spf13/cobra"
)

func (a *app) tellVerb() *cobra.Command {
	c := a.verb("tell PATH WORDS…", "tell a served model something: fault, clear, trace, state…", 2, -1, func(ctx context.Context, args []string) error {
		return a.tell(ctx, args[0], args[1:])
	})
	c.Example = examples(
		"mlxvfio serve cx5 --socket cx5.sock --control ctl.sock &", "somebody to tell it to",
		"mlxvfio tell ctl.sock fault late@NOP=5ms", "raise a fault",
		"mlxvfio tell ctl.sock state", "what the model holds",
		"mlxvfio tell ctl.sock clear", "end all faults")
	var b strings.Builder
	b.WriteString("tell sends words to the control socket of mlxvfio serve:\n")
	words(&b, controlWords, widthAny)
	b.WriteString("mlxvfio serve --list shows the faults.")
	c.Long = b.String()
	return c
}

func (a *app) tell(ctx context.Context, path string, words []string) error {
	line := strings.Join(words, " ")
	if path == "" {
		return usagef("PATH is empty: give the path of the socket of mlxvfio serve --control")
	}
	if strings.TrimSpace(line) == "" {
		return usagef("there is no word to tell; there are: %s", knownWords())
	}
	if err := vfiouser.CheckPath(path); err != nil {
		return usagef("%s: %v; use a shorter path", path, err)
	}
	if strings.ContainsAny(line, "\r\n") {
		return usagef("the words hold a line break")
	}
	answer, refused, err := ask(ctx, path, line)
	switch {
	case err != nil:
		return err
	case refused != "":
		return fmt.Errorf("%s: %s", line, refused)
	}
	return a.print("tell/1", &told{OK: true, Answer: answer})
}

// told is an answer: text, or an object.
type told struct {
	OK     bool
	Answer string
}

// MarshalJSON shows an object as one.
func (t *told) MarshalJSON() ([]byte, error) {
	v := struct {
		OK     bool `json:"ok"`
		Answer any  `json:"answer,omitempty"`
	}{OK: t.OK}
	switch {
	case json.Valid([]byte(t.Answer)) && strings.HasPrefix(t.Answer, "{"):
		v.Answer = json.RawMessage(t.Answer)
	case t.Answer != "":
		v.Answer = t.Answer
	}
	return json.Marshal(v)
}

func (t *told) text(w io.Writer) {
	var s chipState
	switch {
	case t.Answer == "":
		fmt.Fprintln(w, "ok")
	case json.Unmarshal([]byte(t.Answer), &s) == nil && len(s.Functions) > 0:
		s.text(w)
	default:
		fmt.Fprintln(w, t.Answer)
	}
}

func (s *chipState) text(w io.Writer) {
	fmt.Fprintf(w, "%s, %s port, firmware %s\n", s.Model, s.Port, s.Firmware)
	if s.Link != nil {
		fmt.Fprintln(w, s.Link)
	}
	if s.Tracer.Messages > 0 || s.Tracer.Owner != "nobody" {
		fmt.Fprintf(w, "firmware tracer: owned by %s, %s, %d messages in %d blocks written, %d blocks not\n", s.Tracer.Owner,
			map[bool]string{true: "on", false: "off"}[s.Tracer.On], s.Tracer.Messages, s.Tracer.Blocks, s.Tracer.BlocksUnwritten)
	}
	rows := [][]string{{"FUNCTION", "PHASE", "ISSI", "PAGES", "COMMANDS", "EQS", "CQS", "QPS", "INTERRUPTS", "MAPPINGS", "FAULTS"}}
	for i, f := range s.Functions {
		rows = append(rows, []string{
			fmt.Sprint(i), f.State.Phase, fmt.Sprint(f.State.ISSI), fmt.Sprint(f.State.Pages), fmt.Sprint(f.Counters.Commands),
			fmt.Sprint(f.State.EQs), fmt.Sprint(f.State.CQs), fmt.Sprint(f.State.QPs), fmt.Sprint(f.Counters.Interrupts), fmt.Sprint(f.State.Mappings), dash(strings.Join(f.State.Faults, " ")),
		})
	}
	table(w, rows)
}
