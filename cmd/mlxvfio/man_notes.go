package main

// opens are the verbs that open a function.
var opens = []string{"info", "caps", "selftest", "exec", "reg get", "reg set", "atomic probe", "atomic run", "litmus", "bench",
	"trace record", "trace owner", "health show", "health watch", "health dump", "health fields", "health recover"}

// usedFiles are the files that the program looks for or writes without being told
// their names.
var usedFiles = []manNote{
	{"/dev/iommu, /dev/vfio/devices/", "iommufd, and a file for each function. Who opens a function so needs to read and write both", opens},
	{"/dev/vfio/", "VFIO by groups: vfio, and a number for each IOMMU group; noiommu-N for a group that no IOMMU guards. The same rights are needed there", opens},
	{"/sys/bus/pci/devices/BDF/", "what the kernel says of a function. bind and unbind write driver_override there",
		append([]string{"list", "doctor", "bind", "unbind"}, opens...)},
	{"/run/mlxvfio/BDF.json", "the journal of bind: what unbind restores", []string{"list", "doctor", "bind", "unbind"}},
	{"~/.cache/mlxvfio/strings/", "string databases of firmware that was traced, one file each; they may be removed", []string{"trace record"}},
	{"mlxvfio-DEV-TIME.blackbox", "in the current folder: the black box that recover saves unless it is told otherwise", []string{"health recover"}},
}

// environment are the variables that the program reads.
var environment = []manNote{
	{"XDG_CACHE_HOME, HOME", "where the cache is: $XDG_CACHE_HOME/mlxvfio, or ~/.cache/mlxvfio", []string{"trace record"}},
	{"MLXVFIO_COMPLETION_DESCRIPTIONS", "0 leaves the descriptions out of what shells offer", []string{"completion"}},
}
