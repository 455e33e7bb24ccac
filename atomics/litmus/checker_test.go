package litmus

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// Operations on a register of one byte.
func readOf(v byte, call, ret int) Event {
	return Event{Name: fmt.Sprintf("read %d", v), Call: call, Return: ret, Do: func(s []byte) bool { return s[0] == v }}
}

func writeOf(v byte, call, ret int) Event {
	return Event{Name: fmt.Sprintf("write %d", v), Call: call, Return: ret, Do: func(s []byte) bool { s[0] = v; return true }}
}

func addOf(v, old byte, call, ret int) Event {
	return Event{Name: fmt.Sprintf("add %d to %d", v, old), Call: call, Return: ret, Do: func(s []byte) bool {
		was := s[0]
		s[0] += v
		return was == old
	}}
}

func TestLinearizePlanted(t *testing.T) {
	for _, c := range []struct {
		name   string
		events []Event
		ok     bool
		says   string
	}{
		{"nothing", nil, true, ""},
		{"one after the other", []Event{writeOf(1, 1, 2), readOf(1, 3, 4)}, true, ""},
		{"stale read", []Event{writeOf(1, 1, 2), readOf(0, 3, 4)}, false, "read 0"},
		{"read of an overlapping write", []Event{writeOf(1, 1, 4), readOf(1, 2, 3)}, true, ""},
		{"read before an overlapping write", []Event{writeOf(1, 1, 4), readOf(0, 2, 3)}, true, ""},
		{"new, then old", []Event{writeOf(1, 1, 8), readOf(1, 2, 3), readOf(0, 4, 5)}, false, "read 0"},
		{"two readers, new and old at once", []Event{writeOf(1, 1, 8), readOf(1, 2, 5), readOf(0, 3, 6)}, true, ""},
		{"lost update", []Event{addOf(1, 0, 1, 4), addOf(1, 0, 2, 5)}, false, "add 1 to 0"},
		{"both updates", []Event{addOf(1, 1, 1, 4), addOf(1, 0, 2, 5)}, true, ""},
		{"updates against time", []Event{addOf(1, 1, 1, 2), addOf(1, 0, 3, 4)}, false, "add 1 to 1"},
		{"calls and returns at one moment overlap", []Event{addOf(1, 1, 1, 2), addOf(1, 0, 2, 3)}, true, ""},
		{"a long chain backwards", []Event{addOf(1, 3, 1, 9), addOf(1, 2, 2, 9), addOf(1, 1, 3, 9), addOf(1, 0, 4, 9), readOf(4, 10, 11)}, true, ""},
		{"a value nobody wrote", []Event{writeOf(1, 1, 5), writeOf(2, 2, 6), readOf(3, 3, 7)}, false, "read 3"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := Linearize([]byte{0}, c.events, 0)
			require.Equal(t, c.ok, a.Linearizable, "%+v", a)
			require.False(t, a.Undecided)
			require.Contains(t, a.Stuck, c.says)
			require.Equal(t, c.ok, a.Stuck == "")
		})
	}
}

// The checker says what trying every order says, for thousands of small histories
// of which many are wrong.
func TestLinearizeAgainstBruteForce(t *testing.T) {
	rng := rand.New(rand.NewPCG(8, 9))
	yes, no := 0, 0
	for i := range 4000 {
		n := 2 + rng.IntN(5)
		events := make([]Event, n)
		for j := range events {
			call := rng.IntN(12)
			ret := call + 1 + rng.IntN(8)
			v := byte(rng.IntN(3))
			switch rng.IntN(3) {
			case 0:
				events[j] = readOf(v, call, ret)
			case 1:
				events[j] = writeOf(v, call, ret)
			default:
				events[j] = addOf(1, v, call, ret)
			}
		}
		want := anyOrder([]byte{0}, events, make([]bool, n))
		require.Equal(t, want, Linearize([]byte{0}, events, 0).Linearizable, "case %d", i)
		if want {
			yes++
		} else {
			no++
		}
	}
	require.Greater(t, yes, 300)
	require.Greater(t, no, 300)
}

// anyOrder tries every order that time allows.
func anyOrder(state []byte, events []Event, used []bool) bool {
	left := false
	for i, e := range events {
		if used[i] {
			continue
		}
		left = true
		first := true
		for j, f := range events {
			if !used[j] && f.Return < e.Call {
				first = false
			}
		}
		if !first {
			continue
		}
		s := append([]byte(nil), state...)
		if e.Do(s) {
			used[i] = true
			ok := anyOrder(s, events, used)
			used[i] = false
			if ok {
				return true
			}
		}
	}
	return !left
}

// Histories made by carrying operations out one at a time, at some moment between
// call and return, are linearizable; with one result changed they are not, unless
// chance explains it.
func TestLinearizeLongHistories(t *testing.T) {
	rng := rand.New(rand.NewPCG(10, 11))
	for range 30 {
		events := simulate(rng, 200, 6)
		a := Linearize(make([]byte, 8), events, 0)
		require.True(t, a.Linearizable, a.Stuck)
		// Distinct values: an impossible one cannot be explained.
		i := rng.IntN(len(events))
		do := events[i].Do
		events[i].Do = func(s []byte) bool { do(s); return false }
		a = Linearize(make([]byte, 8), events, 0)
		require.False(t, a.Linearizable)
		require.False(t, a.Undecided)
	}
}

// simulate makes a history of n swaps on 8 bytes by some callers at once.
func simulate(rng *rand.Rand, n, callers int) []Event {
	type call struct{ event int }
	var events []Event
	var state uint64
	clock := 0
	open := map[int]*call{}
	for len(events) < n || len(open) > 0 {
		c := rng.IntN(callers)
		clock++
		if o := open[c]; o != nil {
			e := &events[o.event]
			if e.Do == nil {
				old, now := state, uint64(o.event+1)
				state = now
				e.Do = func(s []byte) bool {
					was := binary.LittleEndian.Uint64(s)
					binary.LittleEndian.PutUint64(s, now)
					return was == old
				}
				continue
			}
			e.Return = clock
			delete(open, c)
			continue
		}
		if len(events) < n {
			events = append(events, Event{Name: "swap", Call: clock})
			open[c] = &call{event: len(events) - 1}
		}
	}
	return events
}

func TestLinearizeGivesUp(t *testing.T) {
	var events []Event
	for i := range 24 {
		events = append(events, writeOf(byte(i), 1, 100))
	}
	events = append(events, readOf(200, 101, 102))
	a := Linearize([]byte{0}, events, 1000)
	require.True(t, a.Undecided)
	require.False(t, a.Linearizable)
	require.LessOrEqual(t, a.States, 1000)
}

func BenchmarkLinearize(b *testing.B) {
	rng := rand.New(rand.NewPCG(1, 1))
	events := simulate(rng, 100, 6)
	for b.Loop() {
		if !Linearize(make([]byte, 8), events, 0).Linearizable {
			b.Fatal("not linearizable")
		}
	}
}
