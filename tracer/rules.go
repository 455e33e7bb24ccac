package tracer

import (
	"fmt"
	"math/bits"

	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/tracer/trace"
)

// Conditions that a trace buffer and its memory key have to keep, by the names that
// BufferError uses. Alignment, MTT, local write and no remote rights are what Linux
// does; that a key must not be UMR-capable, indirect or signed is said in public only
// without a source, and kept all the same.
const (
	RuleSize      = "size"          // 4096 << n bytes, n ≤ log_max_trace_buffer_size
	RuleAligned   = "alignment"     // bus address and start of the key multiples of 4096
	RuleKey       = "key"           // the key in use, as firmware knows it
	RuleMTT       = "mtt"           // access mode MTT
	RuleIndirect  = "indirect"      // no key over other keys (KLM, KSM)
	RuleLocalW    = "local_write"   // lw
	RuleLocalR    = "local_read"    // lr, as Linux has it
	RuleUMR       = "umr"           // umr_en 0
	RuleSignature = "signature"     // bsf_en, bsf_octword_size and expected_sigerr_count 0
	RuleRemoteR   = "remote_read"   // rr 0
	RuleRemoteW   = "remote_write"  // rw 0
	RuleRemoteA   = "remote_atomic" // a 0
	RuleQP        = "qpn"           // 0xffffff: no QP of its own
	RulePage      = "page_size"     // log_page_size 12 or more
	RuleLength    = "length"        // the key covers the buffer
	RuleTable     = "translations"  // the table covers the key
)

// Rules lists the names.
func Rules() []string {
	return []string{
		RuleSize, RuleAligned, RuleKey, RuleMTT, RuleIndirect, RuleLocalW, RuleLocalR, RuleUMR, RuleSignature,
		RuleRemoteR, RuleRemoteW, RuleRemoteA, RuleQP, RulePage, RuleLength, RuleTable,
	}
}

// LogSize is what MTRC_CONF takes for a buffer of size bytes: log2 in units of 4096.
// ok is false for a size that is none.
func LogSize(size uint64) (log uint8, ok bool) {
	if size < unit || size&(size-1) != 0 {
		return 0, false
	}
	return uint8(bits.TrailingZeros64(size) - unitLog), true
}

// anyQPN in a memory key: it belongs to no QP.
const anyQPN = 0xffffff

// CheckBuffer tests a trace buffer of size bytes at a bus address, under a memory key
// whose context is m, against every condition. logMax is MTRC_CAP's
// log_max_trace_buffer_size. The error is a *BufferError with all that are broken.
func CheckBuffer(iova, size uint64, key uint32, m *prm.MKC, logMax uint8) error {
	var e BufferError
	broken := func(is bool, rule, format string, args ...any) {
		if is {
			e.Violations = append(e.Violations, Violation{rule, fmt.Sprintf(format, args...)})
		}
	}
	log, ok := LogSize(size)
	broken(!ok, RuleSize, "%d bytes; give a power of two, 4096 or more", size)
	broken(ok && log > logMax, RuleSize, "%d bytes; the device takes %d at most", size, uint64(unit)<<min(logMax, 63-unitLog))
	broken(iova%unit != 0, RuleAligned, "the bus address %#x is no multiple of 4096", iova)
	broken(m.StartAddr()%unit != 0, RuleAligned, "the key starts at %#x, no multiple of 4096", m.StartAddr())
	broken(m.Free(), RuleKey, "%#x has no content", key)
	broken(m.MKey7_0() != uint8(key), RuleKey, "%#x is stale: firmware has the variant %#x", key, m.MKey7_0())
	mode := prm.AccessMode(m.AccessMode4_2()<<2 | m.AccessMode1_0())
	broken(mode == prm.AccessModeKLMs || mode == prm.AccessModeKSM, RuleIndirect, "the key is made of other keys (access mode %v)", mode)
	broken(mode != prm.AccessModeMTT, RuleMTT, "access mode %v", mode)
	broken(!m.Lw(), RuleLocalW, "the device may not write (lw 0)")
	broken(!m.Lr(), RuleLocalR, "lr is 0")
	broken(m.UMREn(), RuleUMR, "a work request may change the key (umr_en 1)")
	broken(m.BSFEn(), RuleSignature, "bsf_en is 1")
	broken(m.BSFOctwordSize() != 0, RuleSignature, "bsf_octword_size is %d", m.BSFOctwordSize())
	broken(m.ExpectedSigerrCount(), RuleSignature, "expected_sigerr_count is 1")
	broken(m.Rr(), RuleRemoteR, "a peer may read (rr 1)")
	broken(m.Rw(), RuleRemoteW, "a peer may write (rw 1)")
	broken(m.A(), RuleRemoteA, "a peer may do atomics (a 1)")
	broken(m.QPN() != anyQPN, RuleQP, "the key belongs to QP %#x", m.QPN())
	broken(m.LogPageSize() < unitLog, RulePage, "pages of 2^%d bytes", m.LogPageSize())
	broken(!m.Length64() && m.Len() < size, RuleLength, "the key covers %#x bytes, the buffer has %#x", m.Len(), size)
	if s := m.LogPageSize(); s >= unitLog && s < 64 {
		pages := (m.StartAddr()+size-1)>>s - m.StartAddr()>>s + 1
		broken(uint64(m.TranslationsOctwordSize()) < (pages+1)/2, RuleTable,
			"%d entries in the table, %d pages of 2^%d bytes", 2*uint64(m.TranslationsOctwordSize()), pages, s)
	}
	if len(e.Violations) != 0 {
		return &e
	}
	return nil
}

// blocksOf is the number of blocks of a buffer.
func blocksOf(size int) uint64 { return uint64(size / trace.BlockSize) }
