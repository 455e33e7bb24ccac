// Package litmus proves what a device guarantees: it lets several queue pairs, of
// one host or two, work on the same memory at once and judges by what memory and
// replies say afterwards. The result is a guarantee card.
//
//	Rig ── requesters (queue pairs, scratch memory) ──▶ target memory
//	 │
//	Run ── operations ─ each form against the reference, one at a time
//	       adds ─────── concurrent updates: none lost, neighbours untouched
//	       mutex ────── semaphores of 1, 2 and 4 bytes, released by CAS or WRITE
//	       linear ───── recorded histories have an order that explains them
//	       torn ─────── writes inside and across the boundary, seen half done?
//	       order ────── WRITE then SEND, WRITE then atomic, READ then atomic
//	 │
//	Card ── rows: what was tried, whether it held, and the fault if not
//
// A test never takes the device's word: each check follows from values that only
// a device which keeps the guarantee can produce. One goroutine drives all queue
// pairs in an order that the seed decides, and leaves their work in flight
// together; concurrency is the device's. Memory that is raced on purpose is read
// and written in aligned 64-bit atomic words.
//
// It touches no memory but what Build made, and starts no goroutine. A Bench belongs to
// one caller at a time.
package litmus
