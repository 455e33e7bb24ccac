package archtest

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestNamedTestsExist: the tests that docs/security.md names as its witnesses are
// there. A statement whose test is gone is a claim.
func TestNamedTestsExist(t *testing.T) {
	const root = "../.."
	have := map[string]bool{}
	fn := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)[A-Z]\w*)\(`)
	require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		b, err := os.ReadFile(path)
		for _, m := range fn.FindAllSubmatch(b, -1) {
			have[string(m[1])] = true
		}
		return err
	}))
	require.Greater(t, len(have), 1000)
	name := regexp.MustCompile(`\b(?:Test|Fuzz)[A-Z]\w*`)
	b, err := os.ReadFile(filepath.Join(root, "docs", "security.md"))
	require.NoError(t, err)
	named := map[string]bool{}
	for _, n := range name.FindAllString(string(b), -1) {
		require.True(t, have[n], "docs/security.md names %s, and there is no such test", n)
		named[n] = true
	}
	require.GreaterOrEqual(t, len(named), 30)
}

// TestEveryFuzzTargetIsListed: docs/testing.md says of each fuzz target what it plays
// the part of, and every one there has a corpus of its own to begin with.
func TestEveryFuzzTargetIsListed(t *testing.T) {
	const root = "../.."
	b, err := os.ReadFile(filepath.Join(root, "docs", "testing.md"))
	require.NoError(t, err)
	target := regexp.MustCompile(`(?m)^func (Fuzz[A-Z]\w*)\(`)
	n := 0
	require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		src, err := os.ReadFile(path)
		for _, m := range target.FindAllSubmatch(src, -1) {
			n++
			require.Contains(t, string(b), "| "+string(m[1])+" |", "%s: add the target to the table of docs/testing.md", path)
			require.Contains(t, string(src), "f.Add(", "%s: %s begins with nothing", path, m[1])
		}
		return err
	}))
	require.Greater(t, n, 30)
}

// TestNamedDocumentsExist: a document that code or documents name is in the tree. One
// that only its author has is no source.
func TestNamedDocumentsExist(t *testing.T) {
	const root = "../.."
	var files []string
	have := map[string]bool{}
	require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == ".git" || d.Name() == "out"):
			return filepath.SkipDir
		case strings.HasSuffix(path, ".md"):
			have[d.Name()] = true
			files = append(files, path)
		case strings.HasSuffix(path, ".go"), strings.HasSuffix(path, ".prm"):
			files = append(files, path)
		}
		return nil
	}))
	require.Greater(t, len(have), 10)
	name, named := regexp.MustCompile(`[\w-]+\.md\b`), 0
	for _, f := range files {
		b, err := os.ReadFile(f)
		require.NoError(t, err)
		for _, n := range name.FindAllString(string(b), -1) {
			require.True(t, have[n], "%s names %s, which is not in the tree", f, n)
			named++
		}
	}
	require.Greater(t, named, 50)
}

// TestEveryDependencyIsJustified: each module that go.mod requires for its own sake has a
// row in docs/sources.md, and each row with a module's path is required.
func TestEveryDependencyIsJustified(t *testing.T) {
	const root = "../.."
	mod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	require.NoError(t, err)
	doc, err := os.ReadFile(filepath.Join(root, "docs", "sources.md"))
	require.NoError(t, err)
	_, table, ok := strings.Cut(string(doc), "\n## Dependencies\n")
	require.True(t, ok)
	var needed []string
	for _, m := range regexp.MustCompile(`(?m)^(?:require )?\s*(\S+\.\S+/\S+) v\S+$`).FindAllSubmatch(mod, -1) {
		needed = append(needed, string(m[1]))
	}
	require.Greater(t, len(needed), 3)
	var named []string
	for _, row := range regexp.MustCompile(`(?m)^\| (.*?) \| \S.* \|$`).FindAllStringSubmatch(table, -1) {
		named = append(named, regexp.MustCompile(`[a-z0-9-]+(?:\.[a-z0-9-]+)+/[\w./-]+`).FindAllString(row[1], -1)...)
	}
	within := func(path, module string) bool { return path == module || strings.HasPrefix(path, module+"/") }
	for _, m := range needed {
		require.True(t, slices.ContainsFunc(named, func(n string) bool { return within(n, m) }), "docs/sources.md does not say why %s is needed", m)
	}
	for _, n := range named {
		require.True(t, slices.ContainsFunc(needed, func(m string) bool { return within(n, m) }), "docs/sources.md names %s, which go.mod does not require", n)
	}
}
