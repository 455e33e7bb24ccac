package export_test

import (
	"fmt"
	"os"

	"github.com/mlxvfio/mlxvfio/tracer/capture"
	"github.com/mlxvfio/mlxvfio/tracer/export"
	"github.com/mlxvfio/mlxvfio/tracer/trace"
)

// Write messages as CSV. JSON lines, text, Perfetto's JSON and the report are Sinks
// too.
func Example() {
	info := &export.Info{Source: "a.mlxt", Meta: &capture.Meta{Device: "0000:3b:00.0"}}
	var sink export.Sink = export.NewCSV(os.Stdout, info)
	m := &trace.Message{
		Time: 0x1234, Format: trace.NewFormat([]byte("port %u is up")), Pointer: 0x1000,
		Kind: trace.KindString, EventID: 0x10, NParams: 1, Params: [trace.MaxParams]uint32{2},
	}
	if err := sink.Message(m); err != nil {
		fmt.Println(err)
	}
	if err := sink.Close(&export.End{}); err != nil {
		fmt.Println(err)
	}
	// Output:
	// timestamp,time,time_error_ns,device,firmware,block,event_id,lost,kind,pointer,format,params,text
	// 4660,,,0000:3b:00.0,,0,16,false,string,4096,port %u is up,2,port 2 is up
}
