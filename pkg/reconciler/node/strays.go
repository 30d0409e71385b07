package node

import (
	"context"
	"fmt"

	"github.com/csi-ublk/csi-ublk/pkg/api/v1alpha1"
	"github.com/csi-ublk/csi-ublk/pkg/pool"
)

// addStrays completes the status of each pool that works by what it has and the
// controller can't know of, which would be promised twice.
//
// Nothing that is on its way is taken for a stray: an object is there before its file, so
// what a pool has is looked at before the objects are, and goes after it, so what was
// there has to be there still.
func (r *Reconciler) addStrays(ctx context.Context, states []pool.State, pools []v1alpha1.PoolStatus) error {
	had := make([]pool.IDs, len(states))
	for i, s := range states {
		if pools[i].Ready {
			had[i] = s.Pool.IDs()
		}
	}
	var volumes v1alpha1.UblkVolumeList
	var snapshots v1alpha1.UblkSnapshotList
	if err := r.o.Client.List(ctx, &volumes); err != nil {
		return fmt.Errorf("list the volumes of the node: %w", err)
	}
	if err := r.o.Client.List(ctx, &snapshots); err != nil {
		return fmt.Errorf("list the snapshots of the node: %w", err)
	}
	for _, v := range volumes.Items {
		forget(states, had, v.Spec.Pool, func(ids pool.IDs) { delete(ids.Volumes, v.Name) })
	}
	for _, s := range snapshots.Items {
		forget(states, had, s.Spec.Pool, func(ids pool.IDs) { delete(ids.Snapshots, s.Name) })
	}
	for i, s := range states {
		if pools[i].Ready {
			pools[i].StrayBytes = s.Pool.BytesOf(had[i])
		}
	}
	return nil
}

// forget takes something out of the ids of the pool of that name.
func forget(states []pool.State, had []pool.IDs, name string, take func(pool.IDs)) {
	for i, s := range states {
		if s.Options.Name == name {
			take(had[i])
		}
	}
}
