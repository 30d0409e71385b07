package cluster

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csi-ublk/csi-ublk/test/vm/host"
)

// startControlPlane starts etcd and the API server and, when that answers, the controller manager and the scheduler: the
// controller manager ends if it finds none for 10 seconds, which a busy machine can take.
func (c *Cluster) startControlPlane(ctx context.Context) error {
	pki := func(name string) string { return filepath.Join(c.dir, "pki", name) }
	logs := filepath.Join(c.dir, "logs")
	for _, p := range []struct {
		name, program string
		args          []string
	}{
		{"etcd", c.programs.etcd.Path("etcd"), []string{
			// The cluster does not outlive this machine's next boot, so nothing has to reach the disk.
			"--data-dir=" + filepath.Join(c.dir, "etcd"), "--unsafe-no-fsync", "--log-level=error",
			"--listen-client-urls=http://127.0.0.1:2379", "--advertise-client-urls=http://127.0.0.1:2379",
			"--listen-peer-urls=http://127.0.0.1:2380", "--initial-advertise-peer-urls=http://127.0.0.1:2380",
			"--initial-cluster=default=http://127.0.0.1:2380",
		}},
		{"kube-apiserver", c.programs.kubernetes.Path("kube-apiserver"), []string{
			"--etcd-servers=http://127.0.0.1:2379", "--bind-address=0.0.0.0", "--secure-port=443", "--advertise-address=" + controlAddress,
			"--service-cluster-ip-range=" + serviceRange, "--allow-privileged=true", "--authorization-mode=Node,RBAC",
			"--enable-admission-plugins=NodeRestriction", "--client-ca-file=" + pki("ca.crt"),
			"--tls-cert-file=" + pki("apiserver.crt"), "--tls-private-key-file=" + pki("apiserver.key"),
			"--kubelet-certificate-authority=" + pki("ca.crt"), "--kubelet-client-certificate=" + pki("kubelet-client.crt"),
			"--kubelet-client-key=" + pki("kubelet-client.key"), "--kubelet-preferred-address-types=InternalIP",
			"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
			"--service-account-key-file=" + pki("sa.pub"), "--service-account-signing-key-file=" + pki("sa.key"),
			"--cert-dir=" + c.dir, "--v=1",
		}},
		// The default of 20 requests a second would add 5 s to every start.
		{"kube-controller-manager", c.programs.kubernetes.Path("kube-controller-manager"), []string{
			"--kubeconfig=" + pki("controller-manager.kubeconfig"), "--bind-address=127.0.0.1", "--leader-elect=false",
			"--use-service-account-credentials", "--service-account-private-key-file=" + pki("sa.key"), "--root-ca-file=" + pki("ca.crt"),
			"--cluster-signing-cert-file=" + pki("ca.crt"), "--cluster-signing-key-file=" + pki("ca.key"),
			"--kube-api-qps=500", "--kube-api-burst=1000", "--allocate-node-cidrs=false", "--cert-dir=" + c.dir, "--v=1",
		}},
		{"kube-scheduler", c.programs.kubernetes.Path("kube-scheduler"), []string{
			"--kubeconfig=" + pki("scheduler.kubeconfig"), "--bind-address=127.0.0.1", "--leader-elect=false",
			"--kube-api-qps=500", "--kube-api-burst=1000", "--cert-dir=" + c.dir, "--v=1",
		}},
	} {
		started, err := c.netns.start(logs, p.name, p.program, p.args...)
		if err != nil {
			return err
		}
		c.control = append(c.control, started)
		if p.name != "kube-apiserver" {
			continue
		}
		if err := c.poll(ctx, "the API server", c.apiReady); err != nil {
			return err
		}
	}
	return nil
}

func (c *Cluster) apiReady(ctx context.Context) error {
	_, err := c.client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
	return err
}

// stopControlPlane ends it in the reverse order: an API server whose etcd is gone ignores the request to end, so it is killed.
func (c *Cluster) stopControlPlane() {
	for i := len(c.control) - 1; i >= 0; i-- {
		c.control[i].stop(0)
	}
	c.control = nil
}

// waitReady waits until pods can be made in the namespace default.
func (c *Cluster) waitReady(ctx context.Context) error {
	return c.poll(ctx, "the controller manager", func(ctx context.Context) error {
		// Its token controller makes it; a pod needs it.
		_, err := c.client.CoreV1().ServiceAccounts("default").Get(ctx, "default", metav1.GetOptions{})
		return err
	})
}

// poll asks until the answer is no error, and gives up when ctx ends or a part of the cluster does.
func (c *Cluster) poll(ctx context.Context, what string, ask func(context.Context) error) error {
	for {
		err := ask(ctx)
		if err == nil {
			return nil
		}
		if broken := c.alive(); broken != nil {
			return fmt.Errorf("wait for %s: %w", what, broken)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w: %w", what, ctx.Err(), err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// alive is nil while all programs of the control plane and all nodes that are on run.
func (c *Cluster) alive() error {
	for n := 1; n <= c.spec.Nodes; n++ {
		g := c.guest(n)
		if g == nil {
			continue
		}
		select {
		case <-g.Done():
			return fmt.Errorf("%s ended: %w%s", nodeName(n), errors.Join(g.Err()), host.Indent(g.Console(15)))
		default:
		}
	}
	for _, p := range c.control {
		if err := p.alive(); err != nil {
			return err
		}
	}
	return nil
}
