package sim

import (
	"fmt"
	"strconv"
	"strings"
)

// Faults of the data path. Those of the atomic unit are what the litmus suite must
// find; those of packets are what retries must survive.

// Packets that a fault chooses: all, requests, or answers.
const (
	anyPacket = iota
	requestPacket
	responsePacket
)

const packetSelector = "[request|response][#N]"

func dataFaults() []faultKind {
	kind := func(name, arg, meaning string, parse func(*fault, string) error) faultKind {
		return faultKind{Fault: Fault{name, arg, meaning}, parse: parse}
	}
	return []faultKind{
		kind("mask-order", "", "masks of masked compare-and-swaps are taken in the reverse byte order of their word", parseNothing),
		kind("no-boundary", "", "field boundaries of masked fetch-and-adds are ignored: carries run on", parseNothing),
		kind("torn-write", "", "WRITEs that should be atomic are interrupted half-way", parseNothing),
		kind("late-write", "", "an interrupted WRITE is acknowledged, and what follows carried out, before its rest is in memory", parseNothing),
		kind("lost-update", "", "atomics read, pause and write back: what others wrote in between is lost", parseNothing),
		kind("memory-order", "", "atomics take words of memory as big-endian numbers", parseNothing),
		kind("no-fence", "", "fences of the send queue are ignored", parseNothing),
		kind("bad-response", "", "READs are answered as atomics and atomics as READs", parseNothing),
		kind("packet-drop", packetSelector, "packets are lost: all of a kind, or the n-th", parsePackets),
		kind("packet-loss", "N", "one packet in N is lost at random", parseRate),
		kind("packet-duplicate", packetSelector, "packets arrive twice: all of a kind, or the n-th", parsePackets),
		kind("packet-delay", "DURATION", "every packet is that long on its way", parseDuration),
	}
}

func parsePackets(x *fault, arg string) error {
	which, _, numbered := strings.Cut(arg, "#")
	switch which {
	case "":
		x.n = anyPacket
	case "request":
		x.n = requestPacket
	case "response":
		x.n = responsePacket
	default:
		return fmt.Errorf("%q is neither request nor response", which)
	}
	if !numbered {
		return nil
	}
	return parseSelector(x, arg[len(which):])
}

func parseRate(x *fault, arg string) error {
	n, err := strconv.ParseUint(arg, 10, 31)
	if err != nil || n < 2 {
		return fmt.Errorf("%q is no number of 2 or more", arg)
	}
	x.n = int(n)
	return nil
}

// hits tells whether a fault on packets chooses this one.
func (x *fault) hits(p *packet) bool {
	if x.n == requestPacket && !p.kind.request() || x.n == responsePacket && p.kind.request() {
		return false
	}
	x.seen++
	return x.nth == 0 || x.seen == x.nth
}

// fated lets faults act on a packet that is about to be sent. True: it is taken
// care of.
func (b *fabric) fated(p *packet) bool {
	for _, x := range b.chip.faults.list {
		switch x.kind.Name {
		case "packet-drop":
			if x.hits(p) {
				b.drop(p)
				return true
			}
		case "packet-loss":
			if b.rng.IntN(x.n) == 0 {
				b.drop(p)
				return true
			}
		case "packet-duplicate":
			if x.hits(p) {
				twin := b.packet(pktNone)
				next := twin.next
				*twin = *p
				twin.next = next
				b.forward(twin)
			}
		}
	}
	if x := b.chip.faults.find("packet-delay"); x != nil {
		b.chip.sched.after(nil, x.delay, func() {
			b.forward(p)
			b.kick()
		})
		return true
	}
	return false
}

func (s *faultSet) fenceless() bool { return len(s.list) > 0 && s.has("no-fence") }
