package mlxvfio_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio"
	"github.com/mlxvfio/mlxvfio/cmdif"
	"github.com/mlxvfio/mlxvfio/initseg"
	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// A fatal error of firmware during the bring-up is seen while the command that it
// struck waits, long before that command's time is up, whether commands are polled or
// complete by events: the error names the syndrome and what to do.
func TestFatalIsSeenAtOnce(t *testing.T) {
	for _, stage := range commandStages {
		for _, polled := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				c := chip(t, "sim:cx5")
				h, err := mlxvfio.Open(t.Context(), c.Function(0), mlxvfio.Options{Polled: polled})
				require.NoError(t, err)
				require.NoError(t, h.Close(t.Context()), "it was well before")
				var begun time.Time
				_, err = mlxvfio.Open(t.Context(), c.Function(0), mlxvfio.Options{Polled: polled, BeforeStage: func(s string) error {
					if s != stage {
						return nil
					}
					begun = time.Now()
					return c.SetFault("fatal", "HW_FATAL_ERR")
				}})
				struck := stage
				if polled && (stage == "command-eq" || stage == "event-mode") {
					struck = "async-eq" // nothing is sent before
				}
				require.Less(t, time.Since(begun), 2*time.Second, "%s: %v", stage, err)
				var se *mlxvfio.StageError
				require.ErrorAs(t, err, &se)
				require.Equal(t, struck, se.Stage)
				var fe *initseg.FatalError
				require.ErrorAs(t, err, &fe)
				require.Equal(t, prm.SyndHwFatalErr, fe.Syndrome)
				require.ErrorIs(t, err, cmdif.ErrDead)
				require.ErrorContains(t, err, "HW_FATAL_ERR (unrecoverable hardware error)")
				require.ErrorContains(t, err, "reset the function and open it again")
			})
		}
	}
}

// A syndrome without firmware's request for recovery is not fatal: the command keeps
// its time.
func TestSyndromeIsNotFatal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := chip(t, "sim:cx5")
		require.NoError(t, c.SetFault("syndrome", "HIGH_TEMP_ERR"))
		require.NoError(t, c.SetFault("late", "QUERY_ADAPTER=5s"))
		h, err := mlxvfio.Open(t.Context(), c.Function(0), mlxvfio.Options{})
		require.NoError(t, err)
		require.NoError(t, h.Segment().Fatal())
		require.NoError(t, h.Close(t.Context()))
	})
}
