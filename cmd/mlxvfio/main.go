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
	os.Exit(run(&app{out: os.Stdout, err: os.Stderr}, os.Args[1:]))
}

// run is main without the process: it returns the exit code. The first SIGINT or
// SIGTERM cancels the context, so that every verb gives its device back; a second
// one kills the process. A reader of our output that leaves does not: the write
// fails, and the device is given back.
func run(a *app, args []string) int {
	signal.Ignore(syscall.SIGPIPE)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)
	return a.main(ctx, args)
}
