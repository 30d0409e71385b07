package orphan

import (
	"context"
	"fmt"
	"log/slog"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/csi-ublk/csi-ublk/pkg/api/v1alpha1"
)

// Options configures the reconcilers. Client and Live are required.
type Options struct {
	Client client.Client // reads from the manager's cache
	Live   client.Reader // reads from the API server
	Logger *slog.Logger  // nil means slog.Default()
}

// Setup adds the reconcilers of volumes, snapshots and nodes to a manager.
func Setup(mgr ctrl.Manager, o Options) error {
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	vanished := builder.WithPredicates(predicate.Funcs{
		CreateFunc:  func(event.CreateEvent) bool { return false },
		UpdateFunc:  func(event.UpdateEvent) bool { return false },
		GenericFunc: func(event.GenericEvent) bool { return false },
	})
	v := &volumes{o}
	err := ctrl.NewControllerManagedBy(mgr).Named("orphan-volume").For(&v1alpha1.UblkVolume{}).
		Watches(&corev1.Node{}, handler.EnqueueRequestsFromMapFunc(v.on), vanished).
		WithOptions(controller.Options{MaxConcurrentReconciles: 8}).Complete(v)
	if err != nil {
		return fmt.Errorf("set up reconciler of orphaned volumes: %w", err)
	}
	snapshot := &snapshots{o}
	err = ctrl.NewControllerManagedBy(mgr).Named("orphan-snapshot").For(&v1alpha1.UblkSnapshot{}).
		Watches(&corev1.Node{}, handler.EnqueueRequestsFromMapFunc(snapshot.on), vanished).
		WithOptions(controller.Options{MaxConcurrentReconciles: 8}).Complete(snapshot)
	if err != nil {
		return fmt.Errorf("set up reconciler of orphaned snapshots: %w", err)
	}
	err = ctrl.NewControllerManagedBy(mgr).Named("orphan-node").For(&v1alpha1.UblkNode{}).
		Watches(&corev1.Node{}, &handler.EnqueueRequestForObject{}, vanished).Complete(&nodes{o})
	if err != nil {
		return fmt.Errorf("set up reconciler of orphaned nodes: %w", err)
	}
	return nil
}

type volumes struct{ Options }

// on lists the volumes of a node that vanished. It reads them all: an index
// would cost memory all the time for what happens rarely.
func (r *volumes) on(ctx context.Context, node client.Object) []reconcile.Request {
	var all v1alpha1.UblkVolumeList
	if err := r.Client.List(ctx, &all, client.UnsafeDisableDeepCopy); err != nil {
		r.Logger.ErrorContext(ctx, "list volumes of vanished node", "node", node.GetName(), "error", err)
		return nil
	}
	var requests []reconcile.Request
	for i := range all.Items {
		if v := &all.Items[i]; v.Spec.Node == node.GetName() {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(v)})
		}
	}
	return requests
}

// Reconcile does the next step for one volume.
func (r *volumes) Reconcile(ctx context.Context, q reconcile.Request) (reconcile.Result, error) {
	v := &v1alpha1.UblkVolume{}
	if err := r.Client.Get(ctx, q.NamespacedName, v); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	node, err := nodeExists(ctx, r.Options, v.Spec.Node)
	if err != nil {
		return reconcile.Result{}, err
	}
	ready := meta.FindStatusCondition(v.Status.Conditions, v1alpha1.VolumeReady)
	next := plan(observed{
		node:      node,
		deleting:  v.DeletionTimestamp != nil,
		absent:    v.Spec.State == v1alpha1.VolumeAbsent,
		finalizer: controllerutil.ContainsFinalizer(v, v1alpha1.VolumeFinalizer),
		marked:    ready != nil && ready.Reason == v1alpha1.ReasonNodeGone,
	})
	if err := r.act(ctx, v, next); err != nil {
		// NotFound and Conflict: somebody was faster, and the event of that is on
		// its way.
		if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
			return reconcile.Result{}, nil
		}
		return reconcile.Result{}, err
	}
	return reconcile.Result{}, nil
}

func (r *volumes) act(ctx context.Context, v *v1alpha1.UblkVolume, next step) error {
	log := r.Logger.With("volume", v.Name, "node", v.Spec.Node)
	onTop := client.MergeFromWithOptions(v.DeepCopy(), client.MergeFromWithOptimisticLock{})
	switch next {
	case release:
		controllerutil.RemoveFinalizer(v, v1alpha1.VolumeFinalizer)
		if err := r.Client.Patch(ctx, v, onTop); err != nil {
			return fmt.Errorf("release volume %s: %w", v.Name, err)
		}
		log.InfoContext(ctx, "volume of vanished node released")
	case remove:
		if err := r.Client.Delete(ctx, v, client.Preconditions{UID: &v.UID, ResourceVersion: &v.ResourceVersion}); err != nil {
			return fmt.Errorf("delete volume %s: %w", v.Name, err)
		}
		log.InfoContext(ctx, "interrupted deletion of volume finished")
	case mark:
		meta.SetStatusCondition(&v.Status.Conditions, metav1.Condition{
			Type: v1alpha1.VolumeReady, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonNodeGone, ObservedGeneration: v.Generation,
			Message: fmt.Sprintf("node %s does not exist any more: the data are lost unless it comes back with its disks; delete the claim to clean up", v.Spec.Node),
		})
		if err := r.Client.Status().Patch(ctx, v, onTop); err != nil {
			return fmt.Errorf("mark volume %s: %w", v.Name, err)
		}
		log.WarnContext(ctx, "node of volume vanished")
	}
	return nil
}

// nodeExists says whether the Kubernetes node is there. That it is not is
// believed only when the API server says so too: nothing that follows can be
// undone.
func nodeExists(ctx context.Context, o Options, name string) (bool, error) {
	for _, from := range []client.Reader{o.Client, o.Live} {
		err := from.Get(ctx, client.ObjectKey{Name: name}, &corev1.Node{})
		if err == nil {
			return true, nil
		}
		if !apierrors.IsNotFound(err) {
			return false, fmt.Errorf("read node %s: %w", name, err)
		}
	}
	return false, nil
}
