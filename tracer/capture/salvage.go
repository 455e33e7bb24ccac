package capture

import (
	"context"
	"encoding/binary"
)

// salvage looks for the next good record behind damage and answers a damage record
// for what it leaves out. Records begin at multiples of 8. A record counts only with
// its checksum, so damage is not mistaken for one.
func (r *Reader) salvage(ctx context.Context, rec *Record, why string) (given bool, err error) {
	from := r.off
	damage := func() {
		*rec = Record{Kind: KindDamage, Offset: from, Damage: Damage{From: from, To: r.off, Why: why}}
		r.db = dbParts{}
	}
	for step := align; ; step = align {
		ok, err := r.fill(ctx, step+recordHeader)
		if err != nil {
			return false, err
		}
		if !ok {
			r.use(len(r.have))
			damage()
			_ = r.fail(ErrDamaged, why+"; no good record comes after it") // for the next call
			return true, nil
		}
		r.use(step)
		if headerFault(r.have) != "" || kindNames[Kind(r.have[6])] == "" || Kind(r.have[6]) == KindDamage {
			continue
		}
		total := recordHeader + int(binary.BigEndian.Uint32(r.have[8:]))
		if ok, err = r.fill(ctx, padded(total)); err != nil {
			return false, err
		}
		if ok && recordSum(r.have[:total]) == binary.BigEndian.Uint32(r.have) {
			r.seq = binary.BigEndian.Uint32(r.have[12:])
			damage()
			return true, nil
		}
	}
}
