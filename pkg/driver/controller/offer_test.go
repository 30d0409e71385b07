package controller

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csi-ublk/csi-ublk/pkg/api/v1alpha1"
	"github.com/csi-ublk/csi-ublk/pkg/capacity"
)

func TestOffer(t *testing.T) {
	now := metav1.Now()
	type change = func(*corev1.Node, *v1alpha1.UblkNode)
	cases := map[string]struct {
		change change
		want   string
	}{
		"a healthy node takes volumes": {func(*corev1.Node, *v1alpha1.UblkNode) {}, ""},
		"a node that is not ready":     {func(n *corev1.Node, _ *v1alpha1.UblkNode) { n.Status.Conditions[0].Status = corev1.ConditionUnknown }, "it is not ready"},
		"a node that never reported":   {func(n *corev1.Node, _ *v1alpha1.UblkNode) { n.Status.Conditions = nil }, "it is not ready"},
		"a cordoned node":              {func(n *corev1.Node, _ *v1alpha1.UblkNode) { n.Spec.Unschedulable = true }, "it is cordoned"},
		"a node being deleted":         {func(n *corev1.Node, _ *v1alpha1.UblkNode) { n.DeletionTimestamp = &now }, "it is being deleted"},
		"a node out of service": {func(n *corev1.Node, _ *v1alpha1.UblkNode) {
			n.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeOutOfService}}
		}, "it is out of service"},
		"a node that the autoscaler takes": {func(n *corev1.Node, _ *v1alpha1.UblkNode) {
			n.Spec.Taints = []corev1.Taint{{Key: "ToBeDeletedByClusterAutoscaler"}}
		}, "the cluster autoscaler is about to delete it"},
		"a plugin that did not report": {func(_ *corev1.Node, u *v1alpha1.UblkNode) { u.Status.Conditions = nil }, "its csi-ublk node plugin has not reported yet"},
		"a plugin that is not ready": {func(_ *corev1.Node, u *v1alpha1.UblkNode) {
			u.Status.Conditions[0] = metav1.Condition{Type: v1alpha1.NodeReady, Status: metav1.ConditionFalse, Message: "no server"}
		}, "its csi-ublk node plugin is not ready (no server)"},
		"a wedged kernel": {func(_ *corev1.Node, u *v1alpha1.UblkNode) {
			u.Status.Conditions = append(u.Status.Conditions, metav1.Condition{Type: v1alpha1.NodeKernelHealthy, Status: metav1.ConditionFalse, Message: "STOP_DEV hangs"})
		}, "its kernel is not healthy (STOP_DEV hangs)"},
		"a UblkNode being deleted": {func(_ *corev1.Node, u *v1alpha1.UblkNode) { u.DeletionTimestamp = &now }, "its UblkNode is being deleted"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			n, u := healthy("n")
			c.change(n, u)
			if got := offerOf(n, u, ""); got.Refusal != c.want {
				t.Errorf("refusal %q, want %q", got.Refusal, c.want)
			}
		})
	}
}

func TestOfferPools(t *testing.T) {
	n, u := healthy("n")
	u.Status.Pools = append(u.Status.Pools, v1alpha1.PoolStatus{Name: "bad", CapacityBytes: 7, Message: "read-only"})
	want := capacity.Node{Name: "n", Pools: []capacity.Pool{
		{Name: "default", CapacityBytes: 1 << 30},
		{Name: "bad", CapacityBytes: 7, Refusal: `its pool "bad" does not work (read-only)`},
	}}
	if diff := cmp.Diff(want, offerOf(n, u, "")); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if got := offerOf(nil, u, "").Refusal; got != "the node does not exist" {
		t.Errorf("without a Node: %q", got)
	}
}

// healthy is a node with one pool "default" of 1 GiB.
func healthy(name string) (*corev1.Node, *v1alpha1.UblkNode) {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	u := &v1alpha1.UblkNode{ObjectMeta: metav1.ObjectMeta{Name: name}}
	u.Status.Pools = []v1alpha1.PoolStatus{{Name: "default", Kind: "image", CapacityBytes: 1 << 30, Ready: true}}
	u.Status.Conditions = []metav1.Condition{{Type: v1alpha1.NodeReady, Status: metav1.ConditionTrue, Reason: "Ready", LastTransitionTime: metav1.Now()}}
	return n, u
}
