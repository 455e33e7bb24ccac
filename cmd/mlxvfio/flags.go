package main

import (
	"errors"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// What is wrong with flags whatever the verb: these checks run before each of them.

// markPositive is the annotation of flags that are left out rather than 0.
const markPositive = "mlxvfio_positive"

// positive makes 0 a usage error for flags whose default means something else than
// nothing, such as "until a signal comes".
func positive(c *cobra.Command, names ...string) {
	for _, n := range names {
		if err := c.Flags().SetAnnotation(n, markPositive, []string{"true"}); err != nil {
			panic(err) // there is no such flag
		}
	}
}

// checkFlags refuses flags that were given and cannot be meant.
func (a *app) checkFlags(c *cobra.Command, args []string) error {
	var err error
	c.Flags().Visit(func(f *pflag.Flag) {
		if err == nil {
			err = checkFlag(f)
		}
	})
	if err != nil {
		return err
	}
	return a.checkWay(c, args)
}

// checkFlag refuses an empty word, by a shell's unset variable perhaps, and a number
// or time of nothing where the flag wants some.
func checkFlag(f *pflag.Flag) error {
	empty := f.Value.Type() == "string" && f.Value.String() == ""
	if v, ok := f.Value.(pflag.SliceValue); ok && f.Value.Type() == "stringArray" {
		empty = slices.Contains(v.GetSlice(), "")
	}
	name, _ := pflag.UnquoteUsage(f)
	switch {
	case empty:
		return usagef("--%s is empty: give its %s, or leave it out", f.Name, name)
	case f.Annotations[markPositive] != nil && slices.Contains([]string{"0", "0s"}, f.Value.String()):
		return usagef("--%s %s is nothing: give its %s, or leave it out", f.Name, f.Value, name)
	}
	return nil
}

// checkWay refuses the flags about the way into a function of this machine where no
// such function has to do with the verb.
func (a *app) checkWay(c *cobra.Command, args []string) error {
	var given []string
	if a.backend != "" && a.backend != backendWords[0] {
		given = append(given, "--backend "+a.backend)
	}
	if a.unsafe {
		given = append(given, "--unsafe-noiommu")
	}
	if len(given) == 0 || c.HasSubCommands() {
		return nil
	}
	if c.GroupID == groupMachine { // list, doctor, bind, unbind
		return nil
	}
	what := c.CommandPath() + ", which opens none"
	if strings.Contains(c.Use, "DEV") {
		devs := slices.Clone(args)
		if p := c.Flags().Lookup("peer"); p != nil && p.Changed {
			devs = append(devs, p.Value.String())
		}
		what = "the embedded model"
		for i, word := range devs {
			d, err := parseDev(word)
			switch {
			case err == nil && d.kind == devKernel:
				return nil
			case err != nil && i == 0 && !isFile(word):
				return nil // no device: the verb says so
			case i == 0:
				what = word
			}
		}
	}
	return usagef("%s: for functions of this machine (a BDF), not for %s; leave it out", strings.Join(given, " and "), what)
}

// isFile tells whether a word names a file that can be read.
func isFile(word string) bool {
	st, err := os.Stat(word)
	return err == nil && !st.IsDir()
}

// flagWants is what the types of flags take, in words.
var flagWants = map[string]string{
	"int": "a whole number", "uint64": "a whole number from 0", "int64": "a whole number", "uint": "a whole number from 0", "float64": "a number",
	"duration": "a time such as 500ms, 30s or 2m", "bool": "true or false", "intSlice": "whole numbers with commas between them",
	"durationSlice": "times with commas between them, such as 0s,1ms",
}

// badValue is the usage error of a flag's value, without the words of Go's packages.
func badValue(c *cobra.Command, err error) error {
	var v *pflag.InvalidValueError
	if !errors.As(err, &v) {
		return nil
	}
	want := flagWants[v.GetFlag().Value.Type()]
	if want == "" {
		return nil
	}
	return usagef("--%s %q: want %s (%s --help lists the flags)", v.GetFlag().Name, v.GetValue(), want, c.CommandPath())
}
