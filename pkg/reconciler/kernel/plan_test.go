package kernel

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csi-ublk/csi-ublk/pkg/api/v1alpha1"
)

func TestPlan(t *testing.T) {
	type labels = map[string]string
	other := corev1.Taint{Key: "other", Effect: corev1.TaintEffectNoExecute}
	ours := corev1.Taint{Key: Taint, Effect: corev1.TaintEffectNoSchedule}
	ublk := func(kind string, healthy metav1.ConditionStatus) *v1alpha1.UblkNode {
		u := &v1alpha1.UblkNode{}
		u.Status.Kernel.DeleteKind = kind
		if healthy != "" {
			u.Status.Conditions = []metav1.Condition{{Type: v1alpha1.NodeKernelHealthy, Status: healthy}}
		}
		return u
	}
	for name, c := range map[string]struct {
		labels     labels
		taints     []corev1.Taint
		u          *v1alpha1.UblkNode
		mayTaint   bool
		wantLabels labels
		wantTaints []corev1.Taint
	}{
		"a kernel that was probed":           {labels{"a": "b"}, nil, ublk("LOCKED", "True"), true, labels{"a": "b", Label: "locked"}, nil},
		"a node without labels":              {nil, nil, ublk("NOWAIT", "True"), true, labels{Label: "nowait"}, nil},
		"a kernel not probed yet":            {labels{"a": "b"}, nil, ublk("", ""), true, labels{"a": "b"}, nil},
		"a kernel that can't be told":        {labels{Label: "locked"}, nil, ublk("UNKNOWN", "True"), true, labels{}, nil},
		"a kernel that was changed":          {labels{Label: "locked"}, nil, ublk("UNLOCKED", "True"), true, labels{Label: "unlocked"}, nil},
		"a wedged kernel":                    {labels{Label: "locked"}, []corev1.Taint{other}, ublk("LOCKED", "False"), true, labels{Label: "locked"}, []corev1.Taint{other, ours}},
		"a wedged kernel, taints not wanted": {labels{Label: "locked"}, nil, ublk("LOCKED", "False"), false, labels{Label: "locked"}, nil},
		"a kernel that answers again":        {labels{Label: "locked"}, []corev1.Taint{ours, other}, ublk("LOCKED", "True"), true, labels{Label: "locked"}, []corev1.Taint{other}},
		"taints no longer wanted":            {labels{Label: "locked"}, []corev1.Taint{ours}, ublk("LOCKED", "False"), false, labels{Label: "locked"}, []corev1.Taint{}},
		"the driver left the node":           {labels{"a": "b", Label: "locked"}, []corev1.Taint{ours}, nil, true, labels{"a": "b"}, []corev1.Taint{}},
	} {
		t.Run(name, func(t *testing.T) {
			node := &corev1.Node{}
			node.Labels, node.Spec.Taints = c.labels, c.taints
			before := node.DeepCopy()
			changed := plan(node, c.u, c.mayTaint)
			if d := cmp.Diff(c.wantLabels, node.Labels); d != "" {
				t.Errorf("labels (-want +got):\n%s", d)
			}
			if d := cmp.Diff(c.wantTaints, node.Spec.Taints); d != "" {
				t.Errorf("taints (-want +got):\n%s", d)
			}
			if is := !cmp.Equal(before, node); is != changed {
				t.Errorf("changed: says %t, is %t", changed, is)
			}
			if plan(node, c.u, c.mayTaint) {
				t.Error("a second look finds something to change")
			}
		})
	}
}
