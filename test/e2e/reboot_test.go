//go:build e2e

package e2e

import (
	"context"
	"fmt"
	osexec "os/exec"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csi-ublk/csi-ublk/pkg/api/v1alpha1"
)

// TestNodeReboot cuts a node's power and boots it: its pods come back with their
// bytes, the journal of the former boot is gone, and inline volumes begin empty.
func TestNodeReboot(t *testing.T) {
	rig := needs(t, "nodes whose power can be cut, such as the rig's guests", "E2E_VM", "E2E_VM_CLUSTER")
	namespace := newNamespace(t)
	class := newClass(t, storagev1.VolumeBindingWaitForFirstConsumer, "ext4", nil)
	newClaim(t, namespace, "data", class, "256Mi", corev1.PersistentVolumeFilesystem)
	pod := podUsing(namespace, "keeper", "data", corev1.PersistentVolumeFilesystem)
	start(t, pod)
	node := pod.Spec.NodeName
	inline := podInline(namespace, "scratch", "ext4", "128Mi")
	inline.Spec.NodeSelector = map[string]string{corev1.LabelHostname: node}
	start(t, inline)
	written := run(t, pod, "dd if=/dev/urandom of=/data/f bs=1M count=16 conv=fsync 2>/dev/null; sync; sha256sum < /data/f")
	run(t, inline, "echo mine > /data/f; sync")
	boot := bootOf(t, node)

	for _, do := range []string{"kill", "boot"} {
		out, err := osexec.CommandContext(t.Context(), rig[0], "cluster", do, "--name", rig[1], strings.TrimPrefix(node, "node")).CombinedOutput()
		if err != nil {
			t.Fatalf("%s %s: %v\n%s", do, node, err, out)
		}
	}
	for _, p := range []*corev1.Pod{pod, inline} {
		old := p.Status.ContainerStatuses[0].ContainerID
		eventually(t, podStarts, "pod "+p.Name+" runs again", func(ctx context.Context) error {
			if err := s.Get(ctx, client.ObjectKeyFromObject(p), p); err != nil {
				return err
			}
			c := p.Status.ContainerStatuses[0]
			if c.ContainerID == old || !c.Ready {
				return fmt.Errorf("container %s (before %s), state %+v", c.ContainerID, old, c.State)
			}
			return nil
		})
	}
	if got := run(t, pod, "sha256sum < /data/f"); got != written {
		t.Errorf("the volume's file has the sum %s, written was %s", got, written)
	}
	run(t, inline, "test ! -e /data/f")

	now := ""
	eventually(t, podStarts, "the node tells of its new boot", func(context.Context) error {
		if now = bootOf(t, node); now == boot {
			return fmt.Errorf("still boot %s", boot)
		}
		return nil
	})
	helper := onNode(t, namespace, node)
	if got := run(t, helper, "ls /state/server/journal"); got != now {
		t.Errorf("journals of the boots %q, want only %s", got, now)
	}
	// The volumes of both pods are live anew; no device was left to be deleted.
	for _, p := range []*corev1.Pod{pod, inline} {
		run(t, helper, "test -e /sys/block/"+deviceOf(t, p, corev1.PersistentVolumeFilesystem))
	}
	if got := run(t, helper, "ls /state/pools/*/volumes | grep -c '^h-'"); got != "1" {
		t.Errorf("%s files of inline volumes, want the new one only", got)
	}
}

func bootOf(t *testing.T, node string) string {
	t.Helper()
	un := &v1alpha1.UblkNode{}
	if err := s.Get(t.Context(), client.ObjectKey{Name: node}, un); err != nil {
		t.Fatal(err)
	}
	return un.Status.Kernel.BootID
}
