package cluster

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
)

// kept runs do with the cluster that the command line names.
func (c *commands) kept(do func(cmd *cobra.Command, k *Kept, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		h, err := c.open()
		if err != nil {
			return err
		}
		k, err := Open(cmd.Context(), h, c.name)
		if errors.Is(err, ErrNoCluster) {
			return fmt.Errorf("%w; start one with: vm cluster up --name %s", err, c.name)
		}
		if err != nil {
			return err
		}
		return do(cmd, k, args)
	}
}

func (c *commands) kubectl() *cobra.Command {
	return &cobra.Command{
		Use: "kubectl ARGS...", Short: "Run kubectl on the cluster",
		DisableFlagParsing: true, // All flags are kubectl's, but for a leading --name.
		RunE: func(cmd *cobra.Command, args []string) error {
			args = c.takeName(args)
			return c.kept(func(_ *cobra.Command, k *Kept, args []string) error {
				return k.Inside.Exec(append([]string{"kubectl"}, args...)...)
			})(cmd, args)
		},
	}
}

// takeName takes the cluster's name off the front of arguments whose flags were not parsed.
func (c *commands) takeName(args []string) []string {
	for len(args) > 0 {
		value, joined := strings.CutPrefix(args[0], "--name=")
		switch {
		case joined:
			c.name, args = value, args[1:]
		case args[0] == "--name" && len(args) > 1:
			c.name, args = args[1], args[2:]
		case args[0] == "--quiet":
			args = args[1:]
		default:
			return args
		}
	}
	return args
}

func (c *commands) run() *cobra.Command {
	cmd := &cobra.Command{
		Use: "run [--] PROGRAM [ARGS...]", Short: "Run a program of this machine inside the cluster's network",
		Long: `run starts a program in the cluster's network namespace, where addresses of pods, Services and the API server work.
KUBECONFIG is set, and the rig's kubectl is first in PATH.`,
		Example: "  vm cluster run -- go test -tags e2e ./test/e2e\n  vm cluster run bash",
		Args:    cobra.MinimumNArgs(1),
		RunE:    c.kept(func(_ *cobra.Command, k *Kept, args []string) error { return k.Inside.Exec(args...) }),
	}
	cmd.Flags().SetInterspersed(false)
	return cmd
}

func (c *commands) node() *cobra.Command {
	return &cobra.Command{
		Use: "node N SCRIPT", Short: "Run a script as root on a node, also when its kubelet is down", Args: cobra.MinimumNArgs(2),
		Example: "  vm cluster node 1 'lsblk; dmesg | tail'",
		RunE: c.kept(func(cmd *cobra.Command, k *Kept, args []string) error {
			n, err := number(args[0])
			if err != nil {
				return err
			}
			status, err := k.Run(cmd.Context(), n, strings.Join(args[1:], " "), cmd.OutOrStdout())
			if err == nil && status != 0 {
				err = ExitStatus(status)
			}
			return err
		}),
	}
}

func (c *commands) kill() *cobra.Command {
	return &cobra.Command{
		Use: "kill N", Short: "End a node like a power cut; its disks stay for boot", Args: cobra.ExactArgs(1),
		RunE: c.kept(func(cmd *cobra.Command, k *Kept, args []string) error {
			n, err := number(args[0])
			if err != nil {
				return err
			}
			return k.Kill(cmd.Context(), n)
		}),
	}
}

func (c *commands) boot() *cobra.Command {
	return &cobra.Command{
		Use: "boot N", Short: "Start a node that is off, with the disks of its last life", Args: cobra.ExactArgs(1),
		RunE: c.kept(func(cmd *cobra.Command, k *Kept, args []string) error {
			n, err := number(args[0])
			if err != nil {
				return err
			}
			return k.Boot(cmd.Context(), n)
		}),
	}
}

func (c *commands) install() *cobra.Command {
	var o ChartOptions
	cmd := &cobra.Command{
		Use: "install", Short: "Install the driver's chart with helm, or upgrade it", Args: cobra.NoArgs,
		Long: "install installs charts/csi-ublk of the repository. The driver's image must be on the nodes: up --image.",
		RunE: c.kept(func(cmd *cobra.Command, k *Kept, _ []string) error {
			h, err := c.open()
			if err != nil {
				return err
			}
			return k.Inside.InstallChart(cmd.Context(), h, k.Repo, o, cmd.OutOrStdout())
		}),
	}
	cmd.Flags().StringArrayVar(&o.Set, "set", nil, "a value, as for helm (repeatable)")
	cmd.Flags().StringArrayVar(&o.Values, "values", nil, "a file of values (repeatable)")
	cmd.Flags().StringVar(&o.Timeout, "timeout", "", "how long to wait for the pods (default 5m)")
	return cmd
}

func (c *commands) logs() *cobra.Command {
	return &cobra.Command{
		Use: "logs [PART]", Short: "Show the log of a part of the cluster, or list the parts", Args: cobra.MaximumNArgs(1),
		Example: "  vm cluster logs kube-apiserver\n  vm cluster logs node1          the node's console\n  vm cluster node 1 'cat /var/log/kubelet.log'",
		RunE: func(cmd *cobra.Command, args []string) error {
			h, err := c.open()
			if err != nil {
				return err
			}
			dir := stateDir(h, c.name)
			logs, _ := filepath.Glob(filepath.Join(dir, "logs", "*.log"))
			consoles, _ := filepath.Glob(filepath.Join(dir, "node*", "console.log"))
			found := map[string]string{}
			for _, path := range logs {
				found[strings.TrimSuffix(filepath.Base(path), ".log")] = path
			}
			for _, path := range consoles {
				found[filepath.Base(filepath.Dir(path))] = path
			}
			if len(found) == 0 {
				return fmt.Errorf("cluster %s: %w", c.name, ErrNoCluster)
			}
			if len(args) == 0 {
				for name, path := range found {
					fmt.Fprintf(cmd.OutOrStdout(), "%-24s %s\n", name, path)
				}
				return nil
			}
			path, ok := found[args[0]]
			if !ok {
				return fmt.Errorf("no part %q; vm cluster logs lists them", args[0])
			}
			f, err := os.Open(path)
			if err != nil {
				return err
			}
			defer f.Close()
			_, err = io.Copy(cmd.OutOrStdout(), f)
			return err
		},
	}
}
