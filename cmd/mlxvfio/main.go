// Command mlxvfio drives ConnectX functions from user space through VFIO, or the
// embedded device model when no hardware is at hand. One file per verb; no
// hardware knowledge lives here. docs/cli.md describes every verb, its JSON and
// the exit codes.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// run is main without the process: it returns the exit code. The first SIGINT or
// SIGTERM cancels the context, so that every verb gives its device back; a second
// one kills the process.
func run(args []string, in *os.File, out, errw *os.File) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)
	a := &app{in: in, out: out, err: errw}
	err := a.execute(ctx, args)
	if err == nil {
		return exitOK
	}
	return a.fail(ctx, err)
}
