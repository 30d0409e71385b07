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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csi-ublk/csi-ublk/pkg/api/v1alpha1"
)

// newAttributes makes a VolumeAttributesClass of the driver for one test.
func newAttributes(t *testing.T, parameters map[string]string) string {
	t.Helper()
	class := &storagev1.VolumeAttributesClass{ObjectMeta: metav1.ObjectMeta{GenerateName: "e2e-"}, DriverName: driverName, Parameters: parameters}
	if err := s.Create(t.Context(), class); err != nil {
		t.Fatalf("create volume attributes class: %v", err)
	}
	t.Cleanup(func() {
		if err := client.IgnoreNotFound(s.Delete(context.Background(), class)); err != nil {
			t.Errorf("delete volume attributes class %s: %v", class.Name, err)
		}
	})
	return class.Name
}

// TestLimits switches a claim from one class to another while a pod uses it.
func TestLimits(t *testing.T) {
	namespace := newNamespace(t)
	class := newClass(t, storagev1.VolumeBindingWaitForFirstConsumer, "ext4", nil)
	silver := newAttributes(t, map[string]string{"iops": "0", "writeBandwidth": "2Mi"})
	gold := newAttributes(t, map[string]string{"iops": "0", "writeBandwidth": "8Mi"})
	wrong := newAttributes(t, map[string]string{"iops": "100", "colour": "red"})
	claim := newClaim(t, namespace, "data", class, "256Mi", corev1.PersistentVolumeFilesystem)
	set := func(to string) {
		t.Helper()
		if err := s.Get(t.Context(), client.ObjectKeyFromObject(claim), claim); err != nil {
			t.Fatal(err)
		}
		before := claim.DeepCopy()
		claim.Spec.VolumeAttributesClassName = &to
		if err := s.Patch(t.Context(), claim, client.MergeFrom(before)); err != nil {
			t.Fatal(err)
		}
	}
	pod := podUsing(namespace, "writer", "data", corev1.PersistentVolumeFilesystem)
	start(t, pod)
	volume, _ := volumeOf(t, claim)
	inForce := func(to string, want v1alpha1.VolumeLimits) {
		t.Helper()
		eventually(t, 2*time.Minute, "class "+to+" is in force", func(ctx context.Context) error {
			if err := s.Get(ctx, client.ObjectKeyFromObject(claim), claim); err != nil {
				return err
			}
			if err := s.Get(ctx, client.ObjectKeyFromObject(volume), volume); err != nil {
				return err
			}
			if now := claim.Status.CurrentVolumeAttributesClassName; now == nil || *now != to || volume.Status.Limits == nil || *volume.Status.Limits != want {
				return fmt.Errorf("the claim has %v, %+v, the volume %+v", now, claim.Status.ModifyVolumeStatus, volume.Status.Limits)
			}
			return nil
		})
	}
	// seconds is how long 16 MiB take, past the page cache.
	seconds := func() float64 {
		t.Helper()
		// By the pod's clock: to get into the pod takes its time on a busy node.
		out := run(t, pod, "a=$(cut -d' ' -f1 /proc/uptime); dd if=/dev/zero of=/data/f bs=256k count=64 oflag=direct 2>/dev/null; b=$(cut -d' ' -f1 /proc/uptime); echo $a $b")
		var begin, end float64
		if _, err := fmt.Sscan(out, &begin, &end); err != nil {
			t.Fatalf("%q: %v", out, err)
		}
		return end - begin
	}
	run(t, pod, "dd if=/dev/zero of=/data/f bs=1M count=16 conv=fsync 2>/dev/null")
	mounted := run(t, pod, "grep ' /data ' /proc/self/mountinfo")
	set(silver)
	inForce(silver, v1alpha1.VolumeLimits{WriteBandwidth: 2 << 20})
	if got := seconds(); got < 7 || got > 12 {
		t.Errorf("16 MiB at 2 MiB a second took %.1f s", got)
	}
	set(gold)
	inForce(gold, v1alpha1.VolumeLimits{WriteBandwidth: 8 << 20})
	if got := seconds(); got < 1.7 || got > 5 {
		t.Errorf("16 MiB at 8 MiB a second took %.1f s", got)
	}
	if after := run(t, pod, "grep ' /data ' /proc/self/mountinfo"); after != mounted {
		t.Errorf("mounted anew: %s, was %s", after, mounted)
	}
	set(wrong)
	eventually(t, 2*time.Minute, "the wrong class is refused by name", func(ctx context.Context) error {
		var events corev1.EventList
		if err := s.List(ctx, &events, client.InNamespace(namespace)); err != nil {
			return err
		}
		for _, e := range events.Items {
			if strings.Contains(e.Message, `mutable_parameters["colour"]`) {
				return nil
			}
		}
		return fmt.Errorf("none of %d events says so", len(events.Items))
	})
	if err := s.Get(t.Context(), client.ObjectKeyFromObject(volume), volume); err != nil || volume.Spec.Limits == nil || volume.Spec.Limits.IOPS != 0 {
		t.Errorf("half of a wrong class was applied: %+v, %v", volume.Spec.Limits, err)
	}
	remove(t, pod)
	remove(t, claim)
}
