package main

import (
	"context"
	"image"
	"image/png"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/mlxvfio/mlxvfio/internal/absent"
	"github.com/stretchr/testify/require"
)

// chromium finds a headless browser, or skips the test and says so where the skipped
// witnesses are listed.
func chromium(t *testing.T) string {
	t.Helper()
	if b := os.Getenv("MLXVFIO_CHROMIUM"); b != "" {
		return b
	}
	for _, n := range []string{"chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome"} {
		if b, err := exec.LookPath(n); err == nil {
			return b
		}
	}
	absent.Skip(t, "screenshot of the trace report", "no chromium in PATH; MLXVFIO_CHROMIUM names one elsewhere")
	return ""
}

// browse runs the browser on a page.
func browse(t *testing.T, browser, page string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	args = append([]string{"--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--disable-extensions",
		"--host-resolver-rules=MAP * ~NOTFOUND", "--force-device-scale-factor=1", "--user-data-dir=" + t.TempDir(), "--window-size=1360,1800", "--virtual-time-budget=5000"}, args...)
	cmd := exec.CommandContext(ctx, browser, append(args, "file://"+page)...)
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	require.NoError(t, err, "%s", errs.String())
	return string(out)
}

// TestTraceReportInBrowser lets a browser draw a report, and looks at what it drew.
func TestTraceReportInBrowser(t *testing.T) {
	browser := chromium(t)
	dir := t.TempDir()
	page, shot := filepath.Join(dir, "report.html"), filepath.Join(dir, "report.png")
	if keep := os.Getenv("MLXVFIO_SCREENSHOT"); keep != "" {
		shot = keep // for looking at
	}
	works(t, "trace", "report", makeCapture(t, "a.mlxt", usual(), true, true), "--html", page)

	dom := browse(t, browser, page, "--dump-dom")
	body := regexp.MustCompile(`<body[^>]*>`).FindString(dom)
	require.Contains(t, body, `data-drawn="yes"`, "the script came to its end")
	require.Contains(t, body, `data-lanes="5"`)
	require.Contains(t, body, `data-gaps="1"`)
	painted, err := strconv.Atoi(regexp.MustCompile(`data-painted="(\d+)"`).FindStringSubmatch(body)[1])
	require.NoError(t, err)
	require.Greater(t, painted, 20000, "pixels of the timeline")
	require.Contains(t, dom, "<title>Firmware trace: 0000:3b:00.0</title>", "no string of firmware became a script")
	_, drawn, ok := strings.Cut(dom, `<table id="formats">`)
	require.True(t, ok)
	require.Equal(t, 5, strings.Count(drawn, `class="hist"`), "a histogram of intervals for each format")
	require.Equal(t, 5, strings.Count(drawn, `class="spark"`), "a rate over time for each")
	require.Greater(t, strings.Count(drawn, "<rect"), 50)
	require.Contains(t, drawn, "&lt;/script&gt;&lt;script&gt;")

	browse(t, browser, page, "--screenshot="+shot)
	f, err := os.Open(shot)
	require.NoError(t, err)
	defer f.Close()
	img, err := png.Decode(f)
	require.NoError(t, err)
	require.GreaterOrEqual(t, img.Bounds().Dx(), 1300)
	require.Greater(t, colours(img, img.Bounds()), 100, "the picture is not blank")
	// The timeline is in the upper third: its lanes and its gap are not grey.
	top := img.Bounds()
	top.Max.Y /= 3
	vivid, reddish := 0, 0
	for y := top.Min.Y; y < top.Max.Y; y++ {
		for x := top.Min.X; x < top.Max.X; x++ {
			r, g, b, _ := img.At(x, y).RGBA()
			hi, lo := max(r, g, b), min(r, g, b)
			if hi-lo > 0x4000 {
				vivid++
			}
			if r > 0xd000 && g < 0xe000 && r > g+0x1000 && r > b+0x0800 {
				reddish++
			}
		}
	}
	require.Greater(t, vivid, 5000)
	require.Greater(t, reddish, 2000)
}

// colours counts different colours.
func colours(img image.Image, r image.Rectangle) int {
	seen := map[[3]uint32]bool{}
	for y := r.Min.Y; y < r.Max.Y; y += 2 {
		for x := r.Min.X; x < r.Max.X; x += 2 {
			r, g, b, _ := img.At(x, y).RGBA()
			seen[[3]uint32{r, g, b}] = true
		}
	}
	return len(seen)
}

func TestTraceReportRefuses(t *testing.T) {
	path := makeCapture(t, "a.mlxt", usual(), false, true)
	refuses(t, cli(t, "trace", "report", path), exitUsage, "--html")
	refuses(t, cli(t, "trace", "report", "--html", "x"), exitUsage, "FILE")
	require.Contains(t, works(t, "trace", "report", path, "--html", "-"), "</html>")
	// The report of a trace without a message draws itself, too.
	require.Contains(t, works(t, "trace", "report", path, "--match", "nothing says this", "--html", "-"), `"lanes":[]`)
}
