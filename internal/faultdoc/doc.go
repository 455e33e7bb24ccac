// Package faultdoc writes what table tests of faults really observed into
// docs/testing.md, and fails a test whose table there says anything else. A row is
// one fault at one stage: the test announces it, marks that the fault was raised,
// and tells what it saw. A row that was announced and not raised, or not observed,
// fails the test, so that no line of the document is a promise.
//
// A section of the document stands between two markers:
//
//	<!-- faults: bring-up -->
//	<!-- /faults -->
//
// With MLXVFIO_UPDATE=1 in the environment (make faults) Check writes the section
// instead of comparing it.
package faultdoc
