package pci

import (
	"log/slog"
	"path/filepath"
	"strings"
	"time"
)

// Options says where to look and how to behave. The zero value means the
// running system.
type Options struct {
	SysRoot    string // "" = "/sys"
	ProcRoot   string // "" = "/proc"
	DevRoot    string // "" = "/dev"
	JournalDir string // "" = "/run/mlxvfio"

	// Driver is the VFIO driver to bind: "" and both spellings "vfio-pci" and
	// "vfio_pci" mean the driver that sysfs calls vfio-pci. No other is taken.
	Driver string

	// Force lets Bind and Unbind go on where they would refuse because the
	// function is in use or its group is not viable; Result.Overrode lists the
	// reasons that were overridden. It does not override a missing IOMMU.
	Force bool

	// UnsafeNoIOMMU lets Bind accept a function that no IOMMU guards, and lets
	// Diagnose judge an open of one. Nothing then stops the device from writing
	// anywhere in memory, and the kernel is tainted. Bind turns the vfio
	// module's enable_unsafe_noiommu_mode on for it, and the Unbind after which no
	// function is in that mode turns it off.
	UnsafeNoIOMMU bool

	// Backend is the way into a function that Diagnose judges: BackendIOMMUFD,
	// BackendType1 or BackendNoIOMMU; "" and "auto" mean the way that an open
	// chooses by itself.
	Backend string

	// VerifyTimeout bounds the wait for the driver link after a probe; 0 = 2 s.
	// The kernel normally has it in place when the write returns.
	VerifyTimeout time.Duration

	// RestoreTimeout bounds the undoing after a failed or cancelled Bind, which
	// runs without the caller's context; 0 = 2 min, because the probe of a host
	// driver waits up to a minute for a device that does not answer.
	RestoreTimeout time.Duration

	FS     FS           // nil = OS{}
	Logger *slog.Logger // nil = silent; attributes bdf, op, path, value
}

// chooses: the way into a function is not prescribed.
func (o Options) chooses() bool { return o.Backend == "" || o.Backend == "auto" }

// vfioDriver is the name under /sys/bus/pci/drivers; the module is also known
// as vfio_pci.
const vfioDriver = "vfio-pci"

// IsVFIO reports whether a driver hands its functions to user space through
// VFIO: vfio-pci in both spellings and the variant drivers named *_vfio_pci,
// such as mlx5_vfio_pci.
func IsVFIO(driver string) bool {
	d := strings.ReplaceAll(driver, "_", "-")
	return d == vfioDriver || strings.HasSuffix(d, "-"+vfioDriver)
}

func (o Options) withDefaults() Options {
	if o.SysRoot == "" {
		o.SysRoot = "/sys"
	}
	if o.ProcRoot == "" {
		o.ProcRoot = "/proc"
	}
	if o.DevRoot == "" {
		o.DevRoot = "/dev"
	}
	if o.JournalDir == "" {
		o.JournalDir = "/run/mlxvfio"
	}
	if o.VerifyTimeout <= 0 {
		o.VerifyTimeout = 2 * time.Second
	}
	if o.RestoreTimeout <= 0 {
		o.RestoreTimeout = 2 * time.Minute
	}
	if o.FS == nil {
		o.FS = OS{}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

// The paths. A BDF and a checked driver name are the only variable parts.

func (o Options) devicesDir() string { return filepath.Join(o.SysRoot, "bus/pci/devices") }

// deviceDir is the function's folder; b prints as digits and separators only.
func (o Options) deviceDir(b BDF) string { return filepath.Join(o.devicesDir(), b.String()) }

func (o Options) driverDir(driver string) string {
	return filepath.Join(o.SysRoot, "bus/pci/drivers", driver)
}

func (o Options) groupDir(group string) string {
	return filepath.Join(o.SysRoot, "kernel/iommu_groups", group)
}

// validName accepts what can be a driver or interface name: one path element
// without white space or control characters.
func validName(s string) bool {
	if s == "" || s == "." || s == ".." || len(s) > 255 {
		return false
	}
	for i := 0; i < len(s); i++ {
		if s[i] <= ' ' || s[i] == '/' || s[i] == 0x7f {
			return false
		}
	}
	return true
}
