// Package testexec runs one program, mostly a compiled Go test, as root in a guest of its own: what "go test -exec" calls.
package testexec

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/csi-ublk/csi-ublk/test/vm/guest"
	"github.com/csi-ublk/csi-ublk/test/vm/host"
	"github.com/csi-ublk/csi-ublk/test/vm/kernel"
	"github.com/csi-ublk/csi-ublk/test/vm/root"
)

// Options say where and how the program runs. Kernel is needed.
type Options struct {
	Kernel kernel.Variant
	// Accel is a way of running guests, see guest.Choose; "" means VM_ACCEL or the best one.
	Accel string
	// MemoryMiB and DataDiskBytes size the guest; 0 means its defaults.
	MemoryMiB     int
	DataDiskBytes int64
	// With are further programs (name to path on the host) that the guest has in its PATH.
	With map[string]string
	// Limit ends a program that is no Go test; 0 means 10 minutes. A Go test's own -test.timeout rules, plus a margin.
	Limit time.Duration
	// ShowComplaints only shows what the guest's kernel complained of (BUG, WARNING, hanging tasks) instead of failing for it.
	ShowComplaints bool
	Stdin          io.Reader
	Stdout, Stderr io.Writer
}

// Exit statuses of the rig itself, apart from the program's own.
const (
	StatusRig   = 125 // the guest did not start, or died
	StatusLimit = 124 // the time limit
)

// Run runs args[0], a file of the host, with the other arguments in the host's working directory, which the guest sees with the
// rest of the module. It answers the exit status; an error explains a status of the rig.
func Run(ctx context.Context, h *host.Host, o Options, args []string) (status int, err error) {
	accel, err := guest.Choose(ctx, h, o.Accel, o.Kernel)
	if err != nil {
		return StatusRig, err
	}
	k, err := kernel.Get(ctx, h, o.Kernel, accel.Machine())
	if err != nil {
		return StatusRig, err
	}
	image, err := root.Build(ctx, h, root.Spec{})
	if err != nil {
		return StatusRig, err
	}
	cwd, err := os.Getwd()
	if err != nil {
		return StatusRig, err
	}
	programs, err := guest.NewRunDir(h, "programs")
	if err != nil {
		return StatusRig, err
	}
	defer func() { err = errors.Join(err, programs.Remove()) }()
	p, err := plan(cwd, args, os.Environ(), stage{programs.Path}, o)
	if err != nil {
		return StatusRig, err
	}
	p.env = append(p.env, "CSI_UBLK_KERNEL="+string(o.Kernel), "CSI_UBLK_ACCEL="+string(accel), "CSI_UBLK_DATA_DISK=/dev/data")
	g, err := guest.Start(ctx, h, guest.Spec{
		Name: "test", Accel: accel, Kernel: k, Root: image, Shares: p.shares,
		MemoryMiB: o.MemoryMiB, DataDiskBytes: o.DataDiskBytes,
	})
	if err != nil {
		return StatusRig, err
	}
	defer func() { err = errors.Join(err, g.Close()) }()
	status, err = p.run(ctx, g, o)
	if err != nil {
		return status, err
	}
	// Off in good order, so that all that the program wrote to shared directories is there.
	if err := g.PowerOff(20 * time.Second); err != nil {
		fmt.Fprintf(o.Stderr, "[guest] something in the guest still waits: %v\n", err)
	}
	return judge(status, g.Complaints(), o), nil
}

// run runs the planned program within its limit.
func (p program) run(ctx context.Context, g *guest.Guest, o Options) (int, error) {
	limited := ctx
	if p.limit > 0 {
		var cancel context.CancelFunc
		limited, cancel = context.WithTimeout(ctx, p.limit)
		defer cancel()
		// The stacks of what is blocked must be on the console before the program is killed.
		report := time.AfterFunc(p.limit-reportBefore, g.Blocked)
		defer report.Stop()
	}
	status, err := g.Run(limited, guest.Cmd{
		Args: p.args, Dir: p.dir, Env: p.env, Stdin: o.Stdin, Stdout: o.Stdout, Stderr: o.Stderr,
	})
	switch {
	case err == nil:
		return status, nil
	case ctx.Err() == nil && limited.Err() != nil && errors.Is(err, context.DeadlineExceeded):
		return StatusLimit, fmt.Errorf("no end within %s; console, with the blocked tasks:%s", p.limit, host.Indent(g.Console(120)))
	case status == 126 || status == 127:
		return status, err
	}
	return StatusRig, err
}

// reportBefore is how long before the limit the blocked tasks are asked for.
const reportBefore = 3 * time.Second

// judge makes a kernel's complaints visible and, unless told otherwise, a failure.
func judge(status int, complaints []string, o Options) int {
	for _, c := range complaints {
		fmt.Fprintln(o.Stderr, "[guest kernel]", c)
	}
	if len(complaints) > 0 && status == 0 && !o.ShowComplaints {
		fmt.Fprintln(o.Stderr, "[guest] the program passed, its kernel complained: failed")
		return 1
	}
	return status
}

// stage is a host directory for the programs that the guest has in its PATH.
type stage struct{ dir string }

const stagedIn = "/run/vm/bin"

// put lays a program of the host into the stage, by a hard link where that can be.
func (s stage) put(name, path string) error {
	if name == "" || strings.ContainsRune(name, '/') {
		return fmt.Errorf("program name %q: want a plain file name", name)
	}
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return fmt.Errorf("program %s: %w", name, err)
	}
	target := filepath.Join(s.dir, name)
	if os.Link(real, target) == nil {
		return nil
	}
	in, err := os.Open(real)
	if err != nil {
		return fmt.Errorf("program %s: %w", name, err)
	}
	defer in.Close()
	out, err := os.OpenFile(target, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		return fmt.Errorf("program %s: %w", name, err)
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// ParseWith reads a NAME=PATH pair into with.
func ParseWith(with map[string]string, pair string) error {
	name, path, ok := strings.Cut(pair, "=")
	if !ok || name == "" || path == "" {
		return fmt.Errorf("%q: want NAME=PATH", pair)
	}
	with[name] = path
	return nil
}

// names returns the map's keys in order.
func names(m map[string]string) []string {
	var out []string
	for n := range m {
		out = append(out, n)
	}
	slices.Sort(out)
	return out
}
