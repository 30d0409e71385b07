//go:build kube

package apiserver

import (
	"context"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/csi-ublk/csi-ublk/pkg/api/v1alpha1"
)

// cutBytes is what every snapshot has allocated.
const cutBytes = 2 * mib

// actSnapshots answers every change of the node's snapshots until ctx ends.
func (n *node) actSnapshots(ctx context.Context) {
	for ctx.Err() == nil {
		w, err := api.Watch(ctx, &v1alpha1.UblkSnapshotList{}, client.MatchingFields{"spec.node": n.name})
		if err != nil {
			continue
		}
		for event := range w.ResultChan() {
			if s, ok := event.Object.(*v1alpha1.UblkSnapshot); ok {
				n.answerSnapshot(ctx, s.Name)
			}
		}
		w.Stop()
	}
}

// answerSnapshot does for one snapshot what the node plugin would.
func (n *node) answerSnapshot(ctx context.Context, name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.silent {
		return
	}
	s := &v1alpha1.UblkSnapshot{}
	if api.Get(ctx, client.ObjectKey{Name: name}, s) != nil || !controllerutil.ContainsFinalizer(s, v1alpha1.SnapshotFinalizer) {
		return
	}
	before := s.DeepCopy()
	condition := metav1.Condition{Type: v1alpha1.SnapshotReady, Status: metav1.ConditionTrue, Reason: "Cut", ObservedGeneration: s.Generation}
	switch {
	case n.failed != "":
		condition.Status, condition.Reason, condition.Message = metav1.ConditionFalse, v1alpha1.ReasonPoolFailed, n.failed
	case s.DeletionTimestamp != nil:
		controllerutil.RemoveFinalizer(s, v1alpha1.SnapshotFinalizer)
		if err := api.Patch(ctx, s, client.MergeFrom(before)); err != nil && !apierrors.IsNotFound(err) && ctx.Err() == nil {
			n.t.Errorf("node %s: release snapshot %s: %v", n.name, name, err)
		}
		return
	case s.Status.CreatedAt != nil:
		return
	case n.uncut != "":
		condition.Status, condition.Reason = metav1.ConditionFalse, n.uncut
	default:
		now := metav1.NewMicroTime(time.Now())
		s.Status.CreatedAt, s.Status.AllocatedBytes = &now, cutBytes
	}
	if !meta.SetStatusCondition(&s.Status.Conditions, condition) {
		return
	}
	_ = api.Status().Update(ctx, s) // a conflict brings another event
}

func (n *node) answerSnapshots() {
	var l v1alpha1.UblkSnapshotList
	must(n.t, api.List(context.Background(), &l, client.MatchingFields{"spec.node": n.name}))
	for _, s := range l.Items {
		n.answerSnapshot(context.Background(), s.Name)
	}
}
