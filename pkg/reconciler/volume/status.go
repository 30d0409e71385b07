package volume

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/csi-ublk/csi-ublk/pkg/api/v1alpha1"
	"github.com/csi-ublk/csi-ublk/pkg/driver/health"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// allocatedNoiseBytes is how much a volume's allocation must have changed to be
// worth a write of its own.
const allocatedNoiseBytes = 16 << 20

// report writes the status that a step leads to, if it is another one.
func (r *Reconciler) report(ctx context.Context, v *v1alpha1.UblkVolume, s step) error {
	return r.reportSeen(ctx, v, s, nil)
}

// reportSeen is report that also writes what was seen; nil means that this is not known.
func (r *Reconciler) reportSeen(ctx context.Context, v *v1alpha1.UblkVolume, s step, seen *observation) error {
	before := v.DeepCopy()
	v.Status.ObservedGeneration = v.Generation
	v.Status.Conditions = conditions(v.Status.Conditions, v.Generation, v.Spec.State, s)
	if r.o.Problems != nil {
		v.Status.Conditions = healthy(v.Status.Conditions, v.Generation, r.o.Problems(v.Name))
	}
	if seen != nil {
		seen.report(v)
	}
	if s.verb == ready {
		r.reportAllocated(v, !equality.Semantic.DeepEqual(before.Status, v.Status))
	}
	if equality.Semantic.DeepEqual(before.Status, v.Status) {
		return nil
	}
	if err := r.o.Client.Status().Patch(ctx, v, client.MergeFrom(before)); err != nil {
		return fmt.Errorf("write status: %w", err)
	}
	return nil
}

func (r *Reconciler) reportAllocated(v *v1alpha1.UblkVolume, writtenAnyway bool) {
	p, err := r.o.Pools.Pool(v.Spec.Pool)
	if err != nil {
		return
	}
	n, err := p.AllocatedBytes(v.Name)
	if err != nil {
		return
	}
	if change := n - v.Status.AllocatedBytes; writtenAnyway || change >= allocatedNoiseBytes || change <= -allocatedNoiseBytes {
		v.Status.AllocatedBytes = n
	}
}

// conditions returns what follows from a step. It does not write to old.
func conditions(old []metav1.Condition, generation int64, state v1alpha1.VolumeState, s step) []metav1.Condition {
	list := append([]metav1.Condition(nil), old...)
	set := func(kind string, status metav1.ConditionStatus) {
		meta.SetStatusCondition(&list, metav1.Condition{
			Type: kind, Status: status, ObservedGeneration: generation, Reason: s.reason, Message: s.message,
		})
	}
	if state != v1alpha1.VolumeAbsent && s.verb != wait {
		// The answer to a question that is no longer asked.
		meta.RemoveStatusCondition(&list, v1alpha1.VolumeInUse)
	}
	switch s.verb {
	case ready:
		set(v1alpha1.VolumeReady, metav1.ConditionTrue)
		if !meta.IsStatusConditionTrue(list, v1alpha1.VolumeCreated) {
			set(v1alpha1.VolumeCreated, metav1.ConditionTrue)
		}
	case notReady:
		set(v1alpha1.VolumeReady, metav1.ConditionFalse)
	case refuse, wait:
		set(v1alpha1.VolumeInUse, metav1.ConditionTrue)
	}
	return list
}

// healthy puts the condition Healthy onto a list, False with the first problem's reason. A
// volume that nothing was ever wrong with has none. That a limit is reached is what limits
// are for, and changes too often for a status.
func healthy(list []metav1.Condition, generation int64, problems []health.Problem) []metav1.Condition {
	problems = slices.DeleteFunc(slices.Clone(problems), func(p health.Problem) bool { return p.Reason == health.LimitReached })
	c := metav1.Condition{Type: v1alpha1.VolumeHealthy, Status: metav1.ConditionTrue, ObservedGeneration: generation, Reason: "NoTrouble", Message: "requests are answered without errors"}
	if len(problems) > 0 {
		messages := make([]string, len(problems))
		for i, p := range problems {
			messages[i] = p.Message
		}
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, string(problems[0].Reason), strings.Join(messages, "; ")
	} else if meta.FindStatusCondition(list, c.Type) == nil {
		return list
	}
	meta.SetStatusCondition(&list, c)
	return list
}
