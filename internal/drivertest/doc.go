// Package drivertest is the driver's test suite for any Transport: Run brings a
// function up and down in every way a user can, and after each test checks that
// nothing is left behind: no page with firmware, no mapping, no file descriptor,
// no goroutine. It runs over the model in process, over a vfio-user socket, and
// over the kernel's VFIO on real or emulated hardware.
package drivertest
