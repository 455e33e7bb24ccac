package litmus

import (
	"context"
	"encoding/binary"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/atomics"
)

// meddled is a runner on a good device whose target is changed by another hand each
// time after the device has worked.
func meddled(t *testing.T, seed uint64, meddle func(target atomics.Memory)) (*runner, *Card) {
	_, rig := newFake(t, fakeOptions{maxWrite: 32, seed: seed})
	idle := rig.Idle
	rig.Idle = func(ctx context.Context) error {
		err := idle(ctx)
		if meddle != nil {
			meddle(rig.Target)
		}
		return err
	}
	o := Options{Seed: seed}
	o.defaults()
	c := &Card{}
	return newRunner(rig, o, c), c
}

// Each check of mutual exclusion sees by itself what the others would see later: a
// semaphore that two hold, one that is not its holder's when it is given back, a
// record that is whole and not the last one.
func TestMutexChecks(t *testing.T) {
	word := layout{"4 bytes", 4, []int{0}}
	for _, c := range []struct {
		says    string
		byWrite bool
		meddle  func(target atomics.Memory)
	}{
		{"", false, nil},
		{"", true, nil},
		{"took semaphore 0 while queue", true, func(m atomics.Memory) { clear(m.Mem.Bytes()[semAt : semAt+4]) }},
		{"held semaphore 0 and found 0x", false, func(m atomics.Memory) {
			if b := m.Mem.Bytes()[semAt : semAt+4]; b[0] != 0 { // as if the next one had it
				id := b[0]%4 + 1
				copy(b, []byte{id, id, id, id})
			}
		}},
		{"its record held 99 and 99 instead", true, func(m atomics.Memory) {
			b := m.Mem.Bytes()[recordAt:]
			if v := binary.NativeEndian.Uint64(b); v == binary.NativeEndian.Uint64(b[8:]) {
				binary.NativeEndian.PutUint64(b, 99)
				binary.NativeEndian.PutUint64(b[8:], 99)
			}
		}},
	} {
		seen := 0
		for seed := range uint64(20) {
			r, card := meddled(t, seed, c.meddle)
			require.NoError(t, r.mutexOf(t.Context(), word, c.byWrite))
			require.Len(t, card.Rows, 1)
			if c.says == "" {
				require.Equal(t, Holds, card.Rows[0].Verdict, card.Rows[0].Detail)
				continue
			}
			require.Equal(t, Broken, card.Rows[0].Verdict)
			if strings.Contains(card.Rows[0].Detail, c.says) {
				seen++
			}
		}
		if c.says != "" {
			require.Positive(t, seen, "no run ended with %q", c.says)
		}
	}
}

// What the audit at the end looks at.
func TestMutexAudit(t *testing.T) {
	for _, c := range []struct {
		says  string
		fault atomics.Fault
		spoil func(b []byte)
	}{
		{"", atomics.NoFault, func([]byte) {}},
		{"after all were released", atomics.FaultNeighbour, func(b []byte) { b[semAt+7] ^= 1 }},
		{"after all were released", atomics.FaultNeighbour, func(b []byte) { b[semAt] ^= 1 }},
		{"semaphore 1 saw 7 sections and its record counts 6 and 7", atomics.FaultLostUpdate, func(b []byte) { b[recordAt+64] = 6 }},
		{"semaphore 1 saw 7 sections and its record counts 7 and 8", atomics.FaultLostUpdate, func(b []byte) { b[recordAt+64+8] = 8 }},
	} {
		r, _ := meddled(t, 1, nil)
		s := &semaphores{run: r, layout: layout{"4 bytes", 2, []int{0, 2}}, count: []uint64{3, 7}}
		before := r.fill(semAt-guard, guard+8+guard)
		b := r.rig.Target.Mem.Bytes()
		for i, n := range s.count {
			binary.NativeEndian.PutUint64(b[recordAt+64*i:], n)
			binary.NativeEndian.PutUint64(b[recordAt+64*i+8:], n)
		}
		c.spoil(b)
		s.audit(before)
		require.Equal(t, c.fault, s.fault)
		require.Contains(t, s.broken, c.says)
		require.Equal(t, c.says == "", s.broken == "")
	}
}

// Of a write that is whole while it is looked at, memory at rest tells.
func TestTornChecks(t *testing.T) {
	const block = 32
	for _, c := range []struct {
		says string
		look int
		at   int // the byte that is changed
	}{
		{"at rest, byte 4 of 8", 0, 12},
		{"in flight", 32, 12},
		{"changed bytes beside it", 0, 3*block - 1},
		{"changed bytes beside it", 0, 16},
		{"changed bytes beside it", 0, 7},
	} {
		r, _ := meddled(t, 3, func(m atomics.Memory) { m.Mem.Bytes()[tornAt+c.at] ^= 0xff })
		x := &tearing{run: r, block: block, look: c.look}
		require.NoError(t, x.try(t.Context(), func() (int, int) { return 8, 8 }))
		require.Contains(t, x.found, c.says)
		require.Positive(t, x.torn)
	}
	r, _ := meddled(t, 3, nil)
	x := &tearing{run: r, block: block, look: 32}
	require.NoError(t, x.try(t.Context(), x.insideRange))
	require.Empty(t, x.found)
	require.Positive(t, x.looks)
}
