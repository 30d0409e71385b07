//go:build e2e

package e2e

import (
	"os"
	osexec "os/exec"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csi-ublk/csi-ublk/pkg/api/v1alpha1"
)

// helm runs the helm that installed the release.
func helm(t *testing.T, args ...string) {
	t.Helper()
	bin, kubeconfig := os.Getenv("E2E_HELM"), os.Getenv("KUBECONFIG")
	args = append(args, "--kubeconfig", kubeconfig, "--namespace", s.namespace, "--timeout", "10m")
	out, err := osexec.CommandContext(t.Context(), bin, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("helm %v: %v\n%s", args, err, out)
	}
}

// TestUpgradeAndUninstall: an upgrade touches no I/O, and an uninstall takes the
// driver away but neither a volume nor a byte; after an installation all is as
// it was.
func TestUpgradeAndUninstall(t *testing.T) {
	chart := needs(t, "helm and the chart", "E2E_HELM", "E2E_CHART")[1]
	var releases corev1.SecretList
	if err := s.List(t.Context(), &releases, client.InNamespace(s.namespace), client.MatchingLabels{"owner": "helm", "name": "csi-ublk"}); err != nil {
		t.Fatal(err)
	}
	if len(releases.Items) == 0 {
		lacks(t, "a release csi-ublk of helm in namespace "+s.namespace)
	}
	namespace := newNamespace(t)
	class := newClass(t, storagev1.VolumeBindingWaitForFirstConsumer, "ext4", nil)
	claim := newClaim(t, namespace, "data", class, "512Mi", corev1.PersistentVolumeFilesystem)
	pod := podUsing(namespace, "writer", "data", corev1.PersistentVolumeFilesystem)
	pod.Spec.Containers[0].Command = []string{"sh", "-c", writer}
	start(t, pod)
	volume, _ := volumeOf(t, claim)

	t.Run("an upgrade under I/O", func(t *testing.T) {
		advances(t, pod, "before")
		helm(t, "upgrade", "csi-ublk", chart, "--reuse-values", "--set", "node.podAnnotations.e2e=upgraded", "--wait")
		advances(t, pod, "after")
	})

	remove(t, pod)
	first := podUsing(namespace, "before", "data", corev1.PersistentVolumeFilesystem)
	start(t, first)
	before := run(t, first, "sha256sum < /data/log")
	remove(t, first)

	t.Run("an uninstall keeps data and objects", func(t *testing.T) {
		values := t.TempDir() + "/values.yaml"
		out, err := osexec.CommandContext(t.Context(), os.Getenv("E2E_HELM"), "get", "values", "csi-ublk", "-o", "yaml",
			"--kubeconfig", os.Getenv("KUBECONFIG"), "--namespace", s.namespace).Output()
		if err != nil {
			t.Fatalf("helm get values: %v", err)
		}
		if err := os.WriteFile(values, out, 0o600); err != nil {
			t.Fatal(err)
		}
		helm(t, "uninstall", "csi-ublk", "--wait")
		if err := s.Get(t.Context(), client.ObjectKeyFromObject(volume), &v1alpha1.UblkVolume{}); err != nil {
			t.Errorf("the volume's object after the uninstall: %v", err)
		}
		helper := onNode(t, namespace, volume.Spec.Node)
		run(t, helper, "test -s /state/pools/"+volume.Spec.Pool+"/volumes/"+volume.Name)
		helm(t, "install", "csi-ublk", chart, "--values", values, "--wait")
	})

	last := podUsing(namespace, "last", "data", corev1.PersistentVolumeFilesystem)
	start(t, last)
	if after := run(t, last, "sha256sum < /data/log"); after != before {
		t.Errorf("after uninstall and install the log's sum is %s, it was %s", after, before)
	}
	remove(t, last)
	remove(t, claim)
	gone(t, volume)
}
