package vfiouser

import (
	"errors"
	"fmt"
	"math/bits"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mlxvfio/mlxvfio/vfio"
)

// session is one client's stay.
type session struct {
	*server
	s       *sock
	mem     *guestMemory
	vectors [][]*vfio.Vector // by interrupt index; grown when attached
	out     []byte           // the reply under construction
	ready   bool             // VERSION is done
}

// run ends with the reason, io.EOF for a client that left.
func (c *session) run() error {
	var m message
	// Others wait in the listener's queue for a client that says nothing.
	hello := time.Now().Add(c.hello)
	for {
		if c.ready {
			hello = time.Time{}
		}
		switch err := c.s.receive(&m, hello); {
		case errors.Is(err, errIdle) && c.ready:
			continue
		case !c.ready && (errors.Is(err, errIdle) || errors.Is(err, errStalled)):
			return fmt.Errorf("%w: no VERSION within %v", ErrProtocol, c.hello)
		case err != nil:
			return err
		}
		if err := c.serveOne(&m); err != nil {
			return err
		}
	}
}

// fatalError is an answer after which the client is dropped.
type fatalError struct{ error }

func (f fatalError) Unwrap() error { return f.error }

// serveOne handles a message and answers it. The error ends the session.
func (c *session) serveOne(m *message) error {
	defer m.closeFDs()
	if m.isReply() {
		return fmt.Errorf("%w: a reply to nothing", ErrProtocol)
	}
	n, err := c.handle(m)
	m.closeFDs() // before the answer: who has it may count on that
	h := header{id: m.id, cmd: m.cmd, flags: flagReply, size: uint32(headerSize + n)}
	if err != nil {
		c.log.Debug("request refused", "command", cmdName(m.cmd), "err", err)
		h.flags, h.errno, h.size = flagReply|flagError, uint32(errnoOf(err)), headerSize
	}
	if m.flags&flagNoReply == 0 {
		h.put(c.out)
		if err := c.s.send(c.out[:h.size], nil); err != nil {
			return fmt.Errorf("reply to %s: %w", cmdName(m.cmd), err)
		}
	}
	if err == nil {
		return nil
	}
	if f := (fatalError{}); errors.As(err, &f) {
		return f.error
	}
	return nil
}

// handle serves one command and leaves the body of the reply, n bytes, behind
// the header's place in c.out.
func (c *session) handle(m *message) (n int, err error) {
	if !c.ready && m.cmd != cmdVersion {
		return 0, fatalError{fmt.Errorf("%w: %s before VERSION: %w", ErrProtocol, cmdName(m.cmd), unix.EINVAL)}
	}
	body := c.out[headerSize:]
	switch m.cmd {
	case cmdVersion:
		return c.version(m)
	case cmdDMAMap:
		return 0, c.dmaMap(m)
	case cmdDMAUnmap:
		return c.dmaUnmap(m, body)
	case cmdDeviceGetInfo:
		q, err := parseDeviceInfo(m.body)
		if err != nil || q.argsz < deviceInfoSize {
			return 0, errShort
		}
		r := deviceInfo{argsz: deviceInfoSize, flags: deviceFlagPCI, regions: uint32(len(c.regions)), irqs: uint32(len(c.irqs))}
		if c.info.CanReset {
			r.flags |= deviceFlagReset
		}
		return r.put(body), nil
	case cmdGetRegionInfo:
		return c.regionInfo(m, body)
	case cmdGetIRQInfo:
		return c.irqInfo(m, body)
	case cmdSetIRQs:
		return 0, c.setIRQs(m)
	case cmdRegionRead:
		return c.regionRead(m, body)
	case cmdRegionWrite:
		return c.regionWrite(m, body)
	case cmdRegionWriteMulti:
		return c.regionWriteMulti(m, body)
	case cmdDeviceReset:
		return 0, c.t.Reset()
	}
	return 0, fmt.Errorf("%s: %w", cmdName(m.cmd), vfio.ErrNotSupported)
}

func (c *session) version(m *message) (int, error) {
	v, err := parseVersion(m.body)
	switch {
	case err != nil:
		return 0, fatalError{fmt.Errorf("%w: %w: %w", ErrProtocol, err, unix.EINVAL)}
	case c.ready:
		return 0, fatalError{fmt.Errorf("%w: VERSION twice: %w", ErrProtocol, unix.EINVAL)}
	case v.major != 0:
		return 0, fatalError{fmt.Errorf("%w: client wants version %d.%d, served is 0.0: %w", ErrProtocol, v.major, v.minor, vfio.ErrNotSupported)}
	}
	c.ready = true
	return len(v.answer(c.maxMaps).appendTo(c.out[:headerSize])) - headerSize, nil
}

func (c *session) dmaMap(m *message) error {
	q, err := parseDMAMap(m.body)
	if err != nil {
		return err
	}
	switch len(m.fds) {
	case 0:
		return c.mem.add(q, -1)
	case 1:
		return c.mem.add(q, m.fds[0])
	}
	return fmt.Errorf("DMA_MAP with %d files: %w", len(m.fds), unix.EINVAL)
}

func (c *session) dmaUnmap(m *message, body []byte) (int, error) {
	q, err := parseDMAUnmap(m.body)
	if err != nil {
		return 0, err
	}
	last := q.iova + q.size - 1
	switch {
	case q.flags&unmapFlagDirty != 0:
		return 0, fmt.Errorf("dirty bitmap: %w", vfio.ErrNotSupported)
	case q.flags&unmapFlagAll != 0:
		err = c.mem.remove(0, ^uint64(0))
	case q.size == 0: // nothing lies inside
	case last < q.iova: // runs over the end of the address space
		err = c.mem.remove(q.iova, ^uint64(0))
	default:
		err = c.mem.remove(q.iova, last)
	}
	if err != nil || q.argsz < dmaUnmapSize {
		return 0, err
	}
	return q.put(body), nil
}

func (c *session) regionInfo(m *message, body []byte) (int, error) {
	q, err := parseRegionInfo(m.body)
	if err != nil || q.argsz < regionInfoSize || int64(q.index) >= int64(len(c.regions)) {
		return 0, errShort
	}
	r := c.regions[q.index]
	a := regionInfo{argsz: regionInfoSize, index: q.index, size: r.Size, offset: uint64(q.index) << 40}
	if r.Read && r.Size > 0 {
		a.flags |= regionFlagRead
	}
	if r.Write && r.Size > 0 {
		a.flags |= regionFlagWrite
	}
	return a.put(body), nil
}

func (c *session) irqInfo(m *message, body []byte) (int, error) {
	q, err := parseIRQInfo(m.body)
	if err != nil || q.argsz < irqInfoSize || int64(q.index) >= int64(len(c.irqs)) {
		return 0, errShort
	}
	i := c.irqs[q.index]
	a := irqInfo{argsz: irqInfoSize, index: q.index, count: uint32(i.Count)}
	if i.EventFD {
		a.flags |= irqFlagEventFD
	}
	if i.NoResize {
		a.flags |= irqFlagNoResize
	}
	return a.put(body), nil
}

// region checks an access against the region it names.
func (c *session) region(a access, write bool) error {
	if int64(a.region) >= int64(len(c.regions)) {
		return fmt.Errorf("no region %d: %w", a.region, unix.EINVAL)
	}
	r := c.regions[a.region]
	switch end := a.offset + uint64(a.count); {
	case a.count > maxData:
		return fmt.Errorf("access of %d bytes, at most %d: %w", a.count, maxData, unix.E2BIG)
	case end < a.offset || end > r.Size:
		return fmt.Errorf("region %d has %#x bytes, access at %#x+%d: %w", a.region, r.Size, a.offset, a.count, vfio.ErrRange)
	case write && !r.Write, !write && !r.Read:
		return fmt.Errorf("region %d may not be accessed that way: %w", a.region, unix.EPERM)
	}
	return nil
}

// whole tells the regions that take accesses of any size.
func whole(region uint32) bool { return region == vfio.RegionConfig || region == vfio.RegionROM }

// pieceSize is the largest naturally aligned access of 1, 2, 4 or 8 bytes at off
// that n bytes allow: what a bus would carry.
func pieceSize(off uint64, n int) int {
	size := 8
	if off != 0 {
		size = min(size, 1<<min(3, bits.TrailingZeros64(off)))
	}
	for size > n {
		size >>= 1
	}
	return size
}

func (c *session) regionRead(m *message, body []byte) (int, error) {
	a, err := parseAccess(m.body)
	if err != nil {
		return 0, err
	}
	if err := c.region(a, false); err != nil {
		return 0, err
	}
	p := body[accessSize : accessSize+a.count]
	for off := a.offset; len(p) > 0; {
		n := len(p)
		if !whole(a.region) {
			n = pieceSize(off, n)
		}
		if err := c.t.ReadRegion(int(a.region), off, p[:n]); err != nil {
			return 0, err
		}
		p, off = p[n:], off+uint64(n)
	}
	return a.put(body) + int(a.count), nil
}

func (c *session) regionWrite(m *message, body []byte) (int, error) {
	a, err := parseAccess(m.body)
	if err != nil {
		return 0, err
	}
	p := m.body[accessSize:]
	if uint64(a.count) != uint64(len(p)) {
		return 0, errShort
	}
	if err := c.write(a, p); err != nil {
		return 0, err
	}
	return a.put(body), nil
}

func (c *session) write(a access, p []byte) error {
	if err := c.region(a, true); err != nil {
		return err
	}
	for off := a.offset; len(p) > 0; {
		n := len(p)
		if !whole(a.region) {
			n = pieceSize(off, n)
		}
		if err := c.t.WriteRegion(int(a.region), off, p[:n]); err != nil {
			return err
		}
		p, off = p[n:], off+uint64(n)
	}
	return nil
}

// regionWriteMulti does the writes in their order. One that is refused does not
// keep the later ones from the device: each was posted by itself. The reply, if
// one is wanted, is the first refusal.
func (c *session) regionWriteMulti(m *message, body []byte) (int, error) {
	n, err := parseWriteMulti(m.body)
	if err != nil {
		return 0, err
	}
	var first error
	for i := range n {
		a, p, err := multiEntry(m.body, i)
		if err == nil {
			err = c.write(a, p)
		}
		if err != nil && first == nil {
			first = fmt.Errorf("write %d of %d: %w", i, n, err)
		}
	}
	le.PutUint64(body, uint64(n))
	return multiCountSize, first
}

// cleanUp leaves the function as a fresh open would find it: no interrupts, no bus
// mastering, reset, no memory, and its registers there to be looked at. The memory
// goes last, when nothing can reach it any more. A reset alone is not enough: it
// restores the command register.
func (c *session) cleanUp() {
	c.detachAll()
	if err := c.command(0); err != nil {
		c.log.Error("the function's bus mastering could not be switched off", "err", err)
	}
	if c.info.CanReset {
		if err := c.t.Reset(); err != nil {
			c.log.Error("the function could not be reset after a client left", "err", err)
		}
	}
	if err := c.command(commandMemory); err != nil {
		c.log.Error("the function's memory decoding could not be switched on", "err", err)
	}
	c.mem.close()
}

// commandMemory is memory decoding in the PCI command register.
const commandMemory = 1 << 1

// command writes the PCI command register.
func (c *session) command(bits byte) error {
	if len(c.regions) <= vfio.RegionConfig || c.regions[vfio.RegionConfig].Size < 6 {
		return nil
	}
	return c.t.WriteRegion(vfio.RegionConfig, 4, []byte{bits, 0})
}
