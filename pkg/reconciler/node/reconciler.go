// Package node keeps the UblkNode object of this node: what its pools, its kernel
// and its device server offer. It writes when something changed, and looks at
// least every 30 s.
package node

import (
	"context"
	"fmt"
	"time"

	"github.com/csi-ublk/csi-ublk/pkg/api/v1alpha1"
	"github.com/csi-ublk/csi-ublk/pkg/pool"
	serverclient "github.com/csi-ublk/csi-ublk/pkg/server/client"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

// Server is the device server.
type Server interface {
	Info(ctx context.Context) (serverclient.Info, error)
}

// Options configures a Reconciler. All fields but those that say so are required.
type Options struct {
	// Client reads the UblkNode of this node, and writes it and its status. It lists the
	// node's UblkVolumes and UblkSnapshots, and none of another's.
	Client client.Client
	Node   string
	Pools  *pool.Set
	Server Server
	// Version of the node plugin.
	Version string
	// SnapshotMetadata is where the plugin answers; nil for nowhere.
	SnapshotMetadata *v1alpha1.SnapshotMetadataEndpoint
	// Every is how long to wait before looking again; 0 means 30 s.
	Every time.Duration
	// Pace is the least time between two writes; 0 means 1 s. Bursts of creations
	// and deletions change the pools hundreds of times a second.
	Pace time.Duration
	// Name tells controllers of one process apart; "" means "node".
	Name string
}

// Reconciler is a reconciler for the one UblkNode of this node.
type Reconciler struct {
	o       Options
	prompts chan event.GenericEvent
	pools   poolWatch
	last    time.Time // of the last write; one worker only
}

// New returns a Reconciler.
func New(o Options) *Reconciler {
	if o.Every == 0 {
		o.Every = 30 * time.Second
	}
	if o.Pace == 0 {
		o.Pace = time.Second
	}
	if o.Name == "" {
		o.Name = "node"
	}
	r := &Reconciler{o: o, prompts: make(chan event.GenericEvent, 1), pools: poolWatch{patient: poolPatience}}
	r.pools.ask = (&gauge{every: o.Every}).status
	r.Prompt() // an object that does not exist yet raises no event
	return r
}

// Setup adds the reconciler to a manager.
func (r *Reconciler) Setup(mgr ctrl.Manager) error {
	skip := true
	return ctrl.NewControllerManagedBy(mgr).
		Named(r.o.Name).
		For(&v1alpha1.UblkNode{}, builder.WithPredicates(predicate.NewPredicateFuncs(func(o client.Object) bool { return o.GetName() == r.o.Node }))).
		WatchesRawSource(source.Channel(r.prompts, &handler.EnqueueRequestForObject{})).
		WithOptions(controller.Options{MaxConcurrentReconciles: 1, SkipNameValidation: &skip}).
		Complete(r)
}

// Prompt has the node looked at soon, as after the space of a pool changed. It
// never blocks.
func (r *Reconciler) Prompt() {
	n := &v1alpha1.UblkNode{}
	n.Name = r.o.Node
	select {
	case r.prompts <- event.GenericEvent{Object: n}:
	default: // one is on its way
	}
}

// infoPatience bounds the question to the device server.
const infoPatience = 5 * time.Second

// Reconcile brings the UblkNode up to date.
func (r *Reconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	if request.Name != r.o.Node {
		return reconcile.Result{}, nil
	}
	if wait := r.o.Pace - time.Since(r.last); wait > 0 {
		return reconcile.Result{RequeueAfter: wait}, nil
	}
	n, err := r.object(ctx)
	if err != nil {
		return reconcile.Result{}, err
	}
	infoCtx, cancel := context.WithTimeout(ctx, infoPatience)
	info, infoErr := r.o.Server.Info(infoCtx)
	cancel()
	states := r.o.Pools.States()
	s := observed{info: info, infoErr: infoErr, pools: r.pools.look(ctx, states), version: r.o.Version, metadata: r.o.SnapshotMetadata}
	if err := r.addStrays(ctx, states, s.pools); err != nil {
		return reconcile.Result{}, err
	}
	if err := r.write(ctx, n, s.status(n.Status, n.Generation)); err != nil {
		return reconcile.Result{}, err
	}
	return reconcile.Result{RequeueAfter: r.o.Every}, nil
}

// Stop says that the plugin ends in order: the node takes no new volumes until the
// next one is there.
func (r *Reconciler) Stop(ctx context.Context) error {
	n := &v1alpha1.UblkNode{}
	if err := r.o.Client.Get(ctx, client.ObjectKey{Name: r.o.Node}, n); err != nil {
		return client.IgnoreNotFound(err)
	}
	status := *n.Status.DeepCopy()
	meta.SetStatusCondition(&status.Conditions, metav1.Condition{
		Type: v1alpha1.NodeReady, Status: metav1.ConditionFalse, ObservedGeneration: n.Generation,
		Reason: "Stopped", Message: "the node plugin was stopped; volumes in use go on",
	})
	return r.write(ctx, n, status)
}

func (r *Reconciler) object(ctx context.Context) (*v1alpha1.UblkNode, error) {
	n := &v1alpha1.UblkNode{}
	err := r.o.Client.Get(ctx, client.ObjectKey{Name: r.o.Node}, n)
	if !apierrors.IsNotFound(err) {
		return n, err
	}
	n.Name = r.o.Node
	if err := r.o.Client.Create(ctx, n); err != nil {
		return nil, fmt.Errorf("create UblkNode %s: %w", r.o.Node, err)
	}
	return n, nil
}

func (r *Reconciler) write(ctx context.Context, n *v1alpha1.UblkNode, status v1alpha1.UblkNodeStatus) error {
	if equality.Semantic.DeepEqual(n.Status, status) {
		return nil
	}
	before := n.DeepCopy()
	n.Status = status
	if err := r.o.Client.Status().Patch(ctx, n, client.MergeFrom(before)); err != nil {
		return fmt.Errorf("write status of UblkNode %s: %w", n.Name, err)
	}
	r.last = time.Now()
	return nil
}
