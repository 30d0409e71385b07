//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csi-ublk/csi-ublk/pkg/api/v1alpha1"
)

// podInline returns a pod with an inline volume.
func podInline(namespace, name, fsType, size string) *corev1.Pod {
	pod := podUsing(namespace, name, "", corev1.PersistentVolumeFilesystem)
	pod.Spec.Volumes[0].VolumeSource = corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{
		Driver: driverName, FSType: &fsType, VolumeAttributes: map[string]string{"size": size},
	}}
	return pod
}

// TestInlineVolume: a pod brings its volume along, which counts in its node's
// pool, and takes it away again.
func TestInlineVolume(t *testing.T) {
	before := map[string]int64{} // pods of others may have some
	for _, n := range needsPool(t, "default") {
		p, err := poolOf(t.Context(), n.Name, "default")
		if err != nil {
			t.Fatal(err)
		}
		before[n.Name] = p.EphemeralBytes
	}
	for _, fsType := range []string{"ext4", "xfs"} {
		t.Run(fsType, func(t *testing.T) {
			namespace := newNamespace(t)
			pod := podInline(namespace, "scratch", fsType, "512Mi")
			group := int64(1234)
			pod.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: &group}
			start(t, pod)
			node := pod.Spec.NodeName
			if out := run(t, pod, "head -c 1000000 /dev/urandom > /data/f && wc -c < /data/f && stat -c %g /data"); strings.Join(strings.Fields(out), " ") != "1000000 1234" {
				t.Errorf("the pod writes and finds the group %q", out)
			}
			device := deviceOf(t, pod, corev1.PersistentVolumeFilesystem)
			if !strings.HasPrefix(device, "ublkb") {
				t.Errorf("its volume is on %q", device)
			}
			ephemeral := func(more int64) func(context.Context) error {
				return func(ctx context.Context) error {
					p, err := poolOf(ctx, node, "default")
					if err == nil && p.EphemeralBytes != before[node]+more {
						err = fmt.Errorf("%d bytes", p.EphemeralBytes)
					}
					return err
				}
			}
			eventually(t, time.Minute, "the node counts it", ephemeral(512<<20))
			helper := onNode(t, namespace, node)
			const files = "ls -d /state/pools/default/volumes/h-* 2>/dev/null | wc -l"
			with := run(t, helper, files)
			remove(t, pod)
			eventually(t, time.Minute, "the node no longer counts it", ephemeral(0))
			eventually(t, deviceGone, "device and file are gone", func(ctx context.Context) error {
				out, err := exec(ctx, helper, "ls -d /sys/block/"+device+" 2>/dev/null; "+files)
				if err == nil && (strings.Contains(out, device) || out == with) {
					err = fmt.Errorf("left are %s files, %s before; %s", out, with, device)
				}
				return err
			})
		})
	}
}

// TestInlineVolumeThatCanNotBe: the pod's events say what is wrong, and the pod
// goes.
func TestInlineVolumeThatCanNotBe(t *testing.T) {
	namespace := newNamespace(t)
	pod := podInline(namespace, "wrong", "ext4", "a lot")
	if err := s.Create(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	eventually(t, 2*time.Minute, "an event names the attribute", func(ctx context.Context) error {
		var events corev1.EventList
		if err := s.List(ctx, &events, client.InNamespace(namespace)); err != nil {
			return err
		}
		for _, e := range events.Items {
			if e.Reason == "FailedMount" && strings.Contains(e.Message, `volumeAttributes["size"] "a lot" is not a size above 0`) {
				return nil
			}
		}
		return fmt.Errorf("%d events, none does", len(events.Items))
	})
	remove(t, pod)
}

// TestNodesAreLabelled: pods can select on how a node's kernel deletes devices.
func TestNodesAreLabelled(t *testing.T) {
	needsFlag(t, "--mark-nodes=true")
	var nodes v1alpha1.UblkNodeList
	if err := s.List(t.Context(), &nodes); err != nil {
		t.Fatal(err)
	}
	for _, u := range nodes.Items {
		eventually(t, time.Minute, "node "+u.Name+" has the label of its kernel", func(ctx context.Context) error {
			node := &corev1.Node{}
			if err := s.Get(ctx, client.ObjectKey{Name: u.Name}, node); err != nil {
				return err
			}
			if err := s.Get(ctx, client.ObjectKey{Name: u.Name}, &u); err != nil {
				return err
			}
			label, kind := node.Labels["csi-ublk.io/delete-kind"], u.Status.Kernel.DeleteKind
			if label == "" || label != strings.ToLower(kind) {
				return fmt.Errorf("label %q, kind %q", label, kind)
			}
			return nil
		})
	}
}
