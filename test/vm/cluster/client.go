package cluster

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// Kubeconfig is the path of the administrator's kubeconfig. Its address is that of the API server inside the cluster's network
// namespace: see Command and Config.
func (c *Cluster) Kubeconfig() string { return filepath.Join(c.dir, "kubeconfig") }

// Config returns a client configuration for the administrator that works from this process: it connects through the cluster's
// network namespace.
func (c *Cluster) Config() *rest.Config { return rest.CopyConfig(c.config) }

// Client returns a client for the administrator.
func (c *Cluster) Client() kubernetes.Interface { return c.client }

func (c *Cluster) connect() (err error) {
	if c.config, err = clientcmd.BuildConfigFromFlags("", c.Kubeconfig()); err != nil {
		return fmt.Errorf("read kubeconfig: %w", err)
	}
	c.config.Dial = c.netns.dial
	c.config.QPS, c.config.Burst = 200, 400
	if c.client, err = kubernetes.NewForConfig(c.config); err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	return nil
}

// Inside is what a program needs to talk to a cluster that any process of this machine runs.
type Inside struct {
	Kubeconfig string
	Kubectl    string
	netns      namespace
}

// Inside returns the access to this cluster.
func (c *Cluster) Inside() Inside {
	return Inside{Kubeconfig: c.Kubeconfig(), Kubectl: c.programs.kubernetes.Path("kubectl"), netns: c.netns}
}

// Env is the environment for programs inside the cluster's network: KUBECONFIG, and the rig's kubectl first in PATH.
func (i Inside) Env() []string {
	return append(os.Environ(), "KUBECONFIG="+i.Kubeconfig, "PATH="+filepath.Dir(i.Kubectl)+":"+os.Getenv("PATH"))
}

// Run runs a program inside the cluster's network. It is killed when ctx ends or this process does.
func (i Inside) Run(ctx context.Context, stdin io.Reader, stdout, stderr io.Writer, args ...string) error {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.Env = stdin, stdout, stderr, i.Env()
	cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	if args[0] == "kubectl" {
		cmd.Path, cmd.Err = i.Kubectl, nil
	}
	// The thread must stay for as long as the program runs: its end is what the death signal is about.
	return i.netns.do(cmd.Run)
}

// Exec replaces this process by a program inside the cluster's network. It returns only if that is not possible.
func (i Inside) Exec(args ...string) error {
	path := i.Kubectl
	if args[0] != "kubectl" {
		var err error
		if path, err = exec.LookPath(args[0]); err != nil {
			return err
		}
	}
	runtime.LockOSThread()
	if err := i.netns.enter(); err != nil {
		return err
	}
	return fmt.Errorf("run %s: %w", path, unix.Exec(path, args, i.Env()))
}
