// Package vfiotest holds what tests of a vfio.Transport and of its users need:
// Run, the contract every Transport keeps; RAM, a device that is nothing but
// memory behind a BAR; and Mapper, an I/O address space in this process.
package vfiotest
