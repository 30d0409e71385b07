//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csi-ublk/csi-ublk/pkg/api/v1alpha1"
)

// newGroup takes a VolumeGroupSnapshot of the claims with the label group=pair, waits
// until it is ready, and returns the names of its VolumeSnapshots by their claims'.
func newGroup(t *testing.T, namespace, name string, claims int) (*unstructured.Unstructured, map[string]string) {
	t.Helper()
	o := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "groupsnapshot.storage.k8s.io/v1", "kind": "VolumeGroupSnapshot",
		"metadata": map[string]any{"namespace": namespace, "name": name},
		"spec": map[string]any{
			"volumeGroupSnapshotClassName": "csi-ublk",
			"source":                       map[string]any{"selector": map[string]any{"matchLabels": map[string]any{"group": "pair"}}},
		},
	}}
	if err := s.Create(t.Context(), o); err != nil {
		t.Fatalf("create VolumeGroupSnapshot: %v", err)
	}
	members := map[string]string{}
	eventually(t, 2*time.Minute, "group "+name+" is ready to use", func(ctx context.Context) error {
		if err := s.Get(ctx, client.ObjectKeyFromObject(o), o); err != nil {
			return err
		}
		if ready, _, _ := unstructured.NestedBool(o.Object, "status", "readyToUse"); !ready {
			return fmt.Errorf("status %v", o.Object["status"])
		}
		list := &unstructured.UnstructuredList{Object: map[string]any{"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotList"}}
		if err := s.List(ctx, list, client.InNamespace(namespace)); err != nil {
			return err
		}
		clear(members)
		for _, m := range list.Items {
			owner := m.GetOwnerReferences()
			ready, _, _ := unstructured.NestedBool(m.Object, "status", "readyToUse")
			if len(owner) == 1 && owner[0].UID == o.GetUID() && ready {
				of, _, _ := unstructured.NestedString(m.Object, "spec", "source", "persistentVolumeClaimName")
				members[of] = m.GetName()
			}
		}
		if len(members) != claims {
			return fmt.Errorf("ready members %v", members)
		}
		return nil
	})
	return o, members
}

// podOfTwo returns a pod with the claims a and b.
func podOfTwo(namespace, name, a, b string, mode corev1.PersistentVolumeMode) *corev1.Pod {
	pod := podUsing(namespace, name, a, mode)
	second := *pod.Spec.Volumes[0].DeepCopy()
	second.Name, second.PersistentVolumeClaim.ClaimName = "w", b
	pod.Spec.Volumes = append(pod.Spec.Volumes, second)
	c := &pod.Spec.Containers[0]
	if mode == corev1.PersistentVolumeBlock {
		c.VolumeDevices = append(c.VolumeDevices, corev1.VolumeDevice{Name: "w", DevicePath: devicePath + "2"})
	} else {
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: "w", MountPath: mountPath + "2"})
	}
	return pod
}

// TestGroupSnapshot cuts two volumes while a pod counts up, first in the one and then in
// the other: at any moment the second is as far as the first, or one behind. Copies of
// the group must be so, too. Raw block volumes are cut with writes in flight, mounted
// ones are frozen first.
func TestGroupSnapshot(t *testing.T) {
	needsGroups(t)
	for _, c := range []struct {
		mode   corev1.PersistentVolumeMode
		size   string
		files  [2]string
		rounds int
	}{
		{corev1.PersistentVolumeBlock, "64Mi", [2]string{devicePath, devicePath + "2"}, 3},
		{corev1.PersistentVolumeFilesystem, "64Mi", [2]string{mountPath + "/n", mountPath + "2/n"}, 1},
	} {
		t.Run(string(c.mode), func(t *testing.T) {
			namespace := newNamespace(t)
			class := newClass(t, storagev1.VolumeBindingWaitForFirstConsumer, "", nil)
			for _, name := range []string{"a", "b"} {
				claim := newClaimObject(namespace, name, class, c.size, c.mode)
				claim.Labels = map[string]string{"group": "pair"}
				if err := s.Create(t.Context(), claim); err != nil {
					t.Fatal(err)
				}
			}
			pod := podOfTwo(namespace, "writer", "a", "b", c.mode)
			start(t, pod)
			a := &corev1.PersistentVolumeClaim{}
			if err := s.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "a"}, a); err != nil {
				t.Fatal(err)
			}
			volume, _ := volumeOf(t, a)
			before, err := poolOf(t.Context(), volume.Spec.Node, volume.Spec.Pool)
			if err != nil {
				t.Fatal(err)
			}
			write := "| dd bs=512 conv=sync,notrunc,fsync 2>/dev/null of="
			run(t, pod, fmt.Sprintf(`(n=0; while :; do n=$((n+1)); echo $n %s%s && echo $n %s%s && echo $n > /tmp/m && mv /tmp/m /tmp/n || break; done; echo failed > /tmp/failed) >/dev/null 2>&1 &`, write, c.files[0], write, c.files[1]))
			far := func() (n int) {
				_, _ = fmt.Sscan(run(t, pod, "test ! -e /tmp/failed && { cat /tmp/n 2>/dev/null || echo 0; }"), &n)
				return n
			}
			eventually(t, time.Minute, "it counts", func(context.Context) error {
				if n := far(); n < 5 {
					return fmt.Errorf("%d", n)
				}
				return nil
			})
			for round := range c.rounds {
				least := far()
				group, members := newGroup(t, namespace, fmt.Sprintf("cut-%d", round), 2)
				most := far() + 1
				var claims []client.Object
				for _, name := range []string{"a", "b"} {
					claims = append(claims, newCopy(t, namespace, fmt.Sprintf("%s-%d", name, round), class, c.size, "VolumeSnapshot", members[name], c.mode))
				}
				restored := podOfTwo(namespace, fmt.Sprintf("reader-%d", round), claims[0].GetName(), claims[1].GetName(), c.mode)
				start(t, restored)
				var first, second int
				out := run(t, restored, fmt.Sprintf("head -n 1 %s; head -n 1 %s", c.files[0], c.files[1]))
				if _, err := fmt.Sscan(out, &first, &second); err != nil {
					t.Fatalf("the copies have %q: %v", out, err)
				}
				t.Logf("cut between %d and %d: %d and %d", least, most, first, second)
				if second != first && second != first-1 || first < least || first > most {
					t.Errorf("the copies have %d and %d, cut between %d and %d", first, second, least, most)
				}
				remove(t, restored)
				for _, claim := range claims {
					remove(t, claim)
				}
				remove(t, group)
			}
			remove(t, pod)
			eventually(t, 2*time.Minute, "no snapshot is left of them", func(ctx context.Context) error {
				var list v1alpha1.UblkSnapshotList
				if err := s.List(ctx, &list); err != nil {
					return err
				}
				for _, o := range list.Items {
					if o.Spec.Volume == volume.Name {
						return fmt.Errorf("%s is", o.Name)
					}
				}
				return nil
			})
			reclaimed(t, volume.Spec.Node, before)
			for _, name := range []string{"a", "b"} {
				if err := s.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, a); err != nil {
					t.Fatal(err)
				}
				v, _ := volumeOf(t, a)
				remove(t, a)
				gone(t, v)
			}
		})
	}
}
