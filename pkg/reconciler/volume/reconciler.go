// Package volume makes the files of this node's UblkVolumes exist, and go: it
// observes a volume, plans one step (plan.go, pure), takes it, and writes the
// status if that changed.
package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"time"

	"github.com/csi-ublk/csi-ublk/pkg/api/v1alpha1"
	"github.com/csi-ublk/csi-ublk/pkg/driver"
	"github.com/csi-ublk/csi-ublk/pkg/driver/health"
	"github.com/csi-ublk/csi-ublk/pkg/pool"
	"github.com/csi-ublk/csi-ublk/pkg/reconciler/perpool"
	serverclient "github.com/csi-ublk/csi-ublk/pkg/server/client"
	"google.golang.org/grpc/codes"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

const (
	reasonPoolFull    = v1alpha1.ReasonPoolFull
	reasonPoolMissing = v1alpha1.ReasonPoolMissing
	reasonPoolFailed  = v1alpha1.ReasonPoolFailed
	reasonFileMissing = v1alpha1.ReasonFileMissing
	reasonFileSize    = v1alpha1.ReasonFileSize
	reasonServer      = "ServerUnavailable"
)

// Devices is the device server.
type Devices interface {
	// Get returns NOT_FOUND for a volume that is not attached.
	Get(ctx context.Context, volumeID string) (serverclient.Device, error)
	// Resize makes the device as large as the file is, and returns its size; 0 for a
	// volume that is not attached. UNIMPLEMENTED: the kernel can't.
	Resize(ctx context.Context, volumeID string) (sizeBytes uint64, err error)
	// SetLimits replaces the limits of an attached volume.
	SetLimits(ctx context.Context, volumeID string, l serverclient.Limits) error
}

// Options configures a Reconciler. All fields but those that say so are required.
type Options struct {
	// Client reads UblkVolumes of this node only, and writes them and their status.
	Client  client.Client
	Node    string
	Pools   *pool.Set
	Devices Devices
	Cutter  Cutter
	Locks   *driver.VolumeLocks // shared with the CSI node service
	// OnRemove, if not nil, is told of every volume whose file is about to go to the trash.
	OnRemove func(volumeID string)
	// Problems are those of a volume in use; nil means none are reported. It must not
	// block.
	Problems func(volumeID string) []health.Problem
	// Workers is how many volumes of a pool are worked on at a time; 0 means 64.
	Workers int
	// Name tells controllers of one process apart; "" means "volume".
	Name string
}

// Reconciler is a reconciler for the UblkVolumes of one node.
type Reconciler struct {
	o     Options
	lanes []lane
}

// A lane is the volumes of one pool, with those that are to be looked at soon, and with
// those of others, which it leaves to their lanes: a prompt does not know the pool.
type lane struct {
	perpool.Lane
	prompts chan event.GenericEvent
}

// New returns a Reconciler.
func New(o Options) *Reconciler {
	if o.Workers == 0 {
		o.Workers = 64
	}
	if o.Name == "" {
		o.Name = "volume"
	}
	r := &Reconciler{o: o}
	for _, l := range perpool.Lanes(o.Pools) {
		r.lanes = append(r.lanes, lane{Lane: l, prompts: make(chan event.GenericEvent, 1024)})
	}
	return r
}

// Setup adds the reconciler to a manager, as a controller for each pool.
func (r *Reconciler) Setup(mgr ctrl.Manager) error {
	for _, l := range r.lanes {
		if err := r.setup(mgr, l); err != nil {
			return err
		}
	}
	return nil
}

func (r *Reconciler) setup(mgr ctrl.Manager, l lane) error {
	skip := true
	mine := predicate.NewPredicateFuncs(func(o client.Object) bool { return l.Has(o.(*v1alpha1.UblkVolume).Spec.Pool) })
	return ctrl.NewControllerManagedBy(mgr).
		Named(l.Controller(r.o.Name)).
		// Status is ours: only specs and deletions, which both count up the
		// generation, are news.
		For(&v1alpha1.UblkVolume{}, builder.WithPredicates(predicate.GenerationChangedPredicate{}, mine)).
		WatchesRawSource(source.Channel(l.prompts, &handler.EnqueueRequestForObject{})).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: r.o.Workers,
			RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](50*time.Millisecond, 10*time.Second),
			// The manager is made anew when the API server was away for long.
			SkipNameValidation: &skip,
		}).
		Complete(reconcile.Func(func(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
			return r.reconcile(ctx, request, l.Has)
		}))
}

// Prompt has a volume looked at soon, as after it was detached. It never blocks; a
// prompt that is lost is made up for by the next look in turn.
func (r *Reconciler) Prompt(volumeID string) {
	v := &v1alpha1.UblkVolume{}
	v.Name = volumeID
	for _, l := range r.lanes {
		select {
		case l.prompts <- event.GenericEvent{Object: v}:
		default:
		}
	}
}

const (
	busyAgain    = 100 * time.Millisecond // another operation has the volume's lock
	retryAgain   = 500 * time.Millisecond // the device server does not answer
	waitingAgain = 5 * time.Second        // a detach prompts it earlier
	notReadyIn   = 10 * time.Second
	resyncEvery  = 10 * time.Minute
	maxSteps     = 4
)

// Reconcile looks at one volume.
func (r *Reconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	return r.reconcile(ctx, request, func(string) bool { return true })
}

// reconcile looks at the volume if its pool is among those.
func (r *Reconciler) reconcile(ctx context.Context, request reconcile.Request, among func(pool string) bool) (reconcile.Result, error) {
	v := &v1alpha1.UblkVolume{}
	if err := r.o.Client.Get(ctx, request.NamespacedName, v); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	// A prompt may be for a volume that another node has by now.
	if v.Spec.Node != r.o.Node || !among(v.Spec.Pool) {
		return reconcile.Result{}, nil
	}
	for range maxSteps {
		again, result, err := r.next(ctx, v)
		if !again || err != nil {
			return result, client.IgnoreNotFound(err)
		}
	}
	return reconcile.Result{RequeueAfter: busyAgain}, nil
}

// next takes one step. again asks for another look at what it led to.
func (r *Reconciler) next(ctx context.Context, v *v1alpha1.UblkVolume) (again bool, result reconcile.Result, err error) {
	o := r.observe(ctx, v)
	s := plan(o)
	if touches(s.verb) {
		release, _, ok := r.o.Locks.TryAcquire(v.Name, "reconcile")
		if !ok {
			return false, reconcile.Result{RequeueAfter: busyAgain}, nil
		}
		defer release()
		// Only what is seen under the lock stays true until the step is taken.
		o = r.observe(ctx, v)
		s = plan(o)
	}
	return r.take(ctx, v, o, s)
}

// touches says whether a step needs the volume's lock. Looking and reporting do
// not: they must not make a call of kubelet's fail. Nor does the release of a
// volume whose file is gone: DeleteVolume is answered as soon as the API server
// has it, and the unpublish that may follow at once must not find a lock.
func touches(v verb) bool {
	switch v {
	case create, remember, grow, remove, refuse:
		return true
	}
	return false
}

func (r *Reconciler) take(ctx context.Context, v *v1alpha1.UblkVolume, o observation, s step) (again bool, result reconcile.Result, err error) {
	switch s.verb {
	case adopt:
		return true, result, r.setFinalizer(ctx, v, true)
	case create:
		return r.create(ctx, v)
	case grow:
		return r.grow(ctx, v, o)
	case resize:
		return r.resize(ctx, v, o)
	case remember:
		return r.remember(v, o)
	case throttle:
		return r.throttle(ctx, v, o)
	case retry:
		return false, reconcile.Result{RequeueAfter: retryAgain}, nil
	case ready:
		return r.ready(ctx, v, o, s)
	case notReady:
		return false, reconcile.Result{RequeueAfter: notReadyIn}, r.report(ctx, v, s)
	case refuse:
		return false, result, r.report(ctx, v, s)
	case wait:
		return false, reconcile.Result{RequeueAfter: waitingAgain}, r.report(ctx, v, s)
	case remove:
		return true, result, r.remove(v)
	case release:
		return false, result, r.setFinalizer(ctx, v, false)
	}
	return false, result, nil
}

// ready reports a volume that needs nothing more for now, and its sizes.
func (r *Reconciler) ready(ctx context.Context, v *v1alpha1.UblkVolume, o observation, s step) (again bool, result reconcile.Result, err error) {
	return false, reconcile.Result{RequeueAfter: resyncEvery + rand.N(resyncEvery)}, r.reportSeen(ctx, v, s, &o)
}

func (r *Reconciler) observe(ctx context.Context, v *v1alpha1.UblkVolume) observation {
	o := observation{
		finalizer: controllerutil.ContainsFinalizer(v, v1alpha1.VolumeFinalizer),
		deleting:  !v.DeletionTimestamp.IsZero(),
		absent:    v.Spec.State == v1alpha1.VolumeAbsent,
		wantBytes: v.Spec.CapacityBytes,
		created:   meta.IsStatusConditionTrue(v.Status.Conditions, v1alpha1.VolumeCreated),

		growthRefused: growthRefused(v),
		reportedBytes: v.Status.CapacityBytes,

		wantLimits:     limitsOf(v.Spec.Limits),
		reportedLimits: limitsOf(v.Status.Limits),
	}
	if c := meta.FindStatusCondition(v.Status.Conditions, v1alpha1.VolumeInUse); c != nil {
		o.refused = c.Status == "True" && c.ObservedGeneration == v.Generation
	}
	if o.deleting || o.absent || o.created {
		r.observeDevice(ctx, v.Name, &o)
	}
	r.observePool(v, &o)
	return o
}

func (r *Reconciler) observePool(v *v1alpha1.UblkVolume, o *observation) {
	p, err := r.o.Pools.Pool(v.Spec.Pool)
	if err != nil {
		o.pool, o.poolMessage = poolFailed, err.Error()
		if errors.Is(err, pool.ErrNotConfigured) {
			o.pool = poolMissing
			o.poolMessage += "; add it to the configuration of the node's plugin"
		}
		return
	}
	size, err := p.Size(v.Name)
	if err == nil {
		o.storedLimits, err = p.Limits(v.Name)
	}
	switch {
	case err == nil:
		o.file, o.fileBytes = true, size
	case !errors.Is(err, fs.ErrNotExist):
		o.pool, o.poolMessage = poolFailed, err.Error()
	}
}

func (r *Reconciler) observeDevice(ctx context.Context, id string, o *observation) {
	device, err := r.o.Devices.Get(ctx, id)
	switch driver.Code(err) {
	case codes.OK:
		o.use, o.deviceBytes = inUse, int64(device.SizeBytes)
		o.deviceLimits, o.throttled = pool.Limits(device.Limits), device.Throttled
	case codes.NotFound:
		o.use = unused
	default:
		o.use = unknown
	}
}

func (r *Reconciler) create(ctx context.Context, v *v1alpha1.UblkVolume) (again bool, result reconcile.Result, err error) {
	p, err := r.o.Pools.Pool(v.Spec.Pool)
	if err != nil {
		return true, result, nil // gone since it was looked at
	}
	if v.Spec.Source == nil {
		err = p.Create(v.Name, v.Spec.CapacityBytes)
	} else {
		err = r.copySource(ctx, p, v)
	}
	switch {
	case err == nil:
		return true, result, nil
	case errors.Is(err, errBusy):
		return false, reconcile.Result{RequeueAfter: busyAgain}, nil
	}
	s, result := notMade(v.Spec.Source, err)
	return false, result, r.report(ctx, v, s)
}

func (r *Reconciler) remove(v *v1alpha1.UblkVolume) error {
	p, err := r.o.Pools.Pool(v.Spec.Pool)
	if err != nil {
		return err
	}
	// Before: what is noted of this file must not be found for another one of its name.
	if r.o.OnRemove != nil {
		r.o.OnRemove(v.Name)
	}
	return p.Delete(v.Name)
}

func (r *Reconciler) setFinalizer(ctx context.Context, v *v1alpha1.UblkVolume, on bool) error {
	// The list is replaced as a whole: others' entries must be the current ones.
	base := client.MergeFromWithOptions(v.DeepCopy(), client.MergeFromWithOptimisticLock{})
	if on {
		controllerutil.AddFinalizer(v, v1alpha1.VolumeFinalizer)
	} else {
		controllerutil.RemoveFinalizer(v, v1alpha1.VolumeFinalizer)
	}
	if err := r.o.Client.Patch(ctx, v, base); err != nil {
		return fmt.Errorf("set finalizer: %w", err)
	}
	return nil
}
