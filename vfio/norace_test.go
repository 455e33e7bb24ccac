//go:build !race

package vfio_test

const raceBuild = false
