package tracer

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/tracer/trace"
)

// Sizes of string database reads: multiples of 64. Linux reads 256 bytes at a time,
// mstflint 704.
const (
	stringGrain  = 64
	defaultChunk = 256
	maxChunk     = 32 << 10
)

// StringsOptions tune ReadStrings.
type StringsOptions struct {
	// CacheDir holds string databases of earlier runs; it is made when there is
	// something to store. "" is no cache.
	CacheDir string
	// Firmware is the version by which the cache tells databases apart.
	Firmware string
	// Fresh reads from the device, whatever the cache has: after firmware told
	// that the strings changed.
	Fresh bool
	// Chunk is how many bytes are read at a time, a multiple of 64 up to 32 KiB;
	// 0 is 256.
	Chunk int
	// Progress is called after each chunk, with bytes.
	Progress func(done, total uint64)
	Logger   *slog.Logger // nil is silent
}

// StringsInfo says where a string database came from.
type StringsInfo struct {
	Cached   bool   // from the cache, after samples of it were compared with the device
	Path     string // of the cache entry that was used or written
	Commands int
	// Unread are bytes at the end of sections whose size is no multiple of 64:
	// the device cannot be asked for them.
	Unread uint64
	// CacheErr is why the cache could not be used or written. The database is good
	// all the same.
	CacheErr error
}

// restless is how often a database that changes while it is read is begun anew.
const restless = 5

// ReadStrings reads the string database of a device whose MTRC_CAP was c, from the
// cache or in chunks from the device (MTRC_STDB). The tracer should be owned. If the
// sections move while they are read, it begins again; c then has their new places.
func ReadStrings(ctx context.Context, p Port, c *Caps, o StringsOptions) (*trace.DB, StringsInfo, error) {
	if o.Chunk == 0 {
		o.Chunk = defaultChunk
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Chunk < stringGrain || o.Chunk > maxChunk || o.Chunk%stringGrain != 0 {
		return nil, StringsInfo{}, fmt.Errorf("read the string database: chunks of %d bytes; give a multiple of %d up to %d", o.Chunk, stringGrain, maxChunk)
	}
	for range restless {
		r := &stringReader{p: p, c: *c, o: o}
		db, err := r.read(ctx)
		now, cerr := ReadCaps(ctx, p)
		if cerr != nil {
			return nil, r.info, join(err, cerr)
		}
		same := now.sameStrings(c)
		*c = now
		if same && err != nil {
			return nil, r.info, err
		}
		if same {
			if !r.info.Cached {
				r.store(db)
			}
			return db, r.info, nil
		}
		o.Logger.Warn("the string database moved while it was read; reading it again", "op", "tracer-strings")
	}
	return nil, StringsInfo{}, fmt.Errorf("read the string database: its sections moved %d times while they were read; wait until the firmware update is over", restless)
}

type stringReader struct {
	p    Port
	c    Caps
	o    StringsOptions
	info StringsInfo
}

func (r *stringReader) read(ctx context.Context) (*trace.DB, error) {
	if r.o.CacheDir != "" && !r.o.Fresh {
		db, err := r.cached(ctx)
		if db != nil || err != nil {
			return db, err
		}
	}
	var done, total uint64
	for _, s := range r.c.Sections {
		total += uint64(s.Size)
	}
	db := &trace.DB{Geometry: r.c.Geometry}
	for i, s := range r.c.Sections {
		data := make([]byte, s.Size)
		whole := int(s.Size) &^ (stringGrain - 1)
		for at := 0; at < whole; {
			n := min(r.o.Chunk, whole-at)
			if err := r.chunk(ctx, i, at, data[at:at+n]); err != nil {
				return nil, err
			}
			at += n
			done += uint64(n)
			if r.o.Progress != nil {
				r.o.Progress(done, total)
			}
		}
		if rest := int(s.Size) - whole; rest > 0 {
			r.info.Unread += uint64(rest)
			r.o.Logger.Warn("section size is no multiple of 64, its end cannot be read", "op", "tracer-strings", "section", i, "size", s.Size)
		}
		db.Sections = append(db.Sections, trace.Section{Base: uint64(s.Base), Data: data})
	}
	return db, nil
}

// chunk reads a piece of a section. As in Linux the write method carries it, with an
// input the size of MTRC_CAP; index and place are in the input, the bytes in the
// answer.
func (r *stringReader) chunk(ctx context.Context, section, at int, dst []byte) error {
	var in [prm.MtrcCapSize]byte
	m := prm.AsMtrcStdb(in[:])
	m.SetStringDbIndex(uint8(section))
	m.SetReadSize(uint32(len(dst)))
	m.SetStartOffset(uint32(at))
	out := make([]byte, prm.MtrcStdbStringDbDataOffset+len(dst))
	r.info.Commands++
	if err := r.p.AccessRegister(ctx, prm.AccessRegWrite, prm.RegMtrcStdb, 0, in[:], out); err != nil {
		return fmt.Errorf("read the string database, section %d, %d bytes at %#x: %w", section, len(dst), at, err)
	}
	copy(dst, out[prm.MtrcStdbStringDbDataOffset:])
	return nil
}
