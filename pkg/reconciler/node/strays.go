package node

import (
	"context"
	"fmt"

	"github.com/csi-ublk/csi-ublk/pkg/api/v1alpha1"
	"github.com/csi-ublk/csi-ublk/pkg/pool"
)

// named are the files that objects name, by pool and id.
type named map[[2]string]struct{}

func (n named) in(pool string) func(id string) bool {
	return func(id string) bool { _, ok := n[[2]string{pool, id}]; return ok }
}

// addStrays completes the status of each pool that works by what it has and the
// controller can't know of, which would be promised twice. An object is there before its
// file and goes after it, so none is taken for a stray that is only on its way.
func (r *Reconciler) addStrays(ctx context.Context, states []pool.State, pools []v1alpha1.PoolStatus) error {
	var volumes v1alpha1.UblkVolumeList
	var snapshots v1alpha1.UblkSnapshotList
	if err := r.o.Client.List(ctx, &volumes); err != nil {
		return fmt.Errorf("list the volumes of the node: %w", err)
	}
	if err := r.o.Client.List(ctx, &snapshots); err != nil {
		return fmt.Errorf("list the snapshots of the node: %w", err)
	}
	namedVolumes, namedSnapshots := make(named, len(volumes.Items)), make(named, len(snapshots.Items))
	for _, v := range volumes.Items {
		namedVolumes[[2]string{v.Spec.Pool, v.Name}] = struct{}{}
	}
	for _, s := range snapshots.Items {
		namedSnapshots[[2]string{s.Spec.Pool, s.Name}] = struct{}{}
	}
	for i, s := range states {
		if name := s.Options.Name; pools[i].Ready {
			pools[i].StrayBytes = s.Pool.BytesBut(namedVolumes.in(name), namedSnapshots.in(name))
		}
	}
	return nil
}
