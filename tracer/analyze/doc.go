// Package analyze makes statistics of the messages of a trace: how often and how
// regularly each comes, where there are bursts and silences, and what differs between
// two captures.
//
//	first pass:  messages, gaps, clock samples → Stats → Result
//	second pass: the same again → Finder → Findings (with the thresholds of the first)
//	two Results → Compare → Diff
//
// Memory does not grow with the length of a trace: quantiles are exact up to
// ExactIntervals intervals of a group and come from a histogram with QuantileError
// beyond, the number of groups is bounded, and of findings the most severe are kept.
// docs/tracer.md states every definition.
//
// A Stats or Finder belongs to one goroutine; a Result is not changed any more and may be
// shared. Nothing is read or written here, and no interval is taken across a gap.
package analyze
