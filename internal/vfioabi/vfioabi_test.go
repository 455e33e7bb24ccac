package vfioabi

import (
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"github.com/mlxvfio/mlxvfio/internal/absent"
	"github.com/stretchr/testify/require"
)

// numbers are the constants that linux/vfio.h also defines, by its names.
var numbers = map[string]uint64{
	"VFIO_API_VERSION": VFIO_API_VERSION, "VFIO_TYPE1_IOMMU": VFIO_TYPE1_IOMMU, "VFIO_TYPE1v2_IOMMU": VFIO_TYPE1v2_IOMMU,
	"VFIO_NOIOMMU_IOMMU": VFIO_NOIOMMU_IOMMU, "VFIO_UNMAP_ALL": VFIO_UNMAP_ALL,
	"VFIO_GET_API_VERSION": VFIO_GET_API_VERSION, "VFIO_CHECK_EXTENSION": VFIO_CHECK_EXTENSION, "VFIO_SET_IOMMU": VFIO_SET_IOMMU,
	"VFIO_IOMMU_GET_INFO": VFIO_IOMMU_GET_INFO, "VFIO_IOMMU_MAP_DMA": VFIO_IOMMU_MAP_DMA, "VFIO_IOMMU_UNMAP_DMA": VFIO_IOMMU_UNMAP_DMA,
	"VFIO_GROUP_GET_STATUS": VFIO_GROUP_GET_STATUS, "VFIO_GROUP_SET_CONTAINER": VFIO_GROUP_SET_CONTAINER,
	"VFIO_GROUP_UNSET_CONTAINER": VFIO_GROUP_UNSET_CONTAINER, "VFIO_GROUP_GET_DEVICE_FD": VFIO_GROUP_GET_DEVICE_FD,
	"VFIO_DEVICE_GET_INFO": VFIO_DEVICE_GET_INFO, "VFIO_DEVICE_GET_REGION_INFO": VFIO_DEVICE_GET_REGION_INFO,
	"VFIO_DEVICE_GET_IRQ_INFO": VFIO_DEVICE_GET_IRQ_INFO, "VFIO_DEVICE_SET_IRQS": VFIO_DEVICE_SET_IRQS, "VFIO_DEVICE_RESET": VFIO_DEVICE_RESET,
	"VFIO_GROUP_FLAGS_VIABLE": VFIO_GROUP_FLAGS_VIABLE, "VFIO_GROUP_FLAGS_CONTAINER_SET": VFIO_GROUP_FLAGS_CONTAINER_SET,
	"VFIO_DEVICE_FLAGS_RESET": VFIO_DEVICE_FLAGS_RESET, "VFIO_DEVICE_FLAGS_PCI": VFIO_DEVICE_FLAGS_PCI, "VFIO_DEVICE_FLAGS_CAPS": VFIO_DEVICE_FLAGS_CAPS,
	"VFIO_REGION_INFO_FLAG_READ": VFIO_REGION_INFO_FLAG_READ, "VFIO_REGION_INFO_FLAG_WRITE": VFIO_REGION_INFO_FLAG_WRITE,
	"VFIO_REGION_INFO_FLAG_MMAP": VFIO_REGION_INFO_FLAG_MMAP, "VFIO_REGION_INFO_FLAG_CAPS": VFIO_REGION_INFO_FLAG_CAPS,
	"VFIO_REGION_INFO_CAP_SPARSE_MMAP": VFIO_REGION_INFO_CAP_SPARSE_MMAP, "VFIO_REGION_INFO_CAP_TYPE": VFIO_REGION_INFO_CAP_TYPE,
	"VFIO_REGION_INFO_CAP_MSIX_MAPPABLE": VFIO_REGION_INFO_CAP_MSIX_MAPPABLE,
	"VFIO_IRQ_INFO_EVENTFD":              VFIO_IRQ_INFO_EVENTFD, "VFIO_IRQ_INFO_MASKABLE": VFIO_IRQ_INFO_MASKABLE,
	"VFIO_IRQ_INFO_AUTOMASKED": VFIO_IRQ_INFO_AUTOMASKED, "VFIO_IRQ_INFO_NORESIZE": VFIO_IRQ_INFO_NORESIZE,
	"VFIO_IRQ_SET_DATA_NONE": VFIO_IRQ_SET_DATA_NONE, "VFIO_IRQ_SET_DATA_BOOL": VFIO_IRQ_SET_DATA_BOOL, "VFIO_IRQ_SET_DATA_EVENTFD": VFIO_IRQ_SET_DATA_EVENTFD,
	"VFIO_IRQ_SET_ACTION_MASK": VFIO_IRQ_SET_ACTION_MASK, "VFIO_IRQ_SET_ACTION_UNMASK": VFIO_IRQ_SET_ACTION_UNMASK,
	"VFIO_IRQ_SET_ACTION_TRIGGER": VFIO_IRQ_SET_ACTION_TRIGGER,
	"VFIO_IOMMU_INFO_PGSIZES":     VFIO_IOMMU_INFO_PGSIZES, "VFIO_IOMMU_INFO_CAPS": VFIO_IOMMU_INFO_CAPS,
	"VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE": VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE,
	"VFIO_IOMMU_TYPE1_INFO_CAP_MIGRATION":  VFIO_IOMMU_TYPE1_INFO_CAP_MIGRATION,
	"VFIO_IOMMU_TYPE1_INFO_DMA_AVAIL":      VFIO_IOMMU_TYPE1_INFO_DMA_AVAIL,
	"VFIO_DMA_MAP_FLAG_READ":               VFIO_DMA_MAP_FLAG_READ, "VFIO_DMA_MAP_FLAG_WRITE": VFIO_DMA_MAP_FLAG_WRITE,
	"VFIO_DMA_UNMAP_FLAG_ALL":            VFIO_DMA_UNMAP_FLAG_ALL,
	"VFIO_DEVICE_GET_PCI_HOT_RESET_INFO": VFIO_DEVICE_GET_PCI_HOT_RESET_INFO,
	"VFIO_DEVICE_PCI_HOT_RESET":          VFIO_DEVICE_PCI_HOT_RESET,
}

// sizes and offsets are ours; the header's are computed by the C compiler.
var layout = map[string]uint64{
	"sizeof(struct vfio_pci_dependent_device)":                           uint64(unsafe.Sizeof(Pci_dependent_device{})),
	"offsetof(struct vfio_pci_dependent_device, segment)":                uint64(unsafe.Offsetof(Pci_dependent_device{}.Segment)),
	"offsetof(struct vfio_pci_dependent_device, devfn)":                  uint64(unsafe.Offsetof(Pci_dependent_device{}.Devfn)),
	"offsetof(struct vfio_pci_hot_reset_info, devices)":                  uint64(unsafe.Sizeof(Pci_hot_reset_info{})),
	"offsetof(struct vfio_pci_hot_reset_info, count)":                    uint64(unsafe.Offsetof(Pci_hot_reset_info{}.Count)),
	"offsetof(struct vfio_pci_hot_reset, group_fds)":                     uint64(unsafe.Sizeof(Pci_hot_reset{})),
	"sizeof(struct vfio_info_cap_header)":                                SizeInfo_cap_header,
	"sizeof(struct vfio_group_status)":                                   uint64(unsafe.Sizeof(Group_status{})),
	"offsetof(struct vfio_device_info, num_irqs)":                        uint64(unsafe.Offsetof(Device_info{}.Num_irqs)),
	"offsetof(struct vfio_device_info, cap_offset)":                      uint64(unsafe.Offsetof(Device_info{}.Cap_offset)),
	"sizeof(struct vfio_region_info)":                                    uint64(unsafe.Sizeof(Region_info{})),
	"offsetof(struct vfio_region_info, cap_offset)":                      uint64(unsafe.Offsetof(Region_info{}.Cap_offset)),
	"offsetof(struct vfio_region_info, size)":                            uint64(unsafe.Offsetof(Region_info{}.Size)),
	"offsetof(struct vfio_region_info, offset)":                          uint64(unsafe.Offsetof(Region_info{}.Offset)),
	"sizeof(struct vfio_irq_info)":                                       uint64(unsafe.Sizeof(Irq_info{})),
	"offsetof(struct vfio_irq_info, count)":                              uint64(unsafe.Offsetof(Irq_info{}.Count)),
	"offsetof(struct vfio_irq_set, data)":                                uint64(unsafe.Sizeof(Irq_set{})),
	"offsetof(struct vfio_irq_set, start)":                               uint64(unsafe.Offsetof(Irq_set{}.Start)),
	"sizeof(struct vfio_iommu_type1_info)":                               uint64(unsafe.Sizeof(Iommu_type1_info{})),
	"offsetof(struct vfio_iommu_type1_info, cap_offset)":                 uint64(unsafe.Offsetof(Iommu_type1_info{}.Cap_offset)),
	"sizeof(struct vfio_iommu_type1_dma_map)":                            uint64(unsafe.Sizeof(Iommu_type1_dma_map{})),
	"offsetof(struct vfio_iommu_type1_dma_map, iova)":                    uint64(unsafe.Offsetof(Iommu_type1_dma_map{}.Iova)),
	"offsetof(struct vfio_iommu_type1_dma_unmap, data)":                  uint64(unsafe.Sizeof(Iommu_type1_dma_unmap{})),
	"offsetof(struct vfio_iommu_type1_dma_unmap, size)":                  uint64(unsafe.Offsetof(Iommu_type1_dma_unmap{}.Size)),
	"offsetof(struct vfio_region_info_cap_sparse_mmap, areas)":           SizeInfo_cap_header + 8,
	"sizeof(struct vfio_region_sparse_mmap_area)":                        16,
	"sizeof(struct vfio_iova_range)":                                     16,
	"offsetof(struct vfio_iommu_type1_info_dma_avail, avail)":            SizeInfo_cap_header,
	"offsetof(struct vfio_iommu_type1_info_cap_iova_range, iova_ranges)": SizeInfo_cap_header + 8,
}

// The constants used as argsz are the sizes of the Go structures.
func TestSizes(t *testing.T) {
	for name, x := range map[string][2]uintptr{
		"group status": {SizeGroup_status, unsafe.Sizeof(Group_status{})},
		"device info":  {SizeDevice_info, unsafe.Sizeof(Device_info{})},
		"region info":  {SizeRegion_info, unsafe.Sizeof(Region_info{})},
		"irq info":     {SizeIrq_info, unsafe.Sizeof(Irq_info{})},
		"irq set":      {SizeIrq_set, unsafe.Sizeof(Irq_set{})},
		"iommu info":   {SizeIommu_type1_info, unsafe.Sizeof(Iommu_type1_info{})},
		"dma map":      {SizeIommu_type1_dma_map, unsafe.Sizeof(Iommu_type1_dma_map{})},
		"dma unmap":    {SizeIommu_type1_dma_unmap, unsafe.Sizeof(Iommu_type1_dma_unmap{})},
	} {
		require.Equal(t, x[0], x[1], name)
	}
	// Two numbers that strace prints for every VFIO program.
	require.Equal(t, 0x3b64, VFIO_GET_API_VERSION)
	require.Equal(t, 0x3b71, VFIO_IOMMU_MAP_DMA)
}

// The machine's own linux/vfio.h, through its C compiler, agrees with every
// number, size and offset.
func TestAgainstHeader(t *testing.T) { againstHeader(t, "linux/vfio.h", "", numbers, layout) }

// A header that is not here, or too old, is listed with what was not heard.
func TestAbsentHeaderIsListed(t *testing.T) {
	uapi, list := t.TempDir(), filepath.Join(t.TempDir(), "skipped")
	require.NoError(t, os.Mkdir(filepath.Join(uapi, "linux"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(uapi, "linux", "vfio.h"), []byte("#define VFIO_API_VERSION 0\n"), 0o600))
	t.Setenv("MLXVFIO_TEST_UAPI", uapi)
	t.Setenv(absent.Variable, list)
	for _, header := range []string{"linux/vfio.h", "linux/iommufd.h"} {
		require.True(t, t.Run(header, func(t *testing.T) { againstHeader(t, header, "VFIO_DEVICE_BIND_IOMMUFD", nil, nil) }))
	}
	b, err := os.ReadFile(list)
	require.NoError(t, err)
	require.Regexp(t, `^kernel header linux/vfio.h: .+\nkernel header linux/iommufd.h: .+\n$`, string(b))
}

// againstHeader asks a C compiler for what a header of the kernel says. Skipped
// where there is no compiler, no header, or one from before name was in it.
// MLXVFIO_TEST_UAPI is a folder with the headers of another kernel.
func againstHeader(t *testing.T, header, name string, numbers, layout map[string]uint64) {
	t.Helper()
	cc, err := exec.LookPath("cc")
	if err != nil {
		absent.Skip(t, "kernel header "+header, "no C compiler in PATH")
	}
	include := "/usr/include"
	if dir := os.Getenv("MLXVFIO_TEST_UAPI"); dir != "" {
		include = dir
	}
	text, err := os.ReadFile(filepath.Join(include, header))
	if err != nil {
		absent.Skip(t, "kernel header "+header, "it is not in "+include)
	}
	if !strings.Contains(string(text), name) {
		absent.Skip(t, "kernel header "+header, "that in "+include+" is from before "+name)
	}
	// Each expression initialises a constant: the compiler's assembly output shows
	// the values, and nothing has to be linked or run.
	var src strings.Builder
	src.WriteString("#include <stddef.h>\n#include <" + header + ">\n")
	want := map[string]uint64{}
	names := map[string]string{}
	add := func(expr string, v uint64) {
		sym := fmt.Sprintf("x%d", len(want))
		fmt.Fprintf(&src, "const unsigned long long %s = (unsigned long long)(%s);\n", sym, expr)
		want[sym], names[sym] = v, expr
	}
	for name, v := range numbers {
		add(name, v)
	}
	for expr, v := range layout {
		add(expr, v)
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "x.c")
	require.NoError(t, os.WriteFile(file, []byte(src.String()), 0o600))
	out, err := exec.Command(cc, "-I", include, "-S", "-O0", "-o", "-", file).CombinedOutput()
	require.NoError(t, err, "%s", out)
	got := map[string]uint64{}
	sym := ""
	for line := range strings.Lines(string(out)) {
		f := strings.Fields(line)
		switch {
		case len(f) == 1 && strings.HasSuffix(f[0], ":"):
			sym = strings.TrimSuffix(f[0], ":")
		case len(f) == 2 && (f[0] == ".quad" || f[0] == ".xword"):
			v, err := strconv.ParseInt(f[1], 0, 64)
			if err != nil {
				var u uint64
				u, err = strconv.ParseUint(f[1], 0, 64)
				v = int64(u)
			}
			require.NoError(t, err, line)
			got[sym] = uint64(v)
		case len(f) == 2 && f[0] == ".zero" && f[1] == "8":
			got[sym] = 0
		}
	}
	for sym, v := range want {
		g, ok := got[sym]
		require.True(t, ok, "no value for %s", names[sym])
		require.Equal(t, g, v, names[sym])
	}
}

func capability(id uint16, next uint32, body ...byte) []byte {
	h := binary.NativeEndian.AppendUint16(nil, id)
	h = binary.NativeEndian.AppendUint16(h, 1)
	return append(binary.NativeEndian.AppendUint32(h, next), body...)
}

func pairs(p ...[2]uint64) []byte {
	b := binary.NativeEndian.AppendUint32(nil, uint32(len(p)))
	b = append(b, 0, 0, 0, 0)
	for _, x := range p {
		b = binary.NativeEndian.AppendUint64(binary.NativeEndian.AppendUint64(b, x[0]), x[1])
	}
	return b
}

func TestCaps(t *testing.T) {
	buf := binary.NativeEndian.AppendUint32(nil, 24+48+12) // as after vfio_iommu_type1_info
	buf = append(buf, make([]byte, 20)...)
	buf = append(buf, capability(VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE, 72, pairs([2]uint64{0, 9}, [2]uint64{16, 31})...)...)
	require.Len(t, buf, 72)
	buf = append(buf, capability(VFIO_IOMMU_TYPE1_INFO_DMA_AVAIL, 0, binary.NativeEndian.AppendUint32(nil, 65535)...)...)
	caps, err := Caps(buf, 24)
	require.NoError(t, err)
	require.Len(t, caps, 2)
	p, err := caps[0].Pairs()
	require.NoError(t, err)
	require.Equal(t, [][2]uint64{{0, 9}, {16, 31}}, p)
	n, err := caps[1].Word()
	require.NoError(t, err)
	require.Equal(t, uint32(65535), n)

	none, err := Caps(buf, 0)
	require.NoError(t, err)
	require.Empty(t, none)
}

func TestCapsMalformed(t *testing.T) {
	loop := append(make([]byte, 8), capability(1, 8)...)
	_, err := Caps(loop, 8)
	require.ErrorIs(t, err, ErrChain)
	_, err = Caps(loop, 9)
	require.ErrorIs(t, err, ErrChain, "header past the end")
	_, err = Capability{Body: pairs([2]uint64{1, 2})[:20]}.Pairs()
	require.ErrorIs(t, err, ErrChain, "fewer pairs than counted")
	_, err = Capability{Body: []byte{1, 2}}.Pairs()
	require.ErrorIs(t, err, ErrChain)
	_, err = Capability{Body: []byte{1, 2}}.Word()
	require.ErrorIs(t, err, ErrChain)
}

func FuzzCaps(f *testing.F) {
	f.Add(append(make([]byte, 8), capability(1, 0, pairs([2]uint64{1, 2})...)...), uint32(8))
	f.Fuzz(func(t *testing.T, buf []byte, first uint32) {
		caps, err := Caps(buf, first)
		if err != nil {
			require.ErrorIs(t, err, ErrChain)
			return
		}
		for _, c := range caps {
			if p, err := c.Pairs(); err == nil {
				require.LessOrEqual(t, len(p)*16+8, len(c.Body))
			}
		}
	})
}
