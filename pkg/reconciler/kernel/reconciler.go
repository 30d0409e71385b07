package kernel

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/csi-ublk/csi-ublk/pkg/api/v1alpha1"
)

// Options configures the reconciler. Client and Events are required.
type Options struct {
	// Client reads Node and UblkNode, and patches Node.
	Client client.Client
	Events events.EventRecorder
	// TaintWedged has nodes with a wedged kernel tainted.
	TaintWedged bool
}

// Reconciler marks one node. It is asked with the name that Node and UblkNode
// share.
type Reconciler struct {
	o Options

	mu   sync.Mutex
	told map[string]transition // node → the one that an event was made of
}

// transition of a condition; its time has whole seconds.
type transition struct {
	healthy bool
	at      metav1.Time
}

// Setup adds the reconciler to a manager.
func Setup(mgr ctrl.Manager, o Options) error {
	r := &Reconciler{o: o, told: make(map[string]transition)}
	// A Node that was made anew gets its label with the next write of its
	// UblkNode: a watch on all Nodes would wake this one at every heartbeat.
	err := ctrl.NewControllerManagedBy(mgr).Named("kernel").For(&v1alpha1.UblkNode{}).Complete(r)
	if err != nil {
		return fmt.Errorf("set up reconciler of kernels: %w", err)
	}
	return nil
}

// Reconcile brings label and taint of one Node up to date.
func (r *Reconciler) Reconcile(ctx context.Context, q reconcile.Request) (reconcile.Result, error) {
	node, u := &corev1.Node{}, &v1alpha1.UblkNode{}
	if err := r.o.Client.Get(ctx, q.NamespacedName, node); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	switch err := r.o.Client.Get(ctx, q.NamespacedName, u); {
	case apierrors.IsNotFound(err):
		u = nil
	case err != nil:
		return reconcile.Result{}, err
	default:
		r.tell(node, u)
	}
	before := node.DeepCopy()
	if !plan(node, u, r.o.TaintWedged) {
		return reconcile.Result{}, nil
	}
	change, err := patch(before, node)
	if err != nil {
		return reconcile.Result{}, err
	}
	err = r.o.Client.Patch(ctx, node, client.RawPatch(types.MergePatchType, change))
	if apierrors.IsConflict(err) {
		return reconcile.Result{RequeueAfter: time.Second}, nil
	}
	if client.IgnoreNotFound(err) != nil {
		return reconcile.Result{}, fmt.Errorf("mark node %s: %w", node.Name, err)
	}
	return reconcile.Result{}, nil
}

// tell makes one event of each time that the kernel is wedged, or answers again.
func (r *Reconciler) tell(node *corev1.Node, u *v1alpha1.UblkNode) {
	c := meta.FindStatusCondition(u.Status.Conditions, v1alpha1.NodeKernelHealthy)
	if c == nil {
		return
	}
	now := transition{c.Status == metav1.ConditionTrue, c.LastTransitionTime}
	r.mu.Lock()
	last, known := r.told[u.Name]
	r.told[u.Name] = now
	r.mu.Unlock()
	if known && last.healthy == now.healthy && last.at.Equal(&now.at) || !known && now.healthy {
		return
	}
	if now.healthy {
		r.o.Events.Eventf(node, u, corev1.EventTypeNormal, "KernelAnswers", "ProbeKernel", "%s", "ublk control commands are answered again: the node takes new volumes")
		return
	}
	r.o.Events.Eventf(node, u, corev1.EventTypeWarning, "KernelWedged", "ProbeKernel", "the node takes no new volumes: %s", c.Message)
}
