package kind

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/csi-ublk/csi-ublk/test/vm/cluster"
	"github.com/csi-ublk/csi-ublk/test/vm/guest"
	"github.com/csi-ublk/csi-ublk/test/vm/host"
	"github.com/csi-ublk/csi-ublk/test/vm/kernel"
	"github.com/csi-ublk/csi-ublk/test/vm/kube"
)

// options are the command's.
type options struct {
	accel, kernel string
	memory        int
	test, archive string
	prepare       bool
	shell         string
}

// NewCommand returns "kind". open opens the host.
func NewCommand(open func() (*host.Host, error)) *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "kind [FLAG OF THE TEST BINARY...]",
		Short: "The end-to-end suite in a kind cluster, in a guest with Docker",
		Long: `kind starts a guest with a ublk driver, Docker and kind, and runs test/e2e/kind/run in it: a kind cluster of three nodes, the
chart, and the end-to-end suite, whose raw output goes to standard output. Nothing is pulled: the node image is made of Debian
packages and the rig's own Kubernetes. Logs are in out/kind. FOCUS and SKIP choose cases.`,
		Example: "  vm kind -- -test.run TestLifecycle\n  vm kind --run 'test/e2e/kind/up && kubectl get nodes'",
		RunE: func(cmd *cobra.Command, args []string) error {
			h, err := open()
			if err != nil {
				return err
			}
			status, err := o.run(cmd.Context(), h, args)
			if err == nil && status != 0 {
				err = cluster.ExitStatus(status)
			}
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.kernel, "kernel", string(kernel.Current), "kernel of the guest: current, fixed or lts")
	f.StringVar(&o.accel, "accel", "", "how the guest runs: kvm, uml, tcg or auto (default $VM_ACCEL)")
	f.IntVar(&o.memory, "memory", 7168, "memory of the guest in MiB")
	f.StringVar(&o.test, "test", "bin/e2e.test", "the compiled suite, in the repository")
	f.StringVar(&o.archive, "archive", "out/csi-ublk-image.tar", "the driver's image, in the repository")
	f.BoolVar(&o.prepare, "prepare", false, "only make what the guest needs, in the cache")
	f.StringVar(&o.shell, "run", "", "a shell command for the guest, in the repository, instead of the suite")
	f.SetInterspersed(false)
	return cmd
}

// run boots a fresh guest, runs the suite in it, and answers its exit status.
func (o options) run(ctx context.Context, h *host.Host, flags []string) (status int, err error) {
	if os.Geteuid() != 0 {
		return 0, errors.New("make a root file system with Docker: this needs root; run it with sudo")
	}
	spec, err := o.guest(ctx, h)
	if err != nil || o.prepare {
		return 0, err
	}
	g, err := guest.Start(ctx, h, spec)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, g.Close()) }()
	extra, err := files.ReadFile("files/extra.yaml")
	if err != nil {
		return 0, err
	}
	status, err = g.Run(ctx, guest.Cmd{Args: []string{"sh", "-c", "cat > " + extraInGuest}, Stdin: strings.NewReader(string(extra))})
	if err != nil || status != 0 {
		return status, err
	}
	args, err := o.command(flags)
	if err != nil {
		return 0, err
	}
	status, err = g.Run(ctx, guest.Cmd{Args: args, Dir: repoInGuest, Env: o.environment(), Stdout: os.Stdout, Stderr: os.Stderr})
	for _, c := range g.Complaints() {
		fmt.Fprintln(os.Stderr, "[guest kernel]", c)
		status = max(status, 1)
	}
	return status, err
}

// guest makes all that the guest needs, as far as the cache lacks it (minutes; shown as progress), and describes the guest.
func (o options) guest(ctx context.Context, h *host.Host) (spec guest.Spec, err error) {
	repo, err := kube.Repo()
	if err != nil {
		return spec, err
	}
	variant, err := kernel.ParseVariant(o.kernel)
	if err != nil {
		return spec, err
	}
	accel, err := guest.Choose(ctx, h, o.accel, variant)
	if err != nil {
		return spec, err
	}
	p, err := buildPrograms(ctx, h, repo)
	if err != nil {
		return spec, err
	}
	image, err := guestRoot(ctx, h, repo, p)
	if err != nil {
		return spec, err
	}
	k, err := kernel.Get(ctx, h, variant, accel.Machine())
	if err != nil {
		return spec, err
	}
	boot, err := files.ReadFile("files/boot.sh")
	return guest.Spec{
		Name: "kind", Accel: accel, Kernel: k, Root: image, MemoryMiB: o.memory, Boot: string(boot),
		Shares: []guest.Share{{Host: repo, Guest: repoInGuest}},
		// One CPU that starts a whole control plane is silent at times.
		SilentAfter: 5 * time.Minute,
	}, err
}

// Where the guest sees the repository, and what it adds to the cluster's configuration.
const (
	repoInGuest  = "/repo"
	extraInGuest = "/run/extra.yaml"
)

// command is what the guest runs.
func (o options) command(flags []string) ([]string, error) {
	if o.shell != "" {
		return []string{"bash", "-c", o.shell}, nil
	}
	script, err := files.ReadFile("files/suite.sh")
	return append([]string{"bash", "-c", string(script), "suite"}, flags...), err
}

// environment is that of the scripts in test/e2e/kind, which are told to take what is in the guest.
func (o options) environment() []string {
	env := []string{
		"KIND=/usr/local/bin/kind", "HELM=/usr/local/bin/helm", "KIND_NODE_IMAGE=" + nodeImage, "KIND_EXTRA=" + extraInGuest,
		"KIND_CRDS=" + crdsInGuest, "E2E_RAW=1", "E2E_TEST=" + repoInGuest + "/" + o.test, "E2E_ARCHIVE=" + repoInGuest + "/" + o.archive,
	}
	for _, name := range []string{"FOCUS", "SKIP", "E2E_CHURN"} {
		if v := os.Getenv(name); v != "" {
			env = append(env, name+"="+v)
		}
	}
	return env
}
