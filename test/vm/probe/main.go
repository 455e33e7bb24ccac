//go:build linux

// Command probe is the part of the health scenarios that is the project's own: in the guest it watches, recovers and
// records a function with the packages that a user's program would use, and prints what they answered, a line of JSON
// for each step. It judges nothing: the scenarios do.
//
// Exit status: 0 done, 1 not done, 2 wrong words.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/mlxvfio/mlxvfio/health"
)

const usage = `usage: probe watch BDF PERIOD               watch through sysfs until SIGTERM
       probe recover BDF BOX MAX CONDITION  bring up, watch, wait for a sickness, keep a black box, recover up to a rung
       probe record BDF BOX                  bring up and record every sample until killed
       probe read BOX                        what a black box holds
       probe slot BDF                        what a hot reset would hit, and the hot reset`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	var err error
	switch a := os.Args[1:]; {
	case len(a) == 3 && a[0] == "watch":
		err = watch(ctx, a[1], a[2])
	case len(a) == 5 && a[0] == "recover":
		err = revive(ctx, a[1], a[2], a[3], health.Condition(a[4]))
	case len(a) == 3 && a[0] == "record":
		err = record(ctx, a[1], a[2])
	case len(a) == 2 && a[0] == "read":
		err = readBox(a[1])
	case len(a) == 2 && a[0] == "slot":
		err = slot(ctx, a[1])
	default:
		fmt.Fprintln(os.Stderr, usage)
		os.Exit(2)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "probe:", err)
		os.Exit(1)
	}
}

// say prints one line: what it is, when, and the thing itself.
func say(is string, what any) {
	b, err := json.Marshal(struct {
		Is   string    `json:"is"`
		At   time.Time `json:"at"`
		What any       `json:"what,omitempty"`
	}{is, time.Now(), what})
	if err != nil {
		b = fmt.Appendf(nil, `{"is":"unprintable","what":%q}`, err)
	}
	fmt.Printf("%s\n", b)
}

// errText is an error for a line; empty for none.
func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
