//go:build race

package mlxvfio_test

const raceBuild = true
