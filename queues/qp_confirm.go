package queues

import (
	"context"
	"fmt"
	"time"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// abandonLimit bounds what a creation that failed may spend on undoing.
const abandonLimit = 30 * time.Second

// ContextError says that the device accepted a command and did not take a field
// of it: QUERY_QP reads something else. Without the field the queue pair would not
// keep its promises, so it is not handed out.
type ContextError struct {
	QPN uint32
	// Opcode is the last command that carried the field.
	Opcode prm.Opcode
	Field  string
	Wanted uint64
	Got    uint64
	Remedy string
}

// Error names the field, what was asked for, and what the device has.
func (e *ContextError) Error() string {
	return fmt.Sprintf("%v of QP %#x: the device did not take %s: wanted %d, QUERY_QP reads %d; %s", e.Opcode, e.QPN, e.Field, e.Wanted, e.Got, e.Remedy)
}

// compare checks the fields that atomics and atomic writes depend on. op is the
// last command that carried them.
func (q *QP) compare(op prm.Opcode, s *QPStatus) error {
	if s.AtomicWrites != q.writes {
		return &ContextError{QPN: q.number, Opcode: op, Field: "atomic_like_write_en", Wanted: bit(q.writes), Got: bit(s.AtomicWrites),
			Remedy: "this device or firmware does not carry out writes atomically; create the queue pair with NoAtomicWrites and keep to atomics, or update the firmware"}
	}
	if s.AtomicMode != q.mode {
		return &ContextError{QPN: q.number, Opcode: op, Field: "atomic_mode", Wanted: uint64(q.mode), Got: uint64(s.AtomicMode),
			Remedy: fmt.Sprintf("create the queue pair with an AtomicMode of %d, or update the firmware", s.AtomicMode)}
	}
	return nil
}

func bit(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

// confirm reads a new queue pair's context back. A device may take the atomic
// fields with CREATE_QP or only with RST2INIT, together with rae, as GPU
// libraries send them; so if they are not there yet, the queue pair goes to INIT
// and back. atomic_mode may come as late as INIT2RTR: ToRTR looks again.
func (q *QP) confirm(ctx context.Context) error {
	s, err := q.Query(ctx)
	if err != nil {
		return err
	}
	if q.compare(prm.OpCreateQP, &s) == nil {
		return nil
	}
	if err := q.ToInit(ctx, InitAttr{}); err != nil {
		return err
	}
	if s, err = q.Query(ctx); err != nil {
		return err
	}
	s.AtomicMode = q.mode // not before INIT2RTR, if at all
	if err := q.compare(prm.OpRst2InitQP, &s); err != nil {
		return err
	}
	return q.Reset(ctx)
}
