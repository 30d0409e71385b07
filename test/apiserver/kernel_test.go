//go:build kube

package apiserver

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csi-ublk/csi-ublk/pkg/api/v1alpha1"
)

// What a node plugin says of its kernel is seen on the Kubernetes node, which the
// plugin may not write.
func TestNodesShowTheirKernel(t *testing.T) {
	n := newNode(t, "node-kernel", "kernel", 100*mib)
	n.setNode(func(k *corev1.Node) {
		k.Labels = map[string]string{"mine": "kept"}
		k.Spec.Taints = []corev1.Taint{{Key: "mine", Effect: corev1.TaintEffectNoSchedule}}
	})
	shows := func(label string, tainted bool) func() bool {
		return func() bool {
			k := &corev1.Node{}
			must(t, api.Get(t.Context(), client.ObjectKey{Name: n.name}, k))
			if k.Labels["mine"] != "kept" || !slices.ContainsFunc(k.Spec.Taints, func(x corev1.Taint) bool { return x.Key == "mine" }) {
				t.Fatalf("others' labels and taints are lost: %v %v", k.Labels, k.Spec.Taints)
			}
			has := slices.ContainsFunc(k.Spec.Taints, func(x corev1.Taint) bool { return x.Key == "csi-ublk.io/kernel-wedged" })
			return k.Labels["csi-ublk.io/delete-kind"] == label && has == tainted
		}
	}
	healthy := func(kind string, status metav1.ConditionStatus, message string) {
		n.setUblk(func(s *v1alpha1.UblkNodeStatus) {
			s.Kernel.DeleteKind = kind
			meta.SetStatusCondition(&s.Conditions, metav1.Condition{Type: v1alpha1.NodeKernelHealthy, Status: status, Reason: "Test", Message: message})
		})
	}
	healthy("LOCKED", metav1.ConditionTrue, "")
	eventually(t, "the label", shows("locked", false))
	healthy("LOCKED", metav1.ConditionFalse, "STOP_DEV of device 7 was not answered")
	eventually(t, "the taint", shows("locked", true))
	eventually(t, "an event that says why", func() bool {
		var events corev1.EventList
		must(t, api.List(t.Context(), &events))
		return slices.ContainsFunc(events.Items, func(e corev1.Event) bool {
			return e.Reason == "KernelWedged" && e.InvolvedObject.Name == n.name && strings.Contains(e.Message, "STOP_DEV of device 7")
		})
	})
	healthy("UNLOCKED", metav1.ConditionTrue, "")
	eventually(t, "label and taint of a kernel that answers again", shows("unlocked", false))
	// The label goes without those of others.
	healthy("UNKNOWN", metav1.ConditionTrue, "")
	eventually(t, "the label to go", shows("", false))
	healthy("NOWAIT", metav1.ConditionTrue, "")
	eventually(t, "the label", shows("nowait", false))
	must(t, api.Delete(t.Context(), &v1alpha1.UblkNode{ObjectMeta: metav1.ObjectMeta{Name: n.name}}))
	eventually(t, "the label to go with the UblkNode", shows("", false))
}
