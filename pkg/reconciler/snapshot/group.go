package snapshot

import (
	"context"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csi-ublk/csi-ublk/pkg/api/v1alpha1"
)

// The snapshots of a group are cut by the one whose name is the first; the others wait
// until its file is there, and are not ready before.

// first is the name of the member that cuts; the snapshot's own if it is alone.
func first(s *v1alpha1.UblkSnapshot) string {
	if len(s.Spec.GroupMembers) == 0 {
		return s.Name
	}
	return slices.Min(s.Spec.GroupMembers)
}

// waits says whether another member has still to cut this one.
func (r *Reconciler) waits(s *v1alpha1.UblkSnapshot) bool {
	if first(s) == s.Name || s.Status.CreatedAt != nil {
		return false
	}
	// The first one may be in another pool of the node.
	for _, state := range r.o.Pools.States() {
		if state.Pool != nil && state.Pool.HasSnapshot(first(s)) {
			return false
		}
	}
	return true
}

// members returns the snapshots that are cut together, the first one first; nil if not
// all of them are known here yet.
func (r *Reconciler) members(ctx context.Context, s *v1alpha1.UblkSnapshot) ([]*v1alpha1.UblkSnapshot, error) {
	list := []*v1alpha1.UblkSnapshot{s}
	for _, name := range slices.Sorted(slices.Values(s.Spec.GroupMembers)) {
		if name == s.Name {
			continue
		}
		m := &v1alpha1.UblkSnapshot{}
		err := r.o.Client.Get(ctx, client.ObjectKey{Name: name}, m)
		if apierrors.IsNotFound(err) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		list = append(list, m)
	}
	return list, nil
}
