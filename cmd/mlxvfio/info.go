package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/mlxvfio/mlxvfio"
	"github.com/mlxvfio/mlxvfio/initseg"
	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/pci"
	"github.com/mlxvfio/mlxvfio/vfio"
	"github.com/spf13/cobra"
)

func (a *app) infoVerb() *cobra.Command {
	c := a.verb("info DEV", "bring a function up, show what it is, give it back", 1, 1, func(ctx context.Context, args []string) error {
		return a.info(ctx, args[0])
	})
	c.Long = `info brings the function up, shows what it says of itself, and gives it back.
info sysfs:BDF reads the initialization segment only: it works beside any driver and changes nothing.`
	c.Example = examples(
		"mlxvfio info sim:cx7", "the embedded model of a ConnectX-7",
		"mlxvfio info 0000:3b:00.0", "a function on vfio-pci",
		"mlxvfio info sysfs:0000:3b:00.0", "one that its host driver keeps")
	takesSysfs(c)
	return c
}

func (a *app) info(ctx context.Context, dev string) error {
	arg, err := parseDev(dev)
	if err != nil {
		return err
	}
	if arg.kind == devSysfs {
		return a.infoSysfs(ctx, arg)
	}
	return a.withDevice(ctx, dev, mlxvfio.Options{}, func(_ context.Context, s *session) error {
		r, err := s.describe()
		if err != nil {
			return err
		}
		return a.print("info/1", r)
	})
}

// infoSysfs reads BAR0 beside whatever driver owns the function.
func (a *app) infoSysfs(ctx context.Context, arg devArg) (err error) {
	t, err := a.open(ctx, arg)
	if err != nil {
		return err
	}
	d, err := vfio.NewDevice(t, vfio.DeviceOptions{Logger: a.logger()})
	if err != nil {
		return errors.Join(err, t.Close())
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	w, err := d.Window(vfio.RegionBAR0)
	if err != nil {
		return err
	}
	seg := initseg.New(w)
	if err := seg.Alive(); err != nil {
		return err
	}
	r := &infoResult{deviceHead: deviceHead{Device: arg.text, Backend: d.Info().Backend, Firmware: seg.FirmwareVersion().String()}}
	r.Function, err = identify(d)
	if err != nil {
		return err
	}
	r.Segment = describeSegment(seg)
	if err := seg.Err(); err != nil {
		return err
	}
	return a.print("info/1", r)
}

// infoResult is what a function says of itself. What needs commands is absent
// when only BAR0 was read.
type infoResult struct {
	deviceHead
	Function pciIdentity  `json:"function"`
	Segment  segmentState `json:"segment"`
	// HCA is what was found when the function came up.
	HCA *mlxvfio.Info `json:"hca,omitempty"`
	// MaxAtomicSize is the largest argument of an atomic operation on a QP in bytes,
	// 0 where atomics are not supported.
	MaxAtomicSize *int `json:"max_atomic_size,omitempty"`
	Slots         int  `json:"command_slots,omitempty"`
}

// describe asks a function that is up.
func (s *session) describe() (*infoResult, error) {
	id, err := identify(s.Device())
	if err != nil {
		return nil, err
	}
	i, most := s.Info(), s.MaxAtomicSize()
	r := &infoResult{deviceHead: s.head(), Function: id, Segment: describeSegment(s.Segment()), HCA: &i,
		MaxAtomicSize: &most, Slots: s.Conn().Stats().Slots}
	return r, s.Segment().Alive()
}

// pciIdentity is the function as configuration space names it.
type pciIdentity struct {
	Name      string `json:"name"`
	Vendor    uint16 `json:"vendor"`
	Device    uint16 `json:"device"`
	Revision  uint8  `json:"revision"`
	SubVendor uint16 `json:"subvendor"`
	SubDevice uint16 `json:"subdevice"`
	Product   string `json:"product"`
	VF        bool   `json:"vf"`
}

func identify(d *vfio.Device) (pciIdentity, error) {
	head := make([]byte, pci.ConfigHeaderSize)
	if err := d.ReadConfig(0, head); err != nil {
		return pciIdentity{}, err
	}
	c, err := pci.ParseConfig(head)
	if err != nil {
		return pciIdentity{}, err
	}
	id := pci.Lookup(c.VendorID, c.DeviceID)
	return pciIdentity{
		Name: d.Info().Name, Vendor: c.VendorID, Device: c.DeviceID, Revision: c.Revision,
		SubVendor: c.SubVendor, SubDevice: c.SubDevice, Product: id.Name, VF: id.VF,
	}, nil
}

// segmentState is the initialization segment.
type segmentState struct {
	CommandRev     uint16      `json:"command_interface_rev"`
	Initializing   bool        `json:"initializing"`
	NICInterface   string      `json:"nic_interface"`
	HealthCounter  uint32      `json:"health_counter"`
	HealthSyndrome string      `json:"health_syndrome"`
	HealthBuffer   prm.Decoded `json:"health_buffer"`
	InternalTimer  uint64      `json:"internal_timer"`
}

func describeSegment(s *initseg.Segment) segmentState {
	var buf [initseg.HealthBufferSize]byte
	s.HealthBuffer(&buf)
	h := s.Health()
	return segmentState{
		CommandRev: s.CommandInterfaceRev(), Initializing: s.State().Initializing, NICInterface: s.NICInterface().String(),
		HealthCounter: h.Counter, HealthSyndrome: h.Syndrome.String(),
		HealthBuffer: prm.Decode(buf[:], prm.HealthBufferStruct), InternalTimer: s.InternalTimer(),
	}
}

func (r *infoResult) text(w io.Writer) {
	rows := [][]string{}
	add := func(name, format string, args ...any) {
		rows = append(rows, []string{name + ":", fmt.Sprintf(format, args...)})
	}
	f := r.Function
	add("function", "%s, %s (%04x:%04x rev %02x)%s, over %s", f.Name, f.Product, f.Vendor, f.Device, f.Revision, ifText(f.VF, ", virtual function"), r.Backend)
	add("firmware", "%s, command interface revision %d", r.Firmware, r.Segment.CommandRev)
	if i := r.HCA; i != nil {
		add("board", "PSID %s, vendor %06x", i.Board.PSID, i.Board.IEEEVendorID)
		add("ISSI", "%d", i.ISSI)
		add("port", "%s, %d port%s", i.PortType, i.Ports, plural(i.Ports))
		add("atomics", "%s", atomicsText(i.Atomics))
		l := i.Limits
		add("room for", "%s QPs, %s CQs, %s SRQs, %s MKeys, %d EQs", power(l.LogQPs), power(l.LogCQs), power(l.LogSRQs), power(l.LogMKeys), l.EQs)
		add("commands", "%s, %d slots, time limit %s", mode(i.Events), r.Slots, i.CommandMax)
		for _, q := range i.EQs {
			vec := "polled"
			if i.Vectors > 0 {
				vec = fmt.Sprintf("MSI-X vector %d", q.Vector)
			}
			add(q.Name+" EQ", "EQN %d, %d entries, %s: %s", q.EQN, q.Entries, vec, strings.Join(q.Events, " "))
		}
		add("pages", "%d with firmware (%s) of %s of DMA memory in %d mappings", i.Pages.Outstanding, size(uint64(i.Pages.Outstanding)*fwPage), size(i.DMA.MappedBytes), i.DMA.Mappings)
		add("teardown", "%s", strings.Join(i.Teardowns, ", "))
	}
	add("interface", "%s%s", r.Segment.NICInterface, ifText(r.Segment.Initializing, ", firmware is initializing"))
	add("health", "counter %d, syndrome %s", r.Segment.HealthCounter, r.Segment.HealthSyndrome)
	table(w, rows)
}

// fwPage is the size of the pages that firmware is given.
const fwPage = 4096

func atomicsText(t mlxvfio.Atomics) string {
	if !t.Supported {
		return "not supported"
	}
	s := fmt.Sprintf("%s; %s bytes on QPs", strings.Join(t.Operations, " "), list(t.SizesQP))
	if len(t.SizesDC) > 0 {
		s += fmt.Sprintf(", %s on DC", list(t.SizesDC))
	}
	if t.MaxQP == 0 {
		return s + "; max_atomic_size not supported"
	}
	return s + fmt.Sprintf("; max_atomic_size %d", t.MaxQP)
}

func list(ns []int) string {
	if len(ns) == 0 {
		return "no"
	}
	return strings.Trim(fmt.Sprint(ns), "[]")
}

func mode(events bool) string {
	if events {
		return "completed by events"
	}
	return "polled"
}

func ifText(on bool, s string) string {
	if on {
		return s
	}
	return ""
}

func plural(n int) string { return ifText(n != 1, "s") }

func power(log uint8) string { return fmt.Sprintf("2^%d", log) }

// size is a number of bytes for people.
func size(n uint64) string {
	switch {
	case n >= 1<<30:
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	case n >= 1<<20:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	case n >= 1<<10:
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	}
	return fmt.Sprintf("%d bytes", n)
}
