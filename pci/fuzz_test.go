package pci_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/pci"
	"github.com/mlxvfio/mlxvfio/pci/pcitest"
)

// overlay answers the reads of some files and links with other contents.
type overlay struct {
	pci.FS
	files map[string]string
}

func (o overlay) ReadFile(name string) ([]byte, error) {
	if s, ok := o.files[name]; ok {
		return []byte(s), nil
	}
	return o.FS.ReadFile(name)
}

func (o overlay) Readlink(name string) (string, error) {
	if s, ok := o.files[name]; ok {
		return s, nil
	}
	return o.FS.Readlink(name)
}

// oneLine requires text that a terminal shows as it is: one line, nothing that
// moves a cursor.
func oneLine(t *testing.T, what, s string) {
	t.Helper()
	for _, r := range s {
		if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 {
			t.Fatalf("%s: %q", what, s)
		}
	}
}

// readable are the files and links of a tree that can be read through an FS,
// sorted.
func readable(t testing.TB, root string) (names []string) {
	require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			names = append(names, path)
		}
		return err
	}))
	slices.Sort(names)
	return names
}

// FuzzSysfs gives files of sysfs and procfs any contents: each word of the input
// is the number of a file, a length and its bytes. Whatever the kernel, a driver
// or another process may have written there, discovery, the doctor and the readers
// of configuration space come back, with typed errors and words that are safe to
// print.
func FuzzSysfs(f *testing.F) {
	tr := pcitest.New(f)
	tr.Add(pcitest.Spec{BDF: port, Driver: "vfio-pci", Override: "vfio-pci", Group: 31, Config: pcitest.ConfigSpace(), NumVFs: 1, Total: 8,
		Attrs: map[string]string{"aer_dev_fatal": "Undefined 0\nDLP 1\nTOTAL_ERR_FATAL 1\n", "reset_method": "flr bus\n", "power_state": "D0\n"}})
	tr.Add(pcitest.Spec{BDF: "0000:3b:00.1", Driver: "mlx5_core", Group: 31, Netdevs: []pcitest.Netdev{{Name: "p0", Up: true}}, Infiniband: []string{"mlx5_0"}})
	tr.Write("sys/kernel/iommu_groups/31/reserved_regions", "0x00000000fee00000 0x00000000feefffff msi\n0x00000000000e0000 0x00000000000fffff direct\n")
	tr.Write("sys/kernel/iommu_groups/31/type", "DMA-FQ\n")
	tr.Write("sys/kernel/security/lockdown", "none [integrity] confidentiality\n")
	tr.Opens(4711, "qemu", "/dev/vfio/31")
	tr.Write("run/mlxvfio/"+port+".json", `{"schema":"mlxvfio.pci.journal/1","bdf":"`+port+`","vendor":5555,"device":4119,"driver":"mlx5_core","target":"vfio-pci"}`)
	names := readable(f, tr.Root)
	word := func(suffix, text string) []byte {
		for i, n := range names {
			if strings.HasSuffix(n, suffix) {
				return append([]byte{byte(i), byte(i >> 8), byte(len(text))}, text...)
			}
		}
		f.Fatal("no file ends in " + suffix)
		return nil
	}
	for suffix, texts := range map[string][]string{
		port + "/resource":              {"", "0x0 0x0 0x0\n", "0x00000000a0000000 0xffffffffffffffff 0x14220c\n", "zz\n", strings.Repeat("0x1 0x2 0x3\n", 17)},
		"31/reserved_regions":           {"", "0x0 0xffffffffffffffff direct\n", "a b c d\n", "0x1 0x0 msi\n"},
		"31/type":                       {"identity\n", "\x1b[2J", ""},
		"/lockdown":                     {"[none]", "[confidentiality]", "[", "\xff"},
		port + "/config":                {"", string(slices.Repeat([]byte{0xff}, 64)), string(pcitest.ConfigSpace()[:255])},
		port + "/power_state":           {"D3cold\n", "unknown"},
		port + "/aer_dev_fatal":         {"DLP -1\n", "DLP 99999999999999999999\n", "x"},
		port + "/vendor":                {"0x15b3", "15b3", "0x", "\x00"},
		port + "/driver":                {"../../../bus/pci/drivers/evil\nname", "", "/"},
		port + "/iommu_group":           {"../../kernel/iommu_groups/", "x/-1", "x/4294967296"},
		"proc/self/status":              {"", "Uid:\t0\n", "CapEff:\tzz\n", "VmLck:\t 18446744073709551615 kB\n"},
		"proc/self/limits":              {"", "Max locked memory x y bytes\n", "Max locked memory         18446744073709551616"},
		"proc/net/route":                {"Iface\nx\n", "\n\n\n"},
		"proc/cmdline":                  {"iommu=off", "\x00"},
		"proc/cpuinfo":                  {"vendor_id : AuthenticAMD\n", "vendor_id"},
		"proc/interrupts":               {"", "IR-"},
		"4711/comm":                     {"\x1b]0;title\x07\n"},
		"run/mlxvfio/" + port + ".json": {"{}", "null", "[]", `{"schema":"mlxvfio.pci.journal/1","bdf":"` + port + `","driver":"../x","target":"vfio-pci"}`},
	} {
		for _, text := range texts {
			f.Add(word(suffix, text))
		}
	}
	f.Add(append(word("31/type", "identity"), word("proc/self/status", "Uid:\t1000\n")...))
	b := bdf(f, port)
	f.Fuzz(func(t *testing.T, in []byte) {
		o := tr.Options()
		ov := overlay{o.FS, map[string]string{}}
		for len(in) >= 3 {
			n := min(int(in[2]), len(in)-3)
			ov.files[names[(int(in[0])|int(in[1])<<8)%len(names)]] = string(in[3 : 3+n])
			in = in[3+n:]
		}
		o.FS = ov
		typed := func(what string, err error) {
			if err == nil {
				return
			}
			var e *pci.Error
			require.True(t, errors.As(err, &e) || errors.Is(err, pci.ErrBadConfig), "%s: %T %v", what, err, err)
			oneLine(t, what, err.Error())
		}
		d, err := pci.Diagnose(b, o)
		typed("diagnose", err)
		if d != nil {
			for _, x := range d.Findings {
				oneLine(t, string(x.ID), x.Seen)
				oneLine(t, string(x.ID), x.Remedy)
				require.NotEmpty(t, x.Remedy)
			}
		}
		_, err = pci.DiagnoseAll(context.Background(), o)
		typed("diagnose all", err)
		_, err = pci.List(context.Background(), o)
		typed("list", err)
		_, err = pci.ReadErrorCounts(b, o)
		typed("error counts", err)
		c, err := pci.InspectConfig(b, o)
		typed("config", err)
		if c != nil {
			checkWalk(t, c.Bytes())
		}
		l, err := pci.Journals(o)
		typed("journals", err)
		for _, j := range l {
			require.Equal(t, b, j.BDF)
			if j.State != pci.JournalUnreadable {
				require.NotContains(t, j.Driver, "/")
			}
		}
	})
}

// writeless refuses and counts every operation that changes something.
type writeless struct {
	pci.FS
	wrote []string
}

func (w *writeless) no(op, name string) error {
	w.wrote = append(w.wrote, op+" "+name)
	return &fs.PathError{Op: op, Path: name, Err: os.ErrPermission}
}

func (w *writeless) WriteAttr(name string, _ []byte) error     { return w.no("write", name) }
func (w *writeless) MkdirAll(name string, _ fs.FileMode) error { return w.no("mkdir", name) }
func (w *writeless) Rename(from, _ string) error               { return w.no("rename", from) }
func (w *writeless) Remove(name string) error                  { return w.no("remove", name) }
func (w *writeless) SyncDir(name string) error                 { return w.no("sync", name) }
func (w *writeless) WriteSync(name string, _ []byte, _ fs.FileMode) error {
	return w.no("write", name)
}

// TestLookingChangesNothing: discovery and the doctor do not change anything, on
// any fake machine, whatever they find.
func TestLookingChangesNothing(t *testing.T) {
	for _, c := range pcitest.Cases() {
		_, o := c.Build(t)
		w := &writeless{FS: o.FS}
		o.FS = w
		_, _ = pci.Diagnose(bdf(t, port), o)
		_, _ = pci.DiagnoseAll(t.Context(), o)
		_, _ = pci.List(t.Context(), o)
		_, _ = pci.Journals(o)
		_, _ = pci.InspectConfig(bdf(t, port), o)
		require.Empty(t, w.wrote, c.Name)
	}
}

// confined notes where bind and unbind change files other than by WriteAttr.
type confined struct {
	pci.FS
	names []string
}

func (c *confined) MkdirAll(name string, p fs.FileMode) error {
	c.names = append(c.names, name)
	return c.FS.MkdirAll(name, p)
}

func (c *confined) WriteSync(name string, b []byte, p fs.FileMode) error {
	c.names = append(c.names, name)
	return c.FS.WriteSync(name, b, p)
}

func (c *confined) Rename(from, to string) error {
	c.names = append(c.names, from, to)
	return c.FS.Rename(from, to)
}

func (c *confined) Remove(name string) error {
	c.names = append(c.names, name)
	return c.FS.Remove(name)
}

// TestFilesOnlyInTheJournalFolder: what is not sysfs and is changed lies in the
// journal folder and carries the function's address; nothing else is made there.
func TestFilesOnlyInTheJournalFolder(t *testing.T) {
	tr := crowd(t, onHost)
	o := tr.Options()
	c := &confined{FS: o.FS}
	o.FS, o.Force = c, true
	_, err := run("bind", o, bdf(t, port))
	require.NoError(t, err)
	_, err = run("unbind", o, bdf(t, port))
	require.NoError(t, err)
	require.NotEmpty(t, c.names)
	for _, n := range c.names {
		if n != o.JournalDir {
			require.Equal(t, o.JournalDir, filepath.Dir(n))
			require.Contains(t, filepath.Base(n), port)
		}
	}
	left, err := os.ReadDir(o.JournalDir)
	require.NoError(t, err)
	require.Empty(t, left)
}

// durable writes the journal as on a real machine; the simulated kernel leaves out
// the fsync.
type durable struct{ pci.FS }

func (durable) WriteSync(name string, b []byte, p fs.FileMode) error {
	return pci.OS{}.WriteSync(name, b, p)
}

// TestJournalFollowsNoLink: a link that somebody planted where the journal's
// temporary file or its lock goes is an error, and what it points at stays.
func TestJournalFollowsNoLink(t *testing.T) {
	for _, name := range []string{"." + port + ".tmp", "." + port + ".lock"} {
		tr := onePort(t)
		o := tr.Options()
		o.FS = durable{o.FS}
		victim := filepath.Join(t.TempDir(), "victim")
		require.NoError(t, os.WriteFile(victim, []byte("precious"), 0o600))
		require.NoError(t, os.MkdirAll(o.JournalDir, 0o755))
		require.NoError(t, os.Symlink(victim, filepath.Join(o.JournalDir, name)))
		_, err := run("bind", o, bdf(t, port))
		require.Error(t, err, name)
		require.Equal(t, onHost, tr.State(port))
		got, err := os.ReadFile(victim)
		require.NoError(t, err)
		require.Equal(t, "precious", string(got))
	}
}
