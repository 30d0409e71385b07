package demo

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/csi-ublk/csi-ublk/test/vm/cluster"
	"github.com/csi-ublk/csi-ublk/test/vm/host"
	"github.com/csi-ublk/csi-ublk/test/vm/kernel"
)

// NewCommand returns "demo". open opens the host.
func NewCommand(open func() (*host.Host, error)) *cobra.Command {
	var o Options
	var variant string
	cmd := &cobra.Command{
		Use: "demo", Short: "Show a volume's whole life in a cluster with a real ublk driver", Args: cobra.NoArgs,
		Long: `demo builds what is missing (up to 25 minutes the first time), starts a cluster, installs the driver with Helm and plays a
claim's life: bound on first use, written by one pod, read by another, deleted. Every step is checked; the first one that
fails ends the demo with its reason and exit status 1. The cluster stays up: "vm demo-down" removes it.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			h, err := open()
			if err != nil {
				return err
			}
			if o.Kernel, err = kernel.ParseVariant(variant); err != nil {
				return err
			}
			o.Out = cmd.OutOrStdout()
			return Run(cmd.Context(), h, o)
		},
	}
	cmd.Flags().StringVar(&o.Name, "name", cluster.DefaultName, "name of the cluster (another one than the default is removed with: vm cluster down --name NAME)")
	cmd.Flags().IntVar(&o.Nodes, "nodes", 0, "number of nodes (default 2, or 1 where memory is short)")
	cmd.Flags().StringVar(&variant, "kernel", string(kernel.Current), "kernel of the nodes: current, fixed or lts")
	cmd.Flags().StringVar(&o.Accel, "accel", "", "how nodes run: kvm, uml, tcg or auto (default $VM_ACCEL)")
	cmd.Flags().BoolVar(&o.Again, "again", false, "play the story on the cluster that is up")
	return cmd
}

// NewDownCommand returns "demo-down". open opens the host.
func NewDownCommand(open func() (*host.Host, error)) *cobra.Command {
	return &cobra.Command{
		Use: "demo-down", Aliases: []string{"down"}, Short: "Remove the demo's cluster", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			h, err := open()
			if err != nil {
				return err
			}
			if err := cluster.Remove(cmd.Context(), h, cluster.DefaultName); err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), "The demo's cluster is gone. What was built stays in the cache (vm clean --all).")
			return nil
		},
	}
}
