package trace_test

import (
	"encoding/binary"
	"fmt"

	"github.com/mlxvfio/mlxvfio/tracer/trace"
)

// Decode one block of a trace ring with the string database it belongs to.
func Example() {
	geometry := trace.Geometry{TrcVer: 1, FirstString: 0x10, NumString: 8}
	strings := trace.NewStrings([]trace.Section{{Base: 0x1000, Data: []byte("qp %u: state %x\n\x00")}})
	d, err := trace.NewDecoder(geometry, strings)
	if err != nil {
		fmt.Println(err)
		return
	}
	emit := func(m *trace.Message) { // valid during the call only
		fmt.Printf("%#x %s\n", m.Time, m.AppendText(nil))
	}
	if err := d.Block(0, block(), emit); err != nil {
		fmt.Println(err)
		return
	}
	c := d.Counters()
	fmt.Println(c.Messages, "message,", c.OrphanParams, "orphans")
	// Output:
	// 0x120 qp 42: state 1f
	// 1 message, 0 orphans
}

// block is what firmware would have written: a message of three events, closed by a
// timestamp event. All numbers are big-endian.
func block() []byte {
	const id, number, stamp = 0x10, 7, 0x20
	events := []trace.Event{
		trace.StringEvent(false, stamp, id, number, 0, 0x1000), // where the format stands
		trace.StringEvent(false, stamp, id, number, 1, 42),
		trace.StringEvent(false, stamp, id, number, 2, 0x1f),
		trace.TimestampEvent(0x180, 0),
	}
	b := make([]byte, 0, trace.BlockSize)
	for range trace.EventsPerBlock - len(events) {
		b = binary.BigEndian.AppendUint64(b, 0) // nothing: 0 is no string id here
	}
	for _, e := range events {
		b = binary.BigEndian.AppendUint64(b, uint64(e))
	}
	return b
}
