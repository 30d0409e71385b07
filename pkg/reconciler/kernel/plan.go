package kernel

import (
	"encoding/json"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csi-ublk/csi-ublk/pkg/api/v1alpha1"
)

const (
	// Label of a node: locked, unlocked or nowait.
	Label = "csi-ublk.io/delete-kind"
	// Taint of a node whose kernel does not answer.
	Taint = "csi-ublk.io/kernel-wedged"
)

// plan changes the node to what it is to be, and says whether that is a change.
// Without a UblkNode, as after the driver was taken off the node, label and taint
// go.
func plan(node *corev1.Node, u *v1alpha1.UblkNode, taint bool) (changed bool) {
	kind, wedged := "", false
	if u != nil {
		kind, wedged = strings.ToLower(u.Status.Kernel.DeleteKind), isWedged(u)
	}
	if kind == "unknown" {
		kind = ""
	}
	if node.Labels[Label] != kind {
		changed = true
		if node.Labels == nil {
			node.Labels = make(map[string]string)
		}
		node.Labels[Label] = kind
		if kind == "" {
			delete(node.Labels, Label)
		}
	}
	has := slices.ContainsFunc(node.Spec.Taints, isOurs)
	switch want := wedged && taint; {
	case want && !has:
		node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: Taint, Effect: corev1.TaintEffectNoSchedule})
		changed = true
	case !want && has:
		node.Spec.Taints = slices.DeleteFunc(node.Spec.Taints, isOurs)
		changed = true
	}
	return changed
}

// patch is the difference of a Node, and says nothing of what plan does not change: a
// cached Node need not be whole, and what it lacks would be taken away by a comparison.
func patch(before, after *corev1.Node) ([]byte, error) {
	// Taints are one list: what others have put there since must not be lost.
	metadata := map[string]any{"resourceVersion": before.ResourceVersion}
	whole := map[string]any{"metadata": metadata}
	if kind := after.Labels[Label]; kind != before.Labels[Label] {
		label := map[string]any{Label: nil} // which takes it away
		if kind != "" {
			label[Label] = kind
		}
		metadata["labels"] = label
	}
	if !equality.Semantic.DeepEqual(before.Spec.Taints, after.Spec.Taints) {
		whole["spec"] = map[string]any{"taints": after.Spec.Taints}
	}
	return json.Marshal(whole)
}

func isOurs(t corev1.Taint) bool { return t.Key == Taint }

func isWedged(u *v1alpha1.UblkNode) bool {
	return meta.IsStatusConditionPresentAndEqual(u.Status.Conditions, v1alpha1.NodeKernelHealthy, metav1.ConditionFalse)
}
