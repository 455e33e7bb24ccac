package atomics

import (
	"errors"
	"fmt"
)

// Sentinels, found with errors.Is inside *OpError.
var (
	// ErrSize: no operation of this kind has such a size.
	ErrSize = errors.New("no such argument size")
	// ErrUnaligned: the target is not aligned to its size.
	ErrUnaligned = errors.New("target is not aligned to its size")
	// ErrCrosses: a 2-byte target lies in two 4-byte words.
	ErrCrosses = errors.New("target crosses a 4-byte word")
	// ErrOverflow: an operand has bits outside the variable.
	ErrOverflow = errors.New("operand does not fit the variable")
	// ErrOperand: an operand is missing, or given to an operation without it.
	ErrOperand = errors.New("operand does not belong to the operation")
	// ErrOrder: the byte order of the device is not known.
	ErrOrder = errors.New("byte order of the device is unknown")
	// ErrKind: no such operation.
	ErrKind = errors.New("no such operation")
	// ErrNotOffered: the device does not offer the operation or the size.
	ErrNotOffered = errors.New("the device does not offer it")
	// ErrStuck: the device completed nothing for too long.
	ErrStuck = errors.New("no completion")
	// ErrNotAtomic: the write would be carried out in pieces.
	ErrNotAtomic = errors.New("the write is not atomic")
)

// OpError says that an operation was refused before anything was posted.
type OpError struct {
	Kind Kind
	Size int    // bytes of the variable
	Addr uint64 // of the variable in the responder's memory
	// Field names the operand that is wrong, Value is what it was; Field is empty
	// where the fault is not one operand's.
	Field string
	Value uint64
	Err   error
	// Remedy is one line: what to do about it.
	Remedy string
}

// Error gives one line: the operation, the field, the reason and the remedy.
func (e *OpError) Error() string {
	s := fmt.Sprintf("%s of %d byte%s at 0x%x", e.Kind, e.Size, plural(e.Size), e.Addr)
	if e.Field != "" {
		s += fmt.Sprintf(": %s 0x%x", e.Field, e.Value)
	}
	s += ": " + e.Err.Error()
	if e.Remedy != "" {
		s += "; " + e.Remedy
	}
	return s
}

// Unwrap gives the reason to errors.Is.
func (e *OpError) Unwrap() error { return e.Err }

func plural(n int) string {
	if n == 1 {
		return ""
	}
	return "s"
}
