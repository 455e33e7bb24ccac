package main

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

func (a *app) versionVerb() *cobra.Command {
	c := a.verb("version", "show the version of this program", 0, 0, func(context.Context, []string) error {
		return a.print("version/1", buildVersion())
	})
	c.Long = `version shows what this program was built from: its version, the revision of the source where the Go toolchain wrote
it down, the toolchain and the platform.`
	c.Example = examples("mlxvfio version", "put it into every bug report")
	return c
}

type versionResult struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"`
	Time     string `json:"time,omitempty"`
	Modified bool   `json:"modified,omitempty"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

// buildVersion is what the Go toolchain wrote into the binary.
func buildVersion() *versionResult {
	v := &versionResult{Version: "unknown", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	b, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	v.Version = b.Main.Version
	for _, s := range b.Settings {
		switch s.Key {
		case "vcs.revision":
			v.Revision = s.Value
		case "vcs.time":
			v.Time = s.Value
		case "vcs.modified":
			v.Modified = s.Value == "true"
		}
	}
	return v
}

func (v *versionResult) text(w io.Writer) {
	fmt.Fprintf(w, "mlxvfio %s", v.Version)
	if v.Revision != "" {
		fmt.Fprintf(w, " (%.12s", v.Revision)
		if v.Modified {
			fmt.Fprint(w, ", modified")
		}
		fmt.Fprint(w, ")")
	}
	fmt.Fprintf(w, ", %s, %s\n", v.Go, v.Platform)
}
