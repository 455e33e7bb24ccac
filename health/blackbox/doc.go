// Package blackbox is the file that keeps what a sick device was last seen doing:
// named sections of bytes under checksums, in a format that docs/blackbox.md
// states so that other tools can read it. Write makes a bundle in one atomic
// step, before a recovery destroys the evidence; a Recorder keeps a file up to
// date so that the last sample outlives the process. Read takes either, and says
// what is damaged instead of failing on it. The package knows nothing of the
// device: what stands in the sections is package health's business.
//
// Write, Read and Parse keep no state; a Recorder is safe for concurrent use and starts
// no goroutine. What is read is taken for data of unknown origin: sizes are bounded, and
// nothing is believed without its checksum. The file of
// an earlier Recorder is evidence: it is moved aside, not overwritten.
package blackbox
