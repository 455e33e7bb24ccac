package health

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Random lives of a function against what must always hold.
func TestJudgeInvariants(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 1))
		lim := newLimits(time.Second, time.Duration(rng.IntN(6000))*time.Millisecond)
		owner := rng.IntN(2) == 0
		j := newJudge(lim, owner, rng.IntN(2) == 0)
		var s Sample
		var moved, lastLook time.Duration
		unmoved, better := 0, 0
		counter, moving, nic := rng.Uint32()&CounterMask, true, uint32(0)
		var buf Buffer
		for range 400 {
			step := lim.period
			if rng.IntN(60) == 0 {
				step = time.Duration(1+rng.IntN(20)) * lim.period
			}
			s.Elapsed += step
			switch rng.IntN(40) {
			case 0, 1:
				moving = !moving
			case 2:
				nic = []uint32{0, 0, 1, 2, 7}[rng.IntN(5)]
			case 3:
				var raw RawBuffer
				raw[0], raw[0x3d] = byte(rng.Uint32()), byte(rng.IntN(3))
				raw[0x38] = byte(rng.IntN(4)) << 6
				buf = DecodeBuffer(raw)
			}
			if moving {
				counter = (counter + uint32(1+rng.IntN(200))) & CounterMask
			}
			ones := rng.IntN(50) == 0
			s.Health, s.NIC, s.FW, s.Synd = uint32(buf.Synd)<<24|counter, 0x1000|nic<<8, 1, uint32(buf.Synd)<<16
			if ones {
				s.Health, s.NIC, s.FW, s.Synd = allOnes, allOnes, allOnes, allOnes
			}
			l := look{s: &s}
			if !ones && buf.Synd != 0 {
				b := buf
				l.buf = &b
			}
			was, before := j.cond.Info().State, *j
			changed := j.step(l)
			is := j.cond.Info().State

			if !ones {
				gap := s.Elapsed-lastLook >= lim.stall && !before.forgiven
				if unmoved++; !before.based || before.hard != "" || gap || counter != before.prev.Counter() {
					moved, unmoved = s.Elapsed, 0
				}
			}
			lastLook = s.Elapsed

			require.Equal(t, j.cond != before.cond, changed)
			switch {
			case ones:
				require.Equal(t, AllOnes, j.cond, "seed %d: all ones is gone at once", seed)
			case nic == 7 && was != Gone:
				require.Equal(t, NICSWReset, j.cond, "seed %d", seed)
			case nic == 1 && owner && was != Gone:
				require.Equal(t, NICDisabled, j.cond, "seed %d", seed)
			}
			if changed && (j.cond == CounterStopped || j.cond == SyndromeStopped) && is > was {
				require.GreaterOrEqual(t, s.Elapsed-moved, lim.stall, "seed %d: it moved within the limit", seed)
				require.GreaterOrEqual(t, unmoved, leastMisses, "seed %d", seed)
			}
			if owner && was >= Fatal {
				require.GreaterOrEqual(t, is, was, "seed %d: what was lost stays lost", seed)
			}
			if is < was && is != Unknown {
				require.GreaterOrEqual(t, better, betterSamples-1, "seed %d: better at once", seed)
			}
			if changed {
				better = 0
			} else {
				better++
			}
			if j.live() && j.buffer.RFR && !ones {
				require.GreaterOrEqual(t, is, Fatal, "seed %d: rfr", seed)
			}
		}
	}
}

func BenchmarkJudge(b *testing.B) {
	j := newJudge(newLimits(time.Second, 0), true, true)
	var s Sample
	l := look{s: &s}
	b.ReportAllocs()
	for b.Loop() {
		s.Elapsed += time.Second
		s.Health = (s.Health + 100) & CounterMask
		j.step(l)
	}
}
