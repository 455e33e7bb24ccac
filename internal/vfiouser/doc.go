// Package vfiouser carries a vfio.Transport over a UNIX socket with the
// vfio-user protocol, version 0.0, as QEMU 11.1 speaks it: Serve offers a
// Transport (the model) to a client (QEMU's vfio-user-pci, or Dial in another
// process), Dial is a Transport whose function lives behind a socket.
//
//	driver ── Dial ══ UNIX socket ══ Serve ── Transport (the model)
//	guest kernel ── QEMU ══ UNIX socket ══ Serve ── Transport
//
// A message is a 16-byte header and a body, little-endian; a command is
// answered by a reply with the same id unless it says that none is wanted.
// File descriptors travel beside the bytes (SCM_RIGHTS): memfds of DMA memory
// and eventfds of interrupts. The server answers strictly in the order of
// arrival, so posted writes and the reads after them keep their order.
//
// Not used, on purpose: mapping of BARs through the socket (everything traps,
// which is what keeps posted writes in order), migration, dirty tracking, and
// the server's DMA_READ and DMA_WRITE requests (a vCPU may hold QEMU's lock
// while it waits for us).
//
// Sources: docs/interop/vfio-user.rst and hw/vfio-user/{protocol.h,proxy.c,
// device.c,container.c,pci.c} of QEMU; struct layouts of linux/vfio.h, from
// which the bodies are taken.
package vfiouser

import (
	"log/slog"
	"time"

	"github.com/mlxvfio/mlxvfio/vfio"
)

// Limits of time. QEMU gives a server five seconds for a reply.
const (
	defaultTimeout    = 10 * time.Second
	serverIOTimeout   = 5 * time.Second
	defaultMaxMaps    = 65535 // QEMU's and the specification's default
	defaultMaxMapped  = 4 << 40
	connectRetry      = time.Second
	connectRetryPause = 10 * time.Millisecond
)

// Options of Dial and Serve; the zero value is right for most uses.
type Options struct {
	// Logger receives what is worth knowing and is no error of the caller:
	// clients coming and going, refused requests. Silent when nil.
	Logger *slog.Logger
	// Timeout bounds the client's wait for a reply (0: 10 s). After a reply that
	// did not come the connection is given up: nobody can tell what the server
	// still does with our memory, and closing makes it let go. It bounds the
	// server's wait for a new client's first message, for the rest of a message,
	// and for a client that does not read its replies (0: 5 s); being idle
	// between messages is not limited.
	Timeout time.Duration
	// PostedWrites makes the client's BAR writes of at most 8 bytes ask for no
	// reply. Order is kept, but the writer no longer waits until the device
	// has seen the write, and the device's refusal is not reported.
	PostedWrites bool
	// MaxMappings bounds the DMA mappings the server accepts (0: 65535).
	MaxMappings int
	// MaxMapped bounds the bytes of a client's memory files that the server maps
	// (0: 4 TiB). They take address space, not memory, of the server.
	MaxMapped uint64
}

func (o Options) logger() *slog.Logger {
	if o.Logger == nil {
		return slog.New(slog.DiscardHandler)
	}
	return o.Logger
}

func (o Options) timeout(unset time.Duration) time.Duration {
	if o.Timeout <= 0 {
		return unset
	}
	return o.Timeout
}

func (o Options) maxMappings() int {
	if o.MaxMappings <= 0 {
		return defaultMaxMaps
	}
	return o.MaxMappings
}

func (o Options) maxMapped() uint64 {
	if o.MaxMapped == 0 {
		return defaultMaxMapped
	}
	return o.MaxMapped
}

// pageSize is the smallest unit of DMA memory. Mappings of guest memory smaller
// or less aligned than this are refused.
const pageSize = 4096

var _ vfio.Transport = (*client)(nil)
