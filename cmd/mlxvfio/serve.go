package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/mlxvfio/mlxvfio/internal/vfiouser"
	"github.com/mlxvfio/mlxvfio/sim"
	"github.com/spf13/cobra"
)

func (a *app) serveVerb() *cobra.Command {
	var sockets []string
	var control, link string
	var what bool
	c := a.verb("serve [SIM] --socket PATH", "offer the model on vfio-user sockets", 0, 1, func(ctx context.Context, args []string) error {
		if what {
			if len(sockets) > 0 || control != "" || link != "" {
				return usagef("--list serves nothing: leave --socket, --control and --link out")
			}
			return a.serveWords(args)
		}
		return a.serve(ctx, args, sockets, control, link)
	})
	c.Long = `serve offers a model of a ConnectX on vfio-user sockets, one function of the chip for each --socket, until SIGTERM
or SIGINT. It prints one line when it is ready. SIM are the words of a model: sim:cx5,port=eth or just cx5,port=eth.
With --link PATH the model's wire leads to that of another served model with the same PATH: two hosts. The first to
come listens on that socket, the second connects; when what it finds there will never be the other end, it fails.
mlxvfio takes a socket as vfio-user:PATH, QEMU as
  -device '{"driver":"vfio-user-pci","socket":{"type":"unix","path":"PATH"}}'`
	c.Example = examples(
		"mlxvfio serve --list", "profiles, words, faults and rulings",
		"mlxvfio serve cx5,port=eth --socket cx5.sock --control ctl.sock &", "a ConnectX-5 on a socket",
		"mlxvfio info vfio-user:cx5.sock", "seen by the driver",
		"mlxvfio tell ctl.sock state", "told something while it runs")
	c.Flags().StringArrayVar(&sockets, "socket", nil, "`PATH` of a socket to serve a function on; may be repeated")
	c.Flags().StringVar(&control, "control", "", "`PATH` of a socket that takes words at run time (see tell)")
	c.Flags().StringVar(&link, "link", "", "`PATH` of a socket that joins this model's wire with that of another one")
	for _, f := range []string{"socket", "control", "link"} {
		completes(c, f, completeSocket)
	}
	c.Flags().BoolVar(&what, "list", false, "list profiles, words, faults and rulings; with SIM its values and where they come from; serve nothing")
	return c
}

func (a *app) serve(ctx context.Context, args, sockets []string, control, link string) error {
	words := ""
	if len(args) > 0 {
		words = args[0]
	}
	o, err := sim.Parse(words)
	if err != nil {
		return simUsage(err)
	}
	if len(sockets) == 0 {
		return usagef("serve needs --socket PATH")
	}
	if a.record != "" && len(sockets) > 1 {
		return usagef("--record takes one --socket, not %d", len(sockets))
	}
	if d := twice(append([]string{control, link}, sockets...)); d != "" {
		return usagef("the path %s is given twice", d)
	}
	o.Functions, o.Logger = len(sockets), a.logger()
	chip, err := sim.New(o)
	if err != nil {
		return err
	}
	s := &server{a: a, chip: chip}
	if link == "" {
		return errors.Join(s.run(ctx, sockets, control), chip.Close())
	}
	if s.link, err = joinLink(ctx, chip, link); err != nil {
		return errors.Join(&unavailable{err}, chip.Close())
	}
	return errors.Join(s.run(ctx, sockets, control), s.link.Close(), chip.Close())
}

// serveLink is the model's end of a wire.
type serveLink struct {
	*sim.LinkPort
	path string
}

// linkUpLimit is how long the second end waits for the wire to be up before it
// says that it is ready.
const linkUpLimit = 2 * time.Second

// joinLink makes the model an end of the wire at path. The second one to come
// finds the wire up, or gives it some time; it is an error when what it finds will
// never be the other end.
func joinLink(ctx context.Context, chip *sim.Chip, path string) (*serveLink, error) {
	p, err := chip.JoinLink(path)
	if err != nil {
		return nil, err
	}
	for until := time.Now().Add(linkUpLimit); p.Node() == 1 && !p.Connected() && ctx.Err() == nil && time.Now().Before(until); {
		if le := trouble(p); le != nil && le.Final {
			return nil, errors.Join(le, p.Close())
		}
		time.Sleep(time.Millisecond)
	}
	return &serveLink{p, path}, nil
}

// trouble is why the wire is not up though the other end was reached; nil otherwise.
func trouble(p *sim.LinkPort) (le *sim.LinkError) {
	errors.As(p.Err(), &le)
	return le
}

// linkState is what is told of it.
type linkState struct {
	Path string `json:"path"`
	// End is 0 for the one that listens, 1 for the one that connects.
	End       int  `json:"end"`
	Connected bool `json:"connected"`
	// Reason and Remedy are there if the other end was reached and is no peer.
	Reason string `json:"reason,omitempty"`
	Remedy string `json:"remedy,omitempty"`
}

func (l *serveLink) state() *linkState {
	if l == nil {
		return nil
	}
	le := trouble(l.LinkPort) // before Connected: once it is up there is none
	s := &linkState{Path: l.path, End: l.Node(), Connected: l.Connected()}
	if le != nil && !s.Connected {
		s.Reason, s.Remedy = le.Why, le.Remedy
	}
	return s
}

func (l *linkState) String() string {
	how := "nobody at the other end"
	switch {
	case l.Connected:
		how = "up"
	case l.Reason != "":
		how = "not up: " + l.Reason + "; " + l.Remedy
	}
	return fmt.Sprintf("end %d of the wire %s (%s)", l.End, l.Path, how)
}

func twice(paths []string) string {
	seen := map[string]bool{"": true}
	for _, p := range paths {
		if p != "" && seen[p] {
			return p
		}
		seen[p] = true
	}
	return ""
}

// server is a model on its sockets.
type server struct {
	a    *app
	chip *sim.Chip
	link *serveLink // nil without --link
}

// run listens on every socket first, so that the ready line is true, and serves
// until ctx is over.
func (s *server) run(ctx context.Context, sockets []string, control string) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var listeners []net.Listener
	abandon := func(err error) error {
		for _, l := range listeners {
			err = errors.Join(err, l.Close())
		}
		return err
	}
	for _, p := range append(append([]string{}, sockets...), control) {
		if p == "" {
			continue
		}
		l, err := vfiouser.Listen(p)
		if err != nil {
			return abandon(&unavailable{err})
		}
		listeners = append(listeners, l)
	}
	var wg sync.WaitGroup
	errs := make([]error, len(sockets)+1)
	for i := range sockets {
		t := &opened{Transport: s.chip.Function(i)}
		if err := s.a.recordInto(t); err != nil {
			stop(err)
			wg.Wait()
			return abandon(err)
		}
		wg.Go(func() {
			errs[i] = errors.Join(vfiouser.Serve(ctx, listeners[i], t, vfiouser.Options{Logger: s.a.logger()}), t.Close())
			if errs[i] != nil {
				stop(errs[i]) // one function gone: the others end too
			}
		})
	}
	if control != "" {
		wg.Go(func() { errs[len(sockets)] = serveControl(ctx, listeners[len(sockets)], s) })
	}
	perr := s.a.print("serve/1", &served{Ready: true, Model: s.describe(), Sockets: sockets, Control: control, Link: s.link.state()})
	if perr != nil {
		stop(perr)
	}
	wg.Wait()
	return errors.Join(errors.Join(errs...), perr)
}

func (s *server) describe() string {
	return fmt.Sprintf("%s, %s port, firmware %v", s.chip.Profile(), s.chip.Port(), s.chip.Firmware())
}

// served is the ready line.
type served struct {
	Ready   bool     `json:"ready"`
	Model   string   `json:"model"`
	Sockets []string `json:"sockets"`
	Control string   `json:"control,omitempty"`
	// Link is this end of the wire, with --link.
	Link *linkState `json:"link,omitempty"`
}

func (r *served) text(w io.Writer) {
	link := ""
	if r.Link != nil {
		link = ", " + r.Link.String()
	}
	fmt.Fprintf(w, "ready: %s on %s%s%s\n", r.Model, strings.Join(r.Sockets, ", "), ifText(r.Control != "", ", control on "+r.Control), link)
}

// serveWords is what serve and the SIM words know.
type serveWords struct {
	Profiles []string     `json:"profiles"`
	Default  string       `json:"default_profile"`
	Words    []wordRow    `json:"words"`
	Faults   []sim.Fault  `json:"faults"`
	Control  []wordRow    `json:"control"`
	Rulings  []sim.Ruling `json:"rulings"`
}

type wordRow struct {
	Word    string `json:"word"`
	Meaning string `json:"meaning"`
}

// serveWords prints what there is, or the values of the one model named.
func (a *app) serveWords(args []string) error {
	if len(args) > 0 {
		o, err := sim.Parse(args[0])
		if err != nil {
			return simUsage(err)
		}
		chip, err := sim.New(o)
		if err != nil {
			return err
		}
		return errors.Join(a.print("serve-values/1", &modelValues{Model: o.String(), Values: chip.Values()}), chip.Close())
	}
	return a.print("serve-list/1", &serveWords{
		Profiles: sim.Profiles(), Default: sim.DefaultProfile, Faults: sim.Faults(), Control: controlWords, Rulings: sim.Rulings(),
		Words: simWords(),
	})
}

// simWords are the words of the SIM grammar.
func simWords() []wordRow {
	var rows []wordRow
	for _, w := range sim.Words() {
		rows = append(rows, wordRow{w.String(), w.Meaning})
	}
	return rows
}

func (r *serveWords) text(w io.Writer) {
	fmt.Fprintf(w, "profiles: %s (default %s)\n", strings.Join(r.Profiles, " "), r.Default)
	fmt.Fprintln(w, "\nwords of sim[:PROFILE][,WORD…]")
	words(w, r.Words, widthTable)
	fmt.Fprintln(w, "\nwords of --control and tell")
	words(w, r.Control, widthTable)
	fmt.Fprintln(w, "\nfaults")
	rows := [][]string{}
	for _, f := range r.Faults {
		rows = append(rows, []string{"  " + sim.FaultSpec{Name: f.Name, Arg: f.Arg}.String(), f.Meaning})
	}
	table(w, rows)
	fmt.Fprintln(w, "\nrulings, where sources are silent or disagree")
	for _, x := range r.Rulings {
		paragraph(w, fmt.Sprintf("  %s: %s (%s)", x.Name, x.Text, x.Source), 4, widthTable)
	}
}

// modelValues are the values a model shows and where they come from.
type modelValues struct {
	Model  string      `json:"model"`
	Values []sim.Value `json:"values"`
}

func (r *modelValues) text(w io.Writer) {
	fmt.Fprintln(w, r.Model)
	var rows [][]string
	for i, v := range r.Values {
		if i == 0 || v.Where != r.Values[i-1].Where { // a table for each place
			table(w, rows)
			fmt.Fprintln(w, "\n"+v.Where)
			rows = [][]string{{"  NAME", "VALUE", "TAG", "SOURCE"}}
		}
		rows = append(rows, []string{"  " + v.Name, v.Value, string(v.Tag), v.Source})
	}
	table(w, rows)
}

func words(w io.Writer, ws []wordRow, most int) {
	rows := [][]string{}
	for _, r := range ws {
		rows = append(rows, []string{"  " + r.Word, r.Meaning})
	}
	tableIn(w, rows, most)
}
