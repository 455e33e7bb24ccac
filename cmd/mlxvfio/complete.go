package main

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Completion: what a shell offers behind TAB. It comes from the tables that the
// verbs themselves use, opens no device, reads no register and reports no error:
// who cannot say anything offers nothing.

// The directives to the shell that are used here.
const (
	thatsAll  = cobra.ShellCompDirectiveNoFileComp
	goesOn    = cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace // more of the same word may follow
	orAFile   = cobra.ShellCompDirectiveDefault                                      // files, where nothing else fits
	orAFolder = cobra.ShellCompDirectiveFilterDirs
)

// offers are the candidates for one word, each with a tab and a description
// behind it.
type offers struct {
	typed string
	list  []cobra.Completion
}

// add offers a word where it begins as what was typed does, in any case.
func (o *offers) add(word, about string) {
	if len(word) >= len(o.typed) && strings.EqualFold(word[:len(o.typed)], o.typed) {
		o.list = append(o.list, cobra.CompletionWithDesc(word, about))
	}
}

// argument completes one kind of argument. args are those before it.
type argument func(c *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective)

// arguments are the words of a verb's usage line that stand for something.
func (a *app) arguments() map[string]argument {
	return map[string]argument{
		"DEV":         a.completeDevice,
		"BDF":         a.completeBDF,
		"SIM":         completeSim,
		"PATH":        completeSocket,
		"FILE":        aFile,
		"REG":         completeRegister,
		"OPCODE":      completeOpcode,
		"FIELD=VALUE": completeRegisterField,
		"NAME=VALUE":  completeCapability,
		"WORDS":       completeTell,
		"VERB":        completeVerb,
	}
}

// usageArgs gives the arguments of a usage line, each with its alternatives; many
// says that the last one may be repeated. A flag ends them.
func usageArgs(use string) (args [][]string, many bool) {
	for _, w := range strings.Fields(use)[1:] {
		w = strings.Trim(w, "[]")
		if strings.HasPrefix(w, "-") {
			break
		}
		if many = strings.HasSuffix(w, "…"); many {
			w = strings.TrimSuffix(w, "…")
		}
		args = append(args, strings.Split(w, "|"))
	}
	return args, many
}

// completeArgs completes the arguments that the usage line names: words in
// capitals by their kind, others as they are.
func (a *app) completeArgs(use string) cobra.CompletionFunc {
	want, many := usageArgs(use)
	return func(c *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		i := len(args)
		if many {
			i = min(i, len(want)-1)
		}
		if i >= len(want) {
			return nil, thatsAll
		}
		var all []cobra.Completion
		directive := thatsAll
		for _, w := range want[i] {
			var list []cobra.Completion
			d := thatsAll
			if f := a.arguments()[w]; f != nil {
				list, d = f(c, args, typed)
			} else {
				o := offers{typed: typed}
				o.add(w, "")
				list = o.list
			}
			all = append(all, list...)
			if d == orAFile {
				directive &^= cobra.ShellCompDirectiveNoFileComp
			}
			directive |= d & (cobra.ShellCompDirectiveNoSpace | cobra.ShellCompDirectiveFilterDirs)
		}
		return all, directive
	}
}

// completes says what the values of a flag are.
func completes(c *cobra.Command, flag string, f argument) {
	if err := c.RegisterFlagCompletionFunc(flag, cobra.CompletionFunc(f)); err != nil {
		panic(err) // the flag was defined a line above, once
	}
}

// aFile, aFolder and anything are values that the shell knows better, or that
// nobody can know.
func aFile(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return nil, orAFile
}

func aFolder(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return nil, orAFolder
}

func anything(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return nil, thatsAll
}

// oneOf completes a flag that takes one of the words.
func oneOf(words ...string) argument {
	return func(_ *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		o := offers{typed: typed}
		for _, w := range words {
			o.add(w, "")
		}
		return o.list, thatsAll
	}
}

// someOf completes a flag that takes several of the words, separated by commas.
func someOf(words ...string) argument {
	return func(_ *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		head := typed[:strings.LastIndexByte(typed, ',')+1]
		have := strings.Split(head, ",")
		o := offers{typed: typed}
		for _, w := range words {
			if !slices.Contains(have, w) {
				o.add(head+w, "")
			}
		}
		return o.list, goesOn
	}
}

// completeNumbers keeps the shell from offering files for numbers and times.
func completeNumbers(root *cobra.Command) {
	eachVerb(root, func(c *cobra.Command) {
		c.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if _, done := c.GetFlagCompletionFunc(f.Name); done || isWord(f) || f.NoOptDefVal != "" {
				return
			}
			completes(c, f.Name, anything)
		})
	})
}

// isWord tells whether a flag takes words, of which only the verb knows more.
func isWord(f *pflag.Flag) bool { return strings.HasPrefix(f.Value.Type(), "string") }

// eachVerb visits the command and all below it, hidden ones excepted.
func eachVerb(c *cobra.Command, visit func(*cobra.Command)) {
	if c.Hidden {
		return
	}
	visit(c)
	for _, s := range c.Commands() {
		eachVerb(s, visit)
	}
}

// completeVerb completes the name of a verb, word by word.
func completeVerb(c *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	at, rest, err := c.Root().Find(args)
	if err != nil || len(rest) > 0 {
		return nil, thatsAll
	}
	o := offers{typed: typed}
	for _, s := range at.Commands() {
		if !s.Hidden {
			o.add(s.Name(), s.Short)
		}
	}
	return o.list, thatsAll
}
