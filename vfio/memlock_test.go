package vfio

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

// pinnedMapper takes everything and pins it.
type pinnedMapper struct{ pinned uint64 }

func (m *pinnedMapper) Map(x Mapping) error        { m.pinned += uint64(len(x.Bytes)); return nil }
func (m *pinnedMapper) Unmap(_, size uint64) error { m.pinned -= size; return nil }
func (m *pinnedMapper) Limits() (DMALimits, error) {
	return DMALimits{Ranges: []IOVARange{{0, 1<<40 - 1}}, PageSizes: 4096, Pinned: true}, nil
}

// With a limit of 8 MiB, which is the usual one, all of it can be used: 2, 4 and,
// where 8 more do not fit, 2 MiB. Then the error says what is needed.
func TestMemlock(t *testing.T) {
	m := &pinnedMapper{}
	s, err := NewAddressSpace(m, SpaceOptions{})
	require.NoError(t, err)
	s.lock = memlock{
		limit:  func() (uint64, error) { return 8 << 20, nil },
		locked: func() (uint64, error) { return m.pinned, nil },
		exempt: func() bool { return false },
	}
	var bs []*Buffer
	for {
		b, err2 := s.Alloc(1<<20, BufferOptions{Name: "queue"})
		if err = err2; err != nil {
			break
		}
		bs = append(bs, b)
	}
	require.Len(t, bs, 8)
	require.ErrorIs(t, err, ErrNoSpace)
	require.ErrorContains(t, err, "RLIMIT_MEMLOCK is 8388608 bytes")
	require.ErrorContains(t, err, "9437184 bytes are needed")
	require.ErrorContains(t, err, "ulimit -l 9216")
	require.ErrorContains(t, err, "LimitMEMLOCK=9437184")

	s.lock.exempt = func() bool { return true }
	b, err := s.Alloc(1<<20, BufferOptions{})
	require.NoError(t, err, "CAP_IPC_LOCK lifts the limit")
	for _, b := range append(bs, b) {
		require.NoError(t, b.Free())
	}
	require.NoError(t, s.Close())
	require.Zero(t, m.pinned)
}

func TestMemlockCheck(t *testing.T) {
	l := memlock{
		limit:  func() (uint64, error) { return 100, nil },
		locked: func() (uint64, error) { return 60, nil },
		exempt: func() bool { return false },
	}
	require.NoError(t, l.check(40))
	require.ErrorIs(t, l.check(41), ErrNoSpace)
	l.limit = func() (uint64, error) { return ^uint64(0), nil }
	require.NoError(t, l.check(1<<60), "unlimited")
	l.limit = func() (uint64, error) { return 0, errors.New("unknown") }
	require.NoError(t, l.check(41), "the kernel decides")
}

func TestParseVmLck(t *testing.T) {
	n, err := parseVmLck("Name:\tx\nVmLck:\t    2056 kB\nVmPin:\t       0 kB\n")
	require.NoError(t, err)
	require.Equal(t, uint64(2056*1024), n)
	_, err = parseVmLck("Name:\tx\n")
	require.ErrorIs(t, err, ErrNotFound)
	_, err = vmLocked()
	require.NoError(t, err)
	_, err = rlimitMemlock()
	require.NoError(t, err)
}
