package atomics

import (
	"context"
	"fmt"

	"github.com/mlxvfio/mlxvfio/queues"
)

// ReplySize is the memory a Client or a Probe needs for replies, in bytes.
const ReplySize = 256

// ClientOptions say what a Client works on.
type ClientOptions struct {
	// Conn is a queue pair connected to the responder. Nothing else may post
	// signalled work on it while the Client is used.
	Conn Conn
	// Profile is what Probe found or Assume supposes.
	Profile Profile
	// Reply is local memory of ReplySize bytes or more, aligned to 8, with a key
	// that allows local writes.
	Reply Memory
	// RKey opens the responder's memory; the addresses of operations are those of
	// that key.
	RKey uint32
	// Idle is called while there is nothing to poll; nil is Yield.
	Idle Idle
}

// Client does atomic operations one at a time, each in one round trip. For many
// at once use Profile.Encode, Request.Post and Request.Extract. It belongs to one
// caller at a time.
type Client struct {
	o     ClientOptions
	w     waiter
	req   Request
	bytes [ReplySize]byte
}

// NewClient makes a Client. It allocates what it needs; its operations up to 8
// bytes allocate nothing.
func NewClient(o ClientOptions) (*Client, error) {
	if o.Reply.Mem.Len() < ReplySize || o.Reply.Addr&7 != 0 {
		return nil, fmt.Errorf("make a client for atomics: the reply memory has %d bytes at 0x%x; it needs %d, aligned to 8", o.Reply.Mem.Len(), o.Reply.Addr, ReplySize)
	}
	if o.Conn.SQ == nil || o.Conn.CQ == nil {
		return nil, fmt.Errorf("make a client for atomics: it needs a send queue and the CQ it completes on")
	}
	if o.Idle == nil {
		o.Idle = Yield
	}
	return &Client{o: o, w: waiter{conn: o.Conn, idle: o.Idle}}, nil
}

// Profile is what the client knows of the device.
func (c *Client) Profile() Profile { return c.o.Profile }

// Do does the operation and waits for its reply. Refusals are *OpError, failures
// of the device *queues.CompletionError. When ctx ends the wait, the operation
// may still happen, and the next one waits for it first.
func (c *Client) Do(ctx context.Context, o *Op) (Result, error) {
	old, reply, err := c.do(ctx, o)
	if err != nil {
		return Result{}, err
	}
	res := Result{Old: old, Stored: c.req.Matched(c.bytes[:], reply)}
	if o.Size > 8 {
		res.Old, res.OldWide = 0, make([]uint64, o.Size/8)
		c.req.ExtractWide(res.OldWide, c.bytes[:], reply)
	}
	return res, nil
}

func (c *Client) do(ctx context.Context, o *Op) (uint64, Order, error) {
	reply, err := c.o.Profile.Encode(&c.req, o)
	if err != nil {
		return 0, reply, err
	}
	if err := c.w.do(ctx, c.post); err != nil {
		return 0, reply, &OpError{Kind: o.Kind, Size: o.Size, Addr: o.Addr, Err: err}
	}
	c.o.Reply.Load(0, c.bytes[:(c.req.Size+7)&^7])
	return c.req.Extract(c.bytes[:], reply), reply, nil
}

func (c *Client) post(wrid uint64) error {
	return c.req.Post(c.o.Conn.SQ, wrid, queues.Signalled, c.o.Reply.SGE(0, c.req.Size), c.o.RKey)
}

// scalar does an operation up to 8 bytes without allocating.
func (c *Client) scalar(ctx context.Context, k Kind, size int, addr, compare, value uint64) (uint64, error) {
	o := Op{Kind: k, Size: size, Addr: addr, Compare: compare, Value: value}
	old, _, err := c.do(ctx, &o)
	return old, err
}

// CompareSwap8 stores now in the byte at addr if it is was, and returns what it
// was; it has stored if that equals was. CompareSwap16, 32 and 64 do the same for
// larger variables.
func (c *Client) CompareSwap8(ctx context.Context, addr uint64, was, now uint8) (uint8, error) {
	old, err := c.scalar(ctx, CompareSwap, 1, addr, uint64(was), uint64(now))
	return uint8(old), err
}

// CompareSwap16 is CompareSwap8 for 2 bytes, which must not cross an aligned
// 4-byte word.
func (c *Client) CompareSwap16(ctx context.Context, addr uint64, was, now uint16) (uint16, error) {
	old, err := c.scalar(ctx, CompareSwap, 2, addr, uint64(was), uint64(now))
	return uint16(old), err
}

// CompareSwap32 is CompareSwap8 for 4 aligned bytes.
func (c *Client) CompareSwap32(ctx context.Context, addr uint64, was, now uint32) (uint32, error) {
	old, err := c.scalar(ctx, CompareSwap, 4, addr, uint64(was), uint64(now))
	return uint32(old), err
}

// CompareSwap64 is CompareSwap8 for 8 aligned bytes.
func (c *Client) CompareSwap64(ctx context.Context, addr uint64, was, now uint64) (uint64, error) {
	return c.scalar(ctx, CompareSwap, 8, addr, was, now)
}

// Swap8 stores v in the byte at addr and returns what it was.
func (c *Client) Swap8(ctx context.Context, addr uint64, v uint8) (uint8, error) {
	old, err := c.scalar(ctx, Swap, 1, addr, 0, uint64(v))
	return uint8(old), err
}

// Swap16 is Swap8 for 2 bytes.
func (c *Client) Swap16(ctx context.Context, addr uint64, v uint16) (uint16, error) {
	old, err := c.scalar(ctx, Swap, 2, addr, 0, uint64(v))
	return uint16(old), err
}

// Swap32 is Swap8 for 4 aligned bytes.
func (c *Client) Swap32(ctx context.Context, addr uint64, v uint32) (uint32, error) {
	old, err := c.scalar(ctx, Swap, 4, addr, 0, uint64(v))
	return uint32(old), err
}

// Swap64 is Swap8 for 8 aligned bytes.
func (c *Client) Swap64(ctx context.Context, addr uint64, v uint64) (uint64, error) {
	return c.scalar(ctx, Swap, 8, addr, 0, v)
}

// FetchAdd8 adds v to the byte at addr, modulo 256, and returns what it was.
func (c *Client) FetchAdd8(ctx context.Context, addr uint64, v uint8) (uint8, error) {
	old, err := c.scalar(ctx, FetchAdd, 1, addr, 0, uint64(v))
	return uint8(old), err
}

// FetchAdd16 is FetchAdd8 for 2 bytes.
func (c *Client) FetchAdd16(ctx context.Context, addr uint64, v uint16) (uint16, error) {
	old, err := c.scalar(ctx, FetchAdd, 2, addr, 0, uint64(v))
	return uint16(old), err
}

// FetchAdd32 is FetchAdd8 for 4 aligned bytes.
func (c *Client) FetchAdd32(ctx context.Context, addr uint64, v uint32) (uint32, error) {
	old, err := c.scalar(ctx, FetchAdd, 4, addr, 0, uint64(v))
	return uint32(old), err
}

// FetchAdd64 is FetchAdd8 for 8 aligned bytes.
func (c *Client) FetchAdd64(ctx context.Context, addr uint64, v uint64) (uint64, error) {
	return c.scalar(ctx, FetchAdd, 8, addr, 0, v)
}

// And stores the bits of v that the variable of size bytes, 1 to 8, has, and
// returns what it was.
func (c *Client) And(ctx context.Context, addr uint64, size int, v uint64) (uint64, error) {
	return c.scalar(ctx, And, size, addr, 0, v)
}

// Or adds the bits of v to the variable.
func (c *Client) Or(ctx context.Context, addr uint64, size int, v uint64) (uint64, error) {
	return c.scalar(ctx, Or, size, addr, 0, v)
}

// Xor turns the bits of v of the variable over.
func (c *Client) Xor(ctx context.Context, addr uint64, size int, v uint64) (uint64, error) {
	return c.scalar(ctx, Xor, size, addr, 0, v)
}
