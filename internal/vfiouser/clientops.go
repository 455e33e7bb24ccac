package vfiouser

import (
	"fmt"

	"github.com/mlxvfio/mlxvfio/vfio"
)

// Info implements vfio.Transport.
func (c *client) Info() (vfio.DeviceInfo, error) {
	if c.closed.Load() {
		return vfio.DeviceInfo{}, c.fail("get device info", vfio.ErrClosed)
	}
	return c.info, nil
}

// RegionInfo implements vfio.Transport.
func (c *client) RegionInfo(index int) (vfio.RegionInfo, error) {
	op := "get region info"
	if c.closed.Load() {
		return vfio.RegionInfo{}, c.fail(op, vfio.ErrClosed)
	}
	if index < 0 || index >= vfio.NumRegions {
		return vfio.RegionInfo{}, c.fail(op, fmt.Errorf("region %d: %w", index, vfio.ErrRange))
	}
	return c.regions[index], nil
}

// IRQInfo implements vfio.Transport.
func (c *client) IRQInfo(index int) (vfio.IRQInfo, error) {
	op := "get interrupt info"
	if c.closed.Load() {
		return vfio.IRQInfo{}, c.fail(op, vfio.ErrClosed)
	}
	if index < 0 || index >= vfio.NumIRQs {
		return vfio.IRQInfo{}, c.fail(op, fmt.Errorf("interrupt index %d: %w", index, vfio.ErrRange))
	}
	return c.irqs[index], nil
}

// MapRegion implements vfio.Transport: there are never areas. A server may offer
// a file to map; it is not used, since whatever is mappable also traps.
func (c *client) MapRegion(index int) ([]vfio.Area, error) {
	if c.closed.Load() {
		return nil, c.fail("map region", vfio.ErrClosed)
	}
	if index < 0 || index >= vfio.NumRegions {
		return nil, c.fail("map region", fmt.Errorf("region %d: %w", index, vfio.ErrRange))
	}
	return nil, nil
}

// reach checks an access before it travels.
func (c *client) reach(index int, off uint64, n int, write bool) error {
	if index < 0 || index >= vfio.NumRegions {
		return fmt.Errorf("region %d: %w", index, vfio.ErrRange)
	}
	r := c.regions[index]
	switch end := off + uint64(n); {
	case r.Size == 0:
		return fmt.Errorf("the function has no such region: %w", vfio.ErrNotFound)
	case end < off || end > r.Size:
		return fmt.Errorf("the region has %#x bytes: %w", r.Size, vfio.ErrRange)
	case index <= vfio.RegionBAR5 && (n != 1 && n != 2 && n != 4 && n != 8 || off%uint64(n) != 0):
		return fmt.Errorf("a BAR is accessed in aligned 1, 2, 4 or 8 bytes: %w", vfio.ErrRange)
	case write && !r.Write, !write && !r.Read:
		return fmt.Errorf("the region does not allow it: %w", vfio.ErrNotSupported)
	}
	return nil
}

// ReadRegion implements vfio.Transport.
func (c *client) ReadRegion(index int, off uint64, p []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	err := c.usable()
	if err == nil {
		err = c.reach(index, off, len(p), false)
	}
	for at := off; err == nil && len(p) > 0; {
		n := min(len(p), c.maxData)
		if err = c.read(index, at, p[:n]); err == nil {
			p, at = p[n:], at+uint64(n)
		}
	}
	if err != nil {
		return c.fail(fmt.Sprintf("read %d bytes at %#x of region %d", len(p), off, index), err)
	}
	return nil
}

func (c *client) read(index int, off uint64, p []byte) error {
	q := access{offset: off, region: uint32(index), count: uint32(len(p))}
	body, err := c.turn(cmdRegionRead, q.put(c.out[headerSize:]), nil)
	if err != nil {
		return err
	}
	a, err := parseAccess(body)
	if err != nil || int(a.count) != len(p) || len(body) != accessSize+len(p) {
		return c.giveUp(fmt.Errorf("%w: %d bytes where %d were read", ErrProtocol, len(body)-accessSize, len(p)))
	}
	copy(p, body[accessSize:])
	return nil
}

// WriteRegion implements vfio.Transport. Without Options.PostedWrites it returns
// when the device has taken the write.
func (c *client) WriteRegion(index int, off uint64, p []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	err := c.usable()
	if err == nil {
		err = c.reach(index, off, len(p), true)
	}
	for at := off; err == nil && len(p) > 0; {
		n := min(len(p), c.maxData)
		if err = c.write(index, at, p[:n]); err == nil {
			p, at = p[n:], at+uint64(n)
		}
	}
	if err != nil {
		return c.fail(fmt.Sprintf("write %d bytes at %#x of region %d", len(p), off, index), err)
	}
	return nil
}

func (c *client) write(index int, off uint64, p []byte) error {
	q := access{offset: off, region: uint32(index), count: uint32(len(p))}
	n := q.put(c.out[headerSize:])
	n += copy(c.out[headerSize+n:], p)
	if c.posted && index <= vfio.RegionBAR5 {
		_, err := c.begin(cmdRegionWrite, n, flagNoReply, nil)
		return err
	}
	_, err := c.turn(cmdRegionWrite, n, nil)
	return err
}

// NewVector implements vfio.Transport: an eventfd, which the server can signal.
func (c *client) NewVector() (*vfio.Vector, error) {
	if c.closed.Load() {
		return nil, c.fail("make an interrupt vector", vfio.ErrClosed)
	}
	return vfio.NewEventFDVector()
}

// SetIRQs implements vfio.Transport. The eventfds travel in portions; when one
// is refused the portions before it are detached again.
func (c *client) SetIRQs(index, start int, vectors []*vfio.Vector) error {
	op := fmt.Sprintf("attach %d vectors from %d of interrupt index %d", len(vectors), start, index)
	if len(vectors) == 0 {
		op = fmt.Sprintf("disable interrupt index %d", index)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.usable(); err != nil {
		return c.fail(op, err)
	}
	if index < 0 || index >= vfio.NumIRQs || start < 0 || start+len(vectors) > c.irqs[index].Count && len(vectors) > 0 {
		return c.fail(op, vfio.ErrRange)
	}
	fds := make([]int, len(vectors))
	for i, v := range vectors {
		fds[i] = -1
		if v == nil {
			continue
		}
		if fds[i] = v.FD(); fds[i] < 0 {
			return c.fail(op, fmt.Errorf("vector %d has no eventfd: %w", start+i, vfio.ErrNotSupported))
		}
	}
	if len(vectors) == 0 {
		q := irqSet{argsz: irqSetSize, flags: irqSetDataNone | irqSetActionTrigger, index: uint32(index)}
		if _, err := c.turn(cmdSetIRQs, q.put(c.out[headerSize:]), nil); err != nil {
			return c.fail(op, err)
		}
		return nil
	}
	for done := 0; done < len(fds); {
		n := c.portion(fds[done:])
		if err := c.setEventFDs(index, start+done, n, fds[done:done+n]); err != nil {
			if done > 0 {
				_ = c.setEventFDs(index, start, done, nil) // err is what matters
			}
			return c.fail(op, err)
		}
		done += n
	}
	return nil
}

// portion is how many of fds go into one message: all to attach or all to
// detach, and not more files than the server takes.
func (c *client) portion(fds []int) int {
	n := 1
	for n < len(fds) && (fds[n] < 0) == (fds[0] < 0) && (fds[0] < 0 || n < c.maxFDs) {
		n++
	}
	return n
}

// setEventFDs attaches fds to count interrupts; fds of −1, or none, detach.
func (c *client) setEventFDs(index, start, count int, fds []int) error {
	if len(fds) > 0 && fds[0] < 0 {
		fds = nil
	}
	q := irqSet{
		argsz: irqSetSize, flags: irqSetDataEventFD | irqSetActionTrigger,
		index: uint32(index), start: uint32(start), count: uint32(count),
	}
	_, err := c.turn(cmdSetIRQs, q.put(c.out[headerSize:]), fds)
	return err
}

// DMA implements vfio.Transport.
func (c *client) DMA() vfio.Mapper { return &c.dma }

// Reset implements vfio.Transport.
func (c *client) Reset() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.usable(); err != nil {
		return c.fail("reset", err)
	}
	if !c.info.CanReset {
		return c.fail("reset", vfio.ErrNotSupported)
	}
	if _, err := c.turn(cmdDeviceReset, 0, nil); err != nil {
		return c.fail("reset", err)
	}
	return nil
}
