// Package cluster starts Kubernetes clusters of the rig: the control plane as processes of this machine, nodes as guests with a
// real ublk driver, everything in a network namespace of its own. The parts are built from Go modules and Debian packages.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/csi-ublk/csi-ublk/test/vm/guest"
	"github.com/csi-ublk/csi-ublk/test/vm/host"
	"github.com/csi-ublk/csi-ublk/test/vm/kernel"
	"github.com/csi-ublk/csi-ublk/test/vm/kube"
)

// Spec describes a cluster. Its zero value is a cluster of two nodes named "test".
type Spec struct {
	// Name tells clusters of one machine apart: lower-case letters, digits and dashes, 20 at most.
	Name string
	// Nodes is their number, 1 to 64; 0 means 2.
	Nodes int
	// Kernel is the kernel of all nodes; "" means kernel.Current.
	Kernel kernel.Variant
	// Accel is how the nodes run, as for guest.Choose; "" means its choice.
	Accel string
	// NodeMemoryMiB is the memory of one node; 0 means 1024. It is used as far as the node touches it.
	NodeMemoryMiB int
	// DataDiskBytes is the size of a node's second disk, /dev/data; 0 means the guests' default.
	DataDiskBytes int64
	// Images are archives that every node imports when it first boots, besides those that its root has.
	Images []string
	// Repo is the directory of this repository; "" means it is found from the working directory.
	Repo string
	// StartTimeout bounds the start without the builds; 0 means 5 minutes.
	StartTimeout time.Duration
}

func (s Spec) withDefaults() Spec {
	if s.Name == "" {
		s.Name = "test"
	}
	if s.Nodes == 0 {
		s.Nodes = 2
	}
	if s.Kernel == "" {
		s.Kernel = kernel.Current
	}
	if s.NodeMemoryMiB == 0 {
		s.NodeMemoryMiB = 1024
	}
	if s.StartTimeout == 0 {
		s.StartTimeout = 5 * time.Minute
	}
	return s
}

var validName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,18}[a-z0-9])?$`)

func (s Spec) validate() error {
	if !validName.MatchString(s.Name) {
		return fmt.Errorf("cluster name %q: want lower-case letters, digits and dashes, 20 at most", s.Name)
	}
	if s.Nodes < 1 || s.Nodes > maxNodes {
		return fmt.Errorf("cluster of %d nodes: want 1 to %d", s.Nodes, maxNodes)
	}
	return nil
}

// Cluster is a running cluster. Its methods may be called from several goroutines.
type Cluster struct {
	spec     Spec
	h        *host.Host
	dir      string
	netns    namespace
	programs programs
	kernel   kernel.Kernel
	accel    guest.Accel
	root     string
	config   *rest.Config
	client   *kubernetes.Clientset
	control  []*process
	unlock   func()
	end      context.CancelFunc // of the guests' lives
	life     context.Context

	mu    sync.Mutex
	nodes []*guest.Guest // by number - 1; nil while a node is off
}

// programs are the built ones.
type programs struct{ kubernetes, etcd, containerd, cni kube.Built }

func buildPrograms(ctx context.Context, h *host.Host, repo string) (p programs, err error) {
	for _, b := range []struct {
		to  *kube.Built
		set kube.Set
	}{{&p.etcd, kube.Etcd}, {&p.cni, kube.CNI}, {&p.containerd, kube.Containerd}, {&p.kubernetes, kube.Kubernetes}} {
		if *b.to, err = kube.Build(ctx, h, repo, b.set); err != nil {
			return p, err
		}
	}
	return p, nil
}

// Up builds what the cache lacks (up to 25 minutes on two cores, shown as progress), starts a cluster and returns when all
// nodes are Ready. It needs root. The cluster lives until Down, or until this process ends, however that comes; what is then
// left (files, the namespace) goes with the next Up or Remove of the same name. An error leaves nothing running.
func Up(ctx context.Context, h *host.Host, s Spec) (_ *Cluster, err error) {
	s = s.withDefaults()
	if err := s.validate(); err != nil {
		return nil, err
	}
	if os.Geteuid() != 0 {
		return nil, errors.New("start a cluster: this needs root (a network namespace and tap devices); run it with sudo")
	}
	c := &Cluster{spec: s, h: h, dir: stateDir(h, s.Name), netns: namespaceOf(s.Name), nodes: make([]*guest.Guest, s.Nodes)}
	c.life, c.end = context.WithCancel(context.WithoutCancel(ctx))
	if c.unlock, err = own(ctx, h, s.Name); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("start cluster %s: %w", s.Name, err), c.Down())
		}
	}()
	if err := c.prepare(ctx); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, s.StartTimeout)
	defer cancel()
	return c, h.Step(fmt.Sprintf("cluster %s: starting %d nodes (kernel %s, %s)", s.Name, s.Nodes, c.kernel.Release, c.accel), 15*time.Second,
		func() error { return c.start(ctx) })
}

// Prepare builds what the cache lacks for a cluster, as Up does, and the helm that installs the chart in it, and starts nothing.
func Prepare(ctx context.Context, h *host.Host, s Spec) error {
	s = s.withDefaults()
	if err := s.validate(); err != nil {
		return err
	}
	c := &Cluster{spec: s, h: h}
	if err := c.prepare(ctx); err != nil {
		return err
	}
	_, err := kube.Build(ctx, h, c.spec.Repo, kube.Helm)
	return err
}

// prepare provides everything that a start needs, in the cache.
func (c *Cluster) prepare(ctx context.Context) (err error) {
	if c.spec.Repo == "" {
		if c.spec.Repo, err = kube.Repo(); err != nil {
			return err
		}
	}
	if err := c.h.Need(ctx, networkTools...); err != nil {
		return err
	}
	if c.accel, err = guest.Choose(ctx, c.h, c.spec.Accel, c.spec.Kernel); err != nil {
		return err
	}
	if c.kernel, err = kernel.Get(ctx, c.h, c.spec.Kernel, c.accel.Machine()); err != nil {
		return err
	}
	if c.programs, err = buildPrograms(ctx, c.h, c.spec.Repo); err != nil {
		return err
	}
	c.root, err = nodeRoot(ctx, c.h, c.programs)
	return err
}

// start brings up network, control plane and nodes side by side: whoever is early retries.
func (c *Cluster) start(ctx context.Context) error {
	share := filepath.Join(c.dir, "share")
	if err := os.MkdirAll(filepath.Join(c.dir, "logs"), 0o755); err != nil {
		return err
	}
	if err := credentials(filepath.Join(c.dir, "pki"), filepath.Join(share, "pki"), c.Kubeconfig(), c.spec.Nodes); err != nil {
		return fmt.Errorf("make certificates: %w", err)
	}
	if err := writeNodeFiles(filepath.Join(share, "node"), c.spec.Nodes); err != nil {
		return fmt.Errorf("write the nodes' configuration: %w", err)
	}
	if err := c.shareImages(filepath.Join(share, "images")); err != nil {
		return err
	}
	if err := c.netns.create(ctx, c.spec.Nodes); err != nil {
		return fmt.Errorf("make the network: %w", err)
	}
	if err := c.connect(); err != nil {
		return err
	}
	g, gctx := errgroup.WithContext(ctx)
	part := func(do func(context.Context) error) {
		g.Go(func() error {
			err := do(gctx)
			if err != nil {
				c.end() // Guests that are still booting live by another context than the group's.
			}
			return err
		})
	}
	part(func(ctx context.Context) error {
		if err := c.startControlPlane(ctx); err != nil {
			return err
		}
		if err := c.startSnapshots(ctx); err != nil {
			return err
		}
		return c.waitReady(ctx)
	})
	for n := 1; n <= c.spec.Nodes; n++ {
		part(func(ctx context.Context) error { return c.Boot(ctx, n) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	return c.waitNodes(ctx)
}

// Down ends the cluster and removes everything of it: processes, devices, the namespace, files. It is idempotent.
func (c *Cluster) Down() error {
	c.end()
	c.mu.Lock()
	defer c.mu.Unlock()
	var errs []error
	for i, g := range c.nodes {
		if g != nil {
			errs = append(errs, g.Close())
			c.nodes[i] = nil
		}
	}
	c.stopControlPlane()
	errs = append(errs, sweep(c.h, c.spec.Name))
	if c.unlock != nil {
		c.unlock()
		c.unlock = nil
	}
	return errors.Join(errs...)
}
