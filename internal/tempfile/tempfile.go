// Package tempfile cleans up after writers that were killed: who writes a file in
// one step (a temporary one beside it, renamed when it is whole) leaves the temporary
// one behind when the process dies in between, and nobody else would remove it.
package tempfile

import (
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Age is how long nobody has written to a file that counts as left behind. A writer
// that lives writes more often.
const Age = time.Hour

// Clean removes the regular files in dir whose names are prefix, digits as
// os.CreateTemp makes them, and suffix, and that nobody has written to since Age
// before now. Links are not followed, and whatever cannot be removed stays: this is
// housekeeping, beside the caller's own work. It answers how many went.
func Clean(dir, prefix, suffix string, now time.Time) int {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0
	}
	gone := 0
	for _, e := range entries {
		if !e.Type().IsRegular() || !made(e.Name(), prefix, suffix) {
			continue
		}
		if st, err := e.Info(); err != nil || now.Sub(st.ModTime()) < Age {
			continue
		}
		if os.Remove(filepath.Join(dir, e.Name())) == nil {
			gone++
		}
	}
	return gone
}

// made tells names that os.CreateTemp makes.
func made(name, prefix, suffix string) bool {
	mid, ok := strings.CutPrefix(name, prefix)
	if ok {
		mid, ok = strings.CutSuffix(mid, suffix)
	}
	return ok && mid != "" && strings.Trim(mid, "0123456789") == ""
}
