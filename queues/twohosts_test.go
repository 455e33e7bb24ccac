package queues_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio"
	"github.com/mlxvfio/mlxvfio/queues"
	"github.com/mlxvfio/mlxvfio/sim"
)

// Two hosts tell each other in JSON what they are, connect, and do everything that
// one host does with itself.
func TestTwoHosts(t *testing.T) {
	for _, words := range []string{"sim:cx5,seed=1", "sim:cx5,port=eth,seed=2"} {
		t.Run(words, func(t *testing.T) {
			o, err := sim.Parse(words)
			require.NoError(t, err)
			var hosts [2]*bench
			for i := range hosts {
				c, err := sim.New(o)
				require.NoError(t, err)
				t.Cleanup(func() { require.NoError(t, c.Close()) })
				hosts[i] = &bench{t: t, chip: c}
			}
			x, y := hosts[0], hosts[1]
			require.NoError(t, sim.Link(x.chip, y.chip))
			for _, h := range hosts {
				h.open(0, mlxvfio.Options{CompletionVectors: 1})
			}
			ctx := t.Context()
			l := &link{bench: x, acq: x.cq(8), bcq: y.cq(8), amem: x.buffer(linkHalf), bmem: y.buffer(linkHalf)}
			l.akey, l.bkey = x.mkey(l.amem, queues.AccessAll), y.mkey(l.bmem, queues.AccessAll)
			l.a, l.b = x.qp(l.acq, queues.QPOptions{}), y.qp(l.bcq, queues.QPOptions{})
			tell := func(q *queues.QP) (p queues.PeerInfo) {
				local, err := q.Local(ctx)
				require.NoError(t, err)
				text, err := json.Marshal(local)
				require.NoError(t, err)
				require.NoError(t, json.Unmarshal(text, &p))
				return p
			}
			pa, pb := tell(l.a), tell(l.b)
			require.NotEqual(t, pa.GID, pb.GID)
			require.NoError(t, l.a.Connect(ctx, pb, queues.ConnectOptions{MTU: 512}))
			require.NoError(t, l.b.Connect(ctx, pa, queues.ConnectOptions{MTU: 512}))
			for _, o := range loopbackOps {
				o.run(l)
				l.quiet()
			}
		})
	}
}
