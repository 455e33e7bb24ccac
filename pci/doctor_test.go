package pci_test

import (
	"context"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/pci"
	"github.com/mlxvfio/mlxvfio/pci/pcitest"
)

// readOnly fails the test on every call that changes something.
type readOnly struct {
	pci.FS
	t *testing.T
}

func (r readOnly) no(what, name string) error {
	r.t.Errorf("the doctor must only read, and wants to %s %s", what, name)
	return fs.ErrPermission
}
func (r readOnly) WriteAttr(n string, _ []byte) error                { return r.no("write", n) }
func (r readOnly) MkdirAll(n string, _ fs.FileMode) error            { return r.no("make", n) }
func (r readOnly) WriteSync(n string, _ []byte, _ fs.FileMode) error { return r.no("write", n) }
func (r readOnly) Rename(n, _ string) error                          { return r.no("rename", n) }
func (r readOnly) Remove(n string) error                             { return r.no("remove", n) }

func ids(d *pci.Diagnosis) (out []pci.FindingID) {
	for _, f := range d.Findings {
		out = append(out, f.ID)
	}
	return out
}

func severity(id pci.FindingID) pci.Severity {
	for _, f := range pci.Findings() {
		if f.ID == id {
			return f.Severity
		}
	}
	return ""
}

// Each tree produces its findings and no other, with what was seen, why it
// matters, and a remedy that a shell understands.
func TestDiagnose(t *testing.T) {
	for _, s := range pcitest.Cases() {
		t.Run(s.Name, func(t *testing.T) {
			tr, o := s.Build(t)
			o.FS = readOnly{o.FS, t}
			d, err := pci.Diagnose(bdf(t, port), o)
			require.NoError(t, err)
			require.ElementsMatch(t, s.Want, ids(d), "%+v", d.Findings)
			require.Equal(t, s.Verdict, d.Verdict())
			if s.Way != "" {
				require.Equal(t, s.Way, d.Way.Backend, d.Way.Reason)
				require.NotEmpty(t, d.Way.Reason)
			}
			blocks := slices.ContainsFunc(s.Want, func(id pci.FindingID) bool { return severity(id) == pci.Blocks })
			require.Equal(t, !blocks, d.Ready())
			require.Equal(t, blocks, len(d.Needs()) > 0)
			if s.Unseen == "" {
				require.Empty(t, d.Unseen)
			} else {
				require.Contains(t, strings.Join(d.Unseen, "\n"), s.Unseen)
			}
			for i, f := range d.Findings {
				require.NotEmpty(t, f.Seen)
				require.NotEmpty(t, f.Why)
				require.NotContains(t, f.Seen+f.Remedy, "\n")
				requireShell(t, f.Remedy)
				if i > 0 {
					require.False(t, f.Severity == pci.Blocks && d.Findings[i-1].Severity != pci.Blocks, "what blocks comes first: %v", ids(d))
				}
			}
			if s.Seen == "" && s.Remedy == "" {
				return
			}
			i := slices.IndexFunc(d.Findings, func(f pci.Finding) bool { return f.ID == s.Want[0] })
			require.Contains(t, d.Findings[i].Seen, tr.At(s.Seen))
			require.Contains(t, d.Findings[i].Remedy, tr.At(s.Remedy))
		})
	}
}

// requireShell: a remedy is a command line.
func requireShell(t *testing.T, remedy string) {
	t.Helper()
	command, _, _ := strings.Cut(remedy, "  # ")
	require.NotEmpty(t, strings.TrimSpace(command), remedy)
	out, err := exec.Command("sh", "-n", "-c", remedy).CombinedOutput()
	require.NoError(t, err, "%s: %s", remedy, out)
	require.Regexp(t, `^[a-z0-9_-]+ `, command, "a command and its arguments")
}

// Every finding of the catalogue has a tree that produces it, and its words.
func TestEveryFindingIsProduced(t *testing.T) {
	produced := map[pci.FindingID]bool{}
	for _, s := range pcitest.Cases() {
		for _, id := range s.Want {
			produced[id] = true
		}
	}
	seen := map[pci.FindingID]bool{}
	for _, f := range pci.Findings() {
		require.True(t, produced[f.ID], "no tree produces %s", f.ID)
		require.False(t, seen[f.ID], "%s stands twice", f.ID)
		seen[f.ID] = true
		require.NotEmpty(t, f.Title, f.ID)
		require.NotEmpty(t, f.Why, f.ID)
		require.Equal(t, f.Severity == pci.Blocks, f.Need != "", "%s: what blocks needs something", f.ID)
		require.Regexp(t, `^[a-z0-9-]+$`, string(f.ID))
	}
	require.Len(t, seen, len(produced), "a finding that is not in the catalogue")
	// every constant is in the catalogue
	src, err := os.ReadFile("findings.go")
	require.NoError(t, err)
	consts := regexp.MustCompile(`FindingID = "([a-z0-9-]+)"`).FindAllStringSubmatch(string(src), -1)
	require.Len(t, consts, len(seen))
	for _, c := range consts {
		require.True(t, seen[pci.FindingID(c[1])], c[1])
	}
}

// The facts that programs want come as data, too.
func TestDiagnoseData(t *testing.T) {
	get := func(name string) *pci.Diagnosis {
		cases := pcitest.Cases()
		i := slices.IndexFunc(cases, func(s pcitest.Case) bool { return s.Name == name })
		_, o := cases[i].Build(t)
		d, err := pci.Diagnose(bdf(t, port), o)
		require.NoError(t, err)
		return d
	}
	require.Equal(t, []pci.Holder{{PID: 4711, Comm: "testpmd", Node: "/dev/vfio/31"}}, get("another user").Findings[0].Holders)
	require.Equal(t, []pci.Member{{BDF: bdf(t, "3b:00.1"), Driver: "nvme", Class: 0x020000, Vendor: 0x144d, Device: 1}},
		get("sibling of another driver").Findings[0].Siblings)
	require.True(t, get("little memlock").Findings[0].Machine)
	require.False(t, get("host driver").Findings[0].Machine)
}

func TestDiagnoseNotFound(t *testing.T) {
	tr := onePort(t)
	_, err := pci.Diagnose(bdf(t, "ff:1f.7"), tr.Options())
	require.ErrorIs(t, err, pci.ErrNotFound)
}

// hiding refuses what a user other than root is refused.
type hiding struct {
	pci.FS
	hide string
}

func (h hiding) ReadDir(name string) ([]fs.DirEntry, error) {
	if ok, err := filepath.Match(h.hide, name); err != nil || ok {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrPermission}
	}
	return h.FS.ReadDir(name)
}

func (h hiding) ReadFile(name string) ([]byte, error) {
	if ok, err := filepath.Match(h.hide, name); err != nil || ok {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrPermission}
	}
	return h.FS.ReadFile(name)
}

// What a process may not look at is no finding, and is said.
func TestDiagnoseUnseen(t *testing.T) {
	tr := bound(t)
	tr.Opens(4711, "testpmd", "/dev/vfio/31")
	for _, x := range []struct{ hide, says string }{
		{tr.Path("proc/*/fd"), "open files of 1 processes"},
		{tr.Path(journalFile), "the journal"},
	} {
		o := tr.Options()
		o.FS = hiding{o.FS, x.hide}
		d, err := pci.Diagnose(bdf(t, port), o)
		require.NoError(t, err)
		require.Len(t, d.Unseen, 1)
		require.Contains(t, d.Unseen[0], x.says)
	}
}

// All functions in one go; the machine's files are read once, whatever their number.
func TestDiagnoseAll(t *testing.T) {
	tr := machine(t)
	ds, err := pci.DiagnoseAll(context.Background(), tr.Options())
	require.NoError(t, err)
	got := map[string]string{}
	for _, d := range ds {
		got[d.Function.BDF.String()] = d.Verdict()
	}
	require.Equal(t, map[string]string{
		"0000:3b:00.0": "needs bind, its interface down, its interface out of the bond or bridge, its VFs off",
		"0000:3b:00.1": "needs bind",
		"0000:3b:00.2": "ready",
		"0000:5e:00.0": "never: mlx4 card",
		"0001:00:00.0": "needs firmware in its flash",
	}, got)

	reads := func(n int) int {
		tr := pcitest.New(t)
		for i := range n {
			tr.Add(pcitest.Spec{BDF: "0000:3b:00." + strconv.Itoa(i), Driver: "vfio-pci", Override: "vfio-pci", Group: 31 + i})
		}
		tr.Opens(4711, "testpmd", "/dev/vfio/31")
		c := &counting{FS: tr.Options().FS}
		o := tr.Options()
		o.FS = c
		_, err := pci.DiagnoseAll(context.Background(), o)
		require.NoError(t, err)
		return c.n["fd"]
	}
	fds := reads(4)
	require.Equal(t, 1, fds, "/proc is searched once")
}

// counting counts reads by the last element of the name.
type counting struct {
	pci.FS
	n map[string]int
}

func (c *counting) ReadDir(name string) ([]fs.DirEntry, error) {
	if c.n == nil {
		c.n = map[string]int{}
	}
	c.n[filepath.Base(name)]++
	return c.FS.ReadDir(name)
}
