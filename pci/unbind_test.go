package pci_test

import (
	"context"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/pci"
	"github.com/mlxvfio/mlxvfio/pci/pcitest"
)

const journalFile = "run/mlxvfio/" + port + ".json"

// bound is onePort after a Bind.
func bound(t testing.TB) *pcitest.Tree {
	tr := onePort(t)
	_, err := pci.Bind(context.Background(), bdf(t, port), tr.Options())
	require.NoError(t, err)
	return tr
}

func TestUnbindWithoutJournal(t *testing.T) {
	for name, was := range map[string]pcitest.State{
		"bound by someone":                 onVFIO,
		"by a dynamic id, no override":     {Driver: "vfio-pci"},
		"left half bound (override only)":  {Override: "vfio-pci"},
		"left half bound (other spelling)": {Override: "vfio_pci"},
	} {
		t.Run(name, func(t *testing.T) {
			tr := pcitest.New(t)
			tr.Add(pcitest.Spec{BDF: port, Driver: was.Driver, Override: was.Override, Group: 31})
			r, err := pci.Unbind(context.Background(), bdf(t, port), tr.Options())
			require.NoError(t, err)
			require.Equal(t, onHost, tr.State(port))
			require.Contains(t, r.Notes[0], "the kernel chooses")
			require.Equal(t, "mlx5_core", r.Driver)
			require.NoFileExists(t, tr.Path(journalFile))
		})
	}
}

// That unbind too survives a kill at any point.
func TestUnbindWithoutJournalKilled(t *testing.T) {
	for n := 0; ; n++ {
		tr := pcitest.New(t)
		tr.Add(pcitest.Spec{BDF: port, Driver: "vfio-pci", Override: "vfio-pci", Group: 31})
		o := tr.Options()
		o.FS = &pcitest.Faults{FS: o.FS, Mode: pcitest.KillAfter, N: n}
		_, err := pci.Unbind(context.Background(), bdf(t, port), o)
		if err == nil {
			require.Greater(t, n, 5)
			return
		}
		require.ErrorIs(t, err, pcitest.ErrKilled)
		_, err = pci.Unbind(context.Background(), bdf(t, port), tr.Options())
		require.NoError(t, err)
		require.Equal(t, onHost, tr.State(port), "killed at %d", n)
	}
}

func TestUnbindWithoutJournalAndNoTaker(t *testing.T) {
	tr := pcitest.New(t)
	tr.Remove("sys/bus/pci/drivers/mlx5_core")
	tr.Add(pcitest.Spec{BDF: port, Driver: "vfio-pci", Override: "vfio-pci", Group: 31})
	r, err := pci.Unbind(context.Background(), bdf(t, port), tr.Options())
	require.NoError(t, err)
	require.Equal(t, pcitest.State{}, tr.State(port))
	require.Contains(t, strings.Join(r.Notes, " "), "modprobe mlx5_core")
}

// vfio-pci has a dynamic id for the card and claims it again and again.
func TestUnbindAgainstADynamicID(t *testing.T) {
	tr := pcitest.New(t)
	tr.Remove("sys/bus/pci/drivers/mlx5_core")
	tr.Driver("vfio-pci", "15b3:1017")
	tr.Add(pcitest.Spec{BDF: port, Driver: "vfio-pci", Group: 31})
	_, err := pci.Unbind(context.Background(), bdf(t, port), tr.Options())
	require.Equal(t, "echo 15b3 1017 > "+tr.Path("sys/bus/pci/drivers/vfio-pci/remove_id")+" && mlxvfio unbind "+port, remedyOf(t, err, pci.ErrProbe))

	// With a journal the original driver is bound by name: vfio-pci sorts
	// before zz_host and would win the probe.
	tr = pcitest.New(t)
	tr.Driver("zz_host", "15b3:1017")
	tr.Remove("sys/bus/pci/drivers/mlx5_core")
	tr.Add(pcitest.Spec{BDF: port, Driver: "zz_host", Group: 31})
	_, err = pci.Bind(context.Background(), bdf(t, port), tr.Options())
	require.NoError(t, err)
	tr.Driver("vfio-pci", "15b3:1017")
	r, err := pci.Unbind(context.Background(), bdf(t, port), tr.Options())
	require.NoError(t, err)
	require.Equal(t, pcitest.State{Driver: "zz_host"}, tr.State(port))
	require.Equal(t, []string{"clear driver_override", "unbind from vfio-pci", "probe drivers", "unbind from vfio-pci", "bind to zz_host", "remove journal"}, steps(r))
}

func TestUnbindOriginalDriverNotLoaded(t *testing.T) {
	tr := bound(t)
	tr.Remove("sys/bus/pci/drivers/mlx5_core")
	o := tr.Options()
	_, err := pci.Unbind(context.Background(), bdf(t, port), o)
	require.Equal(t, "modprobe mlx5_core", remedyOf(t, err, pci.ErrNoDriver))
	require.Equal(t, onVFIO, tr.State(port), "nothing is taken away before it can be given back")
	require.Empty(t, o.FS.(*pcitest.Kernel).Writes())
	require.FileExists(t, tr.Path(journalFile))

	tr.Driver("mlx5_core", "15b3:1017")
	_, err = pci.Unbind(context.Background(), bdf(t, port), o)
	require.NoError(t, err)
	require.Equal(t, onHost, tr.State(port))
}

func TestUnbindOriginalDriverFails(t *testing.T) {
	tr := bound(t)
	tr.FailProbe("mlx5_core")
	_, err := pci.Unbind(context.Background(), bdf(t, port), tr.Options())
	require.Equal(t, "dmesg | grep "+port, remedyOf(t, err, pci.ErrProbe))
	require.ErrorContains(t, err, "mlx5_core refused the function")
	js, err := pci.Journals(tr.Options())
	require.NoError(t, err)
	require.True(t, js[0].Interrupted())
	tr.Remove("fail/mlx5_core")
	_, err = pci.Unbind(context.Background(), bdf(t, port), tr.Options())
	require.NoError(t, err)
	require.Equal(t, onHost, tr.State(port))
}

func TestUnbindWhileHeld(t *testing.T) {
	tr := pcitest.New(t)
	tr.IOMMUFD()
	tr.Add(pcitest.Spec{BDF: port, Driver: "mlx5_core", Group: 31})
	_, err := pci.Bind(context.Background(), bdf(t, port), tr.Options())
	require.NoError(t, err)
	tr.Write("proc/4242/comm", "testpmd\n")
	tr.Mkdir("proc/4242/fd")
	require.NoError(t, os.Symlink("/dev/vfio/devices/vfio0", tr.Path("proc/4242/fd/7")))
	o := tr.Options()
	_, err = pci.Unbind(context.Background(), bdf(t, port), o)
	require.Equal(t, "kill 4242", remedyOf(t, err, pci.ErrBusy))
	require.ErrorContains(t, err, "process 4242 (testpmd) has /dev/vfio/devices/vfio0 open")
	require.Empty(t, o.FS.(*pcitest.Kernel).Writes())

	o.Force = true
	r, err := pci.Unbind(context.Background(), bdf(t, port), o)
	require.NoError(t, err)
	require.Len(t, r.Overrode, 1)
	require.Equal(t, onHost, tr.State(port))
}

// A forced unbind of a held function blocks in the kernel: the deadline ends
// the waiting, and the later unbind completes it.
func TestUnbindBlocked(t *testing.T) {
	tr := bound(t)
	o := tr.Options()
	entered, release := blockFirst(o, "vfio-pci/unbind")
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		<-entered
		cancel()
	}()
	_, err := pci.Unbind(ctx, bdf(t, port), o)
	remedyOf(t, err, pci.ErrPending)
	var p *pci.PendingError
	require.ErrorAs(t, err, &p)
	release()
	require.NoError(t, p.Wait())
	_, err = pci.Unbind(context.Background(), bdf(t, port), o)
	require.NoError(t, err)
	require.Equal(t, onHost, tr.State(port))
}

// A third driver took the function after us: it keeps it.
func TestUnbindLeavesAThirdDriverAlone(t *testing.T) {
	tr := bound(t)
	tr.Driver("thirdparty")
	k := pcitest.OpenKernel(tr.Root)
	for _, w := range [][2]string{{"drivers/vfio-pci/unbind", port}, {"devices/" + port + "/driver_override", "thirdparty"}, {"drivers/thirdparty/bind", port}} {
		require.NoError(t, k.WriteAttr(tr.Path("sys/bus/pci/"+w[0]), []byte(w[1])))
	}
	r, err := pci.Unbind(context.Background(), bdf(t, port), tr.Options())
	require.NoError(t, err)
	require.Equal(t, pcitest.State{Driver: "thirdparty", Override: "thirdparty"}, tr.State(port))
	require.Contains(t, r.Notes[0], "thirdparty has bound the function since")
	require.NoFileExists(t, tr.Path(journalFile))
}

// Someone restored the host driver by hand; a new bind must record that state.
func TestRebindAfterAManualRestore(t *testing.T) {
	tr := bound(t)
	tr.Driver("thirdparty", "15b3:1017")
	k := pcitest.OpenKernel(tr.Root)
	require.NoError(t, k.WriteAttr(tr.Path("sys/bus/pci/drivers/vfio-pci/unbind"), []byte(port)))
	require.NoError(t, k.WriteAttr(tr.Path(pcitest.Device(port)+"/driver_override"), []byte("thirdparty\n")))
	require.NoError(t, k.WriteAttr(tr.Path("sys/bus/pci/drivers_probe"), []byte(port)))
	require.Equal(t, "thirdparty", tr.State(port).Driver)

	_, err := pci.Bind(context.Background(), bdf(t, port), tr.Options())
	require.NoError(t, err)
	_, err = pci.Unbind(context.Background(), bdf(t, port), tr.Options())
	require.NoError(t, err)
	require.Equal(t, pcitest.State{Driver: "thirdparty", Override: "thirdparty"}, tr.State(port))
}

func TestUnbindOtherDevices(t *testing.T) {
	tr := pcitest.New(t)
	tr.Add(pcitest.Spec{BDF: "0000:01:00.0", Vendor: 0x144d, Device: 0xa80a, Driver: "vfio-pci", Override: "vfio-pci", Group: 1})
	tr.Add(pcitest.Spec{BDF: "0000:02:00.0", Vendor: 0x144d, Device: 0xa80a})
	o := tr.Options()
	for _, b := range []string{"01:00.0", "02:00.0"} {
		_, err := pci.Unbind(context.Background(), bdf(t, b), o)
		remedyOf(t, err, pci.ErrNotMellanox)
	}
	require.Empty(t, o.FS.(*pcitest.Kernel).Writes())
}

// Another card sits in the slot: its journal is not ours to apply.
func TestJournalOfAnotherCard(t *testing.T) {
	tr := bound(t)
	tr.Write(pcitest.Device(port)+"/device", "0x1019\n")
	js, err := pci.Journals(tr.Options())
	require.NoError(t, err)
	require.Equal(t, pci.JournalStale, js[0].State)
	require.Contains(t, js[0].Detail, "15b3:1017, here is 15b3:1019")
	r, err := pci.Unbind(context.Background(), bdf(t, port), tr.Options())
	require.NoError(t, err)
	require.Contains(t, r.Notes[0], "journal dropped")
	require.Equal(t, onHost, tr.State(port))
	require.NoFileExists(t, tr.Path(journalFile))
}

// A journal is a file others may have touched: what it says is checked before
// it becomes a path or a value.
func TestJournalIsNotTrusted(t *testing.T) {
	good := pci.Journal{Schema: "mlxvfio.pci.journal/1", BDF: bdf(t, port), Vendor: 0x15b3, Device: 0x1017, Driver: "mlx5_core", Target: "vfio-pci"}
	with := func(change func(*pci.Journal)) string {
		j := good
		change(&j)
		out, err := json.Marshal(j)
		require.NoError(t, err)
		return string(out)
	}
	for name, text := range map[string]string{
		"empty":              "",
		"torn":               with(func(*pci.Journal) {})[:40],
		"other schema":       with(func(j *pci.Journal) { j.Schema = "mlxvfio.pci.journal/9" }),
		"other function":     with(func(j *pci.Journal) { j.BDF.Bus++ }),
		"driver is a path":   with(func(j *pci.Journal) { j.Driver = "../../../devices" }),
		"driver is dots":     with(func(j *pci.Journal) { j.Driver = ".." }),
		"driver is vfio":     with(func(j *pci.Journal) { j.Driver = "vfio-pci" }),
		"override has lines": with(func(j *pci.Journal) { j.Override = "a\nb" }),
		"target is a path":   with(func(j *pci.Journal) { j.Target = "../x" }),
	} {
		t.Run(name, func(t *testing.T) {
			tr := bound(t)
			tr.Write(journalFile, text)
			o := tr.Options()
			_, err := pci.Unbind(context.Background(), bdf(t, port), o)
			require.Equal(t, "rm "+tr.Path(journalFile), remedyOf(t, err, pci.ErrJournal))
			_, err = pci.Bind(context.Background(), bdf(t, port), o)
			remedyOf(t, err, pci.ErrJournal)
			require.Empty(t, o.FS.(*pcitest.Kernel).Writes())
			js, err := pci.Journals(o)
			require.NoError(t, err)
			require.Equal(t, pci.JournalUnreadable, js[0].State)
			require.NotEmpty(t, js[0].Detail)
		})
	}
}

func TestJournals(t *testing.T) {
	tr := onePort(t)
	js, err := pci.Journals(tr.Options())
	require.NoError(t, err)
	require.Empty(t, js, "no folder, no journals")

	tr = bound(t)
	tr.Add(pcitest.Spec{BDF: "0000:3b:00.1", Driver: "mlx5_core", Group: 32})
	tr.Add(pcitest.Spec{BDF: "0000:3c:00.0", Driver: "mlx5_core", Group: 33})
	o := tr.Options()
	kernel := o.FS
	o.FS = &pcitest.Faults{FS: kernel, Mode: pcitest.KillAfter, N: 5} // mkdir, create, rename, sync, override, unbind
	_, err = pci.Bind(context.Background(), bdf(t, "3b:00.1"), o)
	require.ErrorIs(t, err, pcitest.ErrKilled)
	o.FS = &pcitest.Faults{FS: kernel, Mode: pcitest.KillAfter, N: 3}
	_, err = pci.Bind(context.Background(), bdf(t, "3c:00.0"), o)
	require.ErrorIs(t, err, pcitest.ErrKilled)
	tr.Write("run/mlxvfio/0000:99:00.0.json", strings.ReplaceAll(tr.Read(journalFile), port, "0000:99:00.0"))
	tr.Write("run/mlxvfio/notes.txt", "not a journal")
	tr.Write("run/mlxvfio/README.json", "not a journal either")

	js, err = pci.Journals(tr.Options())
	require.NoError(t, err)
	var got []string
	for _, j := range js {
		got = append(got, j.BDF.String()+" "+string(j.State))
	}
	require.Equal(t, []string{port + " bound", "0000:3b:00.1 interrupted", "0000:3c:00.0 restored", "0000:99:00.0 stale"}, got)
	require.Equal(t, pcitest.State{Override: "vfio-pci"}, tr.State("0000:3b:00.1"))

	// Bind completes the interrupted one and still knows the original driver.
	r, err := pci.Bind(context.Background(), bdf(t, "3b:00.1"), tr.Options())
	require.NoError(t, err)
	require.Equal(t, "mlx5_core", r.Previous)
	require.Contains(t, r.Notes[0], "completing the bind")
	require.Equal(t, []string{"probe drivers"}, steps(r))
}

func TestResultAsJSON(t *testing.T) {
	tr := onePort(t)
	r, err := pci.Bind(context.Background(), bdf(t, port), tr.Options())
	require.NoError(t, err)
	out, err := json.Marshal(r)
	require.NoError(t, err)
	var m map[string]any
	require.NoError(t, json.Unmarshal(out, &m))
	require.Equal(t, port, m["bdf"])
	require.EqualValues(t, 31, m["iommu_group"])
	require.Len(t, m["steps"], 4)
}
