package trace

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestSameAsTheReference: the decoder gives message for message and counter for
// counter what the plain one gives, on rings full of oddities.
func TestSameAsTheReference(t *testing.T) {
	rings := 3000
	if testing.Short() {
		rings = 300
	}
	var sum Counters
	for seed := range rings {
		r := rand.New(rand.NewPCG(uint64(seed), 5))
		g, sections, image := oddRing(r, 1+r.IntN(40))
		var want []string
		ref := newReference(g, sections)
		n := len(image) / BlockSize
		for i := range n {
			ref.block(uint64(i), image[i*BlockSize:][:BlockSize], func(m *refMessage) {
				want = append(want, describe(m.time, m.block, m.id, m.lost, m.kind, m.text))
			})
		}
		ref.finish()
		var got []string
		d, err := NewDecoder(g, NewStrings(sections))
		require.NoError(t, err)
		require.NoError(t, NewRing(image).Decode(d, 0, func(m *Message) {
			got = append(got, describe(m.Time, m.Block, m.EventID, m.Lost, m.Kind, m.Text()))
		}))
		for i := range min(len(got), len(want)) {
			require.Equal(t, want[i], got[i], "seed %d, message %d", seed, i)
		}
		require.Len(t, got, len(want), "seed %d", seed)
		c := d.Counters()
		require.Equal(t, ref.c, c, "seed %d", seed)
		require.NoError(t, c.Check())
		sum.Add(&c)
	}
	t.Logf("%+v", sum)
	// Every oddity was there.
	for name, n := range map[string]uint64{
		"orphans": sum.OrphanParams, "unknown": sum.UnknownStrings, "incomplete": sum.IncompleteMessages,
		"dropped": sum.UnreliableEventsDropped, "raw": sum.RawEvents, "unreliable": sum.UnreliableTimestamps,
		"good messages": sum.Messages - min(sum.OrphanParams+sum.UnknownStrings, sum.Messages), "lost": sum.LostMarks, "bad": sum.BadFormats, "skipped": sum.SkippedBlocks,
	} {
		require.Greater(t, n, uint64(rings), name)
	}

}
