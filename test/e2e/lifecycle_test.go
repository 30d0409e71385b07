//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
)

// TestLifecycle takes a claim through its whole life: a pod writes, a second pod
// on the same node reads the same bytes, and nothing is left after the deletion.
func TestLifecycle(t *testing.T) {
	const (
		fs    = corev1.PersistentVolumeFilesystem
		block = corev1.PersistentVolumeBlock
	)
	for _, c := range []struct {
		name    string
		binding storagev1.VolumeBindingMode
		mode    corev1.PersistentVolumeMode
		fsType  string
	}{
		{"ext4 bound when a pod needs it", storagev1.VolumeBindingWaitForFirstConsumer, fs, "ext4"},
		{"ext4 bound at once", storagev1.VolumeBindingImmediate, fs, "ext4"},
		{"xfs bound when a pod needs it", storagev1.VolumeBindingWaitForFirstConsumer, fs, "xfs"},
		{"xfs bound at once", storagev1.VolumeBindingImmediate, fs, "xfs"},
		{"block bound when a pod needs it", storagev1.VolumeBindingWaitForFirstConsumer, block, ""},
		{"block bound at once", storagev1.VolumeBindingImmediate, block, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			namespace := newNamespace(t)
			class := newClass(t, c.binding, c.fsType, nil)
			claim := newClaim(t, namespace, "data", class, "512Mi", c.mode)
			first := podUsing(namespace, "first", "data", c.mode)
			start(t, first)

			volume, pv := volumeOf(t, claim)
			if volume.Spec.Node != first.Spec.NodeName {
				t.Fatalf("volume on node %s, pod on %s", volume.Spec.Node, first.Spec.NodeName)
			}
			helper := onNode(t, namespace, volume.Spec.Node)
			device := deviceOf(t, first, c.mode)
			if !strings.HasPrefix(device, "ublkb") {
				t.Fatalf("the pod's volume is %q, not a ublk device", device)
			}
			if got, want := run(t, helper, "cat /sys/block/"+device+"/size"), fmt.Sprint(volume.Spec.CapacityBytes/512); got != want {
				t.Errorf("device %s has %s sectors, the volume %s", device, got, want)
			}

			write, read := "dd if=/dev/urandom of=/data/f bs=1M count=48 conv=fsync 2>/dev/null && sha256sum < /data/f", "sha256sum < /data/f"
			if c.mode == block {
				write = "dd if=/dev/urandom of=/tmp/f bs=1M count=48 2>/dev/null && dd if=/tmp/f of=" + devicePath + " bs=1M conv=fsync 2>/dev/null && sha256sum < /tmp/f"
				read = "dd if=" + devicePath + " bs=1M count=48 2>/dev/null | sha256sum"
			}
			written := run(t, first, write)
			remove(t, first)
			eventually(t, deviceGone, "device "+device+" is gone", func(ctx context.Context) error {
				out, err := exec(ctx, helper, "test ! -e /sys/block/"+device)
				if err != nil {
					return fmt.Errorf("%s still there: %s %w", device, out, err)
				}
				return nil
			})

			second := podUsing(namespace, "second", "data", c.mode)
			start(t, second)
			if got := run(t, second, read); got != written {
				t.Errorf("the second pod reads %s, the first wrote %s", got, written)
			}
			if second.Spec.NodeName != volume.Spec.Node {
				t.Errorf("the second pod runs on %s, its volume is on %s", second.Spec.NodeName, volume.Spec.Node)
			}

			remove(t, second)
			remove(t, claim)
			gone(t, pv)
			gone(t, volume)
			eventually(t, deviceGone, "the volume's file is gone", func(ctx context.Context) error {
				out, err := exec(ctx, helper, "ls /state/pools/"+volume.Spec.Pool+"/volumes /state/pools/"+volume.Spec.Pool+"/trash /state/server/journal/*")
				if err != nil || strings.Contains(out, volume.Name) {
					return fmt.Errorf("%s %v", out, err)
				}
				return nil
			})
		})
	}
}

// TestSpaceComesBack: what a volume took is free again, and counted so.
func TestSpaceComesBack(t *testing.T) {
	namespace := newNamespace(t)
	class := newClass(t, storagev1.VolumeBindingImmediate, "ext4", nil)
	claim := newClaim(t, namespace, "data", class, "1Gi", corev1.PersistentVolumeFilesystem)
	volume, pv := volumeOf(t, claim)
	before, err := poolOf(t.Context(), volume.Spec.Node, volume.Spec.Pool)
	if err != nil {
		t.Fatal(err)
	}
	pod := podUsing(namespace, "writer", "data", corev1.PersistentVolumeFilesystem)
	start(t, pod)
	run(t, pod, "dd if=/dev/zero of=/data/f bs=1M count=400 conv=fsync 2>/dev/null")
	helper := onNode(t, namespace, volume.Spec.Node)
	// Its number tells it from the devices of others, who may come and go.
	char := strings.Replace(deviceOf(t, pod, corev1.PersistentVolumeFilesystem), "ublkb", "ublkc", 1)
	run(t, helper, "test -e /sys/class/ublk-char/"+char)
	remove(t, pod)
	remove(t, claim)
	gone(t, pv)
	gone(t, volume)
	reclaimed(t, volume.Spec.Node, before)
	eventually(t, deviceGone, "the kernel's device is freed", func(ctx context.Context) error {
		_, err := exec(ctx, helper, "test ! -e /sys/class/ublk-char/"+char)
		if err != nil {
			err = fmt.Errorf("%s: %w", char, err)
		}
		return err
	})
}
