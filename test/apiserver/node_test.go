//go:build kube

package apiserver

import (
	"context"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/csi-ublk/csi-ublk/pkg/api/v1alpha1"
)

const mib = int64(1) << 20

// node stands in for a node with its plugin: a Node, a UblkNode with one pool,
// and somebody who answers on the UblkVolumes of that node.
type node struct {
	t    *testing.T
	name string
	pool string
	stop func()

	mu     sync.Mutex
	silent bool            // answers nothing
	full   bool            // answers PoolFull to new volumes and to growth
	failed string          // the pool does not work, and this is why
	uncut  string          // answers with this reason to new snapshots; "" cuts them
	inUse  map[string]bool // volumes that are attached
	files  map[string]bool // volumes that were made
}

// newNode makes a node, and starts its actor; both are gone when the test ends.
func newNode(t *testing.T, name, pool string, capacity int64) *node {
	t.Helper()
	n := &node{t: t, name: name, pool: pool, inUse: map[string]bool{}, files: map[string]bool{}}
	kube := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	plugin := pluginPod(name)
	must(t, api.Create(t.Context(), plugin))
	n.setPluginReady(corev1.ConditionTrue)
	must(t, api.Create(t.Context(), kube))
	// Without a controller manager nobody else takes the API server's taint off.
	n.setNode(func(k *corev1.Node) { k.Spec.Taints = nil })
	n.setNodeReady(corev1.ConditionTrue)
	must(t, api.Create(t.Context(), &v1alpha1.UblkNode{ObjectMeta: metav1.ObjectMeta{Name: name}}))
	n.setUblk(func(s *v1alpha1.UblkNodeStatus) {
		s.Pools = []v1alpha1.PoolStatus{{Name: pool, Kind: "image", CapacityBytes: capacity, FreeBytes: capacity, FSType: "xfs", Reflink: true, Ready: true}}
		meta.SetStatusCondition(&s.Conditions, metav1.Condition{Type: v1alpha1.NodeReady, Status: metav1.ConditionTrue, Reason: "Ready"})
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		var both sync.WaitGroup
		both.Go(func() { n.act(ctx) })
		both.Go(func() { n.actSnapshots(ctx) })
		both.Wait()
	}()
	n.stop = sync.OnceFunc(func() { cancel(); <-done })
	t.Cleanup(func() {
		n.stop()
		_ = api.Delete(context.Background(), kube)
		_ = api.Delete(context.Background(), plugin, client.GracePeriodSeconds(0))
		_ = api.Delete(context.Background(), &v1alpha1.UblkNode{ObjectMeta: metav1.ObjectMeta{Name: name}})
	})
	return n
}

// act answers every change of the node's volumes until ctx ends.
func (n *node) act(ctx context.Context) {
	for ctx.Err() == nil {
		w, err := api.Watch(ctx, &v1alpha1.UblkVolumeList{}, client.MatchingFields{"spec.node": n.name})
		if err != nil {
			continue
		}
		for event := range w.ResultChan() {
			if v, ok := event.Object.(*v1alpha1.UblkVolume); ok {
				n.answer(ctx, v.Name)
			}
		}
		w.Stop()
	}
}

// answer does for one volume what the node plugin would.
func (n *node) answer(ctx context.Context, name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.silent {
		return
	}
	v := &v1alpha1.UblkVolume{}
	if api.Get(ctx, client.ObjectKey{Name: name}, v) != nil || !controllerutil.ContainsFinalizer(v, v1alpha1.VolumeFinalizer) {
		return
	}
	before := v.DeepCopy()
	going := v.DeletionTimestamp != nil || v.Spec.State == v1alpha1.VolumeAbsent
	switch {
	case going && n.inUse[name]:
		n.status(ctx, v, v1alpha1.VolumeInUse, metav1.ConditionTrue, "Attached", "the volume is attached")
	case going && n.failed != "":
		n.status(ctx, v, v1alpha1.VolumeReady, metav1.ConditionFalse, v1alpha1.ReasonPoolFailed, n.failed)
	case going:
		delete(n.files, name)
		controllerutil.RemoveFinalizer(v, v1alpha1.VolumeFinalizer)
		err := api.Patch(ctx, v, client.MergeFrom(before))
		if err != nil && !apierrors.IsNotFound(err) && ctx.Err() == nil {
			n.t.Errorf("node %s: release %s: %v", n.name, name, err)
		}
	case n.full && !n.files[name]:
		n.status(ctx, v, v1alpha1.VolumeReady, metav1.ConditionFalse, v1alpha1.ReasonPoolFull, "no room left")
	case n.full && v.Status.CapacityBytes < v.Spec.CapacityBytes:
		n.status(ctx, v, v1alpha1.VolumeReady, metav1.ConditionTrue, v1alpha1.ReasonPoolFull, "no room left")
	default:
		n.files[name] = true
		v.Status.CapacityBytes = v.Spec.CapacityBytes
		v.Status.Limits = v.Spec.Limits
		meta.SetStatusCondition(&v.Status.Conditions, metav1.Condition{Type: v1alpha1.VolumeCreated, Status: metav1.ConditionTrue, Reason: "Created"})
		n.status(ctx, v, v1alpha1.VolumeReady, metav1.ConditionTrue, "Created", "")
	}
}

func (n *node) status(ctx context.Context, v *v1alpha1.UblkVolume, condition string, status metav1.ConditionStatus, reason, message string) {
	c := meta.FindStatusCondition(v.Status.Conditions, condition)
	if c != nil && c.Status == status && c.Reason == reason && v.Status.ObservedGeneration == v.Generation {
		return
	}
	v.Status.ObservedGeneration = v.Generation
	meta.SetStatusCondition(&v.Status.Conditions, metav1.Condition{Type: condition, Status: status, Reason: reason, Message: message, ObservedGeneration: v.Generation})
	_ = api.Status().Update(ctx, v) // a conflict brings another event
}

// has says whether the node has the volume's file.
func (n *node) has(volume string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.files[volume]
}

// tell changes the actor's mind and makes it look at all its volumes again.
func (n *node) tell(change func(*node)) {
	n.mu.Lock()
	change(n)
	n.mu.Unlock()
	for _, v := range volumesOf(n.t, n.name) {
		n.answer(context.Background(), v.Name)
	}
	n.answerSnapshots()
}

func (n *node) setNode(change func(*corev1.Node)) {
	n.t.Helper()
	k := &corev1.Node{}
	must(n.t, api.Get(context.Background(), client.ObjectKey{Name: n.name}, k))
	before := k.DeepCopy()
	change(k)
	must(n.t, api.Patch(context.Background(), k, client.MergeFrom(before)))
}

func (n *node) setNodeReady(status corev1.ConditionStatus) {
	n.t.Helper()
	k := &corev1.Node{}
	must(n.t, api.Get(context.Background(), client.ObjectKey{Name: n.name}, k))
	k.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status, Reason: "Test"}}
	must(n.t, api.Status().Update(context.Background(), k))
}

func (n *node) setUblk(change func(*v1alpha1.UblkNodeStatus)) {
	n.t.Helper()
	u := &v1alpha1.UblkNode{}
	must(n.t, api.Get(context.Background(), client.ObjectKey{Name: n.name}, u))
	change(&u.Status)
	must(n.t, api.Status().Update(context.Background(), u))
}

// vanish ends the plugin and deletes the Node.
func (n *node) vanish() {
	n.t.Helper()
	n.stop()
	must(n.t, api.Delete(context.Background(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.name}}))
}

func volumesOf(t *testing.T, node string) []v1alpha1.UblkVolume {
	t.Helper()
	var l v1alpha1.UblkVolumeList
	must(t, api.List(context.Background(), &l, client.MatchingFields{"spec.node": node}))
	return l.Items
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
