package main

import (
	"context"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/mlxvfio/mlxvfio"
	"github.com/mlxvfio/mlxvfio/atomics"
	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/queues"
	"github.com/mlxvfio/mlxvfio/vfio"
	"github.com/spf13/cobra"
)

// runFlags are the flags of atomic run. Operands are as given; "" is none.
type runFlags struct {
	peer, op, memory                                      string
	size, offset, count                                   int
	compare, value, mask, compareMask, swapMask, boundary string
	assume                                                bool
}

// runOps are the names of --op.
var runOps = map[string]atomics.Kind{
	"cas": atomics.CompareSwap, "swap": atomics.Swap, "add": atomics.FetchAdd,
	"and": atomics.And, "or": atomics.Or, "xor": atomics.Xor,
	"masked-cas": atomics.MaskedCompareSwap, "masked-add": atomics.MaskedFetchAdd,
}

const runOpNames = "cas, swap, add, and, or, xor, masked-cas or masked-add"

func (a *app) atomicRunVerb() *cobra.Command {
	var f runFlags
	c := a.verb("run DEV", "do one atomic and show memory before and after, the returned value, and the WQE", 1, 1, func(ctx context.Context, args []string) error {
		return a.atomicRun(ctx, args[0], &f)
	})
	c.Long = `run does an atomic operation on --size bytes at --offset of a block of memory that holds 00 01 02 … (or --memory),
and shows the block before and after, the value that came back, and the WQE that was posted, taken apart.
Operands are numbers of the variable, decimal or 0x…; above 8 bytes lists of 8-byte words in the order of their
addresses, separated by commas, where one word stands for all. The byte orders are probed first, unless --assume.`
	c.Example = examples(
		"mlxvfio atomic run sim --op add --value 1", "add 1 to 8 bytes",
		"mlxvfio atomic run sim --op cas --size 1 --offset 3 --compare 3 --value 0xff", "compare and swap one byte",
		"mlxvfio atomic run sim --op masked-cas --compare 0 --value 0x55 --mask 0xff", "of 8 bytes compare and swap the lowest")
	a.peerFlag(c, &f.peer)
	fl := c.Flags()
	fl.StringVar(&f.op, "op", "", "the operation `OP`: "+runOpNames)
	fl.IntVar(&f.size, "size", 8, "`BYTES` of the variable: 1, 2, 4, 8, 16 … 256")
	fl.IntVar(&f.offset, "offset", 0, "offset of the variable in the block, in `BYTES`")
	fl.StringVar(&f.compare, "compare", "", "`VALUE` compared (cas, masked-cas)")
	fl.StringVar(&f.value, "value", "", "`VALUE` stored, added or combined")
	fl.StringVar(&f.mask, "mask", "", "`MASK`: both masks of masked-cas, or the boundary of masked-add")
	fl.StringVar(&f.compareMask, "compare-mask", "", "`MASK` of the bits that masked-cas compares (default: --mask)")
	fl.StringVar(&f.swapMask, "swap-mask", "", "`MASK` of the bits that masked-cas stores (default: --mask)")
	fl.StringVar(&f.boundary, "boundary", "", "`MASK` of the most significant bits of the fields that add and masked-add work on")
	fl.StringVar(&f.memory, "memory", "", "bytes of the variable before, as `HEX` digits in the order of the addresses")
	fl.IntVar(&f.count, "count", 1, "do the operation `N` times")
	completes(c, "op", oneOf(slices.Sorted(maps.Keys(runOps))...))
	for _, operand := range []string{"compare", "value", "mask", "compare-mask", "swap-mask", "boundary", "memory"} {
		completes(c, operand, anything)
	}
	fl.BoolVar(&f.assume, "assume", false, "assume the usual byte orders instead of probing")
	return c
}

// runBlock is the size of the block of memory that is shown.
const runBlock = atomics.ReplySize

// runLimit bounds --count: every returned value is shown.
const runLimit = 1 << 16

// operation checks the flags as far as no device is needed. Its address is the
// offset.
func (f *runFlags) operation() (*atomics.Op, []byte, error) {
	k, ok := runOps[f.op]
	switch {
	case f.op == "":
		return nil, nil, usagef("--op is missing: want %s", runOpNames)
	case !ok:
		return nil, nil, usagef("--op %q: want %s", f.op, runOpNames)
	case f.count < 1 || f.count > runLimit:
		return nil, nil, usagef("--count %d: want 1 to %d", f.count, runLimit)
	case f.offset < 0 || f.size < 1 || f.size > runBlock || f.offset > runBlock-f.size:
		return nil, nil, usagef("--offset %d --size %d: the block has %d bytes", f.offset, f.size, runBlock)
	}
	// given is the flag that an operand comes from: its own, or --mask.
	given := func(flag, text string) string {
		if text == "" && f.mask != "" {
			return "mask"
		}
		return flag
	}
	byCompare, bySwap, byBoundary := given("compare-mask", f.compareMask), given("swap-mask", f.swapMask), given("boundary", f.boundary)
	if k == atomics.MaskedCompareSwap {
		if f.mask == "" && f.compareMask == "" && f.swapMask == "" {
			return nil, nil, usagef("--op %s needs --mask, or --compare-mask and --swap-mask", f.op)
		}
		f.compareMask, f.swapMask = firstOf(f.compareMask, f.mask), firstOf(f.swapMask, f.mask)
	} else if k == atomics.MaskedFetchAdd {
		f.boundary = firstOf(f.boundary, f.mask)
	} else if f.mask != "" {
		return nil, nil, usagef("--mask belongs to masked-cas and masked-add")
	}
	op := &atomics.Op{Kind: k, Size: f.size, Addr: uint64(f.offset)}
	if f.size > 8 {
		op.Wide = &atomics.Wide{}
	}
	for _, x := range []struct {
		flag, text string
		one        *uint64
		many       func(*atomics.Wide) *[]uint64
		needed     bool
	}{
		{"compare", f.compare, &op.Compare, func(w *atomics.Wide) *[]uint64 { return &w.Compare }, k == atomics.CompareSwap || k == atomics.MaskedCompareSwap},
		{"value", f.value, &op.Value, func(w *atomics.Wide) *[]uint64 { return &w.Value }, true},
		{byCompare, f.compareMask, &op.CompareMask, func(w *atomics.Wide) *[]uint64 { return &w.CompareMask }, k == atomics.MaskedCompareSwap},
		{bySwap, f.swapMask, &op.SwapMask, func(w *atomics.Wide) *[]uint64 { return &w.SwapMask }, k == atomics.MaskedCompareSwap},
		{byBoundary, f.boundary, &op.Boundary, func(w *atomics.Wide) *[]uint64 { return &w.Boundary }, false},
	} {
		if x.text == "" && x.needed {
			return nil, nil, usagef("--op %s needs --%s", f.op, x.flag)
		}
		if x.text == "" {
			continue
		}
		if op.Wide == nil {
			v, err := strconv.ParseUint(x.text, 0, 64)
			if err != nil {
				return nil, nil, usagef("--%s %q is no number of 64 bits", x.flag, x.text)
			}
			*x.one = v
			continue
		}
		ws, err := parseWords(x.text, f.size/8)
		if err != nil {
			return nil, nil, usagef("--%s: %v", x.flag, err)
		}
		*x.many(op.Wide) = ws
	}
	if err := op.Check(); err != nil {
		return nil, nil, &usageError{err.Error()}
	}
	mem := make([]byte, runBlock)
	for i := range mem {
		mem[i] = byte(i)
	}
	if f.memory != "" {
		b, err := hex.DecodeString(f.memory)
		if err != nil || len(b) != f.size {
			return nil, nil, usagef("--memory %q: want %d hex digits for %d bytes", f.memory, 2*f.size, f.size)
		}
		copy(mem[f.offset:], b)
	}
	return op, mem, nil
}

func firstOf(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// parseWords reads n words, or one that stands for all.
func parseWords(s string, n int) ([]uint64, error) {
	parts := strings.Split(s, ",")
	if len(parts) != n && len(parts) != 1 {
		return nil, fmt.Errorf("%d words of 8 bytes: want %d, or one for all", len(parts), n)
	}
	ws := make([]uint64, n)
	for i := range ws {
		v, err := strconv.ParseUint(parts[i%len(parts)], 0, 64)
		if err != nil {
			return nil, fmt.Errorf("%q is no number of 64 bits", parts[i%len(parts)])
		}
		ws[i] = v
	}
	return ws, nil
}

func (a *app) atomicRun(ctx context.Context, dev string, f *runFlags) error {
	op, mem, err := f.operation()
	if err != nil {
		return err
	}
	return a.withPair(ctx, dev, f.peer, func(ctx context.Context, p *dataSession) error {
		l, err := p.atomicLink(ctx)
		if err != nil {
			return err
		}
		if err := l.caps.Check(op); err != nil {
			return fmt.Errorf("%s: %w", dev, err)
		}
		prof := atomics.Assume(l.caps)
		if !f.assume {
			if prof, err = l.probe(ctx, 1); err != nil {
				return fmt.Errorf("%s: %w", dev, err)
			}
		}
		l.target.Store(0, mem)
		op.Addr += l.target.Addr
		r := &runResult{
			pairHead: p.head(), Op: op.Kind, Size: op.Size, Offset: f.offset, Probed: prof.Probed, Natural: op.NaturallyAligned(),
			MaxAtomicSize: prof.MaxAtomicSize, Before: hex.EncodeToString(mem), Address: op.Addr,
		}
		for range f.count {
			if err := context.Cause(ctx); err != nil {
				return err
			}
			if err := l.run(ctx, &prof, op, r); err != nil {
				return fmt.Errorf("%s: %w", dev, err)
			}
		}
		l.target.Load(0, mem)
		r.After = hex.EncodeToString(mem)
		return a.print("atomic-run/1", r)
	})
}

// run does the operation once: the WQE is built in ordinary memory, so that it can
// be shown as it is, and posted as these bytes.
func (l *atomicLink) run(ctx context.Context, prof *atomics.Profile, op *atomics.Op, r *runResult) error {
	var req atomics.Request
	reply, err := prof.Encode(&req, op)
	if err != nil {
		return err
	}
	q := l.link.a
	wqe, err := buildWQE(&req, q.Number(), l.local.SGE(0, req.Size), l.target.RKey)
	if err != nil {
		return err
	}
	index := q.SQ.Index()
	if err := q.SQ.Raw(0, wqe); err != nil {
		return err
	}
	prm.AsWQECtrlSeg(wqe).SetWQEIndex(index)
	q.SQ.Ring()
	if err := l.await(ctx); err != nil {
		return err
	}
	var back [atomics.ReplySize]byte
	l.local.Load(0, back[:])
	form := prof.FormOf(op)
	r.WordOrder, r.ReplyOrder = form.Memory, reply
	r.ReplyHex = hex.EncodeToString(back[:req.Size])
	r.WQE = wqeView{Hex: hex.EncodeToString(wqe), Opcode: req.Opcode.String(), Opmod: req.Opmod, Word: req.Addr, Bytes: req.Size, Segments: segmentsOf(wqe)}
	res := runReturn{Stored: req.Matched(back[:], reply)}
	if op.Size > 8 {
		words := make([]uint64, op.Size/8)
		req.ExtractWide(words, back[:], reply)
		for _, w := range words {
			res.Old = append(res.Old, hexNumber(w))
		}
	} else {
		res.Old = []string{hexNumber(req.Extract(back[:], reply))}
	}
	r.Returned = append(r.Returned, res)
	return nil
}

// await polls for the one completion that is outstanding.
func (l *atomicLink) await(ctx context.Context) error {
	var c [1]queues.Completion
	idle := mlxvfio.Idle(l.from)
	for {
		n, err := l.from.CQ().Poll(c[:])
		switch {
		case n == 1 && !c[0].OK():
			return l.from.CQ().Err(&c[0])
		case n == 1 || err != nil:
			return err
		}
		if err := idle(ctx); err != nil {
			return fmt.Errorf("wait for the completion: %w", err)
		}
	}
}

// buildWQE writes the WQE of a request into a queue of ordinary memory and gives
// its bytes.
func buildWQE(req *atomics.Request, qpn uint32, reply queues.SGE, rkey uint32) ([]byte, error) {
	const blocks = 4 // 2^4 blocks: the largest WQE there is
	ring := make([]byte, queues.WQEBB<<blocks)
	q, err := queues.NewSendQueue(queues.SendQueueConfig{QPN: qpn, LogWQEBB: blocks, Ring: vfio.MemOf(ring), Record: vfio.MemOf(make([]byte, queues.RecordSize))})
	if err != nil {
		return nil, err
	}
	if err := req.Post(q, 0, queues.Signalled, reply, rkey); err != nil {
		return nil, err
	}
	return ring[:16*int(prm.AsWQECtrlSeg(ring).Ds())], nil
}

func segmentsOf(wqe []byte) []string {
	var out []string
	for _, s := range queues.DecodeWQE(wqe) {
		out = append(out, s.String())
	}
	return out
}

func hexNumber(v uint64) string { return fmt.Sprintf("0x%x", v) }
