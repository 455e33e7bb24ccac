package capture_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"

	"github.com/mlxvfio/mlxvfio/tracer/capture"
	"github.com/mlxvfio/mlxvfio/tracer/trace"
)

// Write a capture, and play it. A live capture of package tracer is a Source as the
// Reader is.
func Example() {
	var file bytes.Buffer
	if err := writeTrace(&file); err != nil {
		fmt.Println("write:", err)
		return
	}
	if err := playTrace(context.Background(), &file); err != nil {
		fmt.Println("read:", err)
	}
	// Output:
	// port 1 is up
	// port 2 is up
	// from 0000:3b:00.0, missing blocks: 3
}

func writeTrace(file *bytes.Buffer) error {
	w, err := capture.NewWriter(file, &capture.Meta{Device: "0000:3b:00.0"})
	if err != nil {
		return err
	}
	db := &trace.DB{
		Geometry: trace.Geometry{TrcVer: 1, FirstString: 0x10, NumString: 8},
		Sections: []trace.Section{{Base: 0x1000, Data: []byte("port %u is up\x00")}},
	}
	if err := w.Write(&capture.Record{Kind: capture.KindStrings, DB: db}); err != nil {
		return err
	}
	if err := w.Block(0, portBlock(1)); err != nil {
		return err
	}
	gap := capture.Gap{First: 1, Blocks: 3, Cause: capture.CauseOverwritten}
	if err := w.Write(&capture.Record{Kind: capture.KindGap, Gap: gap}); err != nil {
		return err
	}
	if err := w.Block(4, portBlock(2)); err != nil {
		return err
	}
	return w.Close(&capture.End{Reason: capture.ReasonStopped})
}

func playTrace(ctx context.Context, file *bytes.Buffer) error {
	var p capture.Player
	err := p.Play(ctx, capture.NewReader(file, capture.ReaderOptions{}), nil, func(m *trace.Message) {
		fmt.Println(m.Text())
	})
	if err != nil {
		return err // *StopError: where the file ends or is damaged, and how much of it is good
	}
	_, missing, _ := p.Missing()
	fmt.Printf("from %s, missing blocks: %d\n", p.Meta().Device, missing)
	return nil
}

// portBlock is one as firmware writes it, with one message about a port.
func portBlock(port uint32) *[trace.BlockSize]byte {
	var b [trace.BlockSize]byte
	for i, e := range []trace.Event{
		trace.StringEvent(false, 0x20, 0x10, 1, 0, 0x1000),
		trace.StringEvent(false, 0x20, 0x10, 1, 1, port),
		trace.TimestampEvent(uint64(port)<<8|0x80, 0),
	} {
		binary.BigEndian.PutUint64(b[trace.BlockSize-8*(3-i):], uint64(e))
	}
	return &b
}
