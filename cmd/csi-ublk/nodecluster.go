package main

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/csi-ublk/csi-ublk/pkg/api/v1alpha1"
	"github.com/csi-ublk/csi-ublk/pkg/driver"
	"github.com/csi-ublk/csi-ublk/pkg/driver/health"
	"github.com/csi-ublk/csi-ublk/pkg/driver/mount"
	"github.com/csi-ublk/csi-ublk/pkg/pool"
	"github.com/csi-ublk/csi-ublk/pkg/reconciler/cut"
	noderec "github.com/csi-ublk/csi-ublk/pkg/reconciler/node"
	snapshotrec "github.com/csi-ublk/csi-ublk/pkg/reconciler/snapshot"
	volumerec "github.com/csi-ublk/csi-ublk/pkg/reconciler/volume"
	serverclient "github.com/csi-ublk/csi-ublk/pkg/server/client"
)

// nodeCluster is the part of the node role that needs the API server: the
// reconcilers. Kubelet's calls are served without it, so that pods on the node
// start and end while the API server is away.
type nodeCluster struct {
	o       clusterOptions
	volumes atomic.Pointer[volumerec.Reconciler]
	self    atomic.Pointer[noderec.Reconciler]
}

type clusterOptions struct {
	node     string
	kube     *rest.Config
	pools    *pool.Set
	devices  *serverclient.Client
	locks    *driver.VolumeLocks
	freezer  *mount.Freezer
	onRemove func(volumeID string)
	problems func(volumeID string) []health.Problem
	metadata *v1alpha1.SnapshotMetadataEndpoint // nil if it is not offered
}

// thawed returns a Freezer that keeps its marks in dir, after it has thawed what an
// earlier plugin froze and died: pods wait for that.
func thawed(dir string, guard mount.Guard) (*mount.Freezer, error) {
	freezer, err := mount.NewFreezer(dir, guard)
	if err != nil {
		return nil, err
	}
	if err := freezer.ThawAll(); err != nil {
		slog.Error("thaw what an earlier plugin froze", "error", err)
	}
	return freezer, nil
}

// spaceChanged has the UblkNode brought up to date.
func (c *nodeCluster) spaceChanged() {
	if r := c.self.Load(); r != nil {
		r.Prompt()
	}
}

// prompt has a volume looked at: it was detached, or its health has changed.
func (c *nodeCluster) prompt(volumeID string) {
	if r := c.volumes.Load(); r != nil {
		r.Prompt(volumeID)
	}
}

// run keeps a manager with the reconcilers going until ctx ends. One that gives
// up, because the API server is away for longer than it waits, is followed by the
// next.
func (c *nodeCluster) run(ctx context.Context) error {
	for {
		err := c.manage(ctx)
		if ctx.Err() != nil {
			return nil
		}
		slog.Error("reconcilers stopped, starting them again", "error", err)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(5 * time.Second):
		}
	}
}

func (c *nodeCluster) manage(ctx context.Context) error {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return fmt.Errorf("make scheme: %w", err)
	}
	mgr, err := ctrl.NewManager(c.o.kube, ctrl.Options{
		Scheme:  scheme,
		Metrics: metricsserver.Options{BindAddress: "0"}, // served with the role's own
		Cache: cache.Options{
			ReaderFailOnMissingInformer: true,
			DefaultTransform:            cache.TransformStripManagedFields(),
			// A node sees its own objects only, whatever the cluster's size.
			ByObject: map[client.Object]cache.ByObject{
				&v1alpha1.UblkVolume{}:   {Field: fields.OneTermEqualSelector("spec.node", c.o.node)},
				&v1alpha1.UblkSnapshot{}: {Field: fields.OneTermEqualSelector("spec.node", c.o.node)},
				&v1alpha1.UblkNode{}:     {Field: fields.OneTermEqualSelector("metadata.name", c.o.node)},
			},
		},
	})
	if err != nil {
		return fmt.Errorf("make node manager: %w", err)
	}
	cutter := &cut.Cutter{Devices: c.o.devices, Freezer: c.o.freezer}
	volumes := volumerec.New(volumerec.Options{
		Client: mgr.GetClient(), Node: c.o.node, Pools: c.o.pools, Devices: c.o.devices, Cutter: cutter, Locks: c.o.locks, OnRemove: c.o.onRemove,
		Problems: c.o.problems,
	})
	snapshots := snapshotrec.New(snapshotrec.Options{Client: mgr.GetClient(), Node: c.o.node, Pools: c.o.pools, Cutter: cutter, Locks: c.o.locks})
	self := noderec.New(noderec.Options{
		Client: mgr.GetClient(), Node: c.o.node, Pools: c.o.pools, Server: c.o.devices, Version: buildVersion(), SnapshotMetadata: c.o.metadata,
	})
	if err := volumes.Setup(mgr); err != nil {
		return fmt.Errorf("set up volume reconciler: %w", err)
	}
	if err := snapshots.Setup(mgr); err != nil {
		return fmt.Errorf("set up snapshot reconciler: %w", err)
	}
	if err := self.Setup(mgr); err != nil {
		return fmt.Errorf("set up node reconciler: %w", err)
	}
	c.volumes.Store(volumes)
	c.self.Store(self)
	return mgr.Start(ctx)
}

// stop withdraws the node's capacity; the manager must still run.
func (c *nodeCluster) stop(ctx context.Context) error {
	r := c.self.Load()
	if r == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	if err := r.Stop(ctx); err != nil {
		// The API server may be away as well; the controller sees the node's own
		// condition then.
		slog.Warn("node not withdrawn", "error", err)
	}
	return nil
}
