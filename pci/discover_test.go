package pci_test

import (
	"context"
	"encoding/json"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/pci"
	"github.com/mlxvfio/mlxvfio/pci/pcitest"
)

// machine is a host as it is met: a two-port card with a VF, its bridge in the
// group, an mlx4 card, a card in recovery mode, and devices of others.
func machine(t testing.TB) *pcitest.Tree {
	tr := pcitest.New(t)
	tr.IOMMUFD()
	tr.Driver("nvme", "144d:a80a")
	tr.Add(pcitest.Spec{BDF: "0000:3a:00.0", Vendor: 0x8086, Device: 0x2030, Class: 0x060400, Driver: "pcieport", Group: 30})
	tr.Add(pcitest.Spec{BDF: "0000:3b:00.1", Driver: "mlx5_core", Group: 31, Infiniband: []string{"mlx5_1"}})
	tr.Add(pcitest.Spec{BDF: "0000:3b:00.0", Driver: "mlx5_core", Group: 30, Infiniband: []string{"mlx5_0"},
		Netdevs: []pcitest.Netdev{{Name: "ens1f0np0", Up: true, Master: "bond0", Uppers: []string{"bond0"}}},
		NumVFs:  1, Total: 8, VFs: []string{"0000:3b:00.2"}, Config: pcitest.ConfigSpace()})
	tr.Add(pcitest.Spec{BDF: "0000:3b:00.2", Device: 0x1018, PhysFn: "0000:3b:00.0", Group: 32, Driver: "vfio-pci", Override: "vfio-pci"})
	tr.Add(pcitest.Spec{BDF: "0000:5e:00.0", Device: 0x1003, WithoutNUMANode: true})
	tr.Add(pcitest.Spec{BDF: "0001:00:00.0", Device: 0x020d})
	tr.Add(pcitest.Spec{BDF: "0000:01:00.0", Vendor: 0x144d, Device: 0xa80a, Class: 0x010802, Driver: "nvme", Group: 5})
	return tr
}

func TestList(t *testing.T) {
	tr := machine(t)
	fs, err := pci.List(context.Background(), tr.Options())
	require.NoError(t, err)
	var got []string
	for _, f := range fs {
		got = append(got, f.BDF.String()+" "+string(f.ID.Kind)+" "+f.ID.Name)
	}
	require.Equal(t, []string{
		"0000:3b:00.0 hca ConnectX-5", "0000:3b:00.1 hca ConnectX-5", "0000:3b:00.2 hca ConnectX-5 VF",
		"0000:5e:00.0 mlx4 ConnectX-3", "0001:00:00.0 flash-recovery ConnectX-5 flash recovery",
	}, got)
	require.True(t, fs[0].IsMLX5())
	require.False(t, fs[3].IsMLX5())
}

func TestInspectPF(t *testing.T) {
	tr := machine(t)
	f, err := pci.Inspect(bdf(t, "3b:00.0"), tr.Options())
	require.NoError(t, err)
	vf := bdf(t, "3b:00.2")
	require.Equal(t, &pci.Function{
		BDF: bdf(t, "3b:00.0"), ID: pci.Lookup(0x15b3, 0x1017), Vendor: 0x15b3, Device: 0x1017, SubVendor: 0x15b3, SubDevice: 8,
		Class: 0x020000, Driver: "mlx5_core",
		IOMMU: &pci.Group{Number: 30, Type: "DMA-FQ",
			Members: []pci.Member{
				{BDF: bdf(t, "3a:00.0"), Driver: "pcieport", Class: 0x060400, Vendor: 0x8086, Device: 0x2030},
				{BDF: bdf(t, "3b:00.0"), Driver: "mlx5_core", Class: 0x020000, Vendor: 0x15b3, Device: 0x1017}},
			Reserved: []pci.ReservedRegion{{Start: 0xfee00000, End: 0xfeefffff, Type: "msi"}}},
		Link: pci.Link{CurrentSpeed: "8.0 GT/s PCIe", CurrentWidth: 16, MaxSpeed: "8.0 GT/s PCIe", MaxWidth: 16},
		VFs:  []pci.BDF{vf}, NumVFs: 1, TotalVFs: 8,
		Netdevs:    []pci.Netdev{{Name: "ens1f0np0", Up: true, OperState: "up", Master: "bond0", Uppers: []string{"bond0"}}},
		Infiniband: []string{"mlx5_0"}, PowerState: "D0", Enable: 1, ResetMethods: []string{"flr", "bus"},
		BARs: []pci.BAR{{Index: 0, Base: 0xa0000000, Size: 32 << 20, Is64: true, Prefetchable: true}},
		IRQ:  16, ConfigSize: 4096,
	}, f)
	require.Equal(t, uint64(32<<20), f.BAR0().Size)
	require.False(t, f.Link.Degraded())
	require.Len(t, f.IOMMU.Siblings(f.BDF), 1)
	require.False(t, f.IOMMU.Siblings(f.BDF)[0].Blocks())
}

func TestInspectVF(t *testing.T) {
	tr := machine(t)
	f, err := pci.Inspect(bdf(t, "3b:00.2"), tr.Options())
	require.NoError(t, err)
	pf := bdf(t, "3b:00.0")
	require.True(t, f.IsVF)
	require.Equal(t, &pf, f.PhysFn)
	require.Equal(t, "vfio-pci", f.DriverOverride)
	require.Equal(t, "/dev/vfio/32", f.VFIONode)
	require.Equal(t, "/dev/vfio/devices/vfio0", f.VFIOCdev)
	require.Equal(t, -1, f.NumVFs)
	require.Equal(t, -1, f.TotalVFs)

	// Inside a VM the physfn link is missing: the id tells.
	tr.Add(pcitest.Spec{BDF: "0000:06:00.0", Device: 0x101e})
	f, err = pci.Inspect(bdf(t, "06:00.0"), tr.Options())
	require.NoError(t, err)
	require.True(t, f.IsVF)
	require.Nil(t, f.PhysFn)
	require.Nil(t, f.IOMMU)
}

func TestInspectOddities(t *testing.T) {
	tr := machine(t)
	tr.Add(pcitest.Spec{BDF: "0000:07:00.0", WithoutNUMANode: true,
		Resource: "0x0000000000000000 0x0000000000ffffff 0x000000000014220c\n" + // size known, address not assigned
			"0x0000000000000000 0x0000000000000000 0x0000000000000000\n" +
			"0x0000000000001000 0x00000000000010ff 0x0000000000040101\n" +
			"0x0000000000000000 0x0000000000000000 0x0000000000000000\n" +
			"0x0000000000000000 0x0000000000000000 0x0000000000000000\n" +
			"0x0000000000000000 0x0000000000000000 0x0000000000000000\n" +
			"0x00000000fff00000 0x00000000ffffffff 0x0000000000046200\n" +
			"0x00000000b0000000 0x00000000b0ffffff 0x000000000014220c\n", // SR-IOV, not ours
		Attrs: map[string]string{"current_link_speed": "Unknown\n", "current_link_width": "255\n", "max_link_width": "8\n",
			"max_link_speed": "16.0 GT/s PCIe\n", "power_state": "D3cold\n", "power/runtime_status": "suspended\n", "enable": "0\n"}})
	f, err := pci.Inspect(bdf(t, "07:00.0"), tr.Options())
	require.NoError(t, err)
	require.Equal(t, -1, f.NUMANode)
	require.Zero(t, f.Enable)
	require.Equal(t, "D3cold", f.PowerState)
	require.Equal(t, "suspended", f.RuntimePM)
	require.Equal(t, pci.Link{MaxSpeed: "16.0 GT/s PCIe", MaxWidth: 8}, f.Link)
	require.False(t, f.Link.Degraded(), "an unknown link is not called slow")
	require.Equal(t, []pci.BAR{
		{Index: 0, Size: 16 << 20, Is64: true, Prefetchable: true}, {Index: 2, Base: 0x1000, Size: 256, IO: true}}, f.BARs)
	require.Equal(t, uint64(1<<20), f.ROMSize)

	require.True(t, pci.Link{CurrentWidth: 8, MaxWidth: 16}.Degraded())
	require.True(t, pci.Link{CurrentSpeed: "8.0 GT/s PCIe", MaxSpeed: "16.0 GT/s PCIe"}.Degraded())
}

// A device behind a dead link fails reads of some attributes and stays visible.
func TestInspectUnreadableAttribute(t *testing.T) {
	tr := machine(t)
	dev := pcitest.Device("0000:3b:00.1")
	tr.Remove(dev + "/current_link_speed")
	tr.Mkdir(dev + "/current_link_speed") // reading a folder is an error that is not ENOENT
	f, err := pci.Inspect(bdf(t, "3b:00.1"), tr.Options())
	require.NoError(t, err)
	require.Len(t, f.Unreadable, 1)
	require.Contains(t, f.Unreadable[0], "current_link_speed: ")
}

func TestListGoesOnAfterABrokenFunction(t *testing.T) {
	tr := machine(t)
	tr.Write(pcitest.Device("0000:3b:00.1")+"/resource", "garbage\n")
	fs, err := pci.List(context.Background(), tr.Options())
	require.Len(t, fs, 4)
	require.ErrorIs(t, err, pci.ErrIO)
	require.ErrorContains(t, err, "0000:3b:00.1")
}

func TestInspectErrors(t *testing.T) {
	tr := machine(t)
	_, err := pci.Inspect(bdf(t, "ff:1f.7"), tr.Options())
	require.Equal(t, "mlxvfio list", remedyOf(t, err, pci.ErrNotFound))
	require.ErrorContains(t, err, "0000:ff:1f.7: inspect: no such PCI function")
	_, err = pci.Inspect(pci.BDF{Function: 8}, tr.Options())
	require.ErrorIs(t, err, pci.ErrBadBDF)

	o := tr.Options()
	o.SysRoot = tr.Path("nowhere")
	_, err = pci.List(context.Background(), o)
	require.ErrorIs(t, err, pci.ErrNotFound)

	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err = pci.List(ctx, tr.Options())
	require.ErrorIs(t, err, pci.ErrInterrupted)
	require.ErrorIs(t, err, context.Canceled)
}

func TestFunctionAsJSON(t *testing.T) {
	tr := machine(t)
	f, err := pci.Inspect(bdf(t, "3b:00.2"), tr.Options())
	require.NoError(t, err)
	out, err := json.Marshal(f)
	require.NoError(t, err)
	var m map[string]any
	require.NoError(t, json.Unmarshal(out, &m))
	require.Equal(t, "0000:3b:00.2", m["bdf"])
	require.Equal(t, "0000:3b:00.0", m["physfn"])
	require.Equal(t, "vfio-pci", m["driver"])
	var back pci.Function
	require.NoError(t, json.Unmarshal(out, &back))
	require.Equal(t, f, &back)
}

func TestIsVFIO(t *testing.T) {
	for _, d := range []string{"vfio-pci", "vfio_pci", "mlx5_vfio_pci"} {
		require.True(t, pci.IsVFIO(d), d)
	}
	for _, d := range []string{"", "mlx5_core", "vfio", "pci-stub", "notvfio-pci2", "xvfio-pci"} {
		require.False(t, pci.IsVFIO(d), d)
	}
}

func TestInUse(t *testing.T) {
	tr := machine(t)
	tr.Write("proc/net/route", "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"+
		"bond0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n"+
		"bond0\t000200C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n"+
		"eth9\t0000000A\t00000000\t0001\t0\t0\t0\t000000FF\t0\t0\t0\n")
	tr.Write("proc/net/ipv6_route",
		"fd000000000000000000000000000000 40 00000000000000000000000000000000 00 00000000000000000000000000000000 00000100 00000001 00000000 00000001 ens1f0np0\n"+
			"fe800000000000000000000000000000 40 00000000000000000000000000000000 00 00000000000000000000000000000000 00000100 00000002 00000000 00000001 ens1f0np0\n"+
			"ff000000000000000000000000000000 08 00000000000000000000000000000000 00 00000000000000000000000000000000 00000100 00000003 00000000 00000001 ens1f0np0\n"+
			"fd000000000000000000000000000002 80 00000000000000000000000000000000 00 00000000000000000000000000000000 00000000 00000003 00000000 80200001 ens1f0np0\n"+
			"00000000000000000000000000000000 00 00000000000000000000000000000000 00 00000000000000000000000000000000 ffffffff 00000001 00000000 00200200 lo\n")
	f, err := pci.Inspect(bdf(t, "3b:00.0"), tr.Options())
	require.NoError(t, err)
	require.Equal(t, []pci.Use{
		{Reason: "netdev ens1f0np0 is up", Remedy: "ip link set dev ens1f0np0 down", Kind: pci.NetdevUp},
		{Reason: "netdev ens1f0np0 is part of bond0", Remedy: "ip link set dev ens1f0np0 nomaster", Kind: pci.NetdevMember},
		{Reason: "netdev ens1f0np0 holds route fd00:0000:0000:0000:0000:0000:0000:0000/64", Remedy: "ip route flush dev ens1f0np0", Kind: pci.NetdevRoutes},
		{Reason: "netdev bond0 holds route default, 192.0.2.0/24", Remedy: "ip route flush dev bond0", Kind: pci.NetdevRoutes},
		{Reason: "VFs are enabled (sriov_numvfs is 1)", Remedy: "echo 0 > " + tr.Path(pcitest.Device("0000:3b:00.0")+"/sriov_numvfs"), Kind: pci.VFsEnabled},
	}, f.InUse(tr.Options()))

	idle, err := pci.Inspect(bdf(t, "3b:00.1"), tr.Options())
	require.NoError(t, err)
	require.Empty(t, idle.InUse(tr.Options()))
}

// A VLAN on a bond on the port holds the routes; links that form a circle end
// the walk all the same. A sub-function's netdev counts as the PF's.
func TestInUseStacked(t *testing.T) {
	tr := pcitest.New(t)
	tr.Add(pcitest.Spec{BDF: "0000:3b:00.0", Driver: "mlx5_core", Netdevs: []pcitest.Netdev{{Name: "p0", Uppers: []string{"bond0"}, Master: "bond0"}}})
	tr.Mkdir("sys/class/net/bond0.7")
	tr.Link("sys/class/net/bond0/upper_bond0.7", "sys/class/net/bond0.7")
	tr.Link("sys/class/net/bond0.7/upper_p0", "sys/class/net/p0")
	tr.Write(pcitest.Device("0000:3b:00.0")+"/mlx5_core.sf.2/net/sf0/flags", "0x1003\n")
	tr.Write("proc/net/route", "bond0.7\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n")
	f, err := pci.Inspect(bdf(t, "3b:00.0"), tr.Options())
	require.NoError(t, err)
	require.Equal(t, []string{"bond0", "bond0.7"}, f.Netdevs[0].Uppers)
	var reasons []string
	for _, u := range f.InUse(tr.Options()) {
		reasons = append(reasons, u.Reason)
	}
	require.Equal(t, []string{"netdev p0 is part of bond0", "netdev bond0.7 holds route default", "netdev sf0 is up"}, reasons)
}

func TestHolders(t *testing.T) {
	tr := machine(t)
	tr.Write("proc/4242/comm", "dpdk-testpmd\n")
	tr.Mkdir("proc/4242/fd")
	require.NoError(t, os.Symlink("/dev/null", tr.Path("proc/4242/fd/0")))
	require.NoError(t, os.Symlink("/dev/vfio/32", tr.Path("proc/4242/fd/7")))
	tr.Mkdir("proc/4243/fd")
	require.NoError(t, os.Symlink("/dev/vfio/33", tr.Path("proc/4243/fd/7")))
	f, err := pci.Inspect(bdf(t, "3b:00.2"), tr.Options())
	require.NoError(t, err)
	require.Equal(t, []pci.Holder{{PID: 4242, Comm: "dpdk-testpmd", Node: "/dev/vfio/32"}}, f.Holders(tr.Options()))
	f, err = pci.Inspect(bdf(t, "3b:00.0"), tr.Options())
	require.NoError(t, err)
	require.Empty(t, f.Holders(tr.Options()))
}
