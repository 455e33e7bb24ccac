// Command vmrun is the host's half of the real-kernel bench: it serves the device model to virtual machines that run
// Debian's kernel, unmodified, and reports what the driver of this project, and the drivers of others, made of it.
//
// It is started by test/vm/run. Exit status: 0 every check passed, 1 some failed, 2 the bench could not run.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/mlxvfio/mlxvfio/internal/absent"
	"github.com/mlxvfio/mlxvfio/test/vm/internal/wire"
)

// Children are killed with the thread that started them (see startChild): the first one, which is the process's.
func init() { runtime.LockOSThread() }

type options struct {
	bench, judge, out string
	custom            string
	only              []string
	verbose           bool
}

func main() {
	var o options
	only := flag.String("only", "", "run these machines and witnesses only, separated by commas (default: all)")
	list := flag.Bool("list", false, "list the machines and witnesses")
	needs := flag.Bool("needs", false, "print the kernels that the machines need beyond the one that test/vm/fetch fetches")
	flag.StringVar(&o.bench, "bench", "", "folder with QEMU and the kernel (made by test/vm/fetch)")
	flag.StringVar(&o.judge, "judge", "", "folder made by ../shared/judge/setup; without it the witnesses are skipped")
	flag.StringVar(&o.custom, "custom", "", "folder with the bench's own kernel (made by test/vm/kernel)")
	flag.StringVar(&o.out, "out", "", "folder for results and logs")
	flag.BoolVar(&o.verbose, "v", false, "show the guest's console and every check")
	flag.Parse()
	if *list {
		fmt.Println(strings.Join(names(), "\n"))
		return
	}
	if *only != "" {
		o.only = strings.Split(*only, ",")
	}
	if *needs {
		fmt.Println(strings.Join(o.releases(), "\n"))
		return
	}
	if flag.NArg() > 0 || o.bench == "" || o.out == "" {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	failed, err := run(ctx, o)
	switch {
	case err != nil:
		fmt.Fprintln(os.Stderr, "vmrun:", err)
		os.Exit(2)
	case failed > 0:
		os.Exit(1)
	}
}

func names() []string {
	var out []string
	for _, p := range plans {
		out = append(out, p.Name)
	}
	for _, w := range witnesses {
		out = append(out, w.name())
	}
	return out
}

func (o options) wants(name string) bool { return len(o.only) == 0 || slices.Contains(o.only, name) }

// releases are the kernels, beyond the usual one, of the machines that shall run.
func (o options) releases() []string {
	var out []string
	for _, p := range plans {
		if o.wants(p.Name) && p.Release != "" && !slices.Contains(out, p.Release) {
			out = append(out, p.Release)
		}
	}
	return out
}

// run does everything and returns the number of failed checks.
func run(ctx context.Context, o options) (failed int, err error) {
	for _, n := range o.only {
		if !slices.Contains(names(), n) {
			return 0, fmt.Errorf("no machine or witness %q; there are %s", n, strings.Join(names(), ", "))
		}
	}
	if slices.Contains(o.releases(), custom) && o.custom == "" {
		return 0, errors.New("some of the machines need the bench's own kernel: make it with test/vm/kernel and name it with -custom, or leave them out with -only")
	}
	if o.out, err = filepath.Abs(o.out); err != nil {
		return 0, err
	}
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return 0, err
	}
	tmp, err := os.MkdirTemp("", "vmrun")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(tmp)) }()
	root, err := repositoryRoot()
	if err != nil {
		return 0, err
	}
	selected := slices.DeleteFunc(slices.Clone(plans), func(p plan) bool { return !o.wants(p.Name) })
	judged := slices.DeleteFunc(slices.Clone(witnesses), func(w witness) bool { return !o.wants(w.name()) })
	img := &image{builder: builder{root, tmp}, kernels: filepath.Join(o.bench, "kern"), custom: o.custom, initrds: map[string]string{}}
	if err := img.build(ctx, slices.ContainsFunc(selected, plan.programs), len(judged) > 0 && o.judge != ""); err != nil {
		return 0, err
	}
	var results []result
	for _, p := range selected {
		fmt.Printf("== %s\n", p.Name)
		if p.Release != "" && p.Release != custom && !img.has(p.Release) {
			if err := skip(os.Stdout, os.Getenv(absent.Variable), "machine "+p.Name, fmt.Sprintf("kernel %s comes with ../shared/judge, which is absent", p.Release)); err != nil {
				return 0, err
			}
			continue
		}
		r, err := runPlan(ctx, o, img, p)
		if err != nil {
			return 0, fmt.Errorf("machine %s: %w", p.Name, err)
		}
		r.print(os.Stdout, o.verbose)
		results = append(results, r)
	}
	for _, w := range judged {
		fmt.Printf("== %s\n", w.name())
		if o.judge == "" {
			if err := w.skip(os.Stdout, os.Getenv(absent.Variable)); err != nil {
				return 0, err
			}
			continue
		}
		r, err := w.run(ctx, root, o, img.cli)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", w.name(), err)
		}
		r.print(os.Stdout, o.verbose)
		results = append(results, r)
	}
	for _, r := range results {
		failed += r.Failed
	}
	fmt.Printf("\nlogs and results are in %s\n", o.out)
	return failed, summary(os.Stdout, results)
}

// skip says on out, and in the file that collects what was skipped, that something was not there.
func skip(out io.Writer, list, name, why string) error {
	if _, err := fmt.Fprintf(out, "SKIP %s: %s\n", name, why); err != nil {
		return err
	}
	return absent.List(list, name, why)
}

// runPlan serves the models, boots the machine and judges its report.
func runPlan(ctx context.Context, o options, img *image, p plan) (_ result, err error) {
	out := filepath.Join(o.out, p.Name)
	if err := os.RemoveAll(out); err != nil { // what an earlier run left
		return result{}, err
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return result{}, err
	}
	m := machine{
		qemu: filepath.Join(o.bench, "qemu"), iommu: p.IOMMU, ports: p.Ports, append: p.Kernel, beside: p.Beside, devices: slices.Clone(p.Devices), out: out,
		grace: 20 * time.Second, // boot and power-off
	}
	m.run.Scenarios, m.run.Limit, m.run.HugePages, m.run.Backend = p.Scenarios, p.Limit, p.HugePages, cmp.Or(p.Backend, "type1")
	if m.kernel, m.initrd, err = img.bootable(cmp.Or(p.Release, release)); err != nil {
		return result{}, err
	}
	if o.verbose {
		m.console = io.Writer(os.Stderr)
	}
	sockets, err := os.MkdirTemp("", "vmrun") // a short path: sun_path has 108 bytes
	if err != nil {
		return result{}, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(sockets)) }()
	var servers []*model
	defer func() {
		for _, s := range servers {
			s.stop(5 * time.Second)
		}
	}()
	for i, words := range p.Models {
		name := wire.ModelName(i)
		var flags []string
		if p.Linked {
			flags = []string{"--link", filepath.Join(sockets, "wire")}
		}
		s, err := serveModel(img.cli, words, max(1, p.Functions), sockets, name, filepath.Join(out, name+".log"), flags...)
		if err != nil {
			return result{}, err
		}
		servers = append(servers, s)
		if up := strings.Contains(s.ready, "of the wire") && strings.Contains(s.ready, "(up)"); up != (p.Linked && i == 1) {
			return result{}, fmt.Errorf("the wire between the models is wanted: %v; model %d says %q", p.Linked, i, s.ready)
		}
		for _, socket := range s.sockets {
			m.run.Models = append(m.run.Models, wire.Model{Words: words, Firmware: s.firmware})
			last := i == len(p.Models)-1 && socket == s.sockets[len(s.sockets)-1]
			d, err := vfioUserDevice(fmt.Sprintf("mlx%d", len(m.run.Models)-1), socket, p.Beside != "" && last)
			if err != nil {
				return result{}, err
			}
			m.devices = append(m.devices, d)
		}
	}
	l, err := m.boot(ctx, servers)
	if err != nil {
		return result{}, err
	}
	for i, s := range servers {
		m, err := s.settled(ctx, tolerance{
			losesPages: p.LosesPages, faulty: strings.Contains(p.Models[i], "fault="), movesData: p.MovesData, killsData: p.KillsData, idle: p.Idle,
		})
		l.verdict(wire.ModelName(i)+"/spotless", err, "%s", m)
	}
	r := newResult(p.Name, judge(p, l.checks), time.Since(l.start).Seconds())
	return r, r.save(out)
}
