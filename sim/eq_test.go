package sim

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// TestArming: level-triggered, and the interrupt depends on arming while the
// entries do not.
func TestArming(t *testing.T) {
	r := newRaw(t, Options{}).to(phaseInit)
	r.eventMode(4)
	v := r.vectors[1]
	fired := func() bool { return v.TryWait() }
	r.ok(cmd(prm.OpNop, 0, 16), 16)
	require.False(t, fired(), "a new queue is not armed")
	require.NotNil(t, r.event())
	r.arm()
	require.False(t, fired(), "armed and empty")
	r.ok(cmd(prm.OpNop, 0, 16), 16)
	require.True(t, fired())
	r.ok(cmd(prm.OpNop, 0, 16), 16)
	require.False(t, fired(), "fired once for one arming")
	require.NotNil(t, r.event())
	r.arm() // one entry is still unconsumed
	require.True(t, fired(), "arming behind the producer")
	require.NotNil(t, r.event())
	r.write(uint64(r.uar)*4096+0x48, r.eqn<<24|r.ci)
	r.ok(cmd(prm.OpNop, 0, 16), 16)
	require.False(t, fired(), "0x48 does not arm")

	// The doorbell of another UAR page does not reach the queue.
	other := prm.AsAllocUAROut(r.ok(cmd(prm.OpAllocUAR, 0, 16), 16)).UAR()
	before := r.chip.Counters(0).DoorbellsIgnored
	r.write(uint64(other)*4096+0x40, r.eqn<<24|(r.ci+1))
	r.write(uint64(firstUAR+500)*4096+0x40, r.eqn<<24|(r.ci+1))
	require.Equal(t, before+2, r.chip.Counters(0).DoorbellsIgnored)
	require.False(t, fired())

	// A vector nobody attached loses the edge; the next arm brings it back.
	require.NoError(t, r.dev.SetIRQs(2, 1, append(r.vectors[:0:0], nil)))
	r.arm()
	require.False(t, fired())
	require.NotZero(t, r.chip.Counters(0).InterruptsLost)
	require.NoError(t, r.dev.SetIRQs(2, 1, r.vectors[1:2]))
	r.arm()
	require.True(t, fired())
}

// TestEQOverrun: entries beyond the size are lost, and the queue and the health
// buffer say so; what is there stays.
func TestEQOverrun(t *testing.T) {
	r := newRaw(t, Options{}).to(phaseInit)
	r.eventMode(2)
	for range 6 {
		r.ok(cmd(prm.OpNop, 0, 16), 16)
	}
	require.EqualValues(t, 2, r.chip.Counters(0).EventsLost)
	out := r.ok(number(prm.OpQueryEQ, r.eqn), prm.QueryEQOutSize)
	c := prm.AsQueryEQOut(out).EQContextEntry()
	require.Equal(t, prm.EQStatusWriteFailure, c.Status())
	require.EqualValues(t, 4, c.ProducerCounter())
	require.EqualValues(t, 0, c.ConsumerCounter())
	require.EqualValues(t, prm.SyndAsynchronousEQBufOverrun, r.read(0x23c)>>16&0xff)
	require.Zero(t, r.read(0x238)>>31, "no recovery is asked for")
	for range 4 {
		require.NotNil(t, r.event())
	}
	require.Nil(t, r.event())
}

// TestEQLayout: many small pages, an offset into the first, and the refusals of
// pages that cannot hold the entries.
func TestEQLayout(t *testing.T) {
	r := newRaw(t, Options{}).to(phaseInit)
	r.eventMode(4)
	base := r.alloc(3*8192, 8192) // every other page of it
	in := cmd(prm.OpCreateEQ, 0, prm.CreateEQInSize+3*8)
	c := prm.AsCreateEQIn(in)
	c.EQContextEntry().SetLogEQSize(7) // 8192 bytes: two pages, three with an offset
	c.EQContextEntry().SetPageOffset(3)
	c.EQContextEntry().SetUARPage(r.uar)
	for i := range 3 {
		binary.BigEndian.PutUint64(in[prm.CreateEQInSize+i*8:], base+uint64(i)*8192)
	}
	n := uint32(prm.AsCreateEQOut(r.ok(in, 16)).EQNumber())
	gen := number(prm.OpGenEQE, n)
	for i := range 128 {
		gen[0x10+4] = byte(i)
		r.ok(gen, 16)
	}
	for i := range 128 {
		at := uint64(3+i) * 64
		e := r.bytes(base+at>>12*8192+at&4095, 64)
		require.Equal(t, byte(i), e[4], "entry %d", i)
		require.Zero(t, e[0x3f]&1)
	}
	out := r.ok(number(prm.OpQueryEQ, n), prm.QueryEQOutSize)
	require.EqualValues(t, 128, prm.AsQueryEQOut(out).EQContextEntry().ProducerCounter())

	short := append([]byte(nil), in[:prm.CreateEQInSize+2*8]...)
	_, y := r.status(short, 16)
	require.Equal(t, syndInputShort, y)
	binary.BigEndian.PutUint64(in[prm.CreateEQInSize:], base+512)
	_, y = r.status(in, 16)
	require.Equal(t, syndEQPage, y)
	c.EQContextEntry().SetIntr(msixVectors)
	s, y := r.status(in, 16)
	require.Equal(t, syndEQVector, y)
	require.Equal(t, prm.StatusBadIndex, s)

	// A UAR that a queue rings on cannot be freed.
	s, y = r.status(number(prm.OpDeallocUAR, r.uar), 16)
	require.Equal(t, prm.StatusResBusy, s)
	require.Equal(t, syndUARBusy, y)
}

// TestEQUnmapped: an entry that cannot be written is lost and counted.
func TestEQUnmapped(t *testing.T) {
	r := newRaw(t, Options{}).to(phaseInit)
	r.eventMode(4)
	in := valid(prm.OpCreateEQ)
	prm.AsCreateEQIn(in).EQContextEntry().SetUARPage(r.uar)
	binary.BigEndian.PutUint64(in[prm.CreateEQInSize:], 0x7000_0000)
	n := uint32(prm.AsCreateEQOut(r.ok(in, 16)).EQNumber())
	r.ok(number(prm.OpGenEQE, n), 16)
	require.EqualValues(t, 1, r.chip.Counters(0).DMAFaults)
	require.EqualValues(t, 1, r.chip.Counters(0).EventsLost)
}

// TestEQNumbers: all event queues, none twice, freed ones again.
func TestEQNumbers(t *testing.T) {
	r := newRaw(t, Options{}).to(phaseInit)
	r.uar = prm.AsAllocUAROut(r.ok(cmd(prm.OpAllocUAR, 0, 16), 16)).UAR()
	seen := map[uint32]bool{}
	for range 240 {
		n, _ := r.createEQ(0, 0, 0)
		require.False(t, seen[n])
		seen[n] = true
	}
	in := valid(prm.OpCreateEQ)
	prm.AsCreateEQIn(in).EQContextEntry().SetUARPage(r.uar)
	s, y := r.status(in, 16)
	require.Equal(t, prm.StatusNoRes, s)
	require.Equal(t, syndOutOfEQs, y)
	r.ok(number(prm.OpDestroyEQ, 0x33), 16)
	n, _ := r.createEQ(0, 0, 0)
	require.EqualValues(t, 0x33, n)
}
