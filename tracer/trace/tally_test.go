package trace

import (
	"math/rand/v2"
	"os/exec"
	"regexp"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestTallyIsThatOfThePlainRule counts rings full of oddities event by event.
func TestTallyIsThatOfThePlainRule(t *testing.T) {
	for seed := range 400 {
		r := rand.New(rand.NewPCG(uint64(seed), 9))
		g, _, image := oddRing(r, 1+r.IntN(30))
		var want Tally
		for i := 0; i < len(image); i += BlockSize {
			b := image[i : i+BlockSize]
			last, closed := ClosedTime(b)
			if !closed {
				want.Skipped++
				continue
			}
			want.Blocks++
			lo := 0
			for k := range EventsPerBlock {
				e := EventAt(b[k*8:])
				want.ByID[e.ID()]++
				if !e.IsTimestamp() {
					if e.Lost() {
						want.LostMarks++
					}
					continue
				}
				if g.Unreliable(e) {
					want.Unreliable++
				} else {
					for ; lo < k; lo++ {
						want.TimeSum += Place(e.Time(), EventAt(b[lo*8:]).Stamp())
						want.Timed++
					}
				}
				lo = k + 1
			}
			if !g.Unreliable(EventAt(b[BlockSize-8:])) {
				want.reliable(last)
			}
		}
		var got Tally
		half := len(image) / BlockSize / 2 * BlockSize
		require.NoError(t, got.Add(g, image[:half]))
		require.NoError(t, got.Add(g, image[half:]))
		require.Equal(t, want, got, "seed %d", seed)
	}
}

func TestTallyRefusesHalfABlock(t *testing.T) {
	db, image := realisticRing(3, 4)
	var c Tally
	var e *BlockError
	require.ErrorAs(t, c.Add(db.Geometry, image[:3*BlockSize+8]), &e)
	require.Equal(t, 8, e.Len)
	require.EqualValues(t, 3, c.Blocks)
	require.EqualValues(t, 96, c.Events())
}

// TestTallySumIsThatOfC compares the sum of all times.
func TestTallySumIsThatOfC(t *testing.T) {
	bin := cReference(t)
	dir := t.TempDir()
	db, image := realisticRing(4, 4096) // 1 MB, as the C side wants it
	writeRing(t, dir, db.Geometry, db.Sections, image)
	out, err := exec.Command(bin, "count", dir, "1", "1").Output()
	require.NoError(t, err)
	m := regexp.MustCompile(`time sum ([0-9a-f]+), timestamp events per run (\d+)`).FindSubmatch(out)
	require.NotNil(t, m, "%s", out)
	var c Tally
	require.NoError(t, c.Add(db.Geometry, image))
	require.Equal(t, string(m[1]), strconv.FormatUint(c.TimeSum, 16))
	require.Equal(t, string(m[2]), strconv.FormatUint(c.ByID[TimestampID], 10))
}
