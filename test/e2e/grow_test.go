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
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csi-ublk/csi-ublk/pkg/api/v1alpha1"
)

// growable lets claims of a class grow.
func growable(t *testing.T, class string) {
	t.Helper()
	c := &storagev1.StorageClass{}
	if err := s.Get(t.Context(), client.ObjectKey{Name: class}, c); err != nil {
		t.Fatal(err)
	}
	before, yes := c.DeepCopy(), true
	c.AllowVolumeExpansion = &yes
	if err := s.Patch(t.Context(), c, client.MergeFrom(before)); err != nil {
		t.Fatal(err)
	}
}

// ask changes what a claim asks for.
func ask(t *testing.T, claim *corev1.PersistentVolumeClaim, size string) {
	t.Helper()
	if err := s.Get(t.Context(), client.ObjectKeyFromObject(claim), claim); err != nil {
		t.Fatal(err)
	}
	before := claim.DeepCopy()
	claim.Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse(size)
	if err := s.Patch(t.Context(), claim, client.MergeFrom(before)); err != nil {
		t.Fatalf("ask for %s: %v", size, err)
	}
}

// has waits until a claim has a size, which kubelet says last.
func has(t *testing.T, claim *corev1.PersistentVolumeClaim, size string) {
	t.Helper()
	want := resource.MustParse(size)
	eventually(t, 3*time.Minute, "claim "+claim.Name+" has "+size, func(ctx context.Context) error {
		if err := s.Get(ctx, client.ObjectKeyFromObject(claim), claim); err != nil {
			return err
		}
		if got := claim.Status.Capacity[corev1.ResourceStorage]; got.Cmp(want) != 0 {
			return fmt.Errorf("it has %s, %v, conditions %+v", got.String(), claim.Status.AllocatedResourceStatuses, claim.Status.Conditions)
		}
		return nil
	})
}

// TestGrow makes claims larger while a pod writes. The node's kernel must be able to
// resize a device in use.
func TestGrow(t *testing.T) {
	needsFeature(t, "UPDATE_SIZE") // else a volume grows at its next stage only
	const (
		fs    = corev1.PersistentVolumeFilesystem
		block = corev1.PersistentVolumeBlock
	)
	for _, c := range []struct {
		name   string
		mode   corev1.PersistentVolumeMode
		fsType string
	}{{"ext4", fs, "ext4"}, {"xfs", fs, "xfs"}, {"block", block, ""}} {
		t.Run(c.name, func(t *testing.T) {
			namespace := newNamespace(t)
			class := newClass(t, storagev1.VolumeBindingWaitForFirstConsumer, c.fsType, nil)
			growable(t, class)
			claim := newClaim(t, namespace, "data", class, "384Mi", c.mode)
			pod := podUsing(namespace, "writer", "data", c.mode)
			start(t, pod)
			volume, _ := volumeOf(t, claim)
			helper := onNode(t, namespace, volume.Spec.Node)
			target := "/data/f"
			if c.mode == block {
				target = devicePath
			}
			// It writes the same 16 MiB over and over, and counts; an error ends it.
			run(t, pod, "head -c 16777216 /dev/urandom > /tmp/f && (n=0; while dd if=/tmp/f of="+target+" bs=1M conv=notrunc,fsync 2>/dev/null; do n=$((n+1)); echo $n > /tmp/n; done; echo failed > /tmp/failed) >/dev/null 2>&1 &")
			for _, size := range []string{"640Mi", "1Gi"} {
				ask(t, claim, size)
				has(t, claim, size)
				want := resource.MustParse(size)
				device := deviceOf(t, pod, c.mode)
				if got := run(t, helper, "cat /sys/block/"+device+"/size"); got != fmt.Sprint(want.Value()/512) {
					t.Errorf("device %s has %s sectors, want %s", device, got, size)
				}
				if c.mode == fs {
					if total := kib(t, run(t, pod, "df -k /data | tail -1")); total < want.Value()/1024*85/100 {
						t.Errorf("the pod sees %d KiB of %s", total, size)
					}
				}
				if err := s.Get(t.Context(), client.ObjectKeyFromObject(volume), volume); err != nil {
					t.Fatal(err)
				}
				if volume.Status.CapacityBytes != want.Value() || volume.Status.DeviceBytes != want.Value() {
					t.Errorf("status %+v, want %d", volume.Status, want.Value())
				}
			}
			rounds := run(t, pod, "cat /tmp/n")
			eventually(t, time.Minute, "the writer goes on", func(ctx context.Context) error {
				out, err := exec(ctx, pod, "test ! -e /tmp/failed && cat /tmp/n")
				if err == nil && out == rounds {
					err = fmt.Errorf("still at %s", out)
				}
				return err
			})
			sums := run(t, pod, "pkill dd; sleep 1; sync; head -c 16777216 /tmp/f | sha256sum; head -c 16777216 "+target+" | sha256sum")
			if lines := strings.Split(sums, "\n"); len(lines) != 2 || lines[0] != lines[1] {
				t.Errorf("written and read: %q", sums)
			}
			remove(t, pod)
			remove(t, claim)
		})
	}
}

// kib is the second column of a line of df.
func kib(t *testing.T, line string) int64 {
	t.Helper()
	fields := strings.Fields(line)
	if len(fields) < 2 {
		t.Fatalf("df says %q", line)
	}
	n, err := strconv.ParseInt(fields[1], 10, 64)
	if err != nil {
		t.Fatalf("df says %q", line)
	}
	return n
}

// TestGrowBeyondTheNode asks for more than the node's pool has, and then for less.
func TestGrowBeyondTheNode(t *testing.T) {
	needsFeature(t, "UPDATE_SIZE")
	namespace := newNamespace(t)
	class := newClass(t, storagev1.VolumeBindingWaitForFirstConsumer, "ext4", nil)
	growable(t, class)
	claim := newClaim(t, namespace, "data", class, "128Mi", corev1.PersistentVolumeFilesystem)
	pod := podUsing(namespace, "user", "data", corev1.PersistentVolumeFilesystem)
	start(t, pod)
	ask(t, claim, "900Gi")
	eventually(t, 2*time.Minute, "an event says how much there is", func(ctx context.Context) error {
		var events corev1.EventList
		if err := s.List(ctx, &events, client.InNamespace(namespace)); err != nil {
			return err
		}
		for _, e := range events.Items {
			if strings.Contains(e.Message, "Ask for at most") {
				return nil
			}
		}
		return fmt.Errorf("none of %d events does", len(events.Items))
	})
	ask(t, claim, "256Mi")
	has(t, claim, "256Mi")
	volume := &v1alpha1.UblkVolume{}
	bound, _ := volumeOf(t, claim)
	if err := s.Get(t.Context(), client.ObjectKeyFromObject(bound), volume); err != nil || volume.Spec.CapacityBytes != 256<<20 {
		t.Errorf("spec %+v, %v", volume.Spec, err)
	}
	remove(t, pod)
	remove(t, claim)
}
