//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// TestCopiesGoWhereTheirSourceIs has the scheduler pick another node than the source's
// for claims that wait for their first pod: the claim is moved, and the pod runs where
// the bytes are.
func TestCopiesGoWhereTheirSourceIs(t *testing.T) {
	const fs = corev1.PersistentVolumeFilesystem
	nodes := needsPool(t, "default")
	if len(nodes) < 2 {
		lacks(t, "a second node")
	}
	for _, kind := range []string{"VolumeSnapshot", "PersistentVolumeClaim"} {
		t.Run(kind, func(t *testing.T) {
			if kind == "VolumeSnapshot" {
				needsSnapshots(t)
			}
			namespace := newNamespace(t)
			class := newClass(t, storagev1.VolumeBindingWaitForFirstConsumer, "ext4", nil)
			claim := newClaim(t, namespace, "data", class, "64Mi", fs)
			source := podUsing(namespace, "source", "data", fs)
			start(t, source)
			run(t, source, "echo mine > /data/f && sync")
			from := "data"
			var snapshot client.Object
			if kind == "VolumeSnapshot" {
				snapshot, from = newSnapshot(t, namespace, "cut", "data"), "cut"
			}
			copied := newCopy(t, namespace, "copy", class, "64Mi", kind, from, fs)
			pod := podUsing(namespace, "copy", "copy", fs)
			pod.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
				PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{Weight: 100, Preference: corev1.NodeSelectorTerm{
					MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpNotIn, Values: []string{source.Spec.NodeName}}},
				}}},
			}}
			start(t, pod)
			if pod.Spec.NodeName != source.Spec.NodeName || run(t, pod, "cat /data/f") != "mine" {
				t.Errorf("the copy is on %s, the source on %s", pod.Spec.NodeName, source.Spec.NodeName)
			}
			eventually(t, time.Minute, "an event tells that the claim was moved", func(ctx context.Context) error {
				var events corev1.EventList
				if err := s.List(ctx, &events, client.InNamespace(namespace)); err != nil {
					return err
				}
				for _, e := range events.Items {
					if strings.Contains(e.Message, "its source is on node "+source.Spec.NodeName) {
						return nil
					}
				}
				return fmt.Errorf("none of %d events does", len(events.Items))
			})
			for _, o := range []client.Object{pod, source, copied, claim} {
				remove(t, o)
			}
			if snapshot != nil {
				remove(t, snapshot)
			}
		})
	}
}

// TestGenericEphemeralVolume: a pod brings a claim along, which the scheduler places
// where there is room, and which goes with it.
func TestGenericEphemeralVolume(t *testing.T) {
	namespace := newNamespace(t)
	class := newClass(t, storagev1.VolumeBindingWaitForFirstConsumer, "xfs", nil)
	pod := podUsing(namespace, "scratch", "", corev1.PersistentVolumeFilesystem)
	template := newClaimObject(namespace, "", class, "320Mi", corev1.PersistentVolumeFilesystem)
	pod.Spec.Volumes[0].VolumeSource = corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{
		VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{Spec: template.Spec},
	}}
	start(t, pod)
	claim := &corev1.PersistentVolumeClaim{}
	if err := s.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "scratch-v"}, claim); err != nil {
		t.Fatal(err)
	}
	volume, pv := volumeOf(t, claim)
	if volume.Spec.Node != pod.Spec.NodeName || volume.Spec.CapacityBytes != 320<<20 {
		t.Errorf("volume %+v of a pod on %s", volume.Spec, pod.Spec.NodeName)
	}
	run(t, pod, "dd if=/dev/zero of=/data/f bs=1M count=8 conv=fsync 2>/dev/null")
	if device := deviceOf(t, pod, corev1.PersistentVolumeFilesystem); !strings.HasPrefix(device, "ublkb") {
		t.Errorf("its volume is on %q", device)
	}
	remove(t, pod)
	gone(t, claim)
	gone(t, pv)
	gone(t, volume)
}
