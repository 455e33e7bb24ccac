package main

import (
	"errors"
	"net"
	"net/http"
	"time"

	"github.com/mlxvfio/mlxvfio/cmdif"
	"github.com/mlxvfio/mlxvfio/health"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// checkMetricsAddress refuses an address that other hosts can reach, unless that is
// asked for: the endpoint has no protection.
func checkMetricsAddress(addr string, public bool) error {
	host, port, err := net.SplitHostPort(addr)
	if err == nil {
		_, err = net.LookupPort("tcp", port)
	}
	if err != nil {
		return usagef("--metrics %q: want HOST:PORT, such as 127.0.0.1:9750", addr)
	}
	if ip := net.ParseIP(host); public || host == "localhost" || ip != nil && ip.IsLoopback() {
		return nil
	}
	return usagef("--metrics %q is not a loopback address, and nothing protects the endpoint: use 127.0.0.1, or allow it with --metrics-public", addr)
}

// metricsServer serves the numbers of a patient; its close does nothing on nil.
type metricsServer struct {
	url  string
	srv  *http.Server
	done chan error
}

func serveMetrics(addr string, p *patient) (*metricsServer, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, &unavailable{err}
	}
	reg := prometheus.NewPedanticRegistry()
	if err := reg.Register(newHealthMetrics(p)); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{MaxRequestsInFlight: 4}))
	s := &metricsServer{url: "http://" + l.Addr().String() + "/metrics", done: make(chan error, 1),
		srv: &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 10 * time.Second,
			IdleTimeout: time.Minute, MaxHeaderBytes: 8 << 10}}
	go func() { s.done <- s.srv.Serve(l) }()
	return s, nil
}

// close ends the server and its connections, and waits.
func (s *metricsServer) close() error {
	if s == nil {
		return nil
	}
	err := s.srv.Close()
	if e := <-s.done; !errors.Is(e, http.ErrServerClosed) {
		err = errors.Join(err, e)
	}
	return err
}

// metric describes one number.
type metric struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
}

// healthMetrics turns a report into metrics when they are asked for.
type healthMetrics struct {
	p *patient
	m map[string]metric
}

// metricTable lists what is served: name, kind, labels, help. docs/health.md has it
// for people.
var metricTable = []struct {
	name   string
	kind   prometheus.ValueType
	labels []string
	help   string
}{
	{"mlxvfio_open", gauge, nil, "1 where the function was brought up, 0 where only its registers are looked at."},
	{"mlxvfio_health_state", gauge, nil, "State: 0 unknown, 1 healthy, 2 degraded, 3 recovering, 4 stalled, 5 fatal, 6 gone."},
	{"mlxvfio_health_condition", gauge, []string{"condition"}, "1 for the condition that is the verdict, 0 for each other one."},
	{"mlxvfio_health_counter", gauge, nil, "Health counter, 24 bits."},
	{"mlxvfio_health_counter_rate", gauge, nil, "Increments of the health counter a second, over the last 16 looks."},
	{"mlxvfio_health_syndrome", gauge, nil, "Syndrome of the health buffer, 0 for none."},
	{"mlxvfio_health_samples_total", counter, nil, "Looks at the function."},
	{"mlxvfio_health_misses_total", counter, nil, "Looks that found the counter where it was."},
	{"mlxvfio_health_misses_in_a_row", gauge, nil, "Of these, in a row now."},
	{"mlxvfio_health_gaps_total", counter, nil, "Times nobody looked for a stall limit."},
	{"mlxvfio_health_read_errors_total", counter, nil, "Looks that read all ones once only."},
	{"mlxvfio_health_events_total", counter, nil, "Events of the monitor."},
	{"mlxvfio_health_events_lost_total", counter, nil, "Of these, found no room."},
	{"mlxvfio_health_last_sample_timestamp_seconds", gauge, nil, "When the function was last looked at."},
	{"mlxvfio_health_stall_limit_seconds", gauge, nil, "For how long the counter may stand."},
	{"mlxvfio_temperature_celsius", gauge, nil, "Temperature of the ASIC (register MTMP)."},
	{"mlxvfio_temperature_threshold_celsius", gauge, nil, "Its high threshold."},
	{"mlxvfio_slot_power_watts", gauge, nil, "What the slot gives (register MPEIN)."},
	{"mlxvfio_slot_power_insufficient", gauge, nil, "1 where that is less than the adapter wants."},
	{"mlxvfio_pcie_link_width_lanes", gauge, []string{"side"}, "Lanes of the PCIe link, as the device or the host sees it."},
	{"mlxvfio_pcie_link_info", gauge, []string{"side", "speed"}, "1, with the speed of the PCIe link as the device or the host names it."},
	{"mlxvfio_pcie_aer_errors_total", counter, []string{"severity", "error"}, "AER counters of the kernel."},
	{"mlxvfio_command_latency_seconds", prometheus.UntypedValue, []string{"opcode"}, "Latency of commands answered in time, from doorbell to checked reply (a histogram)."},
	{"mlxvfio_commands_total", counter, []string{"opcode"}, "Commands handed to the device."},
	{"mlxvfio_command_failures_total", counter, []string{"opcode"}, "Of these, without success."},
	{"mlxvfio_command_timeouts_total", counter, []string{"opcode"}, "Of the failures, given up."},
	{"mlxvfio_commands_in_flight", gauge, nil, "Commands that are waited for."},
	{"mlxvfio_commands_overdue", gauge, nil, "Commands that the device holds past their deadline."},
	{"mlxvfio_commands_late_total", counter, nil, "Commands that completed after they were given up."},
	{"mlxvfio_commands_lost_interrupts_total", counter, nil, "Completions found by polling though an interrupt was due."},
	{"mlxvfio_pages_held", gauge, nil, "Pages of 4 KiB that firmware holds."},
	{"mlxvfio_eq_depth", gauge, []string{"eq"}, "Entries of the event queue."},
	{"mlxvfio_eq_overruns_total", counter, nil, "Times an event queue lost entries."},
	{"mlxvfio_eq_entries_total", counter, []string{"kind"}, "Entries taken from event queues."},
}

const (
	gauge   = prometheus.GaugeValue
	counter = prometheus.CounterValue
)

func newHealthMetrics(p *patient) *healthMetrics {
	h := &healthMetrics{p: p, m: map[string]metric{}}
	for _, t := range metricTable {
		h.m[t.name] = metric{prometheus.NewDesc(t.name, t.help, t.labels, prometheus.Labels{"device": p.arg.text}), t.kind}
	}
	return h
}

// Describe implements prometheus.Collector.
func (h *healthMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, m := range h.m {
		ch <- m.desc
	}
}

// sink takes numbers by name.
type sink struct {
	h  *healthMetrics
	ch chan<- prometheus.Metric
}

func (s sink) put(name string, v float64, labels ...string) {
	m := s.h.m[name]
	s.ch <- prometheus.MustNewConstMetric(m.desc, m.kind, v, labels...)
}

// Collect implements prometheus.Collector. It sends no command and reads no register.
func (h *healthMetrics) Collect(ch chan<- prometheus.Metric) {
	s := sink{h, ch}
	r := h.p.report()
	s.health(&r)
	s.environment(r.Environment)
	s.function(h.p)
}

func boolean(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func (s sink) health(r *health.Report) {
	s.put("mlxvfio_health_state", float64(r.Verdict.State))
	for _, c := range health.Conditions() {
		s.put("mlxvfio_health_condition", boolean(c.Condition == r.Verdict.Condition), string(c.Condition))
	}
	n := r.Counts
	s.put("mlxvfio_health_samples_total", float64(n.Samples))
	s.put("mlxvfio_health_misses_total", float64(n.Missed))
	s.put("mlxvfio_health_misses_in_a_row", float64(n.MissedRow))
	s.put("mlxvfio_health_gaps_total", float64(n.Gaps))
	s.put("mlxvfio_health_read_errors_total", float64(n.Glitches))
	s.put("mlxvfio_health_events_total", float64(n.Events))
	s.put("mlxvfio_health_events_lost_total", float64(n.EventsDropped))
	s.put("mlxvfio_health_stall_limit_seconds", r.Limits.Stall.Seconds())
	s.put("mlxvfio_health_counter_rate", r.Rate.Recent)
	if n.Samples == 0 {
		return
	}
	s.put("mlxvfio_health_last_sample_timestamp_seconds", float64(r.Last.At.UnixNano())/1e9)
	if !r.Now.AllOnes { // nobody answered: those are no values
		s.put("mlxvfio_health_counter", float64(r.Now.Counter))
		s.put("mlxvfio_health_syndrome", float64(r.Now.Synd))
	}
	if c := r.Commands; c != nil {
		s.put("mlxvfio_commands_in_flight", float64(c.InFlight))
		s.put("mlxvfio_commands_overdue", float64(c.Overdue))
		s.put("mlxvfio_commands_late_total", float64(c.Late))
		s.put("mlxvfio_commands_lost_interrupts_total", float64(c.LostInterrupts))
	}
}

func (s sink) environment(e *health.EnvironmentReport) {
	if e == nil {
		return
	}
	if t := e.Temperature; t != nil {
		s.put("mlxvfio_temperature_celsius", t.Celsius)
		if t.High != 0 {
			s.put("mlxvfio_temperature_threshold_celsius", t.High)
		}
	}
	if l := e.PCIe; l != nil {
		s.put("mlxvfio_slot_power_insufficient", boolean(l.Power == "insufficient"))
		if l.PowerWatts > 0 {
			s.put("mlxvfio_slot_power_watts", float64(l.PowerWatts))
		}
		s.put("mlxvfio_pcie_link_width_lanes", float64(l.WidthActive), "device")
		s.put("mlxvfio_pcie_link_info", 1, "device", l.SpeedActive)
	}
	h := e.Host
	if h == nil {
		return
	}
	s.put("mlxvfio_pcie_link_width_lanes", float64(h.Width), "host")
	s.put("mlxvfio_pcie_link_info", 1, "host", h.Speed)
	if h.AER == nil {
		return
	}
	for severity, m := range map[string]map[string]uint64{"correctable": h.AER.Correctable, "nonfatal": h.AER.NonFatal, "fatal": h.AER.Fatal} {
		for name, v := range m {
			s.put("mlxvfio_pcie_aer_errors_total", float64(v), severity, name)
		}
	}
}

// function is what only a function that is open has.
func (s sink) function(p *patient) {
	up := p.hca()
	s.put("mlxvfio_open", boolean(up != nil))
	if up == nil {
		return
	}
	st := up.Stats()
	for i := range st.Commands.Ops {
		s.opcode(&st.Commands.Ops[i])
	}
	s.put("mlxvfio_pages_held", float64(st.Pages.Outstanding))
	for _, q := range up.Info().EQs {
		s.put("mlxvfio_eq_depth", float64(q.Entries), q.Name)
	}
	s.put("mlxvfio_eq_overruns_total", float64(st.Events.Overruns))
	s.put("mlxvfio_eq_entries_total", float64(st.Events.Commands), "command")
	s.put("mlxvfio_eq_entries_total", float64(st.Events.Pages), "pages")
	s.put("mlxvfio_eq_entries_total", float64(st.Events.Delivered), "device")
}

// Buckets of the driver's histogram that are served: up to 2^i ns, about 1 µs to 69 s.
const firstBucket, lastBucket = 10, 36

func (s sink) opcode(o *cmdif.OpStats) {
	name := o.Opcode.String()
	s.put("mlxvfio_commands_total", float64(o.Count), name)
	s.put("mlxvfio_command_failures_total", float64(o.Failures), name)
	s.put("mlxvfio_command_timeouts_total", float64(o.Timeouts), name)
	buckets := map[float64]uint64{}
	var n uint64
	for i, c := range o.Latency {
		if n += c; i >= firstBucket && i <= lastBucket {
			buckets[float64(uint64(1)<<i)/1e9] = n
		}
	}
	s.ch <- prometheus.MustNewConstHistogram(s.h.m["mlxvfio_command_latency_seconds"].desc, n, o.Total.Seconds(), buckets, name)
}
