package trace

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Bounds of a database on disk. The register has eight sections of less than
// 16 MB; more is let through, but not without end.
const (
	maxSections    = 64
	maxSectionSize = 64 << 20
	maxDBFile      = 1 << 20
)

// DB is a string database with the geometry it belongs to: what it takes to decode
// a raw ring.
type DB struct {
	Geometry Geometry
	Sections []Section
}

// DBError says what is wrong with a database file.
type DBError struct {
	Path string // of the file that is wrong
	Key  string // of the JSON file; empty if the file itself is the trouble
	Err  error
}

func (e *DBError) Error() string {
	if e.Key == "" {
		return fmt.Sprintf("string database %s: %v", e.Path, e.Err)
	}
	return fmt.Sprintf("string database %s: %s: %v", e.Path, e.Key, e.Err)
}

func (e *DBError) Unwrap() error { return e.Err }

// dbFile is db.json. The files of the sections are relative to it.
type dbFile struct {
	TrcVer      *int64      `json:"trc_ver"`
	FirstString *int64      `json:"first_string_trace"`
	NumString   *int64      `json:"num_string_trace"`
	Sections    []dbSection `json:"sections"`
}

type dbSection struct {
	Base string `json:"base"` // "0x…"
	File string `json:"file"`
}

// ParseDB reads db.json: trc_ver (0 … 3), first_string_trace and num_string_trace
// (0 … 255) and sections, each with base ("0x…", 64 bits) and file. read gives the
// bytes of a section's file by the name that stands there. Unknown keys are
// ignored; anything missing or out of range is a DBError.
func ParseDB(path string, text []byte, read func(file string) ([]byte, error)) (*DB, error) {
	var f dbFile
	bad := func(key string, err error) (*DB, error) { return nil, &DBError{Path: path, Key: key, Err: err} }
	dec := json.NewDecoder(bytes.NewReader(text))
	if err := dec.Decode(&f); err != nil {
		return bad("", fmt.Errorf("not the JSON of a string database: %w", err))
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return bad("", errors.New("something follows the JSON object"))
	}
	db := &DB{}
	for _, n := range []struct {
		key string
		v   *int64
		max int64
		to  *uint8
	}{
		{"trc_ver", f.TrcVer, 3, &db.Geometry.TrcVer},
		{"first_string_trace", f.FirstString, 255, &db.Geometry.FirstString},
		{"num_string_trace", f.NumString, 255, &db.Geometry.NumString},
	} {
		if n.v == nil {
			return bad(n.key, errors.New("missing"))
		}
		if *n.v < 0 || *n.v > n.max {
			return bad(n.key, fmt.Errorf("%d: want 0 to %d", *n.v, n.max))
		}
		*n.to = uint8(*n.v)
	}
	if len(f.Sections) > maxSections {
		return bad("sections", fmt.Errorf("%d of them: at most %d", len(f.Sections), maxSections))
	}
	for i, s := range f.Sections {
		key := fmt.Sprintf("sections[%d]", i)
		digits, hex := strings.CutPrefix(strings.ToLower(s.Base), "0x")
		base, err := strconv.ParseUint(digits, 16, 64)
		if err != nil || !hex {
			return bad(key+".base", fmt.Errorf("%q: want hex digits after 0x", s.Base))
		}
		if s.File == "" {
			return bad(key+".file", errors.New("missing"))
		}
		data, err := read(s.File)
		if err != nil {
			return bad(key+".file", err)
		}
		db.Sections = append(db.Sections, Section{Base: base, Data: data})
	}
	return db, nil
}

// ReadDB reads a database from disk: the JSON file and, relative to its directory,
// the files of its sections.
func ReadDB(path string) (*DB, error) {
	text, err := readBounded(path, maxDBFile)
	if err != nil {
		return nil, &DBError{Path: path, Err: err}
	}
	return ParseDB(path, text, func(file string) ([]byte, error) {
		file = filepath.FromSlash(file)
		if !filepath.IsAbs(file) {
			file = filepath.Join(filepath.Dir(path), file)
		}
		return readBounded(file, maxSectionSize)
	})
}

// readBounded reads an ordinary file of at most limit bytes.
func readBounded(path string, limit int64) ([]byte, error) {
	st, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() {
		return nil, &os.PathError{Op: "read", Path: path, Err: errors.New("not an ordinary file")}
	}
	if st.Size() > limit {
		return nil, &os.PathError{Op: "read", Path: path, Err: fmt.Errorf("%d bytes: at most %d", st.Size(), limit)}
	}
	return os.ReadFile(path)
}

// Strings makes the database of the sections.
func (db *DB) Strings() *Strings { return NewStrings(db.Sections) }

// Write stores the database as db.json's directory wants it: the JSON at path and
// the sections beside it as stringsN.bin. Files of these names are replaced; on an
// error some may have been.
func (db *DB) Write(path string) error {
	g := db.Geometry
	trc, first, num := int64(g.TrcVer), int64(g.FirstString), int64(g.NumString)
	f := dbFile{TrcVer: &trc, FirstString: &first, NumString: &num, Sections: []dbSection{}}
	for i, s := range db.Sections {
		name := fmt.Sprintf("strings%d.bin", i)
		if err := os.WriteFile(filepath.Join(filepath.Dir(path), name), s.Data, 0o644); err != nil {
			return &DBError{Path: path, Err: err}
		}
		f.Sections = append(f.Sections, dbSection{Base: fmt.Sprintf("0x%x", s.Base), File: name})
	}
	text, err := json.MarshalIndent(&f, "", "  ")
	if err != nil {
		return &DBError{Path: path, Err: err}
	}
	if err := os.WriteFile(path, append(text, '\n'), 0o644); err != nil {
		return &DBError{Path: path, Err: err}
	}
	return nil
}
