package tracer

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/mlxvfio/mlxvfio/internal/tempfile"
	"github.com/mlxvfio/mlxvfio/tracer/capture"
	"github.com/mlxvfio/mlxvfio/tracer/trace"
)

// The cache holds one file for each string database, named by the firmware version,
// a hash of MTRC_CAP's description of the sections, and the hash of the content:
//
//	16.35.1012-1f0e…-9a77….strings
//
// What makes an entry the right one is not known before the strings were read, so an
// entry of the same firmware and places is believed only after samples of each
// section were read and compared. An entry that does not match its own hash is
// removed and read anew.
const (
	cacheMagic  = "MLXSTR1\n"
	cacheSuffix = ".strings"
	cacheHead   = len(cacheMagic) + 4 + sha256.Size // magic, length of the JSON, hash of the database
	maxCacheDoc = 1 << 16
	maxCached   = 256 << 20
)

// cacheDoc is the JSON at the beginning of an entry.
type cacheDoc struct {
	Firmware string         `json:"firmware"`
	Geometry trace.Geometry `json:"geometry"`
	Sections []SectionInfo  `json:"sections"`
}

// places names where the sections are.
func (r *stringReader) places() string {
	h := sha256.New()
	g := r.c.Geometry
	h.Write([]byte{g.TrcVer, g.FirstString, g.NumString})
	var b [8]byte
	for _, s := range r.c.Sections {
		binary.BigEndian.PutUint32(b[:], s.Base)
		binary.BigEndian.PutUint32(b[4:], s.Size)
		h.Write(b[:])
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}

// plainName makes a file name's part of a version: whatever else it has is replaced.
func plainName(s string) string {
	s = strings.Map(func(c rune) rune {
		if c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '.' || c == '_' {
			return c
		}
		return '_'
	}, s)
	if s == "" || s[0] == '.' {
		s = "_" + s
	}
	return s[:min(len(s), 64)]
}

func (r *stringReader) prefix() string { return plainName(r.o.Firmware) + "-" + r.places() + "-" }

// cached looks for an entry that is this device's. Trouble with the cache is no
// error, trouble with the device is.
func (r *stringReader) cached(ctx context.Context) (*trace.DB, error) {
	dir, err := os.ReadDir(r.o.CacheDir)
	if err != nil {
		if !errors.Is(err, os.ErrNotExist) {
			r.info.CacheErr = err
		}
		return nil, nil
	}
	for _, e := range dir {
		if !strings.HasPrefix(e.Name(), r.prefix()) || !strings.HasSuffix(e.Name(), cacheSuffix) {
			continue
		}
		path := filepath.Join(r.o.CacheDir, e.Name())
		db, err := r.load(path)
		if err != nil {
			r.o.Logger.Warn("a cached string database is damaged; reading it from the device", "op", "tracer-strings", "path", path, "error", err)
			what := "it was removed"
			if gone := os.Remove(path); gone != nil {
				what = gone.Error()
			}
			r.info.CacheErr = fmt.Errorf("cached string database %s: %w; %s", path, err, what)
			continue
		}
		same, err := r.sample(ctx, db)
		if err != nil {
			return nil, err
		}
		if same {
			r.info.Cached, r.info.Path = true, path
			return db, nil
		}
	}
	return nil, nil
}

// load reads an entry and checks it against its own hash and this device's sections.
func (r *stringReader) load(path string) (*trace.DB, error) {
	st, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() || st.Size() > maxCached {
		return nil, fmt.Errorf("no ordinary file of at most %d bytes", maxCached)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	if len(b) < cacheHead || string(b[:len(cacheMagic)]) != cacheMagic {
		return nil, errors.New("it does not begin as one")
	}
	n := binary.BigEndian.Uint32(b[len(cacheMagic):])
	sum := b[len(cacheMagic)+4 : cacheHead]
	if rest := b[cacheHead:]; n > maxCacheDoc || int(n) > len(rest) {
		return nil, errors.New("it is cut off")
	}
	var doc cacheDoc
	if err := json.Unmarshal(b[cacheHead:cacheHead+int(n)], &doc); err != nil {
		return nil, err
	}
	data := b[cacheHead+int(n):]
	db := &trace.DB{Geometry: doc.Geometry}
	for _, s := range doc.Sections {
		if uint64(len(data)) < uint64(s.Size) {
			return nil, errors.New("it is cut off")
		}
		db.Sections = append(db.Sections, trace.Section{Base: uint64(s.Base), Data: data[:s.Size:s.Size]})
		data = data[s.Size:]
	}
	if got := capture.HashDB(db); !bytes.Equal(got[:], sum) || len(data) != 0 {
		return nil, errors.New("its content does not match its hash")
	}
	have := Caps{Geometry: doc.Geometry, Sections: doc.Sections}
	if !have.sameStrings(&r.c) || doc.Firmware != r.o.Firmware {
		return nil, errors.New("it is of another firmware than its name says")
	}
	return db, nil
}

// sample reads the first, a middle and the last piece of each section and compares.
func (r *stringReader) sample(ctx context.Context, db *trace.DB) (bool, error) {
	buf := make([]byte, r.o.Chunk)
	for i, s := range db.Sections {
		whole := len(s.Data) &^ (stringGrain - 1)
		n := min(r.o.Chunk, whole)
		if n == 0 {
			continue
		}
		for _, at := range []int{0, (whole - n) / 2 &^ (stringGrain - 1), whole - n} {
			if err := r.chunk(ctx, i, at, buf[:n]); err != nil {
				return false, err
			}
			if !bytes.Equal(buf[:n], s.Data[at:at+n]) {
				return false, nil
			}
		}
	}
	return true, nil
}

// store puts a database into the cache: beside, then in place, so that nobody reads
// half an entry.
func (r *stringReader) store(db *trace.DB) {
	if r.o.CacheDir == "" {
		return
	}
	path, err := r.write(db)
	if err != nil {
		r.info.CacheErr = fmt.Errorf("store the string database in the cache: %w", err)
		r.o.Logger.Warn("the string database could not be cached", "op", "tracer-strings", "error", err)
		return
	}
	r.info.Path = path
}

func (r *stringReader) write(db *trace.DB) (path string, err error) {
	doc, err := json.Marshal(cacheDoc{Firmware: r.o.Firmware, Geometry: r.c.Geometry, Sections: r.c.Sections})
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(r.o.CacheDir, 0o700); err != nil {
		return "", err
	}
	tempfile.Clean(r.o.CacheDir, ".strings-", "", time.Now())
	sum := capture.HashDB(db)
	f, err := os.CreateTemp(r.o.CacheDir, ".strings-*")
	if err != nil {
		return "", err
	}
	defer func() {
		if err != nil {
			err = join(err, os.Remove(f.Name()))
		}
	}()
	b := binary.BigEndian.AppendUint32([]byte(cacheMagic), uint32(len(doc)))
	b = append(append(b, sum[:]...), doc...)
	for _, s := range db.Sections {
		b = append(b, s.Data...)
	}
	_, err = f.Write(b)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return "", err
	}
	path = filepath.Join(r.o.CacheDir, r.prefix()+hex.EncodeToString(sum[:8])+cacheSuffix)
	return path, os.Rename(f.Name(), path)
}
