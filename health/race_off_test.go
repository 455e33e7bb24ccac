//go:build !race

package health_test

// raceBuild: see race_on_test.go.
const raceBuild = false
