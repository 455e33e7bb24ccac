package sim

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// open begins a raw driver on a chip that exists.
func onChip(t testing.TB, c *Chip) *raw {
	t.Helper()
	r := &raw{t: t, chip: c, mem: vfio.MemOf(make([]byte, arenaSize))}
	t.Cleanup(func() {
		require.NoError(t, r.dev.Close())
		require.NoError(t, c.Close())
	})
	r.open()
	require.NoError(t, r.dev.DMA().Map(vfio.Mapping{IOVA: arenaIOVA, Bytes: r.mem.Bytes(), FD: -1}))
	return r.to(phaseInit)
}

func newChip(t testing.TB, o Options) *Chip {
	t.Helper()
	c, err := New(o)
	require.NoError(t, err)
	return c
}

// twoHosts are two linked chips of one process.
func twoHosts(t testing.TB, o Options) (x, y *raw) {
	t.Helper()
	a, b := newChip(t, o), newChip(t, o)
	require.NoError(t, Link(a, b))
	return onChip(t, a), onChip(t, b)
}

// takeSoon waits for a completion in real time.
func (q *rawCQ) takeSoon() *prm.CQE64 {
	q.r.t.Helper()
	for limit := time.Now().Add(10 * time.Second); time.Now().Before(limit); {
		if c := q.next(); c != nil {
			q.consume()
			return c
		}
		time.Sleep(20 * time.Microsecond)
	}
	require.Fail(q.r.t, "no completion in 10 s")
	return nil
}

func (q *rawCQ) goodSoon(op prm.CQEOpcode) *prm.CQE64 {
	q.r.t.Helper()
	c := q.takeSoon()
	require.Equal(q.r.t, op, c.Opcode(), "%s", show(c))
	return c
}

// exercise runs every kind of operation from x to y.
func exercise(t *testing.T, x, y *raw, rounds int) {
	a, b := x.newEnd(prm.QPTypeRC, nil), y.newEnd(prm.QPTypeRC, nil)
	if x.chip.Port() == PortEth {
		roce(x, a, b)
		roce(y, b, a)
	}
	// A slow machine is no lost packet.
	calm := func(was func(prm.Opcode, *prm.QPC)) func(prm.Opcode, *prm.QPC) {
		return func(op prm.Opcode, c *prm.QPC) {
			if was != nil {
				was(op, c)
			}
			c.PrimaryAddressPath().SetAckTimeout(18)
		}
	}
	a.tune, b.tune = calm(a.tune), calm(b.tune)
	connect(a, b)
	m, n := x.region(1<<16, nil), y.region(1<<16, nil)
	rng := rand.New(rand.NewPCG(3, 3))
	for i := range rounds {
		size := 1 + rng.IntN(9000)
		pattern(m.bytes()[:size], i)
		b.postRecv(n.ptr(40000, 9001))
		a.post(wqe{op: prm.WQERdmaWrite, segs: [][]byte{n.remote(8), m.ptr(0, size)}},
			wqe{op: prm.WQEAtomicFA, segs: [][]byte{n.remote(0), operands(8, 3, 0), m.ptr(20000, 8)}},
			wqe{op: prm.WQERdmaRead, segs: [][]byte{n.remote(8), m.ptr(32768, size)}},
			wqe{op: prm.WQESendImm, imm: uint32(i), fm: prm.FenceReads, segs: [][]byte{m.ptr(0, size)}})
		for range 4 {
			a.send.goodSoon(prm.CQEReq)
		}
		c := b.recv.goodSoon(prm.CQERespSendImm)
		require.EqualValues(t, i, c.Immediate())
		require.EqualValues(t, size, c.ByteCnt())
		require.EqualValues(t, 3*(i+1), n.word(0))
		require.EqualValues(t, 3*i, binary.BigEndian.Uint64(m.bytes()[20000:]))
		same(t, m.bytes()[:size], n.bytes()[8:8+size])
		same(t, m.bytes()[:size], m.bytes()[32768:32768+size])
		same(t, m.bytes()[:size], n.bytes()[40000:40000+size])
	}
	a.post(wqe{op: prm.WQERdmaWrite, segs: [][]byte{n.remote(1 << 20), m.ptr(0, 8)}})
	c := a.send.takeSoon()
	require.Equal(t, sRAccess, prm.AsErrCQE(c[:]).Syndrome())
}

// roce gives the function an address and the path from e to a QP of the other
// host.
func roce(r *raw, e, peer *end) {
	addr := func(r *raw) (g gid, mac uint64) {
		f := r.chip.funcs[0]
		putGID(&g, f.guid())
		return g, f.mac()
	}
	g, mac := addr(r)
	in := cmd(prm.OpSetRoceAddress, 0, prm.SetRoceAddressInSize)
	l := prm.AsSetRoceAddressIn(in).RoceAddress()
	copy(l.SourceL3Address(), g[:])
	l.SetSourceMAC47_32(uint16(mac >> 32))
	l.SetSourceMAC31_0(uint32(mac))
	l.SetRoceL3Type(1)
	l.SetRoceVersion(2)
	r.ok(in, 16)
	to, toMAC := addr(peer.r)
	e.tune = func(op prm.Opcode, x *prm.QPC) {
		p := x.PrimaryAddressPath()
		p.SetGrh(true)
		copy(p.RgidRip(), to[:])
		p.SetRmac47_32(uint16(toMAC >> 32))
		p.SetRmac31_0(uint32(toMAC))
		p.SetHopLimit(64)
	}
}

// TestLink: two chips of one process, InfiniBand and RoCE: every operation, both
// ways.
func TestLink(t *testing.T) {
	for _, port := range []PortType{PortIB, PortEth} {
		x, y := twoHosts(t, Options{Port: port, Seed: 4})
		require.NotEqual(t, x.chip.funcs[0].mac(), y.chip.funcs[0].mac())
		if port == PortIB {
			require.NotEqual(t, x.lid(), y.lid())
		}
		exercise(t, x, y, 20)
		exercise(t, y, x, 20)
	}
}

// TestLinkErrors: links that cannot be.
func TestLinkErrors(t *testing.T) {
	a, b, c := newChip(t, Options{}), newChip(t, Options{}), newChip(t, Options{Port: PortEth})
	defer func() {
		for _, x := range []*Chip{a, b, c} {
			require.NoError(t, x.Close())
		}
	}()
	var e *LinkError
	require.ErrorAs(t, Link(a, a), &e)
	require.ErrorAs(t, Link(a, c), &e)
	dev := b.Function(0)
	require.ErrorAs(t, Link(a, b), &e, "b is open and its addresses would change")
	require.NoError(t, dev.Close())
	require.NoError(t, Link(a, b))
	require.ErrorAs(t, Link(a, b), &e, "twice")
	_, err := a.JoinLink(filepath.Join(t.TempDir(), "l"))
	require.ErrorAs(t, err, &e)
	_, err = c.JoinLink(filepath.Join(t.TempDir(), "no", "such", "folder"))
	require.ErrorAs(t, err, &e)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.Contains(t, err.Error(), "folder")
	plain := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(plain, []byte("x"), 0o600))
	_, err = c.JoinLink(plain)
	require.ErrorAs(t, err, &e)
	require.FileExists(t, plain)
}

// TestPeerGone: a peer that was closed answers nobody: the tries are used up.
func TestPeerGone(t *testing.T) {
	o := Options{Clock: NewManualClock()}
	a, b := newChip(t, o), newChip(t, o)
	require.NoError(t, Link(a, b))
	x := onChip(t, a)
	y := &raw{t: t, chip: b, mem: vfio.MemOf(make([]byte, 1<<24))}
	y.open()
	require.NoError(t, y.dev.DMA().Map(vfio.Mapping{IOVA: arenaIOVA, Bytes: y.mem.Bytes(), FD: -1}))
	y.to(phaseInit)
	p, q := x.newEnd(prm.QPTypeRC, nil), y.newEnd(prm.QPTypeRC, nil)
	connect(p, q)
	m := y.region(4096, nil)
	p.post(write(m.remote(0), inlineSeg([]byte{7})))
	p.send.good(prm.CQEReq)
	require.NoError(t, y.dev.Close())
	p.post(write(m.remote(0), inlineSeg([]byte{7})))
	p.send.none()
	x.chip.Advance(100 * time.Millisecond)
	p.send.bad(prm.CQEReqErr, sRetry)
	require.NoError(t, b.Close())
}

// TestSocketLink: two chips over a socket, the second host gone and come back.
func TestSocketLink(t *testing.T) {
	path := filepath.Join(t.TempDir(), "wire")
	a := newChip(t, Options{Seed: 2})
	pa, err := a.JoinLink(path)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, pa.Close()) })
	require.Zero(t, pa.Node())
	require.False(t, pa.Connected())
	x := onChip(t, a)

	up := func(p *LinkPort) {
		require.Eventually(t, p.Connected, 5*time.Second, time.Millisecond)
	}
	host := func() (*Chip, *LinkPort) {
		b := newChip(t, Options{Seed: 3})
		pb, err := b.JoinLink(path)
		require.NoError(t, err)
		require.Equal(t, 1, pb.Node())
		up(pa)
		up(pb)
		return b, pb
	}
	b, pb := host()
	t.Run("first", func(t *testing.T) { exercise(t, x, onChip(t, b), 10) })
	require.NoError(t, pb.Close())
	require.NoError(t, pb.Close())
	require.Eventually(t, func() bool { return !pa.Connected() }, 5*time.Second, time.Millisecond)

	// Nobody there: the tries are used up.
	e := x.newEnd(prm.QPTypeRC, nil)
	e.tune = func(_ prm.Opcode, c *prm.QPC) { c.PrimaryAddressPath().SetRlid(0x11) }
	connect(e, e)
	e.post(wqe{op: prm.WQESend})
	c := e.send.takeSoon()
	require.Equal(t, sRetry, prm.AsErrCQE(c[:]).Syndrome())

	b, pb = host()
	t.Run("second", func(t *testing.T) { exercise(t, onChip(t, b), x, 10) })
	require.NoError(t, pb.Close())
}

// TestSocketFirst: the listener goes and comes back; the other end finds it again.
func TestSocketFirst(t *testing.T) {
	path := filepath.Join(t.TempDir(), "wire")
	join := func(seed uint64) (*Chip, *LinkPort) {
		c := newChip(t, Options{Seed: seed})
		p, err := c.JoinLink(path)
		require.NoError(t, err)
		return c, p
	}
	a, pa := join(1)
	b, pb := join(2)
	defer func() { require.NoError(t, pb.Close()); require.NoError(t, b.Close()) }()
	require.Eventually(t, pb.Connected, 5*time.Second, time.Millisecond)
	require.NoError(t, pa.Close())
	require.NoError(t, a.Close())
	require.Eventually(t, func() bool { return !pb.Connected() }, 5*time.Second, time.Millisecond)
	// A socket that a killed process left behind.
	l, err := net.Listen("unix", path)
	require.NoError(t, err)
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	require.NoError(t, l.Close())
	require.FileExists(t, path)
	a, pa = join(1)
	require.Zero(t, pa.Node())
	require.Eventually(t, pb.Connected, 5*time.Second, time.Millisecond)
	require.NoError(t, pa.Close())
	require.NoError(t, a.Close())
}

// TestStranger: who greets wrongly or sends nonsense is turned away, and the link
// works for the next one.
func TestStranger(t *testing.T) {
	path := filepath.Join(t.TempDir(), "wire")
	a := newChip(t, Options{})
	pa, err := a.JoinLink(path)
	require.NoError(t, err)
	defer func() { require.NoError(t, pa.Close()); require.NoError(t, a.Close()) }()
	good := string(append([]byte(linkMagic), linkVersion, 1, byte(PortIB))) + "\x00\x00\x00\x00\x00\n"
	for _, words := range []string{
		"GET / HTTP/1.0\r\n\r\n", good[:7] + "\x09\x01\x01", good[:8] + "\x00" + good[9:], good[:9] + "\x02" + good[10:],
		good + "\xff\xff\xff\xff", good + "\x00\x00\x00\x05hello", good + "\x00\x00\x00\x70" + string(make([]byte, 0x70)),
	} {
		c, err := net.Dial("unix", path)
		require.NoError(t, err)
		_, err = c.Write([]byte(words))
		require.NoError(t, err)
		require.NoError(t, c.SetReadDeadline(time.Now().Add(5*time.Second)))
		_, err = c.Read(make([]byte, linkHelloLen))
		require.NoError(t, err)
		_, err = c.Read(make([]byte, 1))
		require.Error(t, err, "it hangs up on %q", words)
		require.NotErrorIs(t, err, os.ErrDeadlineExceeded, "%q", words)
		require.NoError(t, c.Close())
	}
	b := newChip(t, Options{})
	pb, err := b.JoinLink(path)
	require.NoError(t, err)
	require.Eventually(t, pb.Connected, 5*time.Second, time.Millisecond)
	require.NoError(t, pb.Close())
	require.NoError(t, b.Close())
}

// FuzzPacket: what is decoded survives the way back, and responder and requester
// bear it, whatever they are waiting for.
func FuzzPacket(f *testing.F) {
	p := &packet{kind: pktWrite, flags: flagFirst | flagLast | flagAckReq, dqpn: firstQPN, psn: 0x123, n: 3, dlid: 1, slid: 1}
	f.Add(p.encode(nil))
	p = &packet{kind: pktAtomic, atom: atomCS | atomMasked, size: 4, n: 16, dqpn: firstQPN, psn: 0x123, dlid: 1, slid: 1}
	f.Add(p.encode(nil))
	p = &packet{kind: pktAtomicResponse, n: 8, dqpn: firstQPN, psn: 0x123, dlid: 1, slid: 1}
	f.Add(p.encode(nil))
	p = &packet{kind: pktAck, aeth: aethRNR, dqpn: firstQPN, psn: 0x123, dlid: 1, slid: 1}
	f.Add(p.encode(nil))
	p = &packet{kind: pktDatagram, n: 8, dqpn: firstQPN + 1, dlid: 1, slid: 1, qkey: 0x1111}
	f.Add(p.encode(nil))
	r := newFlow(f, Options{})
	a, u := r.newEnd(prm.QPTypeRC, nil), r.newEnd(prm.QPTypeUD, nil)
	m := r.region(4096, nil)
	f.Fuzz(func(t *testing.T, b []byte) {
		r.t = t
		var q packet
		if q.decode(b) != nil {
			return
		}
		once := q.encode(nil)
		var again packet
		require.NoError(t, again.decode(once))
		require.True(t, bytes.Equal(once, again.encode(nil)))
		for _, e := range []*end{a, u} {
			r.ok(number(prm.Op2RstQP, e.n), 16)
			e.pi, e.ri = 0, 0
			clear(r.bytes(e.dbr, 8))
			connect(e, e)
			e.postRecv(m.ptr(0, 64))
		}
		a.fill(wqe{op: prm.WQERdmaRead, segs: [][]byte{m.remote(0), m.ptr(64, 8)}})
		r.fault("packet-drop", "request#1")
		a.ring()
		require.NoError(t, r.chip.ClearFault(""))
		r.chip.mu.Lock()
		err := r.chip.fabric.take(b)
		r.chip.fabric.kick()
		r.chip.mu.Unlock()
		require.NoError(t, err)
		r.chip.Advance(20 * time.Millisecond)
		for _, q := range []*rawCQ{a.send, a.recv, u.recv} {
			for q.next() != nil {
			}
			q.consume()
		}
	})
}

// TestLinkSocketPermissions: nobody but the user gets at the wire.
func TestLinkSocketPermissions(t *testing.T) {
	old := syscall.Umask(0)
	defer syscall.Umask(old)
	c, err := New(Options{})
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "wire")
	p, err := c.JoinLink(path)
	require.NoError(t, err)
	st, err := os.Lstat(path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), st.Mode().Perm())
	require.NoError(t, p.Close())
	require.NoError(t, c.Close())
}
