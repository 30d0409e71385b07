//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csi-ublk/csi-ublk/pkg/api/v1alpha1"
)

// onNode starts a privileged helper pod on a node, which sees the node's
// processes, /sys and the driver's state directory (at /state).
func onNode(t *testing.T, namespace, node string) *corev1.Pod {
	t.Helper()
	yes, grace := true, int64(0)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "on-" + node},
		Spec: corev1.PodSpec{
			NodeName: node, HostPID: true, TerminationGracePeriodSeconds: &grace,
			Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			Containers: []corev1.Container{{
				Name: "c", Image: s.image, ImagePullPolicy: corev1.PullIfNotPresent,
				Command:         []string{"sleep", "100000"},
				SecurityContext: &corev1.SecurityContext{Privileged: &yes},
				VolumeMounts:    []corev1.VolumeMount{{Name: "state", MountPath: "/state", ReadOnly: true}},
			}},
			Volumes: []corev1.Volume{{Name: "state", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: s.stateDir}}}},
		},
	}
	start(t, pod)
	return pod
}

// deviceOf returns the kernel name (ublkbN) of the device behind a test pod's volume.
func deviceOf(t *testing.T, pod *corev1.Pod, mode corev1.PersistentVolumeMode) string {
	t.Helper()
	script := `awk '$2 == "` + mountPath + `" {sub("/dev/", "", $1); print $1}' /proc/mounts`
	if mode == corev1.PersistentVolumeBlock {
		// the device node has another name in the pod: its number tells
		script = `n=$(printf '%d:%d' $(stat -c '0x%t 0x%T' ` + devicePath + `)); for d in /sys/block/*; do [ "$(cat $d/dev)" = "$n" ] && basename $d; done`
	}
	return run(t, pod, script)
}

// poolOf returns the state of a volume's pool as its node reports it.
func poolOf(ctx context.Context, node, pool string) (v1alpha1.PoolStatus, error) {
	un := &v1alpha1.UblkNode{}
	if err := s.Get(ctx, client.ObjectKey{Name: node}, un); err != nil {
		return v1alpha1.PoolStatus{}, err
	}
	for _, p := range un.Status.Pools {
		if p.Name == pool {
			return p, nil
		}
	}
	return v1alpha1.PoolStatus{}, fmt.Errorf("node %s reports no pool %s", node, pool)
}

// reclaimed waits until a pool has given all space back, but for the little that
// a file system keeps for itself once it was written to.
func reclaimed(t *testing.T, node string, before v1alpha1.PoolStatus) {
	t.Helper()
	const kept = 16 << 20
	eventually(t, time.Minute, "pool "+before.Name+" of "+node+" has its bytes back", func(ctx context.Context) error {
		now, err := poolOf(ctx, node, before.Name)
		if err != nil {
			return err
		}
		if now.ReclaimingBytes != 0 || now.FreeBytes < before.FreeBytes-kept {
			return fmt.Errorf("free %d (before: %d), reclaiming %d", now.FreeBytes, before.FreeBytes, now.ReclaimingBytes)
		}
		return nil
	})
}

// driverPod returns the running driver pod of a component on a node.
func driverPod(t *testing.T, component, node string) *corev1.Pod {
	t.Helper()
	var pods corev1.PodList
	if err := s.List(t.Context(), &pods, client.InNamespace(s.namespace), client.MatchingLabels{
		"app.kubernetes.io/name": "csi-ublk", "app.kubernetes.io/component": component}); err != nil {
		t.Fatalf("list %s pods: %v", component, err)
	}
	for i := range pods.Items {
		if p := &pods.Items[i]; p.DeletionTimestamp.IsZero() && (node == "" || p.Spec.NodeName == node) {
			return p
		}
	}
	t.Fatalf("no %s pod on node %q", component, node)
	return nil
}
