package orphan

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/csi-ublk/csi-ublk/pkg/api/v1alpha1"
)

type snapshots struct{ Options }

// on lists the snapshots of a node that vanished; see volumes.on.
func (r *snapshots) on(ctx context.Context, node client.Object) []reconcile.Request {
	var all v1alpha1.UblkSnapshotList
	if err := r.Client.List(ctx, &all, client.UnsafeDisableDeepCopy); err != nil {
		r.Logger.ErrorContext(ctx, "list snapshots of vanished node", "node", node.GetName(), "error", err)
		return nil
	}
	var requests []reconcile.Request
	for i := range all.Items {
		if s := &all.Items[i]; s.Spec.Node == node.GetName() {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(s)})
		}
	}
	return requests
}

// Reconcile does the next step for one snapshot, by the plan for volumes.
func (r *snapshots) Reconcile(ctx context.Context, q reconcile.Request) (reconcile.Result, error) {
	s := &v1alpha1.UblkSnapshot{}
	if err := r.Client.Get(ctx, q.NamespacedName, s); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	node, err := nodeExists(ctx, r.Options, s.Spec.Node)
	if err != nil {
		return reconcile.Result{}, err
	}
	ready := meta.FindStatusCondition(s.Status.Conditions, v1alpha1.SnapshotReady)
	next := plan(observed{
		node:      node,
		deleting:  s.DeletionTimestamp != nil,
		finalizer: controllerutil.ContainsFinalizer(s, v1alpha1.SnapshotFinalizer),
		marked:    ready != nil && ready.Reason == v1alpha1.ReasonNodeGone,
	})
	if err := r.act(ctx, s, next); err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return reconcile.Result{}, err
	}
	return reconcile.Result{}, nil
}

func (r *snapshots) act(ctx context.Context, s *v1alpha1.UblkSnapshot, next step) error {
	log := r.Logger.With("snapshot", s.Name, "node", s.Spec.Node)
	onTop := client.MergeFromWithOptions(s.DeepCopy(), client.MergeFromWithOptimisticLock{})
	switch next {
	case release:
		controllerutil.RemoveFinalizer(s, v1alpha1.SnapshotFinalizer)
		if err := r.Client.Patch(ctx, s, onTop); err != nil {
			return fmt.Errorf("release snapshot %s: %w", s.Name, err)
		}
		log.InfoContext(ctx, "snapshot of vanished node released")
	case mark:
		meta.SetStatusCondition(&s.Status.Conditions, metav1.Condition{
			Type: v1alpha1.SnapshotReady, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonNodeGone, ObservedGeneration: s.Generation,
			Message: fmt.Sprintf("node %s does not exist any more: the data are lost unless it comes back with its disks; delete the snapshot to clean up", s.Spec.Node),
		})
		if err := r.Client.Status().Patch(ctx, s, onTop); err != nil {
			return fmt.Errorf("mark snapshot %s: %w", s.Name, err)
		}
		log.WarnContext(ctx, "node of snapshot vanished")
	}
	return nil
}
