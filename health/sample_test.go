package health_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/health"
	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/sim"
	"github.com/mlxvfio/mlxvfio/vfio"
	"github.com/mlxvfio/mlxvfio/vfio/vfiotest"
)

// A healthy sample reads four dwords once each, and nothing else: neither Sampler
// nor Monitor.
func TestHealthySampleReads(t *testing.T) {
	f, w := newBAR(t)
	var s health.Sample
	health.NewSampler(w).Read(&s)
	want := map[uint64]int{0x1010: 1, 0x14: 1, 0x230: 1, 0x23c: 1}
	require.Equal(t, want, f.reads)
	require.Equal(t, uint32(0x12345056), s.NIC)
	require.Equal(t, uint32(fakeFW), s.FW)

	m, err := health.New(health.Options{Window: w})
	require.NoError(t, err)
	m.Prepare()
	clear(f.reads)
	for range 5 {
		m.Tick()
	}
	require.Equal(t, map[uint64]int{0x1010: 5, 0x14: 5, 0x230: 5, 0x23c: 5}, f.reads)
}

// The offsets are those of the descriptor of the initialization segment.
func TestFieldsArePlaced(t *testing.T) {
	at := map[string][3]int{}
	for _, f := range health.Fields() {
		at[f.Name] = [3]int{int(f.Offset), f.High, f.Low}
		require.NotEmpty(t, f.Meaning)
		require.NotEmpty(t, f.Source)
	}
	// By the facts: byte offset in BAR 0 and bits.
	want := map[string][3]int{
		"nic_interface": {0x14, 10, 8}, "initializing": {0x1fc, 31, 31}, "fw_reset_supported": {0x1fc, 30, 30},
		"assert_var[0]": {0x200, 31, 0}, "assert_var[5]": {0x214, 31, 0}, "assert_existptr": {0x220, 31, 0}, "assert_callra": {0x224, 31, 0},
		"time": {0x22c, 31, 0}, "fw_version": {0x230, 31, 0}, "hw_id": {0x234, 31, 0}, "rfr": {0x238, 31, 31}, "crr": {0x238, 30, 30},
		"valid": {0x238, 27, 27}, "severity": {0x238, 26, 24}, "irisc_index": {0x23c, 31, 24}, "synd": {0x23c, 23, 16}, "ext_synd": {0x23c, 15, 0},
		"health_syndrome": {0x1010, 31, 24}, "health_counter": {0x1010, 23, 0},
	}
	for name, w := range want {
		require.Equal(t, w, at[name], name)
	}
	require.Len(t, at, len(want)+4) // assert_var[1] to [4]
}

func TestReadFields(t *testing.T) {
	f, w := newBAR(t)
	f.report(0xb, rfr|valid|2<<24)
	f.change(func() { f.dword[0x23c] = 7<<24 | 0xb<<16 | 1 })
	got := map[string]health.Field{}
	for _, x := range health.ReadFields(w) {
		got[x.Name] = x
	}
	require.Equal(t, uint32(0xb), got["synd"].Value)
	require.Contains(t, got["synd"].Text, "ICM_PAGE_ERR")
	require.Equal(t, uint32(7), got["irisc_index"].Value)
	require.Equal(t, uint32(1), got["rfr"].Value)
	require.Equal(t, uint32(0), got["crr"].Value)
	require.Equal(t, "CRITICAL", got["severity"].Text)
	require.Contains(t, got["ext_synd"].Text, "unproven")
	require.Contains(t, got["fw_version"].Text, "16.32.0492 (packed as health-buffer)")
	require.Equal(t, uint32(0x20d), got["hw_id"].Value)
}

// Bytes written by hand after the table of the facts, every field different.
func TestDecodeBuffer(t *testing.T) {
	const text = "00000001" + "00000002" + "00000003" + "00000004" + "00000005" + "00000006" + "deadbeef" + "deadbeef" +
		"11111111" + "22222222" + "deadbeef" + "33333333" + "101803e8" + "0000020d" + "cb000000" + "050b0002"
	var raw health.RawBuffer
	require.NoError(t, raw.UnmarshalText([]byte(text)))
	b := health.DecodeBuffer(raw)
	require.Equal(t, health.Buffer{
		AssertVar: [6]uint32{1, 2, 3, 4, 5, 6}, AssertExitPtr: 0x11111111, AssertCallRA: 0x22222222, Time: 0x33333333,
		FWVersion: 0x101803e8, HWID: 0x20d, RFR: true, CRR: true, Valid: true, Severity: 3, SeverityName: "ERROR",
		IRISCIndex: 5, Synd: 0xb, SyndName: "ICM_PAGE_ERR", SyndText: prm.SyndIcmPageErr.Text(), ExtSynd: 2,
		ExtSyndClaim: "ICM fetch page not present", Raw: raw,
	}, b)
	again, err := raw.MarshalText()
	require.NoError(t, err)
	require.Equal(t, text, string(again))
	require.Error(t, raw.UnmarshalText([]byte("00")))

	// The severity has no name unless it is valid, ext_synd none under another synd.
	raw[0x38] &^= 0x08
	raw[0x3d] = 8
	b = health.DecodeBuffer(raw)
	require.Empty(t, b.SeverityName)
	require.Empty(t, b.ExtSyndClaim)
	require.Equal(t, "HW_FATAL_ERR", b.SyndName)
	raw[0x3d] = 0x42
	require.Equal(t, "0x42", health.DecodeBuffer(raw).SyndName)
}

func TestDecodeFWVersion(t *testing.T) {
	p := health.DecodeFWVersion(0x101803e8, 0)
	require.Equal(t, "16.24.1000", p[0].Version)
	p = health.DecodeFWVersion(0x00180010, 5<<16|1000)
	require.Equal(t, "16.24", p[1].Version)
	require.Equal(t, "16.24.1000", p[2].Version)
}

// A buffer that firmware writes while it is read is read until two reads agree.
func TestTornBuffer(t *testing.T) {
	for _, c := range []struct {
		writes, reads int // firmware changes the buffer during so many reads
		torn          bool
	}{{0, 2, false}, {1, 3, false}, {3, 5, false}, {6, 8, false}, {7, 8, true}, {100, 8, true}} {
		f, w := newBAR(t)
		f.report(1, 0)
		n := uint32(0)
		f.hook = func(off uint64, v uint32) uint32 {
			if off == 0x220 && n < uint32(c.writes) {
				n++ // between the dwords before and those behind
				f.dword[0x200], f.dword[0x224] = n, n
			}
			return v
		}
		var b health.Buffer
		health.NewSampler(w).ReadBuffer(&b)
		require.Equal(t, c.reads, b.Reads, "%+v", c)
		require.Equal(t, c.torn, b.Torn, "%+v", c)
		if !c.torn {
			require.Equal(t, b.AssertCallRA, n, "%+v", c)
			if n > 0 {
				require.Equal(t, n, b.AssertVar[0], "%+v: both halves are of one write", c)
			}
		}
	}
}

func TestAllOnesBuffer(t *testing.T) {
	f, w := newBAR(t)
	f.ones = true
	var b health.Buffer
	health.NewSampler(w).ReadBuffer(&b)
	require.True(t, b.AllOnes())
	require.False(t, b.Torn)
	f.ones = false
	health.NewSampler(w).ReadBuffer(&b)
	require.False(t, b.AllOnes())
}

func TestSmallWindow(t *testing.T) {
	ram := vfiotest.NewRAM(vfiotest.RAMOptions{BAR0: 4096})
	dev, err := vfio.NewDevice(ram, vfio.DeviceOptions{})
	require.NoError(t, err)
	defer dev.Close()
	w, err := dev.Window(vfio.RegionBAR0)
	require.NoError(t, err)
	require.Panics(t, func() { health.NewSampler(w) })
	_, err = health.New(health.Options{Window: w})
	var oe *health.OptionError
	require.ErrorAs(t, err, &oe)
	_, good := newBAR(t)
	for _, o := range []health.Options{{}, {Window: good, Period: time.Millisecond}, {Window: good, HealthPoll: -1}} {
		_, err = health.New(o)
		require.ErrorAs(t, err, &oe)
	}
}

// memWindow is a window on mapped memory, as over kernel VFIO.
func memWindow(tb testing.TB) *vfio.Window {
	tb.Helper()
	ram := vfiotest.NewRAM(vfiotest.RAMOptions{Mapped: []vfio.Span{{Offset: 0, Size: 64 << 10}}})
	dev, err := vfio.NewDevice(ram, vfio.DeviceOptions{})
	require.NoError(tb, err)
	tb.Cleanup(func() { _ = dev.Close() })
	w, err := dev.Window(vfio.RegionBAR0)
	require.NoError(tb, err)
	require.True(tb, w.Mapped(0x1010))
	return w
}

func simWindow(tb testing.TB) *vfio.Window {
	tb.Helper()
	c, err := sim.New(sim.Options{})
	require.NoError(tb, err)
	dev, err := vfio.NewDevice(c.Function(0), vfio.DeviceOptions{})
	require.NoError(tb, err)
	tb.Cleanup(func() { _, _ = dev.Close(), c.Close() })
	w, err := dev.Window(vfio.RegionBAR0)
	require.NoError(tb, err)
	var b [2]byte
	require.NoError(tb, dev.ReadConfig(4, b[:]))
	b[0] |= 2 // memory decoding
	require.NoError(tb, dev.WriteConfig(4, b[:]))
	return w
}

// A sample, and a whole period of the monitor while nothing changes, allocate
// nothing: mapped, and trapping into the model.
func TestSampleAllocatesNothing(t *testing.T) {
	if raceBuild {
		t.Skip("not under the race detector")
	}
	for name, w := range map[string]*vfio.Window{"mapped": memWindow(t), "model": simWindow(t)} {
		r := health.NewSampler(w)
		var s health.Sample
		require.Zero(t, testing.AllocsPerRun(200, func() { r.Read(&s) }), name)
	}
	m, err := health.New(health.Options{Window: simWindow(t)})
	require.NoError(t, err)
	m.Prepare()
	m.Tick()
	time.Sleep(20 * time.Millisecond)
	for range 4 {
		m.Tick()
	}
	require.Equal(t, health.Healthy, m.Verdict().State)
	require.Zero(t, testing.AllocsPerRun(200, m.Tick))
}

// sampleLimit is what a sample may cost in process.
const sampleLimit = 20 * time.Microsecond

// BenchmarkSample prints how much of the limit of 20 µs a sample takes.
func BenchmarkSample(b *testing.B) {
	for _, c := range []struct {
		name string
		w    *vfio.Window
	}{{"mapped", memWindow(b)}, {"model", simWindow(b)}} {
		b.Run(c.name, func(b *testing.B) {
			r := health.NewSampler(c.w)
			var s health.Sample
			b.ReportAllocs()
			for b.Loop() {
				r.Read(&s)
			}
			b.ReportMetric(float64(b.Elapsed())/float64(b.N)/float64(sampleLimit), "of-20µs")
		})
	}
	b.Run("period", func(b *testing.B) {
		m, err := health.New(health.Options{Window: simWindow(b)})
		require.NoError(b, err)
		m.Prepare()
		b.ReportAllocs()
		for b.Loop() {
			m.Tick()
		}
		b.ReportMetric(float64(b.Elapsed())/float64(b.N)/float64(sampleLimit), "of-20µs")
	})
}
