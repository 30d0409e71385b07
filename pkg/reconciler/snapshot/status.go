package snapshot

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csi-ublk/csi-ublk/pkg/api/v1alpha1"
)

// report writes the status that a step leads to, if it is another one.
func (r *Reconciler) report(ctx context.Context, s *v1alpha1.UblkSnapshot, next step) error {
	before := s.DeepCopy()
	status := metav1.ConditionFalse
	if next.verb == ready {
		status = metav1.ConditionTrue
		if err := r.reportCut(s); err != nil {
			return err
		}
	}
	meta.SetStatusCondition(&s.Status.Conditions, metav1.Condition{
		Type: v1alpha1.SnapshotReady, Status: status, ObservedGeneration: s.Generation, Reason: next.reason, Message: next.message,
	})
	if equality.Semantic.DeepEqual(before.Status, s.Status) {
		return nil
	}
	if err := r.o.Client.Status().Patch(ctx, s, client.MergeFrom(before)); err != nil {
		return fmt.Errorf("write status: %w", err)
	}
	return nil
}

// reportCut takes what the file says of itself, whoever made it.
func (r *Reconciler) reportCut(s *v1alpha1.UblkSnapshot) error {
	p, err := r.o.Pools.Pool(s.Spec.Pool)
	if err != nil {
		return err
	}
	file, err := p.Snapshot(s.Name)
	if err != nil {
		return err
	}
	at := metav1.NewMicroTime(file.At)
	s.Status.AllocatedBytes, s.Status.HeldMicros = file.AllocatedBytes, file.Held.Microseconds()
	if s.Status.CreatedAt == nil {
		s.Status.CreatedAt = &at
	}
	return nil
}
