package sim

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// TestForeignPackets: a connected QP takes packets from where its own path leads, and
// from nowhere else, though they have the right QPN, PSN and key; what is dropped
// changes nothing for its peer. With forced loopback that is the function itself.
func TestForeignPackets(t *testing.T) {
	for _, port := range []PortType{PortIB, PortEth} {
		for _, forced := range []bool{false, true} {
			x, y := twoHosts(t, Options{Port: port, Clock: NewManualClock()})
			a, b, c := x.newEnd(prm.QPTypeRC, nil), x.newEnd(prm.QPTypeRC, nil), y.newEnd(prm.QPTypeRC, nil)
			if port == PortEth {
				roce(x, a, b)
				roce(x, b, a)
				roce(y, c, b)
			}
			for _, e := range []*end{a, b} {
				was := e.tune
				e.tune = func(op prm.Opcode, q *prm.QPC) {
					if was != nil {
						was(op, q)
					}
					q.PrimaryAddressPath().SetFl(forced)
				}
			}
			connect(a, b)
			for _, op := range []prm.Opcode{prm.OpRst2InitQP, prm.OpInit2RtrQP, prm.OpRtr2RtsQP} {
				c.step(op, b)
			}
			m := x.region(4096, nil)
			c.post(write(m.remote(0), inlineSeg([]byte("foreign"))))
			c.send.none()
			for range 10 {
				x.chip.Advance(100 * time.Millisecond)
				y.chip.Advance(100 * time.Millisecond)
			}
			c.send.bad(prm.CQEReqErr, sRetry)
			require.Zero(t, m.bytes()[0], "%v, forced loopback %t", port, forced)

			a.post(write(m.remote(0), inlineSeg([]byte("native"))))
			a.send.good(prm.CQEReq)
			require.Equal(t, "native", string(m.bytes()[:6]))
			require.Equal(t, prm.QPStateRts, b.state())
		}
	}
}
