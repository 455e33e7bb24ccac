package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mlxvfio/mlxvfio/health"
	"github.com/mlxvfio/mlxvfio/health/blackbox"
	"github.com/mlxvfio/mlxvfio/internal/drivertest"
	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/pci"
	"github.com/mlxvfio/mlxvfio/pci/pcitest"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

func TestHealthShow(t *testing.T) {
	start := time.Now()
	o := object(t, "health/1", "health", "show", "sim")
	require.Less(t, time.Since(start), 2*time.Second, "quick when healthy is proven: less than the stall limit")
	require.Equal(t, "open", o["attached"])
	require.Equal(t, "ok", o["verdict"].(map[string]any)["condition"])
	require.NotNil(t, o["environment"].(map[string]any)["temperature"])
	text := works(t, "health", "show", "sim:cx4")
	require.Regexp(t, `health: +HEALTHY \(ok\)\n`, text)
	require.Contains(t, text, "firmware 14.12.1220")

	// --passive sends nothing: the function stays as it was found.
	require.Regexp(t, `(?s)registers only: asked for by --passive.*HEALTHY \(ok\)`, works(t, "health", "show", "sim", "--passive"))

	// A device that was dead before we came is looked at, not touched.
	got := cli(t, "health", "show", "sim,fault=fatal@FW_CRC_ERR+now+ext=7", "--json")
	require.Equal(t, exitFailed, got.code)
	s := decodeOne(t, "health/1", got.out)
	require.Equal(t, "window", s["attached"])
	require.Contains(t, s["why"], "not brought up")
	require.Equal(t, "FW_CRC_ERR", s["buffer"].(map[string]any)["synd_name"])
	e := decodeOne(t, "error/1", got.err)
	require.Contains(t, e["error"], "fatal-rfr")
	require.Contains(t, e["remedy"], "save a bundle")

	// A bring-up that fails though the registers look well.
	got = cli(t, "health", "show", "sim,fault=status@INIT_HCA=BAD_PARAM_ERR")
	require.Equal(t, exitFailed, got.code)
	require.Contains(t, got.out, "HEALTHY (ok)")
	require.Contains(t, got.err, "INIT_HCA")
}

func TestHealthUsage(t *testing.T) {
	for _, c := range []struct {
		args []string
		word string
	}{
		{[]string{"show"}, "usage: mlxvfio health show DEV"},
		{[]string{"show", "nosuch"}, "nosuch"},
		{[]string{"show", "sim", "--period", "9ms"}, "at least 10ms"},
		{[]string{"watch", "sim", "--period", "99999h"}, "at most 24h"},
		{[]string{"show", "sim", "--command-timeout", "0s"}, "at least 1ms"},
		{[]string{"watch", "sim", "--for", "-1s"}, "negative"},
		{[]string{"watch", "sim", "--metrics", "nonsense"}, "HOST:PORT"},
		{[]string{"watch", "sim", "--metrics", ":9750"}, "--metrics-public"},
		{[]string{"watch", "sim", "--metrics", "0.0.0.0:9750"}, "not a loopback address"},
		{[]string{"watch", "sim", "--metrics", "192.0.2.1:9750"}, "not a loopback address"},
		{[]string{"watch", "sim", "--metrics-public"}, "needs --metrics"},
		{[]string{"watch", "sim", "--blackbox", "/no/such/folder/x"}, "name a file"},
		{[]string{"recover", "sim", "--max-level", "hammer"}, "sw-reset"},
		{[]string{"recover", "sim", "--passive"}, "--max-level none"},
		{[]string{"recover", "sim", "--no-blackbox", "--blackbox", "x"}, "exclude"},
		{[]string{"recover", "sim", "--rung-timeout", "-1s"}, "negative"},
		{[]string{"dump", "sim", "--out", "x", "--section", "y"}, "for printing"},
		{[]string{"heal", "sim"}, "heal"},
	} {
		refuses(t, cli(t, append([]string{"health"}, c.args...)...), exitUsage, c.word)
	}
	refuses(t, cli(t, "health", "dump", "./nosuchfile"), exitUnavailable, "no such file")
}

// sysfsDevice is a machine whose function's BAR0 and configuration space are files.
func sysfsDevice(t *testing.T, fill func(w *prm.Writer)) (*pcitest.Tree, pci.Options, []byte) {
	m, where := machine(t)
	bar := make([]byte, 64<<10)
	w := prm.Write(bar, prm.InitialSegStruct).
		Set("fw_rev_major", 16).Set("fw_rev_minor", 35).Set("fw_rev_subminor", 4030).Set("cmd_interface_rev", 5).Set("health_counter", 77)
	if fill != nil {
		fill(w)
	}
	require.NoError(t, w.Err())
	m.Write(pcitest.Device(testBDF)+"/resource0", string(bar))
	config := make([]byte, pci.ConfigHeaderSize)
	copy(config, []byte{0xb3, 0x15, 0x17, 0x10, 2}) // memory decoding
	m.Write(pcitest.Device(testBDF)+"/config", string(config))
	m.Write(pcitest.Device(testBDF)+"/aer_dev_nonfatal", "CmpltTO 4\nTOTAL_ERR_NONFATAL 4\n")
	return m, where, bar
}

// TestHealthSysfs: beside mlx5_core, on a device that died before we came.
func TestHealthSysfs(t *testing.T) {
	_, where, _ := sysfsDevice(t, func(w *prm.Writer) {
		w.Set("health_buffer.synd", 8).Set("health_buffer.rfr", 1).Set("health_buffer.hw_id", 0x20d)
	})
	o := cliOn(t, where, "health", "show", "sysfs:"+testBDF, "--json")
	require.Equal(t, exitFailed, o.code)
	s := decodeOne(t, "health/1", o.out)
	require.Equal(t, "window", s["attached"])
	require.Equal(t, "fatal-rfr", s["verdict"].(map[string]any)["condition"])
	require.NotContains(t, s, "commands")

	o = cliOn(t, where, "health", "watch", "sysfs:"+testBDF, "--for", "300ms", "--period", "20ms")
	require.Equal(t, exitFailed, o.code)
	require.Contains(t, o.out, "registers only: sysfs only reads")
	require.Contains(t, o.out, "unknown → fatal (fatal-rfr)")

	f := decodeOne(t, "health-fields/1", cliOn(t, where, "health", "fields", "sysfs:"+testBDF, "--json").out)
	require.Equal(t, "16.35.4030", f["firmware"])
	d := cliOn(t, where, "health", "dump", "sysfs:"+testBDF, "--json")
	require.Equal(t, exitOK, d.code, d.err)
	require.Contains(t, d.out, "CmpltTO")
	refuses(t, cliOn(t, where, "health", "dump", "sysfs:"+testBDF, "--cr-space"), exitUnsupported, "vfio-pci")
	refuses(t, cliOn(t, where, "health", "recover", "sysfs:"+testBDF), exitUnsupported, "sysfs only reads", "mlxvfio bind "+testBDF)
}

// TestHealthSysfsAlive: a counter that moves in the file is a device that lives; one
// that stands is a stall, found within its limit.
func TestHealthSysfsAlive(t *testing.T) {
	m, where, bar := sysfsDevice(t, nil)
	path := filepath.Join(m.Root, "sys", "bus", "pci", "devices", testBDF, "resource0")
	if _, err := os.Stat(path); err != nil {
		path = filepath.Join(where.SysRoot, "bus", "pci", "devices", testBDF, "resource0")
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close()) }()
	ctx, stop := context.WithCancel(t.Context())
	moved := make(chan struct{})
	go func() {
		defer close(moved)
		for n := uint32(78); ctx.Err() == nil; n++ {
			binary.BigEndian.PutUint32(bar[0x1010:], n)
			_, _ = f.WriteAt(bar[0x1010:0x1014], 0x1010)
			time.Sleep(5 * time.Millisecond)
		}
	}()
	o := cliOn(t, where, "health", "show", "sysfs:"+testBDF, "--period", "20ms")
	require.Equal(t, exitOK, o.code, o.out+o.err)
	require.Regexp(t, `HEALTHY \(ok\)`, o.out)
	require.Contains(t, o.out, "AER 0 correctable, 4 non-fatal, 0 fatal")
	stop()
	<-moved
	start := time.Now()
	o = cliOn(t, where, "health", "show", "sysfs:"+testBDF, "--period", "20ms")
	require.Equal(t, exitFailed, o.code)
	require.Contains(t, o.out, "STALLED (counter-stopped)")
	require.Less(t, time.Since(start), 3*time.Second)
}

func TestHealthFields(t *testing.T) {
	o := object(t, "health-fields/1", "health", "fields", "sim,fault=fatal@FW_CRC_ERR+now+assert=1/2/3/4/5/6")
	l := o["fields"].([]any)
	require.Len(t, l, len(health.Fields()))
	byName := map[string]map[string]any{}
	for _, x := range l {
		f := x.(map[string]any)
		byName[f["name"].(string)] = f
		require.NotEmpty(t, f["meaning"])
		require.EqualValues(t, f["high"].(float64)-f["low"].(float64)+1, f["width"])
	}
	require.EqualValues(t, 6, byName["assert_var[5]"]["value"])
	require.Contains(t, byName["synd"]["text"], "FW_CRC_ERR")
	require.EqualValues(t, 0x23c, byName["synd"]["offset"])
	require.EqualValues(t, 24, byName["health_counter"]["width"])
	require.Len(t, o["fw_version_packings"], 3)
	text := works(t, "health", "fields", "sim")
	require.Regexp(t, `(?m)^0x1010 +23:0 +24 +health_counter `, text)
	refuses(t, outcome{code: cli(t, "health", "fields", "sim,fault=all-ones").code, err: cli(t, "health", "fields", "sim,fault=all-ones").err}, exitFailed, "all ones")
}

func TestHealthDump(t *testing.T) {
	path := filepath.Join(t.TempDir(), "box")
	o := object(t, "health-dump/1", "health", "dump", "sim", "--out", path, "--cr-space")
	require.Equal(t, path, o["file"])
	b, err := blackbox.Read(path)
	require.NoError(t, err)
	require.Empty(t, b.Damage)
	for _, name := range []string{health.SectionReport, health.SectionCommands, health.SectionCaps, health.SectionLedger, health.SectionCRDump, health.SectionFirmware} {
		_, ok := b.Section(name)
		require.True(t, ok, name)
	}
	// An existing file, as text, JSON, and one section of it.
	text := works(t, "health", "dump", path)
	require.Contains(t, text, "QUERY_HCA_CAP")
	require.Regexp(t, `crdump\.bin +\d+ `, text)
	j := object(t, "blackbox/1", "health", "dump", path)
	require.Len(t, j["sections"], len(b.Sections))
	s, _ := b.Section(health.SectionRaw)
	require.Equal(t, string(s.Data), works(t, "health", "dump", path, "--section", health.SectionRaw))
	refuses(t, cli(t, "health", "dump", path, "--section", "nosuch"), exitUsage, health.SectionRaw)
	refuses(t, cli(t, "health", "dump", path, "--out", "x"), exitUsage, "for devices")
	junk := filepath.Join(t.TempDir(), "junk")
	require.NoError(t, os.WriteFile(junk, []byte("junk"), 0o600))
	refuses(t, cli(t, "health", "dump", junk), exitFailed, "not a black box")

	// A dead one has less, and what it has is there.
	dead := object(t, "blackbox/1", "health", "dump", "sim,fault=fatal@now")
	require.Contains(t, string(must(json.Marshal(dead["sections"]))), "FW_INTERNAL_ERR")
	for fault, word := range map[string]string{"vsc-absent": "capability", "vsc-no-space@0x7": "does not offer", "swreset-held": "semaphore"} {
		o := cli(t, "health", "dump", "sim,fault="+fault, "--cr-space", "--timeout", "10s")
		require.NotEqual(t, exitOK, o.code, fault)
		require.Contains(t, strings.ToLower(o.err), word, fault)
	}
}

func must(b []byte, err error) []byte {
	if err != nil {
		panic(err)
	}
	return b
}

// TestHealthBlackBoxOutlivesSIGKILL: what watch recorded until it was killed is read.
func TestHealthBlackBoxOutlivesSIGKILL(t *testing.T) {
	path := filepath.Join(t.TempDir(), "box")
	p := start(t, "health", "watch", "sim,fault=fatal@after=500ms", "--period", "10ms", "--blackbox", path)
	p.says("fatal (fatal-rfr)")
	time.Sleep(200 * time.Millisecond)
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGKILL))
	killed := time.Now()
	_ = p.cmd.Wait()
	b, err := blackbox.Read(path)
	require.NoError(t, err)
	require.Empty(t, b.Damage)
	require.Greater(t, len(b.Samples), 40)
	s, st, ok := health.ParseSample(b.Samples[len(b.Samples)-1])
	require.True(t, ok)
	require.Equal(t, health.Fatal, st)
	require.Less(t, killed.Sub(s.At), 200*time.Millisecond, "up to the last sample")
	for _, name := range []string{health.SectionReport, health.SectionCommands, health.SectionLedger} {
		_, ok := b.Section(name)
		require.True(t, ok, name)
	}
	require.Contains(t, works(t, "health", "dump", path), "fatal-rfr")
}

// TestHealthWatchOnce ends when it is known how the function is; a signal ends a
// watch as well.
func TestHealthWatchEnds(t *testing.T) {
	out := works(t, "health", "watch", "sim", "--once", "--period", "50ms")
	// The first look comes before the end of the bring-up or behind it.
	require.Regexp(t, `(?s)watching sim.*(brought up.*unknown → healthy \(ok\)|unknown → healthy \(ok\).*brought up).*ended: healthy`, out)
	require.Equal(t, exitFailed, cli(t, "health", "watch", "sim", "--for", "10ms").code, "too short to know")
	p := start(t, "health", "watch", "sim", "--json")
	p.says("health-attach/1")
	p.says(`"condition":"ok"`)
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGTERM))
	o := p.ends()
	require.Equal(t, exitOK, o.code, o.err)
	require.Contains(t, o.out, "health-end/1")
}

// TestHealthWatchBlockedOutput: a reader that takes nothing holds up neither the
// sampling nor the end.
func TestHealthWatchBlockedOutput(t *testing.T) {
	r, w := io.Pipe() // nobody reads
	defer func() { _ = r.Close() }()
	var errw bytes.Buffer
	path := filepath.Join(t.TempDir(), "box")
	a := &app{out: w, err: &errw}
	start := time.Now()
	code := a.main(t.Context(), []string{"health", "watch", "sim", "--period", "10ms", "--for", "1s", "--blackbox", path})
	require.Less(t, time.Since(start), 5*time.Second)
	require.Equal(t, exitFailed, code)
	require.Contains(t, errw.String(), "the output was not taken")
	b, err := blackbox.Read(path)
	require.NoError(t, err)
	require.Greater(t, len(b.Samples), 60, "100 less what the host was too busy for")
	_ = r.CloseWithError(io.ErrClosedPipe)
}

// scrape reads and parses the endpoint.
func scrape(t *testing.T, url string) map[string]*dto.MetricFamily {
	t.Helper()
	resp, err := http.Get(url) //nolint:noctx // a test
	require.NoError(t, err)
	defer func() { require.NoError(t, resp.Body.Close()) }()
	require.Equal(t, http.StatusOK, resp.StatusCode)
	p := expfmt.NewTextParser(model.UTF8Validation)
	m, err := p.TextToMetricFamilies(resp.Body)
	require.NoError(t, err)
	return m
}

func TestHealthMetrics(t *testing.T) {
	p := start(t, "health", "watch", "sim:cx5,load=2000", "--period", "20ms", "--metrics", "127.0.0.1:0", "--json")
	p.says("health-attach/1") // under load the counter moves before the bring-up has ended
	out := p.says(`"condition":"ok"`)
	url := regexp.MustCompile(`"metrics":"(http://[^"]+)"`).FindStringSubmatch(out)[1]
	require.Regexp(t, `^http://127\.0\.0\.1:\d+/metrics$`, url)
	m := scrape(t, url)
	// The prober reads the environment beside the monitor: it may come later.
	for end := time.Now().Add(5 * time.Second); m["mlxvfio_temperature_celsius"] == nil && time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		m = scrape(t, url)
	}
	value := func(name string) float64 {
		f := m[name]
		require.NotNil(t, f, name)
		require.NotEmpty(t, f.GetMetric(), name)
		x := f.GetMetric()[0]
		return x.GetGauge().GetValue() + x.GetCounter().GetValue()
	}
	require.EqualValues(t, health.Healthy, value("mlxvfio_health_state"))
	require.EqualValues(t, 1, value("mlxvfio_open"))
	require.InDelta(t, 100, value("mlxvfio_health_counter_rate"), 30)
	require.EqualValues(t, 45, value("mlxvfio_temperature_celsius"))
	require.EqualValues(t, 1030, value("mlxvfio_pages_held"))
	require.Len(t, m["mlxvfio_eq_depth"].GetMetric(), 3)
	require.Len(t, m["mlxvfio_health_condition"].GetMetric(), len(health.Conditions()))
	h := m["mlxvfio_command_latency_seconds"]
	require.Equal(t, dto.MetricType_HISTOGRAM, h.GetType())
	ops := map[string]uint64{}
	for _, x := range h.GetMetric() {
		for _, l := range x.GetLabel() {
			if l.GetName() == "opcode" {
				ops[l.GetValue()] = x.GetHistogram().GetSampleCount()
			}
		}
		last := uint64(0)
		for _, b := range x.GetHistogram().GetBucket() {
			require.GreaterOrEqual(t, b.GetCumulativeCount(), last)
			last = b.GetCumulativeCount()
		}
		require.Equal(t, x.GetHistogram().GetSampleCount(), last)
	}
	require.EqualValues(t, 1, ops["INIT_HCA"])
	require.Positive(t, ops["ACCESS_REG"])
	for name := range m {
		require.True(t, strings.HasPrefix(name, "mlxvfio_"), name)
	}
	require.NoError(t, p.cmd.Process.Signal(os.Interrupt))
	require.Equal(t, exitOK, p.ends().code)

	// One whose registers alone are seen has fewer.
	p = start(t, "health", "watch", "sim:cx5,fault=fatal@now", "--metrics", "localhost:0", "--json", "--period", "20ms")
	url = regexp.MustCompile(`"metrics":"(http://[^"]+)"`).FindStringSubmatch(p.says("health-attach/1"))[1]
	m = scrape(t, url)
	require.EqualValues(t, health.Fatal, value("mlxvfio_health_state"))
	require.EqualValues(t, 0, value("mlxvfio_open"))
	require.EqualValues(t, 1, value("mlxvfio_health_syndrome"))
	require.NotContains(t, m, "mlxvfio_pages_held")
	resp, err := http.Get(strings.TrimSuffix(url, "metrics")) //nolint:noctx // a test
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, http.StatusNotFound, resp.StatusCode)
}

// TestAlerts: the rules are what Prometheus takes for rules, and name nothing that is
// not served.
func TestAlerts(t *testing.T) {
	text, err := os.ReadFile("../../docs/alerts.yml")
	require.NoError(t, err)
	var f struct {
		Groups []struct {
			Name  string `yaml:"name"`
			Rules []struct {
				Alert       string            `yaml:"alert"`
				Expr        string            `yaml:"expr"`
				For         string            `yaml:"for"`
				Labels      map[string]string `yaml:"labels"`
				Annotations map[string]string `yaml:"annotations"`
			} `yaml:"rules"`
		} `yaml:"groups"`
	}
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	require.NoError(t, d.Decode(&f))
	served := map[string]bool{}
	for _, m := range metricTable {
		require.Regexp(t, `^mlxvfio_[a-z_]+$`, m.name)
		served[m.name] = true
	}
	served["mlxvfio_command_latency_seconds_bucket"] = true
	names := map[string]bool{}
	require.Len(t, f.Groups, 1)
	for _, r := range f.Groups[0].Rules {
		require.Regexp(t, `^Mlxvfio[A-Z]`, r.Alert)
		require.False(t, names[r.Alert], r.Alert)
		names[r.Alert] = true
		require.Contains(t, []string{"warning", "critical"}, r.Labels["severity"], r.Alert)
		require.NotEmpty(t, r.Annotations["summary"], r.Alert)
		require.NotEmpty(t, r.Annotations["description"], r.Alert)
		if r.For != "" {
			_, err := model.ParseDuration(r.For)
			require.NoError(t, err, r.Alert)
		}
		used := regexp.MustCompile(`mlxvfio_\w+`).FindAllString(r.Expr, -1)
		require.NotEmpty(t, used, r.Alert)
		for _, m := range used {
			require.True(t, served[m], "%s: %s is not served", r.Alert, m)
		}
	}
	require.Greater(t, len(names), 10)
	// The manual lists the metrics.
	manual, err := os.ReadFile("../../docs/health.md")
	require.NoError(t, err)
	for _, m := range metricTable {
		require.Contains(t, string(manual), "`"+m.name+"`")
	}
}

// TestHealthVerbsLeaveNothing: goroutines and descriptors after verbs on sick devices.
func TestHealthVerbsLeaveNothing(t *testing.T) {
	runtime.GC()
	base := drivertest.Now()
	dir := t.TempDir()
	for _, args := range [][]string{
		{"show", "sim"},
		{"show", "sim,fault=fatal"},
		{"watch", "sim,fault=fatal@now", "--for", "200ms", "--metrics", "127.0.0.1:0", "--blackbox", filepath.Join(dir, "w")},
		{"dump", "sim,fault=fatal"},
		{"fields", "sim,fault=fatal"},
		{"recover", "sim,fault=fatal", "--max-level", "sw-reset", "--blackbox", filepath.Join(dir, "r")},
		{"recover", "sim,fault=fatal", "--blackbox", filepath.Join(dir, "r2")},
		{"recover", "sim,fault=fatal@now+crr", "--max-level", "mfrl", "--no-blackbox"},
	} {
		o := cli(t, append([]string{"health"}, args...)...)
		require.Contains(t, []int{exitOK, exitFailed}, o.code, "%v: %s", args, o.err)
	}
	base.Check(t)
}

// TestHealthRecoverGivenUp: a recovery that runs out of time says how the function
// is, not that a recovery is going on.
func TestHealthRecoverGivenUp(t *testing.T) {
	o := cli(t, "health", "recover", "sim:cx5,fault=fatal@now+heal=flr,fault=flr-dead@now",
		"--no-blackbox", "--max-level", "flr", "--timeout", "2s", "--json")
	require.Equal(t, exitFailed, o.code, o.err)
	var r struct{ After health.Verdict }
	require.NoError(t, json.Unmarshal([]byte(o.out), &r), o.out)
	require.NotEqual(t, health.Recovering, r.After.State, o.out)
	require.NotEqual(t, health.Healthy, r.After.State, o.out)
}

// TestHealthSocket: the verbs over vfio-user, with a fault at run time, and a recovery
// by another process.
func TestHealthSocket(t *testing.T) {
	dir := socketDir(t)
	s, ctl := filepath.Join(dir, "s"), filepath.Join(dir, "c")
	srv := start(t, "serve", "sim:cx5", "--socket", s, "--control", ctl)
	srv.says("ready")
	dev := "vfio-user:" + s
	require.Equal(t, "ok", object(t, "health/1", "health", "show", dev)["verdict"].(map[string]any)["condition"])
	w := start(t, "health", "watch", dev, "--period", "20ms")
	w.says("healthy (ok)")
	works(t, "tell", ctl, "fault", "fatal@HW_FATAL_ERR+heal=flr")
	w.says("healthy → fatal (fatal-rfr)")
	require.NoError(t, w.cmd.Process.Signal(os.Interrupt))
	require.Equal(t, exitFailed, w.ends().code)
	works(t, "tell", ctl, "fault", "fatal@now+heal=flr")
	o := cli(t, "health", "recover", dev, "--max-level", "flr", "--blackbox", filepath.Join(dir, "box"))
	require.Equal(t, exitOK, o.code, o.out+o.err)
	require.Contains(t, o.out, "recovered by flr")
	works(t, "health", "show", dev)
}

// TestHealthAfterAnotherClient: a served function whose last client left can be looked
// at before it is brought up, as one that was never opened.
func TestHealthAfterAnotherClient(t *testing.T) {
	path := filepath.Join(socketDir(t), "s")
	start(t, "serve", "cx5", "--socket", path).says("ready")
	works(t, "info", "vfio-user:"+path)
	o := object(t, "health/1", "health", "show", "vfio-user:"+path, "--passive", "--period", "20ms")
	require.Equal(t, "healthy", o["verdict"].(map[string]any)["state"])
}

// TestHealthShowAllOnes: what reads all ones is not shown as if it meant something.
func TestHealthShowAllOnes(t *testing.T) {
	o := cli(t, "health", "show", "sim,fault=all-ones", "--period", "20ms")
	require.Regexp(t, `(?m)^counter: +unknown: it reads all ones; `, o.out)
	require.Regexp(t, `(?m)^interface: +unknown: it reads all ones$`, o.out)
	require.Regexp(t, `(?m)^health buffer: +unknown: it reads all ones$`, o.out)
	require.NotContains(t, o.out, "no syndrome")
}
