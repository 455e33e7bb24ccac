package main

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/mlxvfio/mlxvfio"
	"github.com/mlxvfio/mlxvfio/cmdif"
	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/spf13/cobra"
)

// execArgs is a command as the command line describes it.
type execArgs struct {
	opcode string
	in     string
	set    []string
	outLen int
}

func (a *app) execVerb() *cobra.Command {
	var x execArgs
	c := a.verb("exec DEV OPCODE", "send one command to firmware and decode the answer", 2, 2, func(ctx context.Context, args []string) error {
		x.opcode = args[1]
		return a.exec(ctx, args[0], x)
	})
	c.Long = `exec brings the function up, sends one command, shows the answer, and gives the function back.

OPCODE is a name (QUERY_ADAPTER) or a number (0x101). The input is all zeros but for the opcode unless --in gives
its bytes, from the opcode on; --set writes single fields over it. The length is checked against the
command's layout before anything is sent; a command without a known layout is sent as it is.`
	c.Example = examples(
		"mlxvfio exec sim QUERY_ADAPTER", "a command by name",
		"mlxvfio exec sim 0x101 --json", "the same by number",
		"mlxvfio exec sim QUERY_PAGES --set op_mod=1", "with a field of the input set")
	c.Flags().StringVar(&x.in, "in", "", "the input: `HEX` digits or @FILE")
	c.Flags().StringArrayVar(&x.set, "set", nil, "write a field of the input, `FIELD=VALUE`; may be repeated")
	completes(c, "in", completeInput)
	completes(c, "set", completeInputField)
	c.Flags().IntVar(&x.outLen, "out-len", 0, "`BYTES` of answer to accept (default: the size of the command's answer)")
	return c
}

// Bounds of a message: the header that says what the command is, and more than
// any command has.
const (
	leastMessage = 8
	leastInput   = 16
	mostMessage  = 1 << 20
)

// message is a command ready to be sent.
type message struct {
	op   prm.Opcode
	cmd  *prm.Command // nil: no layout is known
	in   []byte
	outN int
}

// name is the command's, or what it is called without one.
func (m *message) name() string {
	if m.cmd == nil {
		return "unnamed command"
	}
	return m.cmd.Name
}

func parseOpcode(s string) (prm.Opcode, *prm.Command, error) {
	if c := prm.CommandByName(s); c != nil {
		return c.Opcode, c, nil
	}
	n, err := strconv.ParseUint(s, 0, 16)
	if err != nil {
		return 0, nil, usagef("there is no command %q: want a name such as QUERY_ADAPTER or a number up to 0xffff%s", s, didYouMean(s, commandNames()))
	}
	return prm.Opcode(n), prm.CommandByOpcode(prm.Opcode(n)), nil
}

// build checks the arguments; nothing is sent before all of it holds.
func (x execArgs) build() (*message, error) {
	op, cmd, err := parseOpcode(x.opcode)
	if err != nil {
		return nil, err
	}
	m := &message{op: op, cmd: cmd, outN: leastInput}
	var layout *prm.Struct
	if cmd != nil {
		layout = cmd.In
	}
	m.in = make([]byte, leastInput)
	if layout != nil {
		m.in = make([]byte, max(layout.Size, leastMessage))
	}
	if x.in != "" {
		if m.in, err = bytesArg("in", x.in); err != nil {
			return nil, err
		}
	}
	if err := m.checkInput(layout); err != nil {
		return nil, err
	}
	set, err := parseAssignments(x.set)
	if err != nil {
		return nil, err
	}
	if len(set) > 0 {
		if layout == nil {
			return nil, usagef("--set: command %s has no layout here; give its bytes with --in", x.opcode)
		}
		if err := assign(m.in, layout, set); err != nil {
			return nil, err
		}
	}
	head := prm.AsCmdIn(m.in)
	if got := head.Opcode(); got != 0 && got != op {
		return nil, usagef("the input begins with opcode %#x, not with %#x (%v): leave the first two bytes zero or make them agree", uint16(got), uint16(op), op)
	}
	head.SetOpcode(op)
	return m, m.checkOutput(x.outLen)
}

func (m *message) checkInput(layout *prm.Struct) error {
	n := len(m.in)
	switch {
	case n < leastMessage:
		return usagef("--in has %d bytes: a command begins with %d bytes of opcode, uid and op_mod", n, leastMessage)
	case n > mostMessage:
		return usagef("--in has %d bytes: at most %d can be sent", n, mostMessage)
	case m.cmd != nil && n < m.cmd.MinIn:
		return usagef("--in has %d bytes: %v needs %d at least", n, m.op, m.cmd.MinIn)
	case layout != nil && n > layout.Size && !tailed(layout):
		return usagef("--in has %d bytes: the input of %v has %d", n, m.op, layout.Size)
	}
	return nil
}

func (m *message) checkOutput(n int) error {
	if m.cmd != nil && m.cmd.Out != nil {
		m.outN = max(m.cmd.Out.Size, leastMessage)
	}
	if n == 0 {
		return nil
	}
	switch {
	case n < leastMessage || n > mostMessage:
		return usagef("--out-len %d: want %d to %d bytes", n, leastMessage, mostMessage)
	case m.cmd != nil && n < m.cmd.MinOut:
		return usagef("--out-len %d: the answer to %v has %d bytes at least", n, m.op, m.cmd.MinOut)
	}
	m.outN = n
	return nil
}

// tailed tells whether a structure ends in an array of any length.
func tailed(s *prm.Struct) bool {
	for i := range s.Fields {
		if s.Fields[i].Array && s.Fields[i].Count == 0 {
			return true
		}
	}
	return false
}

func (a *app) exec(ctx context.Context, dev string, x execArgs) error {
	m, err := x.build()
	if err != nil {
		return err
	}
	done := false
	err = a.withDevice(ctx, dev, mlxvfio.Options{}, func(ctx context.Context, s *session) error {
		out := make([]byte, m.outN)
		err := s.Conn().Exec(ctx, m.in, out)
		var ce *cmdif.CommandError
		if err != nil && !errors.As(err, &ce) {
			return err // there is no answer to show
		}
		done = err == nil
		return errors.Join(err, a.print("exec/1", newExecResult(s, m, out)))
	})
	var ce *mlxvfio.CloseError
	if done && m.changes() && errors.As(err, &ce) && refusedOne(ce) {
		return &aftermathError{m, err}
	}
	return err
}

// changes tells whether the command may have changed what the teardown relies on.
func (m *message) changes() bool {
	return m.op != prm.OpNop && (m.cmd == nil || !strings.HasPrefix(m.cmd.Name, "QUERY_"))
}

// refusedOne tells whether firmware refused a command of the teardown.
func refusedOne(e *mlxvfio.CloseError) bool {
	var ce *cmdif.CommandError
	return errors.As(e, &ce)
}

// aftermathError says that firmware did what the user sent, and that the driver
// then could not take down what it had made.
type aftermathError struct {
	m   *message
	err error
}

func (e *aftermathError) Error() string {
	return fmt.Sprintf("firmware did the %v that was sent, and then refused the driver's own teardown: the command took away, or changed, what the driver had made (mlxvfio info shows its objects); what followed: %s", e.m.op, oneLine(e.err))
}

func (e *aftermathError) Unwrap() error { return e.err }

type execResult struct {
	deviceHead
	Opcode  uint16      `json:"opcode"`
	Command string      `json:"command"`
	Answer  prm.Decoded `json:"answer"`
	In      string      `json:"in_hex"`
	Out     string      `json:"out_hex"`
	Layout  string      `json:"layout,omitempty"`
	out     []byte
}

func newExecResult(s *session, m *message, out []byte) *execResult {
	r := &execResult{
		deviceHead: s.head(), Opcode: uint16(m.op), Command: m.name(),
		In: hex.EncodeToString(m.in), Out: hex.EncodeToString(out), out: out,
	}
	layout := prm.CmdOutStruct
	if m.cmd != nil && m.cmd.Out != nil {
		layout = m.cmd.Out
	}
	r.Layout, r.Answer = layout.Name, prm.Decode(out, layout)
	return r
}

func (r *execResult) text(w io.Writer) {
	fmt.Fprintln(w, r.deviceHead)
	fmt.Fprintf(w, "%s (opcode %#x), %d bytes of answer\n", r.Command, r.Opcode, len(r.out))
	hexdump(w, r.out)
	fmt.Fprintln(w, r.Layout)
	dump(w, r.Answer)
}
