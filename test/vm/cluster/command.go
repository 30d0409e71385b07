package cluster

import (
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/csi-ublk/csi-ublk/test/vm/host"
	"github.com/csi-ublk/csi-ublk/test/vm/kernel"
	"github.com/csi-ublk/csi-ublk/test/vm/kube"
)

// DefaultName is the cluster that the commands mean when no other is named.
const DefaultName = "demo"

// ExitStatus is the end of a command that ran elsewhere and whose status this program passes on; it has said all there is to say.
type ExitStatus int

func (e ExitStatus) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

// commands are the subcommands of "cluster".
type commands struct {
	open func() (*host.Host, error)
	name string
}

// NewCommand returns "cluster". open opens the host.
func NewCommand(open func() (*host.Host, error)) *cobra.Command {
	c := &commands{open: open}
	cmd := &cobra.Command{
		Use:   "cluster",
		Short: "A Kubernetes cluster whose nodes are guests with a real ublk driver",
		Long: `cluster starts and uses Kubernetes clusters of the rig. The control plane runs on this machine, in a network namespace of
its own; nodes are guests. A cluster stays up until "cluster down", or the next boot of this machine. Several clusters can be
up at a time, under names of their own (--name).`,
		Example: `  vm cluster up --nodes 2
  vm cluster kubectl get nodes -o wide
  vm cluster node 1 'ls -l /dev/ublk*'
  vm cluster run -- go test -tags e2e ./test/e2e
  vm cluster down`,
	}
	cmd.PersistentFlags().StringVar(&c.name, "name", DefaultName, "name of the cluster")
	cmd.AddCommand(c.prepare(), c.up(), c.keep(), c.down(), c.status(), c.kubectl(), c.run(), c.node(), c.kill(), c.boot(), c.logs(), c.install())
	return cmd
}

// NewKubectlCommand returns "kubectl", a short form of "cluster kubectl" for the demo's cluster.
func NewKubectlCommand(open func() (*host.Host, error)) *cobra.Command {
	c := &commands{open: open, name: DefaultName}
	cmd := c.kubectl()
	cmd.Short = "Run kubectl on the demo's cluster"
	return cmd
}

// specFlags binds the flags that describe a cluster.
func specFlags(cmd *cobra.Command, s *Spec, variant *string) {
	f := cmd.Flags()
	f.IntVar(&s.Nodes, "nodes", 2, "number of nodes")
	f.StringVar(variant, "kernel", string(kernel.Current), "kernel of the nodes: current, fixed or lts")
	f.StringVar(&s.Accel, "accel", "", "how nodes run: kvm, uml, tcg or auto (default $VM_ACCEL)")
	f.IntVar(&s.NodeMemoryMiB, "memory", 1024, "memory of a node in MiB")
	f.StringArrayVar(&s.Images, "image", nil, "archive of images for the nodes to import (repeatable)")
	f.StringVar(&s.Repo, "repo", "", "directory of the repository (default found from the working directory)")
}

// complete checks the flags and makes the paths independent of the working directory.
func (c *commands) complete(s *Spec, variant string) (err error) {
	s.Name = c.name
	if s.Kernel, err = kernel.ParseVariant(variant); err != nil {
		return err
	}
	if s.Repo == "" {
		if s.Repo, err = kube.Repo(); err != nil {
			return err
		}
	}
	for i, path := range s.Images {
		if s.Images[i], err = filepath.Abs(path); err != nil {
			return err
		}
	}
	return nil
}

// specCommand is a command about a cluster that is described by flags.
func (c *commands) specCommand(use, short string, run func(*cobra.Command, *host.Host, Spec) error) *cobra.Command {
	var s Spec
	var variant string
	cmd := &cobra.Command{
		Use: use, Short: short, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := c.complete(&s, variant); err != nil {
				return err
			}
			h, err := c.open()
			if err != nil {
				return err
			}
			return run(cmd, h, s)
		},
	}
	specFlags(cmd, &s, &variant)
	return cmd
}

func (c *commands) up() *cobra.Command {
	return c.specCommand("up", "Start a cluster and leave it up", func(cmd *cobra.Command, h *host.Host, s Spec) error {
		k, err := Launch(cmd.Context(), h, s)
		if err != nil {
			return err
		}
		printState(cmd, k.State)
		return nil
	})
}

func (c *commands) prepare() *cobra.Command {
	return c.specCommand("prepare", "Build what a cluster is made of, and start none", func(cmd *cobra.Command, h *host.Host, s Spec) error {
		return Prepare(cmd.Context(), h, s)
	})
}

func (c *commands) keep() *cobra.Command {
	cmd := c.specCommand("keep", "Run a cluster until a signal comes (what up starts in the background)", func(cmd *cobra.Command, h *host.Host, s Spec) error {
		k, err := Up(cmd.Context(), h, s)
		if err != nil {
			return err
		}
		return errors.Join(k.Keep(cmd.Context()), k.Down())
	})
	cmd.Hidden = true
	return cmd
}

func (c *commands) down() *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use: "down", Short: "Take a cluster down and remove all that is left of it", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			h, err := c.open()
			if err != nil {
				return err
			}
			names := []string{c.name}
			if all {
				names = Names(h)
			}
			var errs []error
			for _, n := range names {
				if !validName.MatchString(n) {
					return Spec{Name: n, Nodes: 1}.validate()
				}
				errs = append(errs, Remove(cmd.Context(), h, n))
			}
			return errors.Join(errs...)
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "all clusters of this user")
	return cmd
}

func (c *commands) status() *cobra.Command {
	return &cobra.Command{
		Use: "status", Short: "Say what is up", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			h, err := c.open()
			if err != nil {
				return err
			}
			k, err := Open(cmd.Context(), h, c.name)
			if err != nil {
				return err
			}
			printState(cmd, k.State)
			return nil
		},
	}
}

func printState(cmd *cobra.Command, s State) {
	w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 8, 2, ' ', 0)
	defer w.Flush()
	fmt.Fprintf(w, "cluster %s: kernel %s, %s\n", s.Name, s.Kernel, s.Accel)
	for _, n := range s.Nodes {
		state := "on"
		if !n.On {
			state = "off"
		}
		fmt.Fprintf(w, "  %s\t%s\t%s\n", n.Name, n.Address, state)
	}
}

// number reads the argument that names a node: its number, or its name.
func number(arg string) (int, error) {
	n, err := strconv.Atoi(strings.TrimPrefix(arg, "node"))
	if err != nil || n < 1 {
		return 0, fmt.Errorf("node %q: want its number, from 1", arg)
	}
	return n, nil
}
