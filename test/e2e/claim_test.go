//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csi-ublk/csi-ublk/pkg/api/v1alpha1"
)

// newClass makes a storage class of the driver for one test.
func newClass(t *testing.T, binding storagev1.VolumeBindingMode, fsType string, parameters map[string]string) string {
	t.Helper()
	reclaim := corev1.PersistentVolumeReclaimDelete
	class := &storagev1.StorageClass{
		ObjectMeta:        metav1.ObjectMeta{GenerateName: "e2e-"},
		Provisioner:       driverName,
		VolumeBindingMode: &binding,
		ReclaimPolicy:     &reclaim,
		Parameters:        map[string]string{},
	}
	for k, v := range parameters {
		class.Parameters[k] = v
	}
	if fsType != "" {
		class.Parameters["csi.storage.k8s.io/fstype"] = fsType
	}
	if err := s.Create(t.Context(), class); err != nil {
		t.Fatalf("create storage class: %v", err)
	}
	t.Cleanup(func() {
		if err := client.IgnoreNotFound(s.Delete(context.Background(), class)); err != nil {
			t.Errorf("delete storage class %s: %v", class.Name, err)
		}
	})
	return class.Name
}

// newClaimObject returns a ReadWriteOnce claim.
func newClaimObject(namespace, name, class, size string, mode corev1.PersistentVolumeMode) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &class,
			VolumeMode:       &mode,
			AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:        corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}},
		},
	}
}

// newClaim makes a ReadWriteOnce claim.
func newClaim(t *testing.T, namespace, name, class, size string, mode corev1.PersistentVolumeMode) *corev1.PersistentVolumeClaim {
	t.Helper()
	claim := newClaimObject(namespace, name, class, size, mode)
	if err := s.Create(t.Context(), claim); err != nil {
		t.Fatalf("create claim %s: %v", name, err)
	}
	return claim
}

// volumeOf waits until the claim is bound and returns its UblkVolume and its PV.
func volumeOf(t *testing.T, claim *corev1.PersistentVolumeClaim) (*v1alpha1.UblkVolume, *corev1.PersistentVolume) {
	t.Helper()
	eventually(t, 2*time.Minute, "claim "+claim.Name+" is Bound", func(ctx context.Context) error {
		if err := s.Get(ctx, client.ObjectKeyFromObject(claim), claim); err != nil {
			return err
		}
		if claim.Status.Phase != corev1.ClaimBound {
			return fmt.Errorf("phase %s", claim.Status.Phase)
		}
		return nil
	})
	pv := &corev1.PersistentVolume{}
	if err := s.Get(t.Context(), client.ObjectKey{Name: claim.Spec.VolumeName}, pv); err != nil {
		t.Fatalf("get pv: %v", err)
	}
	volume := &v1alpha1.UblkVolume{}
	if err := s.Get(t.Context(), client.ObjectKey{Name: pv.Spec.CSI.VolumeHandle}, volume); err != nil {
		t.Fatalf("get ublkvolume of claim %s: %v", claim.Name, err)
	}
	return volume, pv
}
