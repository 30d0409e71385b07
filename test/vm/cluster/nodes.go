package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csi-ublk/csi-ublk/test/vm/guest"
	"github.com/csi-ublk/csi-ublk/test/vm/host"
)

// Nodes is the number of nodes.
func (c *Cluster) Nodes() int { return c.spec.Nodes }

// NodeName is the Kubernetes name of node n, counted from 1.
func (c *Cluster) NodeName(n int) string { return nodeName(n) }

func (c *Cluster) check(n int) error {
	if n < 1 || n > c.spec.Nodes {
		return fmt.Errorf("node %d: the cluster has nodes 1 to %d", n, c.spec.Nodes)
	}
	return nil
}

// Boot starts node n (from 1), which must be off, and returns when it takes commands and has its images; the kubelet comes up
// after that. A node that was on before boots with the disks of its last life.
func (c *Cluster) Boot(ctx context.Context, n int) error {
	if err := c.check(n); err != nil {
		return err
	}
	if old := c.guest(n); old != nil {
		select {
		case <-old.Done(): // It ended by itself: a power off, or a panic.
			_ = old.Close()
		default:
			return fmt.Errorf("boot %s: it is on", nodeName(n))
		}
	}
	g, err := guest.Start(c.life, c.h, guest.Spec{
		Name: nodeName(n), Accel: c.accel, Kernel: c.kernel, Root: c.root, Dir: filepath.Join(c.dir, nodeName(n)),
		DataDiskBytes: c.spec.DataDiskBytes, MemoryMiB: c.spec.NodeMemoryMiB,
		Shares: []guest.Share{{Host: filepath.Join(c.dir, "share"), Guest: "/host"}},
		Net: &guest.Net{
			Namespace: c.netns.path(), Tap: tapName(n), MAC: fmt.Sprintf("52:54:00:c5:1b:%02x", n), Address: nodeAddress(n) + "/24", Gateway: controlAddress,
		},
		Boot: fmt.Sprintf("NODE=%s NUMBER=%d ADDRESS=%s NODES=%d bash /host/node/boot.sh", nodeName(n), n, nodeAddress(n), c.spec.Nodes),
	})
	if err != nil {
		return err
	}
	c.mu.Lock()
	c.nodes[n-1] = g
	c.mu.Unlock()
	return c.loadImages(ctx, n, g)
}

// loadImages imports what the node does not have yet. The driver's lower layer is on the node's root, so this moves the upper
// one only.
func (c *Cluster) loadImages(ctx context.Context, n int, g *guest.Guest) error {
	const script = `
set -e
until [ -S /run/containerd/containerd.sock ]; do sleep 0.1; done
for i in /host/images/*.tar; do
  done=/var/lib/containerd/imported.$(basename "$i")
  if [ -e "$i" ] && [ ! -e "$done" ]; then ctr -n k8s.io images import "$i"; touch "$done"; fi
done`
	if _, err := g.Shell(ctx, script); err != nil {
		return fmt.Errorf("import images on %s: %w", nodeName(n), err)
	}
	return nil
}

// shareImages puts the archives where the nodes see them.
func (c *Cluster) shareImages(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for i, from := range c.spec.Images {
		to := filepath.Join(dir, fmt.Sprintf("%d.tar", i))
		if os.Link(from, to) == nil {
			continue
		}
		// Another file system.
		if _, err := host.Run(context.Background(), host.Command{Args: []string{"cp", from, to}}); err != nil {
			return fmt.Errorf("share image %s: %w", from, err)
		}
	}
	return nil
}

// guest is node n's machine, nil while it is off.
func (c *Cluster) guest(n int) *guest.Guest {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.nodes[n-1]
}

// ErrOff is the answer of a node that is off.
var ErrOff = errors.New("the node is off")

// Node returns the machine of node n, for commands and faults: Run and Shell, Kill, Pause and Resume. A node that is off
// boots with Boot.
func (c *Cluster) Node(n int) (*guest.Guest, error) {
	if err := c.check(n); err != nil {
		return nil, err
	}
	if g := c.guest(n); g != nil {
		return g, nil
	}
	return nil, fmt.Errorf("%s: %w", nodeName(n), ErrOff)
}

// Kill ends node n like a power cut.
func (c *Cluster) Kill(n int) error {
	g, err := c.Node(n)
	if err != nil {
		return err
	}
	err = g.Kill()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.nodes[n-1] = nil
	return errors.Join(err, g.Close())
}

// waitNodes waits until all nodes are Ready.
func (c *Cluster) waitNodes(ctx context.Context) error {
	return c.poll(ctx, "the nodes", func(ctx context.Context) error {
		nodes, err := c.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		ready := 0
		for _, n := range nodes.Items {
			for _, condition := range n.Status.Conditions {
				if condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue {
					ready++
				}
			}
		}
		if ready != c.spec.Nodes {
			return fmt.Errorf("%d of %d nodes are Ready", ready, c.spec.Nodes)
		}
		return nil
	})
}
