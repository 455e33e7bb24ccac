package atomics

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// Preflight is what can be said about atomics before anything is posted: what
// the device offers, which operations and sizes follow, and whether the masks
// that would be sent do what they should on a responder in software.
type Preflight struct {
	Caps          Caps           `json:"caps"`
	MaxAtomicSize int            `json:"max_atomic_size"`
	AtomicMode    string         `json:"atomic_mode"`
	Sizes         []int          `json:"sizes"`
	ReplyOrder8   Order          `json:"reply_order_8_bytes"`
	Offers        []Offer        `json:"offers"`
	Checks        []PreflightRow `json:"checks"`
}

// Offer says whether one operation of one size can be posted to the device.
type Offer struct {
	Kind Kind `json:"kind"`
	Size int  `json:"size"`
	OK   bool `json:"ok"`
	// WQE is the opcode and opmod that carries it, Reason why it is refused.
	WQE    string `json:"wqe,omitempty"`
	Reason string `json:"reason,omitempty"`
}

// PreflightRow is one check of the pre-flight.
type PreflightRow struct {
	Name   string `json:"name"`
	OK     bool   `json:"ok"`
	Detail string `json:"detail"`
}

// Preflight checks masks and sizes against the capabilities. It costs a few
// milliseconds and touches no device.
func (c Caps) Preflight() Preflight {
	p := Preflight{Caps: c, MaxAtomicSize: c.MaxAtomicSize(), Sizes: c.Sizes(), ReplyOrder8: ReplyOrder(8, c.Mode)}
	check := func(name string, detail string, err error) {
		row := PreflightRow{Name: name, OK: err == nil, Detail: detail}
		if err != nil {
			row.Detail = err.Error()
		}
		p.Checks = append(p.Checks, row)
	}
	mode, err := c.AtomicMode()
	p.AtomicMode = mode.String()
	check("atomics offered", c.String(), err)
	if err != nil {
		return p
	}
	check("sizes consistent", fmt.Sprintf("atomic_mode %s holds %d bytes", mode, ModeSize(mode)), c.consistent(mode))
	n, err := checkMasks(c)
	check("masks", fmt.Sprintf("%d operations change their target and nothing else, in both byte orders", n), err)
	n, err = checkRefusals()
	check("refusals", fmt.Sprintf("%d operations that no word holds are refused", n), err)
	p.Offers = c.offers()
	return p
}

// Err is nil if every check passed.
func (p Preflight) Err() error {
	var errs []error
	for _, r := range p.Checks {
		if !r.OK {
			errs = append(errs, fmt.Errorf("pre-flight of atomics: %s: %s", r.Name, r.Detail))
		}
	}
	return errors.Join(errs...)
}

// consistent compares what the capabilities say in several places.
func (c Caps) consistent(mode prm.AtomicMode) error {
	most := c.MaxAtomicSize()
	var errs []error
	if c.Extended() && c.SizesQP&sizeBits == 0 {
		errs = append(errs, errors.New("masked operations are offered, and atomic_size_qp is empty"))
	}
	if ModeSize(mode) < most {
		errs = append(errs, fmt.Errorf("atomic_mode %s holds %d bytes, fewer than the largest argument, %d", mode, ModeSize(mode), most))
	}
	// The field is reserved in Linux' header, so 0 says nothing.
	if c.LogMaxQP != 0 && c.SizesQP&sizeBits != 0 && 1<<c.LogMaxQP != most {
		errs = append(errs, fmt.Errorf("log_max_atomic_size_qp says %d bytes, atomic_size_qp 0x%x says %d", 1<<c.LogMaxQP, c.SizesQP, most))
	}
	return errors.Join(errs...)
}

// offers lists every operation and size with the device's answer.
func (c Caps) offers() []Offer {
	var out []Offer
	for _, k := range Kinds() {
		for size := 1; size <= k.MaxSize(); size *= 2 {
			op := sample(k, size, 0, nil)
			f := Offer{Kind: k, Size: size}
			if err := c.Check(&op); err != nil {
				var oe *OpError
				if errors.As(err, &oe) {
					f.Reason = strings.TrimSpace(oe.Remedy)
				}
			} else {
				var r Request
				if err := op.Encode(&r, LittleEndian); err != nil {
					panic(err) // Check accepted it
				}
				f.OK, f.WQE = true, fmt.Sprintf("%s opmod 0x%x, %d bytes", r.Opcode, r.Opmod, r.Size)
			}
			out = append(out, f)
		}
	}
	return out
}

// checkMasks runs every operation that the device offers at every place, in both
// orders, on the software responder, and compares all of memory with what the
// operation means.
func checkMasks(c Caps) (int, error) {
	const base, room = 0x1000, 768
	rng := rand.New(rand.NewPCG(0x6d61736b, 7))
	n := 0
	for _, k := range Kinds() {
		for size := 1; size <= k.MaxSize(); size *= 2 {
			for at := uint64(base + 256); at < base+260; at++ {
				if op := sample(k, size, at, nil); c.Check(&op) != nil {
					continue
				}
				for _, order := range []Order{LittleEndian, BigEndian} {
					if err := checkOne(k, size, at, order, base, room, rng); err != nil {
						return n, err
					}
					n++
				}
			}
		}
	}
	return n, nil
}

// checkOne compares Encode and Execute with Apply.
func checkOne(k Kind, size int, at uint64, order Order, base uint64, room int, rng *rand.Rand) error {
	mem := make([]byte, room)
	for i := range mem {
		mem[i] = byte(rng.Uint32())
	}
	op := Random(k, size, at, mem[at-base:][:size], order, rng)
	want := append([]byte(nil), mem...)
	res, err := Apply(want, base, &op, order)
	if err != nil {
		return err
	}
	var r Request
	if err := op.Encode(&r, order); err != nil {
		return err
	}
	var reply [256]byte
	off := r.Addr - base
	if err := r.Execute(mem[off:off+uint64(r.Size)], order, reply[:], BigEndian); err != nil {
		return err
	}
	if string(mem) != string(want) {
		return fmt.Errorf("%s of %d bytes at offset %d, %s: the masks change other bytes than the operation means", op.Kind, op.Size, op.Addr-base, order)
	}
	if got := r.Extract(reply[:], BigEndian); op.Size <= 8 && got != res.Old {
		return fmt.Errorf("%s of %d bytes at offset %d, %s: old value 0x%x, extracted 0x%x", op.Kind, op.Size, op.Addr-base, order, res.Old, got)
	}
	return nil
}

// misplaced are offsets at which no variable of size bytes may lie.
func misplaced(size int) []int {
	if size == 2 {
		return []int{3}
	}
	return []int{1, 2, 3, size / 2, size - 1}
}

// checkRefusals tries the places and operands that must be refused.
func checkRefusals() (int, error) {
	n := 0
	var r Request
	for _, k := range Kinds() {
		for size := 2; size <= k.MaxSize(); size *= 2 {
			for _, at := range misplaced(size) {
				op := sample(k, size, uint64(at), nil)
				if err := op.Encode(&r, LittleEndian); !errors.Is(err, ErrUnaligned) && !errors.Is(err, ErrCrosses) {
					return n, fmt.Errorf("%s of %d bytes at offset %d was not refused as misplaced", k, size, at)
				}
				n++
			}
		}
		for size := 1; size <= 4; size *= 2 {
			op := Op{Kind: k, Size: size, Value: fieldMask(size) + 1}
			if err := op.Encode(&r, LittleEndian); !errors.Is(err, ErrOverflow) {
				return n, fmt.Errorf("%s of %d bytes with operand 0x%x was not refused as too large", k, size, op.Value)
			}
			n++
		}
	}
	return n, nil
}
