package main

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestServeLinkRefused: what will never be the other end of the wire ends serve with
// the reason; a wire that is full is named in the ready line, and taken when one of
// its ends leaves.
func TestServeLinkRefused(t *testing.T) {
	dir := socketDir(t)
	at := func(name string) string { return filepath.Join(dir, name) }
	wire := at("w")
	first := start(t, "serve", "cx5,port=ib", "--socket", at("1"), "--link", wire, "--control", at("c"))
	first.says("(nobody at the other end)\n")

	o := cli(t, "serve", "cx5,port=eth", "--socket", at("2"), "--link", wire)
	refuses(t, o, exitUnavailable, wire, "the other end has an ib port, this one an eth port", "give both the same port=")
	require.Empty(t, o.out, "it is not ready")
	require.NoFileExists(t, at("2"))
	require.Contains(t, works(t, "tell", at("c"), "state"), "\nend 0 of the wire "+wire+" (not up: the other end has an eth port, this one an ib port; give both the same port=)\n")

	for _, other := range []string{at("1"), at("c")} { // a function's socket, a control socket
		o = cli(t, "serve", "cx5", "--socket", at("2"), "--link", other, "--json")
		require.Equal(t, exitUnavailable, o.code, "%s%s", o.out, o.err)
		require.Empty(t, o.out)
		var e errorLine
		require.NoError(t, json.Unmarshal([]byte(o.err), &e))
		require.Contains(t, e.Error, other+": what is at the other end is no link")
		require.Contains(t, e.Remedy, "the same path to the links of two models")
	}
	works(t, "info", "vfio-user:"+at("1")) // it bore that

	second := start(t, "serve", "cx5,port=ib,seed=2", "--socket", at("2"), "--link", wire)
	second.says("end 1 of the wire " + wire + " (up)\n")
	third := start(t, "serve", "cx5,port=ib,seed=3", "--socket", at("3"), "--link", wire, "--control", at("d"), "--json")
	l := decodeOne(t, "serve/1", third.says("\n"))["link"].(map[string]any)
	require.Equal(t, false, l["connected"])
	require.Contains(t, l["reason"], "another model may have this end")
	require.Contains(t, l["remedy"], "wait until one leaves")
	require.Contains(t, works(t, "tell", at("d"), "state"), "(not up: the other end was reached and says nothing")

	require.NoError(t, second.cmd.Process.Signal(syscall.SIGTERM))
	require.Equal(t, exitOK, second.ends().code)
	require.Eventually(t, func() bool {
		return strings.Contains(works(t, "tell", at("d"), "state"), "\nend 1 of the wire "+wire+" (up)\n")
	}, 20*time.Second, 10*time.Millisecond)
	for _, p := range []*program{first, third} {
		require.NoError(t, p.cmd.Process.Signal(syscall.SIGTERM))
		require.Equal(t, exitOK, p.ends().code)
	}
}
