// Command prmgen turns the tables of internal/prm/tables into the Go code of
// internal/prm. It runs there by go generate:
//
//	prmgen -tables tables -out .
//
// It refuses tables that cannot be layouts and then writes nothing.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"sort"
)

// maxFile keeps generated files small enough for editors and reviews.
const maxFile = 600 << 10

func main() {
	tables := flag.String("tables", "tables", "folder of the .prm tables")
	out := flag.String("out", ".", "folder that receives the *_gen.go files")
	flag.Parse()
	if err := run(*tables, *out); err != nil {
		fmt.Fprintln(os.Stderr, "prmgen:", err)
		os.Exit(1)
	}
}

func newSpec() *spec {
	return &spec{structByName: map[string]*structure{}, enumByName: map[string]*enum{}}
}

func load(dir string) (*spec, error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*.prm"))
	if err != nil {
		return nil, err
	}
	if len(paths) == 0 {
		return nil, fmt.Errorf("no .prm tables in %s", dir)
	}
	sort.Strings(paths)
	sp := newSpec()
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		if err := sp.parse(path, string(text)); err != nil {
			return nil, err
		}
	}
	return sp, sp.check()
}

func run(tables, out string) error {
	sp, err := load(tables)
	if err != nil {
		return err
	}
	files, err := sp.generate()
	if err != nil {
		return err
	}
	for name, text := range files {
		if len(text) > maxFile {
			return fmt.Errorf("%s has %d bytes, more than %d: split its table", name, len(text), maxFile)
		}
	}
	return write(out, files)
}

// write replaces only what changed and removes generated files whose table is gone.
func write(out string, files map[string][]byte) error {
	old, err := filepath.Glob(filepath.Join(out, "*_gen.go"))
	if err != nil {
		return err
	}
	for _, path := range old {
		if _, keep := files[filepath.Base(path)]; !keep {
			if err := os.Remove(path); err != nil {
				return err
			}
		}
	}
	for name, text := range files {
		path := filepath.Join(out, name)
		if have, err := os.ReadFile(path); err == nil && bytes.Equal(have, text) {
			continue
		}
		if err := os.WriteFile(path, text, 0o644); err != nil {
			return err
		}
	}
	return nil
}
