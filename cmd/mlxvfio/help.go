package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// The groups of verbs in the help of the program, in the order that somebody who is
// new needs them. Each verb of the first level belongs to one.
var groups = []*cobra.Group{
	{ID: groupMachine, Title: "The machine"},
	{ID: groupFunction, Title: "A function"},
	{ID: groupData, Title: "Atomics and speed"},
	{ID: groupWatch, Title: "Firmware"},
	{ID: groupModel, Title: "The model"},
	{ID: groupProgram, Title: "This program"},
}

const (
	groupMachine  = "machine"
	groupFunction = "function"
	groupData     = "data"
	groupWatch    = "watch"
	groupModel    = "model"
	groupProgram  = "program"
)

// init keeps the verbs in the order of the table. It is a variable of cobra's, not
// of a command.
func init() { cobra.EnableCommandSorting = false }

// folder is a verb that only holds others.
func folder(name, short string, verbs ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{Use: name, Short: short, Args: noVerb, RunE: func(c *cobra.Command, _ []string) error { return c.Help() }}
	c.AddCommand(verbs...)
	return c
}

// offered tells whether lists name a verb. Cobra does not count help among the
// available ones.
func offered(c *cobra.Command) bool { return !c.Hidden && c.Runnable() }

// usageLines are the ways to write a verb.
func usageLines(c *cobra.Command) []string {
	if !c.HasAvailableSubCommands() {
		return []string{c.UseLine()}
	}
	return []string{c.CommandPath() + " VERB [flags]"}
}

// showHelp prints what a verb does and how it is used. It does without the templates
// of cobra, which know nothing of the terminal.
func (a *app) showHelp(c *cobra.Command, _ []string) {
	w, width := c.OutOrStdout(), helpWidth(a.out)
	text := c.Long
	if text == "" {
		text = c.Short
	}
	fmt.Fprintf(w, "%s\n\n", wrapText(strings.TrimSpace(text), width))
	usage(w, c, width)
}

// usage prints what help shows behind the description.
func usage(w io.Writer, c *cobra.Command, width int) {
	fmt.Fprintln(w, "Usage:")
	for _, l := range usageLines(c) {
		fmt.Fprintln(w, "  "+l)
	}
	if c.HasAvailableSubCommands() {
		verbTables(w, c, width)
	}
	if c.HasExample() {
		fmt.Fprintf(w, "\nExamples:\n%s\n", fitExamples(c.Example, width))
	}
	flags(w, "Flags", c.LocalFlags(), width)
	flags(w, "Flags of every verb", c.InheritedFlags(), width)
	if c.HasAvailableSubCommands() {
		fmt.Fprintf(w, "\n%s VERB --help tells more about a verb.\n", c.CommandPath())
	}
}

func flags(w io.Writer, title string, f *pflag.FlagSet, width int) {
	if f.HasAvailableFlags() {
		fmt.Fprintf(w, "\n%s:\n%s\n", title, wrapText(strings.TrimRight(f.FlagUsages(), "\n"), width))
	}
}

// verbTables lists the verbs below c, by group where there are groups.
func verbTables(w io.Writer, c *cobra.Command, width int) {
	name := 0
	for _, s := range c.Commands() {
		name = max(name, len(s.Name()))
	}
	list := func(title, id string) {
		fmt.Fprintf(w, "\n%s:\n", title)
		for _, s := range c.Commands() {
			if offered(s) && s.GroupID == id {
				fmt.Fprintln(w, wrapText(fmt.Sprintf("  %-*s  %s", name, s.Name(), s.Short), width))
			}
		}
	}
	if len(c.Groups()) == 0 {
		list("Verbs", "")
		return
	}
	for _, g := range c.Groups() {
		list(g.Title, g.ID)
	}
}

// helpVerb shows what --help shows.
func (a *app) helpVerb() *cobra.Command {
	var c *cobra.Command
	c = a.verb("help [VERB…]", "show the help of a verb, as --help does", 0, -1, func(_ context.Context, args []string) error {
		v, err := findVerb(c.Root(), args)
		if err != nil {
			return err
		}
		v.InitDefaultHelpFlag()
		return v.Help()
	})
	c.Long = `help shows what --help shows: what a verb does, its flags, and examples. mlxvfio man has the same as manual pages.`
	c.Example = examples(
		"mlxvfio help", "every verb",
		"mlxvfio help trace record", "one of them")
	return c
}

// findVerb finds the verb that the words name.
func findVerb(root *cobra.Command, words []string) (*cobra.Command, error) {
	c, rest, err := root.Find(words)
	if err != nil || len(rest) > 0 {
		return nil, noVerb(c, rest)
	}
	return c, nil
}

// examples sets up the text of a verb's examples from pairs of a command line and
// what it does. Lines that need only the model are run by a test.
func examples(pairs ...string) string {
	var rows [][]string
	for l := range slices.Chunk(pairs, 2) {
		rows = append(rows, []string{"  " + l[0], "# " + l[1]})
	}
	var b strings.Builder
	tableIn(&b, rows, widthAny)
	return strings.TrimRight(b.String(), "\n")
}

// fitExamples sets examples that are too wide with what they do above them. Commands
// are never broken: they are there to be copied.
func fitExamples(text string, width int) string {
	lines := strings.Split(text, "\n")
	if !slices.ContainsFunc(lines, func(l string) bool { return utf8.RuneCountInString(l) > width }) {
		return text
	}
	var b strings.Builder
	for _, l := range lines {
		if i := strings.LastIndex(l, "  # "); i > 0 {
			for _, c := range wrapLine(strings.TrimSpace(l[i+4:]), 0, 0, width-4) {
				b.WriteString("  # " + c + "\n")
			}
			l = strings.TrimRight(l[:i], " ")
		}
		b.WriteString(l + "\n")
	}
	return strings.TrimRight(b.String(), "\n")
}
