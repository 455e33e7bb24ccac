package main

import (
	"context"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPlansAreNamedOnce(t *testing.T) {
	all := names()
	slices.Sort(all)
	require.Equal(t, all, slices.Compact(slices.Clone(all)))
}

// Only the bench's own kernel has more ways than one.
func TestBackendsHaveTheirKernel(t *testing.T) {
	for _, p := range debianPlans {
		require.Empty(t, p.Backend, p.Name)
		require.NotEqual(t, custom, p.Release, p.Name)
	}
	for _, p := range customPlans {
		require.Equal(t, custom, p.Release, p.Name)
		require.Contains(t, []string{"", "iommufd", "noiommu"}, p.Backend, p.Name)
		require.Equal(t, p.Backend == "noiommu", p.IOMMU != nil && len(p.IOMMU) == 0, "%s: without an IOMMU there is one way", p.Name)
	}
}

func TestReleases(t *testing.T) {
	require.ElementsMatch(t, []string{"7.3", custom}, options{}.releases())
	require.Empty(t, options{only: []string{"function", "witness-mlx5_core"}}.releases())
	require.Equal(t, []string{custom}, options{only: []string{"function", "bench-custom"}}.releases())
}

// A machine whose kernel could not be made stops the bench; it is not skipped.
func TestNoCustomKernelIsAnError(t *testing.T) {
	_, err := run(context.Background(), options{bench: t.TempDir(), out: t.TempDir(), only: []string{"bench-custom"}})
	require.ErrorContains(t, err, "test/vm/kernel")
	_, err = run(context.Background(), options{bench: t.TempDir(), out: t.TempDir()})
	require.ErrorContains(t, err, "test/vm/kernel")
}

func TestCustomKernelHasNoModules(t *testing.T) {
	img := &image{kernels: t.TempDir(), custom: t.TempDir()}
	require.False(t, img.has(custom))
	a := newArchive()
	require.NoError(t, img.kernel(custom).pack(a, guestModules))
	files := unpackNewc(t, a.bytes())
	require.Equal(t, "lib/modules.dep", files[len(files)-1].name)
	require.Zero(t, files[len(files)-1].size)
}
