package pcitest

import (
	"os"
	"path/filepath"
)

// Path gives the absolute name of a file of the tree.
func (t *Tree) Path(name string) string { return filepath.Join(t.Root, name) }

// Mkdir makes a folder.
func (t *Tree) Mkdir(name string) {
	t.tb.Helper()
	t.must(os.MkdirAll(t.Path(name), 0o755))
}

// Write makes a file and its folders.
func (t *Tree) Write(name, content string) {
	t.tb.Helper()
	t.must(write(t.Root, name, content))
}

// Read gives the content of a file, "" when there is none.
func (t *Tree) Read(name string) string {
	data, err := os.ReadFile(t.Path(name))
	if err != nil {
		return ""
	}
	return string(data)
}

// Remove removes a file or folder.
func (t *Tree) Remove(name string) {
	t.tb.Helper()
	t.must(os.RemoveAll(t.Path(name)))
}

// Link makes a symbolic link to another name of the tree. Links are absolute,
// unlike those of sysfs; only their last element is ever looked at.
func (t *Tree) Link(name, to string) {
	t.tb.Helper()
	t.must(link(t.Root, name, to))
}

func (t *Tree) must(err error) {
	t.tb.Helper()
	if err != nil {
		t.tb.Fatal(err)
	}
}
