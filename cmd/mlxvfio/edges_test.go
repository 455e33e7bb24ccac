package main

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestSocketPaths: what a socket cannot be made at, or found at, is left as it is, and
// said with what helps.
func TestSocketPaths(t *testing.T) {
	dir := socketDir(t)
	t.Chdir(dir) // short paths
	require.NoError(t, os.WriteFile("file", []byte("precious"), 0o600))
	require.NoError(t, os.Mkdir("folder", 0o700))
	long := strings.Repeat("x", 108)
	live, err := net.Listen("unix", "live")
	require.NoError(t, err)
	defer live.Close()
	for _, x := range []struct {
		path string
		code int
		word string // of the remedy
	}{
		{"file", exitUnavailable, "use another path"},
		{"folder", exitUnavailable, "use another path"},
		{"absent/s", exitUnavailable, "mkdir -p absent"},
		{"file/s", exitUnavailable, "use a path in a folder"},
		{"live", exitUnavailable, "use another path"},
		{long, exitUsage, "use a shorter path"},
	} {
		for _, flags := range [][]string{{"--socket", x.path}, {"--socket", "fine", "--control", x.path}} {
			args := append([]string{"serve", "sim"}, flags...)
			refuses(t, cli(t, args...), x.code, x.path+": ", x.word)
			e := decodeOne(t, "error/1", cli(t, append(args, "--json")...).err)
			require.EqualValues(t, x.code, e["exit"])
			require.Contains(t, e["remedy"], x.word)
		}
	}
	for _, x := range []struct {
		args []string
		code int
		word string
	}{
		{[]string{"serve", "sim", "--socket", "fine", "--link", "file"}, exitUnavailable, "no socket"},
		{[]string{"serve", "sim", "--socket", "fine", "--link", "folder"}, exitUnavailable, "no socket"},
		{[]string{"serve", "sim", "--socket", "fine", "--link", long}, exitUsage, "use a shorter path"},
		{[]string{"info", "vfio-user:file"}, exitUnavailable, "it is no socket"},
		{[]string{"info", "vfio-user:folder"}, exitUnavailable, "it is no socket"},
		{[]string{"info", "vfio-user:" + long}, exitUsage, "use a shorter path"},
		{[]string{"tell", "file", "state"}, exitUnavailable, "it is no socket"},
		{[]string{"tell", "folder", "state"}, exitUnavailable, "it is no socket"},
		{[]string{"tell", long, "state"}, exitUsage, "use a shorter path"},
		{[]string{"tell", "", "state"}, exitUsage, "PATH is empty"},
		{[]string{"tell", "live", ""}, exitUsage, "no word to tell"},
		{[]string{"serve", "--list", "--socket", "fine"}, exitUsage, "serves nothing"},
	} {
		refuses(t, cli(t, x.args...), x.code, x.word)
	}
	b, err := os.ReadFile("file")
	require.NoError(t, err)
	require.Equal(t, "precious", string(b))
	require.DirExists(t, "folder")
	require.NoFileExists(t, "fine")
}

// TestWayFlags: the flags about the way into a function of this machine are refused
// wherever no such function has to do with the verb.
func TestWayFlags(t *testing.T) {
	_, where := machine(t)
	dump := filepath.Join(t.TempDir(), "dump")
	require.NoError(t, os.WriteFile(dump, []byte(works(t, "caps", "sim", "--json")), 0o600))
	refused := [][]string{
		{"info", "sim"}, {"selftest"}, {"selftest", "sim:cx7"}, {"caps", "sim"}, {"caps", "--diff", "sim", "sim:cx7"}, {"caps", "--diff", dump, "sim"},
		{"exec", "sim", "NOP"}, {"reg", "get", "sim", "PAOS"}, {"atomic", "probe", "sim"}, {"litmus", "sim", "--peer", "sim"}, {"bench", "vfio-user:/nowhere"},
		{"health", "show", "sim"}, {"health", "show", "sysfs:" + testBDF}, {"health", "dump", dump}, {"trace", "record", "sim", "-o", "x"}, {"trace", "decode", dump},
		{"serve", "sim", "--socket", filepath.Join(socketDir(t), "s")}, {"serve", "--list"}, {"tell", "x", "state"}, {"microbench", "post"}, {"atomic", "table"},
		{"completion", "bash"}, {"man"}, {"version"},
	}
	for _, args := range refused {
		for _, way := range [][]string{{"--unsafe-noiommu"}, {"--backend", "type1"}, {"--unsafe-noiommu", "--backend", "noiommu"}} {
			o := cliOn(t, where, append(args, way...)...)
			refuses(t, o, exitUsage, way[0], "for functions of this machine (a BDF), not for ")
			require.Empty(t, o.out)
		}
	}
	for _, args := range [][]string{{"list"}, {"doctor", testBDF}, {"info", testBDF}, {"caps", "--diff", testBDF, "sim"}, {"caps", "--diff", "sim", testBDF},
		{"litmus", testBDF, "--peer", "vfio-user:/nowhere"}, {"litmus", "vfio-user:/nowhere", "--peer", testBDF}, {"bind", "0000:ff:1f.7"}, {"unbind", "0000:ff:1f.7"}} {
		require.NotEqual(t, exitUsage, cliOn(t, where, append(args, "--backend", "type1", "--unsafe-noiommu")...).code, "%v", args)
	}
	refuses(t, cli(t, "info", "nosuch", "--unsafe-noiommu"), exitUsage, `"nosuch" is no device`)
	works(t, "trace", "--backend", "auto")
}

// TestNothingGiven: an empty word, as a shell's unset variable gives it, is not the
// same as a flag that was left out; nor is nothing where the flag wants some.
func TestNothingGiven(t *testing.T) {
	for _, args := range [][]string{
		{"info", "sim", "--record"}, {"info", "sim", "--log-level"}, {"litmus", "sim", "--peer"}, {"atomic", "probe", "sim", "--peer"}, {"caps", "sim", "--type"},
		{"caps", "sim", "--set"}, {"exec", "sim", "NOP", "--in"}, {"health", "watch", "sim", "--metrics"}, {"health", "watch", "sim", "--blackbox"},
		{"health", "dump", "sim", "--out"}, {"health", "dump", "sim", "--section"}, {"trace", "decode", "x", "--match"}, {"trace", "stat", "x", "--against"},
	} {
		flag := args[len(args)-1]
		refuses(t, cli(t, append(args, "")...), exitUsage, flag+" is empty")
		refuses(t, cli(t, append(args[:len(args)-1:len(args)-1], flag+"=")...), exitUsage, flag+" is empty")
	}
	for _, args := range [][]string{
		{"litmus", "sim", "--runs", "0"}, {"litmus", "sim", "--queues", "0"}, {"litmus", "sim", "--for", "0s"}, {"health", "watch", "sim", "--for", "0"},
		{"health", "recover", "sim", "--rung-timeout", "0"}, {"trace", "record", "sim", "-o", "x", "--for", "0s"}, {"trace", "record", "sim", "-o", "x", "--queue", "0"},
		{"trace", "decode", "x", "--hz", "0"},
	} {
		refuses(t, cli(t, args...), exitUsage, args[len(args)-2], "is nothing")
	}
	require.NoFileExists(t, "x")
}

// TestWordsOfValues: a value of the wrong kind is refused in the words of the user, not
// in those of Go's packages.
func TestWordsOfValues(t *testing.T) {
	for _, x := range [][]string{
		{"litmus sim --seed=-5", "--seed", "a whole number from 0"}, {"litmus sim --runs=x", "--runs", "a whole number"},
		{"info sim --command-slots=99999999999999999999", "--command-slots", "a whole number"}, {"info sim --timeout=soon", "--timeout", "a time such as"},
		{"bench sim --batch=x", "--batch", "whole numbers with commas"}, {"microbench cmd --latency=x", "--latency", "times with commas"},
		{"trace decode x --hz=x", "--hz", "a number"}, {"list --all=maybe", "--all", "true or false"},
	} {
		o := cli(t, strings.Fields(x[0])...)
		refuses(t, o, exitUsage, x[1:]...)
		for _, word := range []string{"strconv", "time:", "syntax", "pars"} {
			require.NotContains(t, o.err, word)
		}
	}
}

// TestFilesThatAreOthers: what is no ordinary file, or is read at the same time, is not
// written over, and a folder is no file.
func TestFilesThatAreOthers(t *testing.T) {
	dir := t.TempDir()
	capture := filepath.Join(dir, "a.mlxt")
	works(t, "trace", "record", "sim,load=1000", "-o", capture, "--for", "100ms")
	before, err := os.ReadFile(capture)
	require.NoError(t, err)
	link := filepath.Join(dir, "link")
	require.NoError(t, os.Link(capture, link))
	refuses(t, cli(t, "trace", "export", capture, "--format", "csv", "-o", capture), exitUsage, "written over")
	refuses(t, cli(t, "trace", "report", capture, "--html", link), exitUsage, "written over")
	after, err := os.ReadFile(capture)
	require.NoError(t, err)
	require.Equal(t, before, after)

	refuses(t, cli(t, "trace", "record", "sim", "-o", filepath.Join(dir, "x"), "--queue", "99999999999"), exitUsage, "--queue")
	refuses(t, cli(t, "trace", "record", "sim", "-o", filepath.Join(dir, "x"), "--wait", "-1s"), exitUsage, "--wait")
	refuses(t, cli(t, "trace", "decode", capture, "--device", "0000:3b:00.0"), exitUsage, "--device")
	refuses(t, cli(t, "trace", "decode", ""), exitUsage, "FILE is empty")
	refuses(t, cli(t, "selftest", "--list-stages", "sim"), exitUsage, "leave sim out")
	refuses(t, cli(t, "health", "watch", "sim", "--metrics", "127.0.0.1:99999"), exitUsage, "--metrics")

	refuses(t, cli(t, "trace", "decode", dir), exitUnavailable, "is a directory")
	refuses(t, cli(t, "trace", "record", "sim", "-o", dir, "--force"), exitUnavailable, "is a directory")
	refuses(t, cli(t, "health", "dump", "sim", "--out", dir), exitUnavailable, dir)
	refuses(t, cli(t, "health", "dump", dir), exitUnavailable, "no regular file")
	refuses(t, cli(t, "health", "dump", "/dev/null"), exitUnavailable, "no regular file")
	refuses(t, cli(t, "health", "dump", "nosuch"), exitUsage, "no device", "no file")
}
