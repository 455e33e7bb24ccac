package analyze_test

import (
	"fmt"

	"github.com/mlxvfio/mlxvfio/tracer/analyze"
	"github.com/mlxvfio/mlxvfio/tracer/trace"
)

// Count and time messages, and compare two traces. Most users feed a Stats with the
// records and messages of a capture.Player.
func Example() {
	before, after := stats(1000), stats(500)
	g := before.Formats[0]
	fmt.Printf("%q: %d messages, median interval %g ticks\n", g.Name, g.Count, g.Ticks.Median)
	diff := analyze.Compare(before, after)
	for _, d := range diff.List {
		fmt.Println(d.Change, d.Name)
	}
	// Output:
	// "heartbeat %u": 1000 messages, median interval 1000 ticks
	// rate heartbeat %u
}

// stats has a message every so many ticks.
func stats(every uint64) *analyze.Result {
	s := analyze.New(analyze.Options{Hz: 1e6}) // the clock's rate, where there are no samples of it
	format := trace.NewFormat([]byte("heartbeat %u"))
	for i := range uint64(1000) {
		m := trace.Message{Time: i * every, Block: i / 10, Format: format, Kind: trace.KindString, EventID: 0x10, NParams: 1}
		s.Message(&m)
	}
	return s.Result()
}
