package main

import (
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/csi-ublk/csi-ublk/test/vm/kernel"
	"github.com/csi-ublk/csi-ublk/test/vm/testexec"
)

// guestFlags are the flags of all commands that run something in a guest of its own.
type guestFlags struct {
	kernel, accel  string
	memory, diskGB int
	with           []string
	limit          time.Duration
	complaints     string
}

func (f *guestFlags) add(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.StringVar(&f.kernel, "kernel", "current", "current, fixed or lts")
	fl.StringVar(&f.accel, "accel", "", "kvm, uml, tcg or auto (default $VM_ACCEL)")
	fl.IntVar(&f.memory, "memory", 0, "the guest's memory in MiB (default 1024)")
	fl.IntVar(&f.diskGB, "disk", 0, "the size of /dev/data in GiB; the file behind it is sparse (default 8)")
	fl.StringArrayVar(&f.with, "with", nil, "NAME=PATH: one more program in the guest's PATH; may be repeated")
	fl.DurationVar(&f.limit, "limit", 0, "time limit for programs that are no Go tests (default 10m)")
	fl.StringVar(&f.complaints, "complaints", "fail", "what a BUG, WARNING or hanging task in the guest's kernel does to a program that passed: fail or show")
	fl.SetInterspersed(false) // What follows the program is the program's.
}

func (f *guestFlags) options() (testexec.Options, error) {
	v, err := kernel.ParseVariant(f.kernel)
	if err != nil {
		return testexec.Options{}, err
	}
	if f.complaints != "fail" && f.complaints != "show" {
		return testexec.Options{}, fmt.Errorf("--complaints %s: want fail or show", f.complaints)
	}
	o := testexec.Options{
		Kernel: v, Accel: f.accel, MemoryMiB: f.memory, DataDiskBytes: int64(f.diskGB) << 30, Limit: f.limit, With: map[string]string{},
		ShowComplaints: f.complaints == "show", Stdout: os.Stdout, Stderr: os.Stderr,
	}
	for _, w := range f.with {
		if err := testexec.ParseWith(o.With, w); err != nil {
			return o, fmt.Errorf("--with: %w", err)
		}
	}
	return o, nil
}

func execCommand(open opener) *cobra.Command {
	var f guestFlags
	cmd := &cobra.Command{
		Use:   "exec [flags] [--] PROGRAM [ARG]...",
		Short: "Run a program of this machine, mostly a compiled Go test, as root in a guest",
		Long: `Runs a static program (or a bash script) as root in a fresh guest, in the same working directory: the guest sees the module's
directory, the program's, and those that test flags name for output, at the same paths and writable. Its output, exit status and
coverage files come back. Environment variables that begin with TEST_, CSI_UBLK_ and UBLK_ pass, and GOCOVERDIR, GODEBUG,
GOTRACEBACK, GOMAXPROCS. In the guest, /dev/data is a blank disk.

Exit status: the program's; 124 for a time limit (that of a Go test is its -test.timeout and half a minute), 125 when the guest
did not start, panicked or hung: its console's last lines are printed.`,
		Example: `  CGO_ENABLED=0 go test -exec 'vm exec -kernel fixed --' ./pkg/ublk
  vm exec --with csi-ublk=bin/csi-ublk -- bin/kernel.test -test.v`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runInGuest(cmd, open, f, args)
		},
	}
	f.add(cmd)
	return cmd
}

func runCommand(open opener) *cobra.Command {
	var f guestFlags
	cmd := &cobra.Command{
		Use:     "run [flags] [--] COMMAND...",
		Short:   "Run a shell command in a guest",
		Example: "  vm run 'uname -r; ls /dev/ublk-control'",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			script, err := os.CreateTemp("", "vm-run-*.sh")
			if err != nil {
				return err
			}
			defer os.Remove(script.Name())
			if _, err := script.WriteString(strings.Join(args, " ") + "\n"); err != nil {
				return err
			}
			if err := script.Close(); err != nil {
				return err
			}
			return runInGuest(cmd, open, f, []string{script.Name()})
		},
	}
	f.add(cmd)
	return cmd
}

func runInGuest(cmd *cobra.Command, open opener, f guestFlags, args []string) error {
	o, err := f.options()
	if err != nil {
		return err
	}
	h, err := open()
	if err != nil {
		return err
	}
	status, err := testexec.Run(cmd.Context(), h, o, args)
	if err != nil || status != 0 {
		return exitError{max(status, 1), err}
	}
	return nil
}
