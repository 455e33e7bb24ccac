//go:build race

package health_test

// raceBuild: the race detector allocates on its own account.
const raceBuild = true
