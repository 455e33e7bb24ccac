package mlxvfio_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio"
	"github.com/mlxvfio/mlxvfio/internal/drivertest"
)

// report collects what a checker finds.
type report struct{ found []string }

func (*report) Helper() {}
func (r *report) Errorf(format string, args ...any) {
	r.found = append(r.found, fmt.Sprintf(format, args...))
}

// TestCheckersFindLeaks plants a leak in the driver, an undo that is left out,
// and requires that the checks of the fault table and of the suite find it.
func TestCheckersFindLeaks(t *testing.T) {
	life := func(leak string, polled bool) *report {
		c, r := chip(t, "sim:cx5"), &report{}
		base := drivertest.Now()
		w := drivertest.Watch(c.Function(0))
		o := mlxvfio.Options{Polled: polled}
		o.PlantLeak(leak)
		h, err := mlxvfio.Open(t.Context(), w, o)
		require.NoError(t, err)
		if err := h.Close(t.Context()); err != nil {
			r.Errorf("close: %v", err)
		}
		drivertest.Balanced(r, h.Ledger())
		w.Check(r)
		base.Check(r)
		spotless(c, 0)(r)
		return r
	}
	require.Empty(t, life("", false).found, "nothing is found where nothing is planted")
	for stage, finding := range map[string]string{
		"open":          "DMA mappings were left behind",
		"command-queue": "command queue",
		"boot-pages":    "page ledger does not balance",
		"vectors":       "goroutines were left behind",
		"async-eq":      "async EQ",
	} {
		// With interrupts the Device's own Close ends the loops as well.
		found := strings.Join(life(stage, stage == "vectors").found, "\n")
		require.Contains(t, found, finding, "leak planted at %s", stage)
	}

	// The same in a bring-up that fails: the undo of boot-pages is left out.
	c := chip(t, "sim:cx5")
	var o mlxvfio.Options
	o.PlantLeak("boot-pages")
	o.BeforeStage = func(s string) error {
		if s == "alloc-uar" {
			return errPlanned
		}
		return nil
	}
	_, err := mlxvfio.Open(t.Context(), c.Function(0), o)
	var se *mlxvfio.StageError
	require.ErrorAs(t, err, &se)
	r := &report{}
	drivertest.Balanced(r, se.Ledger)
	require.NotEmpty(t, r.found)
}
