package archtest

import (
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// public tells whether a user of the module can and should import a room: test kits
// (vfiotest, pcitest) are public too, but take a testing.TB, which an example has not.
func public(room string) bool {
	for _, p := range []string{"internal/", "cmd/", "test/"} {
		if strings.HasPrefix(room, p) {
			return false
		}
	}
	return !strings.HasSuffix(room, "test")
}

// parseDir parses the Go files of a folder that pass the filter.
func parseDir(t *testing.T, dir string, want func(name string) bool) []*ast.File {
	t.Helper()
	var files []*ast.File
	fset := token.NewFileSet()
	require.NoError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != dir:
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, ".go") || !want(d.Name()):
			return nil
		}
		f, err := parser.ParseFile(fset, path, nil, parser.ParseComments)
		files = append(files, f)
		return err
	}))
	return files
}

func isTest(name string) bool { return strings.HasSuffix(name, "_test.go") }

// TestEveryPackageHasAnExample: go doc shows for each public package a program that a
// user can begin with, as an external test, and go test compares what it prints.
func TestEveryPackageHasAnExample(t *testing.T) {
	n := 0
	for _, p := range list(t) {
		if !public(p.room()) {
			continue
		}
		n++
		whole := false
		for _, f := range parseDir(t, p.Dir, isTest) {
			for _, e := range doc.Examples(f) {
				require.NotEmpty(t, e.Output, "%s: Example%s has no Output: it is not run", p.room(), e.Name)
				require.True(t, strings.HasSuffix(f.Name.Name, "_test"), "%s: Example%s uses what users cannot: put it into package %s_test", p.room(), e.Name, p.Name)
				require.NotEmpty(t, e.Doc, "%s: Example%s does not say what it shows", p.room(), e.Name)
				whole = whole || e.Name == ""
				for _, i := range f.Imports {
					require.NotContains(t, i.Path.Value, "/internal/", "%s: a user cannot import what Example%s does", p.room(), e.Name)
				}
			}
		}
		require.True(t, whole, "%s has no func Example", p.room())
	}
	require.Greater(t, n, 15)
}

// TestEveryPackageSaysWhatItIs: the package comment says what the package is for, who may
// call it at the same time, and what it never does.
func TestEveryPackageSaysWhatItIs(t *testing.T) {
	concurrency := regexp.MustCompile(`(?i)concurren|goroutine`)
	limits := regexp.MustCompile(`(?i)\b(never|nothing|no|not)\b`)
	for _, p := range list(t) {
		if strings.HasPrefix(p.room(), "test/") {
			continue
		}
		var comments []string
		for _, f := range parseDir(t, p.Dir, func(name string) bool { return !isTest(name) }) {
			if f.Doc != nil {
				comments = append(comments, f.Doc.Text())
			}
		}
		if len(comments) == 0 && p.room() == "internal/archtest" {
			continue // it has only tests
		}
		require.Len(t, comments, 1, "%s: one file of the package has its comment", p.room())
		text := comments[0]
		if p.Name == "main" {
			require.True(t, strings.HasPrefix(text, "Command "), "%s: %.40s", p.room(), text)
			continue
		}
		require.True(t, strings.HasPrefix(text, "Package "+p.Name+" "), "%s: %.40s", p.room(), text)
		if !public(p.room()) {
			continue
		}
		require.Regexp(t, concurrency, text, "%s: who may call it at the same time?", p.room())
		require.Regexp(t, limits, text, "%s: what does it never do?", p.room())
		require.Greater(t, len(text), 400, p.room())
	}
}
