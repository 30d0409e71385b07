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

	"github.com/csi-ublk/csi-ublk/pkg/api/v1alpha1"
)

// deviceGone bounds the wait for the clean-up that goes on behind a deletion.
const deviceGone = 30 * time.Second

// TestExhaustedPool fills the pool of every node: the next pod stays Pending with
// a reason a person understands, and starts once space returns.
func TestExhaustedPool(t *testing.T) {
	nodes := needsPool(t, "default")
	namespace := newNamespace(t)
	class := newClass(t, storagev1.VolumeBindingWaitForFirstConsumer, "ext4", nil)
	fs := corev1.PersistentVolumeFilesystem

	var others v1alpha1.UblkVolumeList
	if err := s.List(t.Context(), &others); err != nil {
		t.Fatal(err)
	}
	var fillers []*corev1.PersistentVolumeClaim
	var pods []*corev1.Pod
	for i, n := range nodes {
		pool, err := poolOf(t.Context(), n.Name, "default")
		if err != nil {
			t.Fatal(err)
		}
		// all but 256 MiB: sparse, so this costs no bytes
		size := pool.CapacityBytes - pool.ReclaimingBytes - pool.EphemeralBytes - 256<<20
		for _, v := range others.Items {
			if v.Spec.Node == n.Name && v.Spec.Pool == pool.Name {
				size -= v.Spec.CapacityBytes
			}
		}
		name := fmt.Sprintf("filler-%d", i)
		fillers = append(fillers, newClaim(t, namespace, name, class, fmt.Sprint(size), fs))
		pod := podUsing(namespace, name, name, fs)
		pod.Spec.NodeSelector = map[string]string{corev1.LabelHostname: n.Name}
		pods = append(pods, pod)
		start(t, pod)
	}

	newClaim(t, namespace, "late", class, "1Gi", fs)
	late := podUsing(namespace, "late", "late", fs)
	if err := s.Create(t.Context(), late); err != nil {
		t.Fatal(err)
	}
	eventually(t, 2*time.Minute, "the late pod is Pending for want of space", func(ctx context.Context) error {
		if err := s.Get(ctx, client.ObjectKeyFromObject(late), late); err != nil {
			return err
		}
		var events corev1.EventList
		if err := s.List(ctx, &events, client.InNamespace(namespace)); err != nil {
			return err
		}
		for _, e := range events.Items {
			if e.InvolvedObject.Name == "late" && strings.Contains(e.Message, "free storage") {
				return nil
			}
		}
		return fmt.Errorf("phase %s, no event names the want of storage", late.Status.Phase)
	})
	if late.Status.Phase != corev1.PodPending {
		t.Fatalf("the late pod is %s", late.Status.Phase)
	}
	remove(t, pods[0])
	remove(t, fillers[0])
	running(t, late)
}

// TestImpossibleClaims: what can't be had says why and leaves nothing behind.
func TestImpossibleClaims(t *testing.T) {
	for _, c := range []struct {
		name         string
		parameters   map[string]string
		fsType, size string
		says         string
	}{
		{name: "an unknown class parameter", parameters: map[string]string{"colour": "red"}, size: "1Gi", says: "colour"},
		{name: "an unknown file system", fsType: "ntfs", size: "1Gi", says: "ntfs"},
		{name: "a pool that no node has", parameters: map[string]string{"pool": "nowhere"}, size: "1Gi", says: "nowhere"},
		{name: "more than any node can hold", size: "100Ti", says: "free"},
		{name: "too small for xfs", fsType: "xfs", size: "64Mi", says: "xfs"},
	} {
		t.Run(c.name, func(t *testing.T) {
			namespace := newNamespace(t)
			class := newClass(t, storagev1.VolumeBindingImmediate, c.fsType, c.parameters)
			claim := newClaim(t, namespace, "data", class, c.size, corev1.PersistentVolumeFilesystem)
			eventually(t, time.Minute, "an event says why", func(ctx context.Context) error {
				var events corev1.EventList
				if err := s.List(ctx, &events, client.InNamespace(namespace)); err != nil {
					return err
				}
				for _, e := range events.Items {
					if e.Reason == "ProvisioningFailed" && strings.Contains(e.Message, c.says) {
						t.Logf("said: %s", e.Message)
						return nil
					}
				}
				return fmt.Errorf("no ProvisioningFailed event names %q", c.says)
			})
			var volumes v1alpha1.UblkVolumeList
			if err := s.List(t.Context(), &volumes); err != nil {
				t.Fatal(err)
			}
			for _, v := range volumes.Items {
				if strings.Contains(v.Spec.CSIName, string(claim.UID)) {
					t.Errorf("left behind: UblkVolume %s", v.Name)
				}
			}
			remove(t, claim)
		})
	}
}
