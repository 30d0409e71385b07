// Command vm is the project's rig: guests with a real ublk driver, and a Kubernetes cluster of them, for tests and the demo.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/csi-ublk/csi-ublk/test/vm/cluster"
	"github.com/csi-ublk/csi-ublk/test/vm/demo"
	"github.com/csi-ublk/csi-ublk/test/vm/host"
	"github.com/csi-ublk/csi-ublk/test/vm/image"
	"github.com/csi-ublk/csi-ublk/test/vm/kind"
)

func main() {
	// Everything that the rig starts ends with this context; a second signal ends the program at once.
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM, unix.SIGQUIT, unix.SIGHUP)
	context.AfterFunc(ctx, stop)
	cmd := rootCommand()
	cmd.SetArgs(doubleDashes(os.Args[1:]))
	err := cmd.ExecuteContext(ctx)
	stop()
	if err == nil {
		return
	}
	status := 1
	var e exitError
	if errors.As(err, &e) {
		status, err = e.status, e.err
	}
	if passed := cluster.ExitStatus(0); errors.As(err, &passed) {
		status, err = int(passed), nil
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "vm:", err)
	}
	os.Exit(status)
}

// exitError ends the program with a status of its own; err may be nil when all has been said.
type exitError struct {
	status int
	err    error
}

func (e exitError) Error() string { return fmt.Sprintf("exit status %d: %v", e.status, e.err) }

func rootCommand() *cobra.Command {
	var quiet bool
	cmd := &cobra.Command{
		Use:   "vm",
		Short: "Guests with a real ublk driver, and a cluster of them, for csi-ublk's tests",
		Long: `vm starts guests with a real ublk driver on a machine that has none, three ways: KVM, User Mode Linux, or emulation.
It builds what it needs once and keeps it in ~/.cache/csi-ublk (CSI_UBLK_CACHE).

Environment:
  VM_ACCEL=kvm|uml|tcg|auto    how guests run (auto: KVM where a guest really starts with it, then UML, then TCG)
  CSI_UBLK_CACHE=DIR           the cache
  CSI_UBLK_APT_SOURCES=FILE    a .sources file with a Debian archive, in place of the machine's own apt sources`,
		SilenceUsage: true, SilenceErrors: true,
	}
	cmd.PersistentFlags().BoolVar(&quiet, "quiet", false, "no progress lines")
	open := func() (*host.Host, error) {
		if quiet {
			return host.New(nil)
		}
		return host.New(os.Stderr)
	}
	cmd.AddCommand(doctorCommand(open), kernelCommand(open), rootFSCommand(open), execCommand(open), runCommand(open), shellCommand(open), cleanCommand(open))
	cmd.AddCommand(toolCommand(open), image.NewCommand(open), cluster.NewCommand(open), cluster.NewKubectlCommand(open))
	cmd.AddCommand(kind.NewCommand(open))
	cmd.AddCommand(demo.NewCommand(open), demo.NewDownCommand(open))
	return cmd
}

// opener opens the host with the flags' choice of progress.
type opener func() (*host.Host, error)
