//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/remotecommand"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csi-ublk/csi-ublk/pkg/api/v1alpha1"
)

// TestMovedVolume brings a volume's bytes to another node by the steps of docs/moving.md,
// and gives them to a claim there.
func TestMovedVolume(t *testing.T) {
	nodes := needsPool(t, "default")
	if len(nodes) < 2 {
		lacks(t, "a second node")
	}
	const fs = corev1.PersistentVolumeFilesystem
	namespace := newNamespace(t)
	class := newClass(t, storagev1.VolumeBindingWaitForFirstConsumer, "ext4", nil)
	claim := newClaim(t, namespace, "data", class, "256Mi", fs)
	writer := podUsing(namespace, "writer", "data", fs)
	start(t, writer)
	old, pv := volumeOf(t, claim)
	written := run(t, writer, "dd if=/dev/urandom of=/data/f bs=1M count=32 conv=fsync 2>/dev/null; sha256sum < /data/f")
	target := nodes[0].Name
	if target == old.Spec.Node {
		target = nodes[1].Name
	}

	patch := client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"persistentVolumeReclaimPolicy":"Retain"}}`))
	if err := s.Patch(t.Context(), pv, patch); err != nil {
		t.Fatal(err)
	}
	remove(t, writer)
	id := namespace + "-moved"
	eventually(t, 3*time.Minute, "the volume's file is copied", func(ctx context.Context) error {
		return copyVolume(ctx, t, old, target, id)
	})
	bindMoved(t, old, target, id, namespace, class)

	reader := podUsing(namespace, "reader", "moved", fs)
	start(t, reader)
	if reader.Spec.NodeName != target {
		t.Errorf("the pod is on %s, its volume was brought to %s", reader.Spec.NodeName, target)
	}
	if got := run(t, reader, "sha256sum < /data/f"); got != written {
		t.Errorf("on the other node the pod reads %s, written was %s", got, written)
	}
	for _, o := range []client.Object{claim, pv, old} {
		remove(t, o)
	}
	if got := run(t, reader, "sha256sum < /data/f"); got != written {
		t.Errorf("without the former volume the pod reads %s, written was %s", got, written)
	}
	remove(t, reader)
	remove(t, &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "moved"}})
	gone(t, &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: id}})
	gone(t, &v1alpha1.UblkVolume{ObjectMeta: metav1.ObjectMeta{Name: id}})
}

// copyVolume passes a volume's file from its node's plugin to that of another, unless the
// volume is attached.
func copyVolume(ctx context.Context, t *testing.T, v *v1alpha1.UblkVolume, target, id string) error {
	words := strings.NewReplacer("STATE", s.stateDir, "POOL", v.Spec.Pool, "OLD", v.Name, "NEW", id)
	from, to := driverPod(t, "node", v.Spec.Node), driverPod(t, "node", target)
	r, w := io.Pipe()
	sent := make(chan error, 1)
	go func() {
		err := stream(ctx, from, words.Replace(`set -e; cd STATE
			if ls server/journal/*/OLD.json 2>/dev/null; then echo still attached >&2; exit 1; fi
			gzip -1 -c pools/POOL/volumes/OLD`), nil, w)
		w.CloseWithError(err) // nil is the end
		sent <- err
	}()
	err := stream(ctx, to, words.Replace(`set -e; cd STATE/pools/POOL/volumes
		gunzip -c > ../NEW; fallocate --dig-holes ../NEW; sync ../NEW; mv -n ../NEW NEW`), r, io.Discard)
	r.Close()
	return errors.Join(err, <-sent)
}

// bindMoved makes the objects for a file that is there already.
func bindMoved(t *testing.T, old *v1alpha1.UblkVolume, target, id, namespace, class string) {
	t.Helper()
	volume := &v1alpha1.UblkVolume{
		ObjectMeta: metav1.ObjectMeta{Name: id},
		Spec:       v1alpha1.UblkVolumeSpec{Node: target, Pool: old.Spec.Pool, CapacityBytes: old.Spec.CapacityBytes, CSIName: id},
	}
	moved := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: id, Annotations: map[string]string{"pv.kubernetes.io/provisioned-by": driverName}},
		Spec: corev1.PersistentVolumeSpec{
			StorageClassName: class, PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete,
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Capacity:    corev1.ResourceList{corev1.ResourceStorage: *resource.NewQuantity(old.Spec.CapacityBytes, resource.BinarySI)},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
				Driver: driverName, VolumeHandle: id, FSType: "ext4", VolumeAttributes: map[string]string{"pool": old.Spec.Pool}}},
			ClaimRef: &corev1.ObjectReference{Namespace: namespace, Name: "moved"},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: topologyKey, Operator: corev1.NodeSelectorOpIn, Values: []string{target}}}}}}},
		},
	}
	claim := newClaimObject(namespace, "moved", class, "256Mi", corev1.PersistentVolumeFilesystem)
	claim.Spec.VolumeName = id
	for _, o := range []client.Object{volume, moved, claim} {
		if err := s.Create(t.Context(), o); err != nil {
			t.Fatalf("create %T: %v", o, err)
		}
	}
	eventually(t, time.Minute, "the volume that was brought is Ready", func(ctx context.Context) error {
		err := s.Get(ctx, client.ObjectKeyFromObject(volume), volume)
		if err == nil && !meta.IsStatusConditionTrue(volume.Status.Conditions, v1alpha1.VolumeReady) {
			err = fmt.Errorf("conditions %+v", volume.Status.Conditions)
		}
		return err
	})
}

// stream runs a script in a pod with its standard input and output passed on.
func stream(ctx context.Context, pod *corev1.Pod, script string, in io.Reader, out io.Writer) error {
	executor, err := executorIn(pod, script, in != nil)
	if err != nil {
		return err
	}
	var problem bytes.Buffer
	if err := executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: in, Stdout: out, Stderr: &problem}); err != nil {
		return fmt.Errorf("in pod %s: %s: %w: %s", pod.Name, script, err, problem.String())
	}
	return nil
}
