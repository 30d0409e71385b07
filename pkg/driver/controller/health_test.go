package controller

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csi-ublk/csi-ublk/pkg/api/v1alpha1"
	"github.com/csi-ublk/csi-ublk/pkg/driver/health"
)

func TestProblemsOf(t *testing.T) {
	type objects struct {
		volume *v1alpha1.UblkVolume
		node   *corev1.Node
		ublk   *v1alpha1.UblkNode
	}
	condition := func(kind string, status metav1.ConditionStatus, reason string) metav1.Condition {
		return metav1.Condition{Type: kind, Status: status, Reason: reason, Message: "because"}
	}
	for name, c := range map[string]struct {
		change func(*objects)
		want   []health.Reason
	}{
		"all is well": {func(*objects) {}, nil},
		"not made yet": {func(o *objects) {
			o.volume.Status.Conditions = []metav1.Condition{condition(v1alpha1.VolumeReady, metav1.ConditionFalse, v1alpha1.ReasonPoolFailed)}
		}, nil},
		"file missing": {func(o *objects) {
			o.volume.Status.Conditions = append(o.volume.Status.Conditions, condition(v1alpha1.VolumeReady, metav1.ConditionFalse, v1alpha1.ReasonFileMissing))
		}, []health.Reason{health.FileMissing}},
		"not ready for what is nobody's trouble": {func(o *objects) {
			o.volume.Status.Conditions = append(o.volume.Status.Conditions, condition(v1alpha1.VolumeReady, metav1.ConditionFalse, "Busy"))
		}, nil},
		"flush lost": {func(o *objects) {
			o.volume.Status.Conditions = append(o.volume.Status.Conditions, condition(v1alpha1.VolumeHealthy, metav1.ConditionFalse, "FlushLost"))
		}, []health.Reason{health.FlushLost}},
		"well again": {func(o *objects) {
			o.volume.Status.Conditions = append(o.volume.Status.Conditions, condition(v1alpha1.VolumeHealthy, metav1.ConditionTrue, "NoTrouble"))
		}, nil},
		"node gone":      {func(o *objects) { o.node = nil }, []health.Reason{health.NodeGone}},
		"node not ready": {func(o *objects) { o.node.Status.Conditions[0].Status = corev1.ConditionUnknown }, []health.Reason{health.NodeNotReady}},
		"no UblkNode":    {func(o *objects) { o.ublk = nil }, nil},
		"server away": {func(o *objects) {
			o.ublk.Status.Conditions = []metav1.Condition{condition(v1alpha1.NodeReady, metav1.ConditionFalse, "ServerUnavailable")}
		}, []health.Reason{health.ServerUnavailable}},
		"pool full":         {func(o *objects) { o.ublk.Status.Pools[0].FreeBytes = 1 << 20 }, []health.Reason{health.PoolFull}},
		"another pool full": {func(o *objects) { o.ublk.Status.Pools[1].FreeBytes = 1 << 20 }, nil},
	} {
		o := objects{
			volume: &v1alpha1.UblkVolume{Spec: v1alpha1.UblkVolumeSpec{Node: "n", Pool: "p"}},
			node:   &corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}}},
			ublk:   &v1alpha1.UblkNode{},
		}
		o.volume.Status.Conditions = []metav1.Condition{condition(v1alpha1.VolumeCreated, metav1.ConditionTrue, "Created")}
		o.ublk.Status.Pools = []v1alpha1.PoolStatus{{Name: "p", Ready: true, FreeBytes: 1 << 40}, {Name: "q", Ready: true, FreeBytes: 1 << 40}}
		c.change(&o)
		var got []health.Reason
		for _, p := range problemsOf(o.volume, o.node, o.ublk) {
			got = append(got, p.Reason)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
