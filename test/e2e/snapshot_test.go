//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csi-ublk/csi-ublk/pkg/api/v1alpha1"
)

// snapshotClass is the chart's.
const snapshotClass = "csi-ublk"

// newSnapshot takes a VolumeSnapshot of a claim and waits until it is ready to use.
func newSnapshot(t *testing.T, namespace, name, claim string) *unstructured.Unstructured {
	t.Helper()
	o := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
		"metadata": map[string]any{"namespace": namespace, "name": name},
		"spec": map[string]any{
			"volumeSnapshotClassName": snapshotClass,
			"source":                  map[string]any{"persistentVolumeClaimName": claim},
		},
	}}
	if err := s.Create(t.Context(), o); err != nil {
		t.Fatalf("create VolumeSnapshot: %v", err)
	}
	eventually(t, 2*time.Minute, "snapshot "+name+" is ready to use", func(ctx context.Context) error {
		if err := s.Get(ctx, client.ObjectKeyFromObject(o), o); err != nil {
			return err
		}
		if ready, _, _ := unstructured.NestedBool(o.Object, "status", "readyToUse"); !ready {
			return fmt.Errorf("status %v", o.Object["status"])
		}
		return nil
	})
	return o
}

// handle is the id of a VolumeSnapshot's UblkSnapshot.
func handle(t *testing.T, snapshot *unstructured.Unstructured) string {
	t.Helper()
	name, _, _ := unstructured.NestedString(snapshot.Object, "status", "boundVolumeSnapshotContentName")
	content := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent"}}
	if err := s.Get(t.Context(), client.ObjectKey{Name: name}, content); err != nil {
		t.Fatalf("get content of snapshot: %v", err)
	}
	id, _, _ := unstructured.NestedString(content.Object, "status", "snapshotHandle")
	return id
}

// newCopy makes a claim from a source: a VolumeSnapshot or a PersistentVolumeClaim.
func newCopy(t *testing.T, namespace, name, class, size, kind, source string, mode corev1.PersistentVolumeMode) *corev1.PersistentVolumeClaim {
	t.Helper()
	from := &corev1.TypedLocalObjectReference{Kind: kind, Name: source}
	if kind == "VolumeSnapshot" {
		group := "snapshot.storage.k8s.io"
		from.APIGroup = &group
	}
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &class, VolumeMode: &mode, DataSource: from,
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}},
		},
	}
	if err := s.Create(t.Context(), claim); err != nil {
		t.Fatalf("create claim %s: %v", name, err)
	}
	return claim
}

// beginNumbers has a pod count up in a file of its volume, each number synced before
// the next.
func beginNumbers(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	run(t, pod, `echo 0 > /tmp/acked; (n=0; while :; do n=$((n+1)); echo $n >> /data/numbers; sync; echo $n > /tmp/new; mv /tmp/new /tmp/acked; done) >/tmp/log 2>&1 &`)
}

// acked is the last number that is durable.
func acked(t *testing.T, pod *corev1.Pod) int {
	t.Helper()
	n, err := strconv.Atoi(run(t, pod, "cat /tmp/acked"))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// numbers returns how many a copy has, and fails if one of them is missing.
func numbers(t *testing.T, pod *corev1.Pod) int {
	t.Helper()
	var n, bad int
	out := run(t, pod, `awk 'NR != $1 {bad++} END {print NR, bad+0}' /data/numbers`)
	if _, err := fmt.Sscan(out, &n, &bad); err != nil || bad > 0 {
		t.Errorf("numbers of pod %s: %q, %v", pod.Name, out, err)
	}
	return n
}

// TestSnapshotUnderIO cuts a volume that is written all the time, restores it larger,
// clones it, and has all three in pods on one node.
func TestSnapshotUnderIO(t *testing.T) {
	needsSnapshots(t)
	const fs = corev1.PersistentVolumeFilesystem
	for _, c := range []struct {
		fsType      string
		volumeFirst bool // it is deleted before its snapshot
	}{{"ext4", true}, {"xfs", false}} {
		t.Run(c.fsType, func(t *testing.T) {
			namespace := newNamespace(t)
			class := newClass(t, storagev1.VolumeBindingImmediate, c.fsType, nil)
			claim := newClaim(t, namespace, "data", class, "512Mi", fs)
			source := podUsing(namespace, "source", "data", fs)
			start(t, source)
			beginNumbers(t, source)
			eventually(t, time.Minute, "numbers are written", func(context.Context) error {
				if n := acked(t, source); n < 20 {
					return fmt.Errorf("%d", n)
				}
				return nil
			})

			least := acked(t, source)
			snapshot := newSnapshot(t, namespace, "cut", "data")
			most := acked(t, source) + 1
			id := handle(t, snapshot)
			object := &v1alpha1.UblkSnapshot{}
			if err := s.Get(t.Context(), client.ObjectKey{Name: id}, object); err != nil {
				t.Fatal(err)
			}
			t.Logf("cut between the numbers %d and %d, requests held back for %d µs, %d bytes allocated", least, most, object.Status.HeldMicros, object.Status.AllocatedBytes)

			restoredClaim := newCopy(t, namespace, "restored", class, "1Gi", "VolumeSnapshot", "cut", fs)
			restored := podUsing(namespace, "restored", "restored", fs)
			start(t, restored)
			if n := numbers(t, restored); n < least || n > most {
				t.Errorf("the restored volume has the numbers to %d, want %d to %d", n, least, most)
			}
			if mib, err := strconv.Atoi(run(t, restored, `df -m /data | awk 'NR==2 {print $2}'`)); err != nil || mib < 900 {
				t.Errorf("the restored file system has %d MiB (%v), its volume 1 GiB", mib, err)
			}
			least = acked(t, source)
			cloneClaim := newCopy(t, namespace, "clone", class, "512Mi", "PersistentVolumeClaim", "data", fs)
			clone := podUsing(namespace, "clone", "clone", fs)
			start(t, clone)
			if n, most := numbers(t, clone), acked(t, source)+1; n < least || n > most {
				t.Errorf("the clone has the numbers to %d, want %d to %d", n, least, most)
			}
			for _, p := range []*corev1.Pod{restored, clone} {
				if p.Spec.NodeName != source.Spec.NodeName {
					t.Errorf("pod %s is on %s, the source on %s", p.Name, p.Spec.NodeName, source.Spec.NodeName)
				}
				run(t, p, "echo mine > /data/mine && sync")
			}

			volume, pv := volumeOf(t, claim)
			endSource := func() {
				remove(t, source)
				remove(t, claim)
				gone(t, pv)
				gone(t, volume)
			}
			if c.volumeFirst {
				endSource()
			}
			if before, after := numbers(t, restored), numbers(t, clone); before == 0 || after == 0 {
				t.Error("the copies lost their bytes with their volume")
			}
			remove(t, snapshot)
			gone(t, object)
			if !c.volumeFirst {
				endSource()
			}
			numbers(t, restored)
			for _, x := range []struct {
				pod   *corev1.Pod
				claim *corev1.PersistentVolumeClaim
			}{{restored, restoredClaim}, {clone, cloneClaim}} {
				v, pv := volumeOf(t, x.claim)
				remove(t, x.pod)
				remove(t, x.claim)
				gone(t, pv)
				gone(t, v)
			}
			helper := onNode(t, namespace, volume.Spec.Node)
			eventually(t, deviceGone, "no file is left", func(ctx context.Context) error {
				dir := "/state/pools/" + volume.Spec.Pool
				out, err := exec(ctx, helper, "ls -A "+dir+"/snapshots "+dir+"/trash; ls "+dir+"/volumes")
				if err != nil || strings.Contains(out, id) || strings.Contains(out, volume.Name) || strings.Contains(out, ".copy-") {
					return fmt.Errorf("%s %w", out, err)
				}
				return nil
			})
		})
	}
}

// TestSnapshotOfBlock restores a raw block volume to a claim that is bound when its pod
// comes, on the source's node.
func TestSnapshotOfBlock(t *testing.T) {
	needsSnapshots(t)
	const block = corev1.PersistentVolumeBlock
	namespace := newNamespace(t)
	claim := newClaim(t, namespace, "data", newClass(t, storagev1.VolumeBindingImmediate, "", nil), "128Mi", block)
	source := podUsing(namespace, "source", "data", block)
	start(t, source)
	fill := "dd if=/dev/urandom of=/tmp/f bs=1M count=32 2>/dev/null && dd if=/tmp/f of=" + devicePath + " bs=1M conv=fsync 2>/dev/null && sha256sum < /tmp/f"
	read := "dd if=" + devicePath + " bs=1M count=32 2>/dev/null | sha256sum"
	then := run(t, source, fill)
	snapshot := newSnapshot(t, namespace, "cut", "data")
	now := run(t, source, fill)
	class := newClass(t, storagev1.VolumeBindingWaitForFirstConsumer, "", nil)
	copied := newCopy(t, namespace, "restored", class, "128Mi", "VolumeSnapshot", "cut", block)
	restored := podUsing(namespace, "restored", "restored", block)
	restored.Spec.NodeSelector = map[string]string{"kubernetes.io/hostname": source.Spec.NodeName}
	start(t, restored)
	if got := run(t, restored, read); got != then {
		t.Errorf("restored reads %s, at the cut it was %s", got, then)
	}
	if got := run(t, source, read); got != now {
		t.Errorf("the source reads %s, wrote %s", got, now)
	}
	volume, _ := volumeOf(t, claim)
	copyVolume, _ := volumeOf(t, copied)
	remove(t, snapshot)
	for _, o := range []client.Object{source, restored, claim, copied} {
		remove(t, o)
	}
	gone(t, volume)
	gone(t, copyVolume)
}
