package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// ownSkips are the files whose tests may skip by themselves, how often, and why: not
// because this machine lacks something, which package absent lists.
var ownSkips = map[string]struct {
	times int
	why   string
}{
	"internal/absent/absent.go":          {1, "it is how the others skip"},
	"health/sample_test.go":              {1, "allocations under the race detector"},
	"sim/flow_more_test.go":              {1, "allocations under the race detector"},
	"vfio/device_test.go":                {1, "allocations under the race detector"},
	"vfio/kernel_test.go":                {1, "allocations under the race detector"},
	"tracer_test.go":                     {1, "a rate that the race detector does not let be reached"},
	"sim/flow_queues_test.go":            {1, "a profile that does not have it, among those that do"},
	"queues/dataerror_test.go":           {2, "the same, and what only the model can be told to do"},
	"vfio/vfiotest/contract_dma.go":      {1, "a device of the caller's that cannot be told to do it"},
	"vfio/vfiotest/contract_life.go":     {1, "a device of the caller's that cannot be told to do it"},
	"vfio/vfiotest/contract_physical.go": {1, "a device of the caller's that cannot be told to do it"},
}

// TestSkipsAreListed: a test that skips because this machine lacks something does so
// with package absent, which has the end of .ci/run name it.
func TestSkipsAreListed(t *testing.T) {
	root, err := filepath.Abs("../..")
	require.NoError(t, err)
	found := map[string]int{}
	require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir():
			if n := d.Name(); path != root && (strings.HasPrefix(n, ".") || n == "testdata") {
				return fs.SkipDir
			}
			return nil
		case filepath.Ext(path) != ".go":
			return nil
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		if n := skipsIn(file); n > 0 {
			found[filepath.ToSlash(name)] = n
		}
		return nil
	}))
	for name, n := range found {
		require.LessOrEqual(t, n, ownSkips[name].times, "%s skips by itself: where the machine lacks something use absent.Skip, else say here why", name)
	}
	for name, o := range ownSkips {
		require.Equal(t, o.times, found[name], "%s: %s", name, o.why)
	}
}

// skipsIn counts the calls of the methods of testing.TB that skip.
func skipsIn(f *ast.File) (n int) {
	ast.Inspect(f, func(x ast.Node) bool {
		call, ok := x.(*ast.CallExpr)
		if !ok {
			return true
		}
		s, ok := call.Fun.(*ast.SelectorExpr)
		if !ok || !slices.Contains([]string{"Skip", "Skipf", "SkipNow"}, s.Sel.Name) {
			return true
		}
		if p, ok := s.X.(*ast.Ident); !ok || p.Name != "absent" {
			n++
		}
		return true
	})
	return n
}

func TestSkipsIn(t *testing.T) {
	f, err := parser.ParseFile(token.NewFileSet(), "x.go", `package x
func f() { t.Skip("a"); l.t.Skipf("b"); tb.SkipNow(); absent.Skip(t, "c", "d"); t.Skipped(); x := t.Skip; _ = x }`, 0)
	require.NoError(t, err)
	require.Equal(t, 3, skipsIn(f))
}
