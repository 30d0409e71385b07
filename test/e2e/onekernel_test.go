//go:build e2e

package e2e

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csi-ublk/csi-ublk/pkg/api/v1alpha1"
)

// pairOnOneKernel returns two nodes that report the same boot of a kernel.
func pairOnOneKernel(t *testing.T) [2]string {
	t.Helper()
	first := map[string]string{}
	for _, n := range schedulable(t) {
		boot := n.Status.Kernel.BootID
		if other, ok := first[boot]; ok && boot != "" {
			return [2]string{other, n.Name}
		}
		first[boot] = n.Name
	}
	lacks(t, "two nodes on one kernel, such as kind's")
	return [2]string{}
}

// TestNodesOfOneKernel: nodes that are containers of one machine have devices side by
// side, and what happens to one's server does not touch the other's.
func TestNodesOfOneKernel(t *testing.T) {
	nodes := pairOnOneKernel(t)
	namespace := newNamespace(t)
	class := newClass(t, storagev1.VolumeBindingWaitForFirstConsumer, "ext4", nil)
	var pods, helpers [2]*corev1.Pod
	var devices [2]string
	for i, node := range nodes {
		newClaim(t, namespace, "data-"+node, class, "256Mi", corev1.PersistentVolumeFilesystem)
		pods[i] = podUsing(namespace, "writer-"+node, "data-"+node, corev1.PersistentVolumeFilesystem)
		pods[i].Spec.NodeSelector = map[string]string{corev1.LabelHostname: node}
		pods[i].Spec.Containers[0].Command = []string{"sh", "-c", writer}
		start(t, pods[i])
		helpers[i] = onNode(t, namespace, node)
		devices[i] = deviceOf(t, pods[i], corev1.PersistentVolumeFilesystem)
	}
	if devices[0] == devices[1] {
		t.Fatalf("both nodes' volumes are on %s", devices[0])
	}
	both := func(when string) {
		t.Helper()
		for i, p := range pods {
			advances(t, p, when)
			run(t, helpers[1-i], "test -e /sys/block/"+devices[i]) // each sees the other's
		}
	}
	both("before")
	kill(t, helpers[0], "server")
	both("after one's server was killed, before")
	replacePod(t, "server", nodes[0])
	both("after one's server was replaced, before")

	un := &v1alpha1.UblkNode{}
	for _, node := range nodes {
		if err := s.Get(t.Context(), client.ObjectKey{Name: node}, un); err != nil {
			t.Fatal(err)
		}
		if un.Status.Slots.Used < 2 {
			t.Errorf("node %s counts %d devices, there are both nodes'", node, un.Status.Slots.Used)
		}
	}
	remove(t, pods[0])
	advances(t, pods[1], "after the other's volume is gone, before")
}
