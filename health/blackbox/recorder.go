package blackbox

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"
)

// RecorderOptions size a Recorder's file, which never grows: header, two images
// of ImageBytes, and Records records of RecordBytes.
type RecorderOptions struct {
	ImageBytes  int // of one image of all sections; 0 is 1 MiB
	Records     int // samples kept; 0 is 4096
	RecordBytes int // largest sample; 0 is 112
}

func (o *RecorderOptions) defaults() {
	if o.ImageBytes <= 0 {
		o.ImageBytes = 1 << 20
	}
	if o.Records <= 0 {
		o.Records = 4096
	}
	if o.RecordBytes <= 0 {
		o.RecordBytes = 112
	}
	o.ImageBytes = (o.ImageBytes + 4095) &^ 4095
	o.RecordBytes = pad4(o.RecordBytes)
}

// headerRoom keeps what follows the header on page boundaries.
const headerRoom = 4096

// Recorder keeps a file up to date while a device is watched. What Append and
// Update have returned from is in the file even if the process is killed at once;
// against a power failure Sync helps. A write that is cut in the middle damages
// only itself: an image goes to the older of two slots, a record carries its own
// checksum. It is safe for concurrent use.
type Recorder struct {
	mu     sync.Mutex
	f      file
	o      RecorderOptions
	frame  []byte
	seq    uint64 // of the last record
	images uint64 // number of the last image
	closed bool
}

// NewRecorder makes the file at path. A file that is there, perhaps of a process
// that was killed, is evidence: it is moved to path.previous, over an older one,
// when the new one is complete. A file that another Recorder keeps, or is about to,
// is left alone, and the error is a *BusyError: the file is locked with flock(2)
// until Close or the end of the process, where its file system has such locks.
func NewRecorder(path string, o RecorderOptions) (*Recorder, error) {
	return realDisk.recorder(path, o)
}

func (d disk) recorder(path string, o RecorderOptions) (*Recorder, error) {
	o.defaults()
	fail := func(err error) (*Recorder, error) { return nil, fmt.Errorf("record black box %s: %w", path, err) }
	frame := recordHeaderSize + o.RecordBytes
	size := int64(headerRoom) + 2*int64(o.ImageBytes) + int64(o.Records)*int64(frame)
	if size > MaxFile {
		return fail(fmt.Errorf("%w: it would have %d bytes, the most is %d", ErrTooLarge, size, MaxFile))
	}
	if err := replaceable(path); err != nil {
		return fail(err)
	}
	old, err := unused(path) // looked at again when the new one is complete
	if err != nil {
		return fail(err)
	}
	release(old)
	head := fileHeader{version: Version, kind: kindRecorder, slot: uint64(o.ImageBytes), records: uint32(o.Records), record: uint32(frame), began: time.Now()}
	f, err := d.install(path, func(f file) error {
		if err := lock(f); err != nil {
			return err
		}
		// Every block is taken now: a full disk is found here, not by the sample that
		// would have told.
		if err := zeros(f, size); err != nil {
			return err
		}
		_, err := f.WriteAt(head.append(nil), 0)
		return err
	}, d.claim, true)
	if err != nil {
		return fail(err)
	}
	return &Recorder{f: f, o: o, frame: make([]byte, frame)}, nil
}

// zeros writes n of them.
func zeros(f file, n int64) error {
	buf := make([]byte, min(n, 256<<10))
	for at := int64(0); at < n; {
		k, err := f.WriteAt(buf[:min(n-at, int64(len(buf)))], at)
		if err != nil {
			return err
		}
		at += int64(k)
	}
	return nil
}

// Append adds a sample, over the oldest when the ring is full. It makes one
// system call and allocates nothing. A sample that is too large is refused.
func (r *Recorder) Append(sample []byte) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.closed:
		return fmt.Errorf("record sample: %w", ErrClosed)
	case len(sample) > r.o.RecordBytes:
		return fmt.Errorf("record sample of %d bytes, the most is %d: %w", len(sample), r.o.RecordBytes, ErrTooLarge)
	}
	seq := r.seq + 1 // the first record is 1, so that an empty place is none
	f := r.frame
	clear(f)
	binary.BigEndian.PutUint64(f[0:], seq)
	binary.BigEndian.PutUint32(f[8:], uint32(len(sample)))
	copy(f[recordHeaderSize:], sample)
	binary.BigEndian.PutUint32(f[12:], recordSum(f))
	at := int64(headerRoom) + 2*int64(r.o.ImageBytes) + int64((seq-1)%uint64(r.o.Records))*int64(len(f))
	if _, err := r.f.WriteAt(f, at); err != nil {
		return fmt.Errorf("record sample: %w", err)
	}
	r.seq = seq
	return nil
}

// recordSum covers everything but itself.
func recordSum(f []byte) uint32 { return sum(f[:12], f[recordHeaderSize:]) }

// Update replaces the sections. What does not fit ImageBytes is cut as Write cuts.
func (r *Recorder) Update(sections []Section) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return fmt.Errorf("record sections: %w", ErrClosed)
	}
	n := r.images + 1
	img, err := image(n, sections, r.o.ImageBytes, time.Now())
	if err != nil {
		return fmt.Errorf("record sections: %w", err)
	}
	at := int64(headerRoom) + int64(n%2)*int64(r.o.ImageBytes)
	// The header comes last: until it is there, the checksum of what it promises
	// belongs to the image before the last, and the other slot counts.
	if _, err := r.f.WriteAt(img[imageHeaderSize:], at+imageHeaderSize); err != nil {
		return fmt.Errorf("record sections: %w", err)
	}
	if _, err := r.f.WriteAt(img[:imageHeaderSize], at); err != nil {
		return fmt.Errorf("record sections: %w", err)
	}
	r.images = n
	return nil
}

// Sync makes what was recorded outlive a power failure.
func (r *Recorder) Sync() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return fmt.Errorf("sync black box: %w", ErrClosed)
	}
	return r.f.Sync()
}

// Close syncs and closes the file, which stays and is nobody's then. A second call does nothing.
func (r *Recorder) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil
	}
	r.closed = true
	if err := errors.Join(r.f.Sync(), r.f.Close()); err != nil {
		return fmt.Errorf("close black box: %w", err)
	}
	return nil
}
