package pci_test

import (
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/pci"
	"github.com/mlxvfio/mlxvfio/pci/pcitest"
)

// A remedy is pasted by root: names that others choose are words in it, and
// nothing else.
func TestRemediesAreSafeToPaste(t *testing.T) {
	tr := pcitest.New(t)
	const evil, driver = "x;touch${IFS}EVIL", "y'$(touch${IFS}EVIL)"
	tr.Driver(driver)
	tr.Add(pcitest.Spec{BDF: port, Driver: "mlx5_core", Group: 31, Netdevs: []pcitest.Netdev{{Name: evil, Up: true}, {Name: "-x", Up: true}}})
	tr.Add(pcitest.Spec{BDF: "0000:3b:00.1", Vendor: 0x144d, Device: 1, Driver: driver, Group: 31})
	d, err := pci.Diagnose(bdf(t, port), tr.Options())
	require.NoError(t, err)
	require.ElementsMatch(t, []pci.FindingID{pci.GroupNotViable, pci.NotBound, pci.NetdevUp, pci.NetdevUp}, ids(d))
	where := t.TempDir()
	said := ""
	for _, f := range d.Findings {
		// the commands themselves become functions that print their words
		cmd := exec.Command("sh", "-c", `ip() { printf '<%s>' "$@"; }; mlxvfio() { :; }; echo() { :; }; `+f.Remedy)
		cmd.Dir = where
		out, _ := cmd.CombinedOutput() // a file of /sys that is not there is no matter
		said += string(out)
	}
	left, err := os.ReadDir(where)
	require.NoError(t, err)
	require.Empty(t, left, "a remedy ran what a name said")
	require.Contains(t, said, "<dev><"+evil+"><down>")

	// and the name that a process gives itself does not reach the terminal as it is
	tr = bound(t)
	tr.Opens(4711, "a\x1b[2Jb\u0085c", "/dev/vfio/31")
	d, err = pci.Diagnose(bdf(t, port), tr.Options())
	require.NoError(t, err)
	require.Equal(t, "a?[2Jb?c", d.Findings[0].Holders[0].Comm)
	require.Contains(t, d.Findings[0].Seen, "(a?[2Jb?c)")
}

// garbling answers some reads with garbage, others with an error, by a seed.
type garbling struct {
	pci.FS
	r *rand.Rand
}

func (g garbling) ReadFile(name string) ([]byte, error) {
	data, err := g.FS.ReadFile(name)
	switch g.r.IntN(5) {
	case 0:
		return nil, &fs.PathError{Op: "read", Path: name, Err: os.ErrInvalid}
	case 1:
		b := make([]byte, g.r.IntN(80))
		for i := range b {
			b[i] = byte(g.r.Uint32())
		}
		return b, nil
	case 2:
		if len(data) > 0 {
			data = data[:g.r.IntN(len(data))]
		}
		return data, err
	}
	return data, err
}

func (g garbling) Readlink(name string) (string, error) {
	if g.r.IntN(8) == 0 {
		return "/x/" + strings.Repeat("\n$(x)", g.r.IntN(3)), nil
	}
	return g.FS.Readlink(name)
}

// Whatever a broken machine answers, the doctor comes back, and what it says is
// one line a finding.
func TestDoctorOfABrokenMachine(t *testing.T) {
	var trees []pci.Options
	for _, c := range pcitest.Cases() {
		if strings.HasPrefix(filepath.Base(c.Name), "no") || c.Name == "two ports" || c.Name == "another user" || c.Name == "bind cut off" {
			_, o := c.Build(t)
			trees = append(trees, o)
		}
	}
	require.Greater(t, len(trees), 10)
	findings := 0
	for seed := range uint64(20) {
		for _, o := range trees {
			o.FS = garbling{o.FS, rand.New(rand.NewPCG(seed, 1))}
			d, err := pci.Diagnose(bdf(t, port), o)
			if err != nil {
				continue
			}
			for _, f := range d.Findings {
				findings++
				require.NotContains(t, f.Seen+f.Remedy, "\n", "seed %d: %s", seed, f.ID)
				require.NotEmpty(t, f.Remedy)
			}
		}
	}
	require.Greater(t, findings, 100)
}
