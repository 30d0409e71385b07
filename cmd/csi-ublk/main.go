// Command csi-ublk is all roles of the driver in one binary; a subcommand picks
// the role. Exit codes: 0 done, 1 the work failed, 2 the command line is wrong.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

const (
	exitOK      = 0
	exitFailure = 1
	exitUsage   = 2
)

func main() {
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// run executes one command line and returns the exit code. The first SIGINT or
// SIGTERM cancels the command's context; a second one kills the process, so that
// an orderly end that hangs can be cut short.
func run(args []string, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)

	root := newRootCommand(stderr)
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitOK
	}
	fmt.Fprintf(stderr, "%s: %v\n", cmd.CommandPath(), err)
	var usage *usageError
	if errors.As(err, &usage) {
		fmt.Fprintf(stderr, "Run '%s --help' for usage.\n", cmd.CommandPath())
		return exitUsage
	}
	return exitFailure
}

// newRootCommand wires the subcommands. Roles log to logTo.
func newRootCommand(logTo io.Writer) *cobra.Command {
	var logging loggingOptions
	root := &cobra.Command{
		Use:   "csi-ublk",
		Short: "Node-local volumes for Kubernetes, served as ublk block devices",
		Long: `csi-ublk is a CSI driver for node-local volumes. A volume is a file in a pool of
a node, served to pods as a ublk block device. One binary has all roles:
controller, node, server, worker and metadata run in the cluster; probe says what this
machine's kernel can do, bench measures it, and blocks lists what a backup has to copy.`,
		Version: buildVersion(),
		// How many letters a command that is suggested may differ by.
		SuggestionsMinimumDistance: 2,
		SilenceErrors:              true,
		SilenceUsage:               true,
		Args:                       refuseUnknownCommand,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cmd.SetOut(cmd.ErrOrStderr())
			_ = cmd.Help()
			return usagef("name a command")
		},
		PersistentPreRunE: func(*cobra.Command, []string) error { return logging.install(logTo) },
	}
	root.SetVersionTemplate("{{.Version}}\n")
	logging.addFlags(root.PersistentFlags())
	root.AddCommand(
		newControllerCommand(),
		newNodeCommand(),
		newServerCommand(),
		newWorkerCommand(),
		newThawCommand(),
		newMetadataCommand(),
		newBlocksCommand(),
		newProbeCommand(),
		newBenchCommand(),
		newVersionCommand(),
	)
	markUsageErrors(root)
	return root
}
