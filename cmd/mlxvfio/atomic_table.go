package main

import (
	"context"
	"fmt"
	"io"

	"github.com/mlxvfio/mlxvfio/atomics"
	"github.com/spf13/cobra"
)

func (a *app) atomicTableVerb() *cobra.Command {
	c := a.verb("table", "the masks of 1- and 2-byte atomics, for both byte orders of memory", 0, 0, func(context.Context, []string) error {
		return a.print("atomic-table/1", &maskTable{Rows: atomics.Table(), Derived: atomics.Derived()})
	})
	c.Long = `table shows what a masked WQE on the aligned 4-byte word has to carry so that it works on one or two bytes of it:
compare-and-swap, swap and fetch-add for every offset, then AND, OR and XOR, which are made of the same two. Which byte
order holds is a property of the device that mlxvfio atomic probe finds. No device is touched.`
	c.Example = examples(
		"mlxvfio atomic table", "masks for both byte orders of memory")
	return c
}

// maskTable is the matrix: c is the value compared, s the one stored, a the one
// added, v the operand of the derived operations.
type maskTable struct {
	Rows    []atomics.Row `json:"rows"`
	Derived []atomics.Row `json:"derived"`
}

func (r *maskTable) text(w io.Writer) {
	for _, part := range []struct {
		title string
		rows  []atomics.Row
	}{{"", r.Rows}, {", derived", r.Derived}} {
		for _, order := range []atomics.Order{atomics.LittleEndian, atomics.BigEndian} {
			rows := [][]string{atomics.Heads()}
			for _, x := range part.rows {
				if x.Order == order {
					rows = append(rows, x.Columns())
				}
			}
			fmt.Fprintf(w, "words %s in memory%s\n", order, part.title)
			table(w, rows)
			fmt.Fprintln(w)
		}
	}
	fmt.Fprintln(w, "c value compared, s stored, a added, v operand; operands and masks of WQEs are big-endian numbers")
}
