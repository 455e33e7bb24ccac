package main

import (
	"bytes"
	"context"
	_ "embed" // the script of bash
	"io"

	"github.com/spf13/cobra"
)

// bashScript is a script of our own: cobra's needs the package bash-completion,
// which a test machine may not have, and expands what was typed.
//
//go:embed completion.bash
var bashScript []byte

// shells write the completion script for each shell.
var shells = map[string]func(root *cobra.Command, w io.Writer) error{
	"bash": func(_ *cobra.Command, w io.Writer) error { _, err := w.Write(bashScript); return err },
	"zsh":  func(root *cobra.Command, w io.Writer) error { return root.GenZshCompletion(w) },
	"fish": func(root *cobra.Command, w io.Writer) error { return root.GenFishCompletion(w, true) },
}

func (a *app) completionVerb() *cobra.Command {
	var c *cobra.Command
	c = a.verb("completion bash|zsh|fish", "print what makes a shell complete verbs, devices, registers and fields", 1, 1, func(_ context.Context, args []string) error {
		write, ok := shells[args[0]]
		if !ok {
			return usagef("there is no completion for %q: want bash, zsh or fish", args[0])
		}
		if a.json {
			return usagef("completion prints a script: --json has no meaning with it")
		}
		var b bytes.Buffer
		if err := write(c.Root(), &b); err != nil {
			return err
		}
		_, err := a.out.Write(b.Bytes())
		return err
	})
	c.Long = `completion prints a script that makes a shell complete what mlxvfio takes: verbs and flags, the functions of this
machine, profiles, words and faults of the model, sockets, registers and their fields, commands and operations.
It comes from the tables of the program itself; no device is opened for it, and no register read.

To have it always:
  bash  mlxvfio completion bash > /etc/bash_completion.d/mlxvfio
        (without the package bash-completion: add "source <(mlxvfio completion bash)" to ~/.bashrc)
  zsh   mlxvfio completion zsh > "${fpath[1]}/_mlxvfio"
  fish  mlxvfio completion fish > ~/.config/fish/completions/mlxvfio.fish`
	c.Example = examples(
		"mlxvfio completion bash", "source <(mlxvfio completion bash) loads it",
		"mlxvfio completion zsh", "for a file _mlxvfio in $fpath",
		"mlxvfio completion fish", "for a file in ~/.config/fish/completions")
	return c
}
