package atomics

import (
	"fmt"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// Form is one of the WQEs an atomic can be: an opcode with an argument size.
type Form struct {
	Opcode prm.WQEOpcode `json:"-"`
	Name   string        `json:"opcode"`
	Size   int           `json:"size"`
	// Memory is the order in which the responder reads the words of the argument,
	// Reply the order in which the old words arrive.
	Memory Order `json:"memory_order"`
	Reply  Order `json:"reply_order"`
	// Runs counts the random operations that were compared with the reference
	// afterwards, Wrong those that differed.
	Runs  int `json:"runs"`
	Wrong int `json:"wrong"`
	// Fault says what is wrong with it, Detail how that showed.
	Fault  Fault  `json:"fault,omitempty"`
	Detail string `json:"detail,omitempty"`
}

// Profile is what is known of a responder's and requester's byte orders, form by
// form: found by Probe, or assumed.
type Profile struct {
	Probed        bool   `json:"probed"`
	MaxAtomicSize int    `json:"max_atomic_size"`
	Forms         []Form `json:"forms"`
}

// Assume is the profile of a device that has not been probed: the orders of the
// facts, for a responder host like this one (rulings A1 and A3).
func Assume(c Caps) Profile {
	p := Profile{MaxAtomicSize: c.MaxAtomicSize()}
	for f := range c.forms() {
		f.Memory, f.Reply = HostOrder(), ReplyOrder(f.Size, c.Mode)
		p.Forms = append(p.Forms, f)
	}
	return p
}

// forms are the WQEs the device offers, plain ones first.
func (c Caps) forms() func(yield func(Form) bool) {
	return func(yield func(Form) bool) {
		for _, x := range []struct {
			op   prm.WQEOpcode
			kind Kind
			from int
		}{
			{prm.WQEAtomicCS, CompareSwap, 8},
			{prm.WQEAtomicFA, FetchAdd, 8},
			{prm.WQEAtomicMaskedCS, MaskedCompareSwap, 4},
			{prm.WQEAtomicMaskedFA, MaskedFetchAdd, 4},
		} {
			to := x.kind.MaxSize()
			if x.op == prm.WQEAtomicCS || x.op == prm.WQEAtomicFA {
				to = 8
			}
			for size := x.from; size <= to; size *= 2 {
				op := sample(x.kind, size, 0, nil)
				if c.Check(&op) != nil {
					continue
				}
				if !yield(Form{Opcode: x.op, Name: x.op.String(), Size: size}) {
					return
				}
			}
		}
	}
}

// Form finds a form; nil if the device does not offer it.
func (p *Profile) Form(op prm.WQEOpcode, size int) *Form {
	for i := range p.Forms {
		if f := &p.Forms[i]; f.Opcode == op && f.Size == size {
			return f
		}
	}
	return nil
}

// FormOf is the form that carries the operation, nil if the device does not offer
// it.
func (p *Profile) FormOf(o *Op) *Form {
	if o == nil {
		return nil
	}
	size := max(o.Size, 4)
	op := prm.WQEAtomicMaskedCS
	switch {
	case size == 8 && o.plain() && o.Kind.adds():
		op = prm.WQEAtomicFA
	case size == 8 && o.plain():
		op = prm.WQEAtomicCS
	case o.Kind.adds():
		op = prm.WQEAtomicMaskedFA
	}
	return p.Form(op, size)
}

// Encode encodes the operation in the order of the form that carries it, and
// tells in which order the reply will come.
func (p *Profile) Encode(r *Request, o *Op) (reply Order, err error) {
	if err := o.Check(); err != nil {
		return Unknown, err
	}
	f := p.FormOf(o)
	if f == nil {
		return Unknown, o.refuse(ErrNotOffered, "the device's capabilities lack the operation or the size; see its atomic capabilities")
	}
	if f.Memory > BigEndian || f.Reply > BigEndian {
		return Unknown, o.refuse(ErrOrder, fmt.Sprintf("the probe of %s with %d bytes found no byte order: %s", f.Name, f.Size, f.Detail))
	}
	return f.Reply, o.Encode(r, f.Memory)
}

// Order is the memory order of the operations that work on 4-byte words, and so
// that of 1- and 2-byte variables; Unknown if the device has none or its two forms
// differ.
func (p *Profile) Order() Order {
	o := Unknown
	for i := range p.Forms {
		f := &p.Forms[i]
		if f.Size != 4 {
			continue
		}
		if o != Unknown && f.Memory != o {
			return Unknown
		}
		o = f.Memory
	}
	return o
}

// Fault is the first form that is at fault, nil if there is none.
func (p *Profile) Fault() *Form {
	for i := range p.Forms {
		if p.Forms[i].Fault != NoFault {
			return &p.Forms[i]
		}
	}
	return nil
}

// Err is nil if no form is at fault.
func (p *Profile) Err() error {
	f := p.Fault()
	if f == nil {
		return nil
	}
	return &FaultError{Fault: f.Fault, Where: fmt.Sprintf("%s with %d bytes", f.Name, f.Size), Detail: f.Detail}
}

// FaultError says that a device does atomics wrong.
type FaultError struct {
	Fault  Fault
	Where  string
	Detail string
}

func (e *FaultError) Error() string {
	return fmt.Sprintf("%s: fault %s: %s; do not rely on atomics of this device and firmware, and report it to the vendor with its firmware version", e.Where, e.Fault, e.Detail)
}
