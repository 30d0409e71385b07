package orphan

import (
	"context"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/csi-ublk/csi-ublk/pkg/api/v1alpha1"
)

type nodes struct{ Options }

// Reconcile deletes a UblkNode whose Node is gone. A node that comes back makes
// a new one.
func (r *nodes) Reconcile(ctx context.Context, q reconcile.Request) (reconcile.Result, error) {
	n := &v1alpha1.UblkNode{}
	if err := r.Client.Get(ctx, q.NamespacedName, n); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if n.DeletionTimestamp != nil {
		return reconcile.Result{}, nil
	}
	exists, err := nodeExists(ctx, r.Options, n.Name)
	if err != nil || exists {
		return reconcile.Result{}, err
	}
	if err := r.Client.Delete(ctx, n, client.Preconditions{UID: &n.UID}); client.IgnoreNotFound(err) != nil {
		return reconcile.Result{}, fmt.Errorf("delete UblkNode %s: %w", n.Name, err)
	}
	r.Logger.InfoContext(ctx, "UblkNode of vanished node deleted", "node", n.Name)
	return reconcile.Result{}, nil
}
