package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// The manual pages, made from the tree of verbs: one for each verb, named after it.
// Nothing of the machine or the day they are made on gets in.

const manSuffix = ".1"

func (a *app) manVerb() *cobra.Command {
	var dir string
	var c *cobra.Command
	c = a.verb("man [VERB…]", "print the manual page of a verb, or write all pages into a folder", 0, -1, func(_ context.Context, args []string) error {
		if c.Flags().Changed("dir") {
			switch {
			case len(args) > 0:
				return usagef("--dir writes all pages: name no verb with it")
			case dir == "":
				return usagef("--dir is empty: name the folder for the pages")
			}
			return a.writeMan(c.Root(), dir)
		}
		if a.json {
			return usagef("man prints a page in roff: --json has a meaning with --dir only")
		}
		v, err := findVerb(c.Root(), args)
		if err != nil {
			return err
		}
		_, err = a.out.Write(manPage(v))
		return err
	})
	c.Long = `man prints a manual page in roff, of the program or of one verb. With --dir it writes those of all verbs, such as
mlxvfio-trace-record.1, into a folder, which is made if need be. The pages are made from what this very binary
knows; they hold no date and no path.`
	c.Example = examples(
		"mlxvfio man", "the page of the program; pipe it to man -l -",
		"mlxvfio man trace record", "that of one verb",
		"mlxvfio man --dir man1", "all pages, in the folder man1")
	c.Flags().StringVar(&dir, "dir", "", "folder `DIR` that all pages are written into")
	completes(c, "dir", aFolder)
	return c
}

// manWritten is what man --dir did.
type manWritten struct {
	Dir   string   `json:"dir"`
	Pages []string `json:"pages"`
}

func (r *manWritten) text(w io.Writer) { fmt.Fprintf(w, "%d pages in %s\n", len(r.Pages), r.Dir) }

func (a *app) writeMan(root *cobra.Command, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	r := &manWritten{Dir: dir}
	var err error
	eachVerb(root, func(c *cobra.Command) {
		name := manName(c) + manSuffix
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), manPage(c), 0o644)
			r.Pages = append(r.Pages, name)
		}
	})
	if err != nil {
		return err
	}
	return a.print("man/1", r)
}

// manName is the name of a verb's page.
func manName(c *cobra.Command) string { return strings.ReplaceAll(c.CommandPath(), " ", "-") }

// manRef is a reference to another page.
func manRef(c *cobra.Command) string { return bold(manName(c)) + "(1)" }

// manPage is the page of a verb.
func manPage(c *cobra.Command) []byte {
	var r roff
	fmt.Fprintf(&r, ".TH %s 1 \"\" mlxvfio \"mlxvfio manual\"\n", escaped(strings.ToUpper(manName(c))))
	r.section("NAME")
	r.line(escaped(manName(c)) + ` \- ` + escaped(c.Short)) // one line: what apropos reads
	r.section("SYNOPSIS")
	manSynopsis(&r, c)
	r.section("DESCRIPTION")
	r.text(cmp.Or(c.Long, c.Short+"."))
	manVerbs(&r, c)
	manFlags(&r, "OPTIONS", c.NonInheritedFlags())
	manFlags(&r, "OPTIONS OF EVERY VERB", c.InheritedFlags())
	r.section("EXIT STATUS")
	for _, x := range exits {
		r.item(bold(fmt.Sprint(x.code)), x.meaning)
	}
	manTable(&r, c, "ENVIRONMENT", environment)
	manTable(&r, c, "FILES", usedFiles)
	if c.HasExample() {
		r.section("EXAMPLES")
		r.text(c.Example)
	}
	manSeeAlso(&r, c)
	return r.Bytes()
}

func manSynopsis(r *roff, c *cobra.Command) {
	if c.HasAvailableSubCommands() {
		r.line(bold(c.CommandPath()) + " " + italic("VERB") + " [" + italic("flags") + "]")
		return
	}
	words := []string{bold(c.CommandPath())}
	for _, w := range strings.Fields(c.Use)[1:] {
		words = append(words, synopsisWord(w))
	}
	r.line(strings.Join(append(words, "["+italic("flags")+"]"), " "))
}

// synopsisWord sets what stands for something in italics and what is typed as it
// stands in bold.
func synopsisWord(w string) string {
	var b strings.Builder
	for len(w) > 0 {
		n := strings.IndexAny(w, "[]|…=")
		if n == 0 {
			n = len("…")
			if w[0] < 0x80 {
				n = 1
			}
			b.WriteString(escaped(w[:n]))
			w = w[n:]
			continue
		}
		if n < 0 {
			n = len(w)
		}
		if part := w[:n]; part == strings.ToUpper(part) && !strings.HasPrefix(part, "-") {
			b.WriteString(italic(part))
		} else {
			b.WriteString(bold(part))
		}
		w = w[n:]
	}
	return b.String()
}

func manVerbs(r *roff, c *cobra.Command) {
	if !c.HasAvailableSubCommands() {
		return
	}
	r.section("VERBS")
	for _, s := range c.Commands() {
		if offered(s) {
			r.item(manRef(s), s.Short)
		}
	}
}

func manFlags(r *roff, title string, set *pflag.FlagSet) {
	if !set.HasAvailableFlags() {
		return
	}
	r.section(title)
	set.VisitAll(func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		value, about := pflag.UnquoteUsage(f)
		tag := bold("--" + f.Name)
		if f.Shorthand != "" {
			tag = bold("-"+f.Shorthand) + ", " + tag
		}
		if value != "" {
			tag += " " + italic(value)
		}
		r.item(tag, about+flagDefault(f))
	})
}

// flagDefault says what a flag is where it is not given, unless that goes without
// saying or the text says it.
func flagDefault(f *pflag.Flag) string {
	switch {
	case strings.Contains(f.Usage, "(default"), f.DefValue == "", f.DefValue == "[]", f.DefValue == "false", f.DefValue == "0", f.DefValue == "0s":
		return ""
	}
	return " (default " + strings.ReplaceAll(strings.Trim(f.DefValue, "[]"), ",", ", ") + ")"
}

// manNote is a file or variable, with the verbs that care; none means all.
type manNote struct {
	name, about string
	verbs       []string
}

func manTable(r *roff, c *cobra.Command, title string, notes []manNote) {
	path := strings.TrimPrefix(c.CommandPath(), c.Root().Name()+" ")
	begun := false
	for _, n := range notes {
		// The program's own page has all of them, that of a folder those of its verbs.
		if c.HasParent() && !slices.ContainsFunc(n.verbs, func(v string) bool { return v == path || strings.HasPrefix(v, path+" ") }) {
			continue
		}
		if !begun {
			r.section(title)
			begun = true
		}
		r.item(italic(n.name), n.about)
	}
}

func manSeeAlso(r *roff, c *cobra.Command) {
	var refs []string
	add := func(x *cobra.Command) {
		if x != c && offered(x) {
			refs = append(refs, manRef(x))
		}
	}
	if p := c.Parent(); p != nil {
		add(p)
		for _, s := range p.Commands() {
			if p.HasParent() || s.GroupID == c.GroupID {
				add(s)
			}
		}
	}
	if len(refs) == 0 {
		return
	}
	r.section("SEE ALSO")
	for i, x := range refs {
		r.line(x + ifText(i < len(refs)-1, ","))
	}
}
