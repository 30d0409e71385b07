// Package snapshot cuts this node's UblkSnapshots, and removes them: it observes a
// snapshot, plans one step (plan.go, pure), takes it, and writes the status if that
// changed.
package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"time"

	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/csi-ublk/csi-ublk/pkg/api/v1alpha1"
	"github.com/csi-ublk/csi-ublk/pkg/driver"
	"github.com/csi-ublk/csi-ublk/pkg/pool"
	"github.com/csi-ublk/csi-ublk/pkg/reconciler/cut"
	"github.com/csi-ublk/csi-ublk/pkg/reconciler/perpool"
)

const (
	reasonPoolMissing = v1alpha1.ReasonPoolMissing
	reasonPoolFailed  = v1alpha1.ReasonPoolFailed
	reasonFileMissing = v1alpha1.ReasonFileMissing
	reasonTooLong     = v1alpha1.ReasonCutTakesTooLong
)

// Options configures a Reconciler. All fields but those that say so are required.
type Options struct {
	// Client reads UblkSnapshots of this node only, and writes them and their status.
	Client client.Client
	Node   string
	Pools  *pool.Set
	Cutter *cut.Cutter
	Locks  *driver.VolumeLocks // shared with the CSI node service
	// Workers is how many snapshots of a pool are worked on at a time; 0 means 16.
	Workers int
}

// Reconciler is a reconciler for the UblkSnapshots of one node.
type Reconciler struct{ o Options }

// New returns a Reconciler.
func New(o Options) *Reconciler {
	if o.Workers == 0 {
		o.Workers = 16
	}
	return &Reconciler{o}
}

// Setup adds the reconciler to a manager, as a controller for each pool.
func (r *Reconciler) Setup(mgr ctrl.Manager) error {
	for _, l := range perpool.Lanes(r.o.Pools) {
		if err := r.setup(mgr, l); err != nil {
			return err
		}
	}
	return nil
}

func (r *Reconciler) setup(mgr ctrl.Manager, l perpool.Lane) error {
	skip := true
	mine := predicate.NewPredicateFuncs(func(o client.Object) bool { return l.Has(o.(*v1alpha1.UblkSnapshot).Spec.Pool) })
	return ctrl.NewControllerManagedBy(mgr).
		Named(l.Controller("snapshot")).
		// Status is ours: only specs and deletions are news.
		For(&v1alpha1.UblkSnapshot{}, builder.WithPredicates(predicate.GenerationChangedPredicate{}, mine)).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: r.o.Workers,
			RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](50*time.Millisecond, 10*time.Second),
			// The manager is made anew when the API server was away for long.
			SkipNameValidation: &skip,
		}).
		Complete(r)
}

const (
	busyAgain   = 100 * time.Millisecond // another operation has the volume's lock
	serverAgain = time.Second            // the device server is away
	notReadyIn  = 10 * time.Second
	resyncEvery = 10 * time.Minute
	maxSteps    = 4
)

// Reconcile looks at one snapshot.
func (r *Reconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	s := &v1alpha1.UblkSnapshot{}
	if err := r.o.Client.Get(ctx, request.NamespacedName, s); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if s.Spec.Node != r.o.Node {
		return reconcile.Result{}, nil
	}
	release, ok := r.hold(s.Name)
	if !ok {
		return reconcile.Result{RequeueAfter: busyAgain}, nil
	}
	defer release()
	for range maxSteps {
		again, result, err := r.take(ctx, s, plan(r.observe(s)))
		if !again || err != nil {
			return result, client.IgnoreNotFound(err)
		}
	}
	return reconcile.Result{RequeueAfter: busyAgain}, nil
}

// hold keeps others of its group from cutting a snapshot while it is looked at, and its
// removal from being planned while they cut it.
func (r *Reconciler) hold(name string) (release func(), ok bool) {
	release, _, ok = r.o.Locks.TryAcquire("snapshot/"+name, "snapshot")
	return release, ok
}

func (r *Reconciler) observe(s *v1alpha1.UblkSnapshot) observation {
	o := observation{
		finalizer: controllerutil.ContainsFinalizer(s, v1alpha1.SnapshotFinalizer),
		deleting:  !s.DeletionTimestamp.IsZero(),
		cut:       s.Status.CreatedAt != nil,
	}
	p, err := r.o.Pools.Pool(s.Spec.Pool)
	if err != nil {
		o.pool, o.poolMessage = poolFailed, err.Error()
		if errors.Is(err, pool.ErrNotConfigured) {
			o.pool = poolMissing
			o.poolMessage += "; add it to the configuration of the node's plugin"
		}
		return o
	}
	// Before the file is looked at: it may appear in between, and then the rest is there.
	o.follows, o.waits = first(s) != s.Name, r.waits(s)
	_, err = p.Snapshot(s.Name)
	switch {
	case err == nil:
		o.file = true
	case !errors.Is(err, fs.ErrNotExist):
		o.pool, o.poolMessage = poolFailed, err.Error()
	}
	return o
}

// take takes one step. again asks for another look at what it led to.
func (r *Reconciler) take(ctx context.Context, s *v1alpha1.UblkSnapshot, next step) (again bool, result reconcile.Result, err error) {
	switch next.verb {
	case adopt:
		return true, result, r.setFinalizer(ctx, s, true)
	case wait:
		return false, reconcile.Result{RequeueAfter: busyAgain}, nil
	case cutNow:
		return r.cut(ctx, s)
	case ready:
		return false, reconcile.Result{RequeueAfter: resyncEvery + rand.N(resyncEvery)}, r.report(ctx, s, next)
	case notReady:
		return false, reconcile.Result{RequeueAfter: notReadyIn}, r.report(ctx, s, next)
	case remove:
		return true, result, r.remove(s)
	case release:
		return false, result, r.setFinalizer(ctx, s, false)
	}
	return false, result, nil
}

func (r *Reconciler) remove(s *v1alpha1.UblkSnapshot) error {
	p, err := r.o.Pools.Pool(s.Spec.Pool)
	if err != nil {
		return err
	}
	return p.DeleteSnapshot(s.Name)
}

func (r *Reconciler) setFinalizer(ctx context.Context, s *v1alpha1.UblkSnapshot, on bool) error {
	// The list is replaced as a whole: others' entries must be the current ones.
	base := client.MergeFromWithOptions(s.DeepCopy(), client.MergeFromWithOptimisticLock{})
	if on {
		controllerutil.AddFinalizer(s, v1alpha1.SnapshotFinalizer)
	} else {
		controllerutil.RemoveFinalizer(s, v1alpha1.SnapshotFinalizer)
	}
	if err := r.o.Client.Patch(ctx, s, base); err != nil {
		return fmt.Errorf("set finalizer: %w", err)
	}
	return nil
}
