package main

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/mlxvfio/mlxvfio/internal/absent"
	"github.com/stretchr/testify/require"
)

// bashWords breaks a line as bash does for COMP_WORDS: at blanks, and around the
// characters of COMP_WORDBREAKS, of which a run is a word of its own.
func bashWords(line string) []string {
	const breaks = ":=@"
	var words []string
	cur, kind := "", ' '
	flush := func() {
		if cur != "" {
			words = append(words, cur)
		}
		cur = ""
	}
	for _, r := range line {
		k := 'w'
		switch {
		case r == ' ':
			k = ' '
		case strings.ContainsRune(breaks, r):
			k = 'b'
		}
		if k != kind {
			flush()
		}
		kind = k
		if k != ' ' {
			cur += string(r)
		}
	}
	flush()
	if kind == ' ' {
		words = append(words, "")
	}
	return words
}

// bashOn sources the script in a real bash, presses TAB at the end of the line, and gives
// what the line's last part can be replaced with.
func bashOn(t *testing.T, line, more string) []string {
	t.Helper()
	bash, err := exec.LookPath("bash")
	if err != nil {
		absent.Skip(t, "completion in bash", "bash is not in PATH")
	}
	dir := t.TempDir()
	self, err := filepath.Abs(os.Args[0])
	require.NoError(t, err)
	require.NoError(t, os.Symlink(self, filepath.Join(dir, "mlxvfio")))
	script := filepath.Join(dir, "script")
	require.NoError(t, os.WriteFile(script, bashScript, 0o600))
	quoted := ""
	for _, w := range bashWords(line) {
		quoted += " " + quote(w)
	}
	code := `set -u; source "$1"; COMP_WORDBREAKS=$' \t\n"\'@><=;|&(:'; COMP_TYPE=9; COMP_KEY=9; COMP_LINE=` + quote(line) +
		`; COMP_POINT=` + strconv.Itoa(len(line)) + `; COMP_WORDS=(` + quoted + `); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); COLUMNS=100; ` + more + `
__mlxvfio_complete mlxvfio "${COMP_WORDS[COMP_CWORD]}" x
(( ${#COMPREPLY[@]} )) && printf '%s\n' "${COMPREPLY[@]}"; exit 0`
	cmd := exec.Command(bash, "--norc", "--noprofile", "-c", code, "bash", script)
	cmd.Env = append(os.Environ(), asProgram+"=1", "PATH="+dir+":"+os.Getenv("PATH"))
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	require.NoError(t, err, errs.String())
	require.Empty(t, errs.String(), "nothing may be said while somebody types")
	return slices.DeleteFunc(strings.Split(string(out), "\n"), func(s string) bool { return s == "" })
}

func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// TestBashCompletes presses TAB in a real bash. Bash replaces only what stands behind the
// last of its word breaks, so that is what has to come.
func TestBashCompletes(t *testing.T) {
	t.Chdir(t.TempDir())
	l, err := net.Listen("unix", "cx5.sock")
	require.NoError(t, err)
	defer func() { require.NoError(t, l.Close()) }()

	for line, want := range map[string][]string{
		"mlxvfio inf":                              {"info"},
		"mlxvfio trace rec":                        {"record"},
		"mlxvfio info sim:cx7":                     {"cx7"},
		"mlxvfio info sim:cx5,port=":               {"ib", "eth"},
		"mlxvfio info sim:cx5,port=e":              {"eth"},
		"mlxvfio info sim,fault=torn-w":            {"torn-write"},
		"mlxvfio info sim,fault=late@QUERY_ADA":    {"QUERY_ADAPTER"},
		"mlxvfio info vfio-user:":                  {"cx5.sock"},
		"mlxvfio info vfio-user:cx5":               {"cx5.sock"},
		"mlxvfio reg set sim PAOS admin_status=DO": {"DOWN"},
		"mlxvfio reg set sim PAOS admin_st":        {"admin_status="},
		"mlxvfio exec sim query_ada":               {"QUERY_ADAPTER"},
		"mlxvfio bench sim --op write,r":           {"write,read"},
		"mlxvfio trace export a --format=pa":       {"parquet"},
		"mlxvfio health recover sim --max-level f": {"flr"},
		"mlxvfio info --timeout ":                  nil,
		"mlxvfio nosuch ":                          nil,
		"nosuchprogram inf":                        nil,
	} {
		got := bashOn(t, line, "")
		if len(got) > 1 {
			for i := range got {
				got[i], _, _ = strings.Cut(got[i], " ")
			}
		}
		require.Equal(t, len(want), len(got), "%s: %q", line, got)
		require.ElementsMatch(t, want, got, line)
	}

	require.Equal(t, []string{"--format=parquet"}, bashOn(t, "mlxvfio trace export a --format=pa",
		"COMP_WORDBREAKS=$' \t\n'; COMP_WORDS=(mlxvfio trace export a --format=pa); COMP_CWORD=4"), "somebody who has no '=' in COMP_WORDBREAKS")
	many := bashOn(t, "mlxvfio info sim:cx5,fault=la", "")
	require.Len(t, many, 2)
	require.Regexp(t, `^late@ +\(\[OPCODE\]\[#N\|%P\]=DURATION: matching commands complete that much later\)$`, many[0])
	for _, m := range bashOn(t, "mlxvfio info sim:cx5,fault=", "COLUMNS=60") {
		require.LessOrEqual(t, len(m), 60)
	}
	for _, m := range bashOn(t, "mlxvfio info sim:cx5,fault=la", "COMP_TYPE=37") {
		require.NotContains(t, m, " ", "a menu puts what it shows into the line")
	}
}

// TestBashRunsNothing: what was typed is handed over, not expanded.
func TestBashRunsNothing(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, line := range []string{"mlxvfio info $(touch${IFS}ran) ", "mlxvfio info `touch${IFS}ran` ", "mlxvfio exec sim NOP --in $(touch${IFS}ran"} {
		bashOn(t, line, "")
		require.NoFileExists(t, "ran", line)
	}
}

// TestBashInTheMiddle completes the word at the cursor, whatever stands behind it.
func TestBashInTheMiddle(t *testing.T) {
	got := bashOn(t, "mlxvfio hea", "COMP_LINE='mlxvfio health'; COMP_WORDS=(mlxvfio health); COMP_POINT=11")
	require.Equal(t, []string{"health"}, got)
}
