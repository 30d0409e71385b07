//go:build kube

package apiserver

import (
	"context"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csi-ublk/csi-ublk/pkg/api/v1alpha1"
)

// made returns a node with one volume of 10 MiB on it, both of the given name.
func made(t *testing.T, name string) *node {
	t.Helper()
	n := newNode(t, name, name, 100*mib)
	seen(t, name, name, 100*mib)
	_, err := create(t, request(name, name, 10*mib))
	must(t, err)
	return n
}

func TestDelete(t *testing.T) {
	n := made(t, "delete")
	must(t, remove(t, "delete"))
	if v := get(t, "delete"); v != nil {
		t.Errorf("left behind: %+v", v)
	}
	if n.has("delete") {
		t.Error("the node was not asked to remove the file")
	}
	seen(t, "delete", "delete", 100*mib)
	must(t, remove(t, "delete"))
	for name, id := range map[string]string{"unknown": "no-such-volume", "impossible": "../../etc/passwd"} {
		if err := remove(t, id); err != nil {
			t.Errorf("an %s id: %v", name, err)
		}
	}
	want(t, remove(t, ""), codes.InvalidArgument, "volume_id")
	// The name is free at once.
	_, err := create(t, request("delete", "delete", 20*mib))
	must(t, err)
	must(t, remove(t, "delete"))
}

func TestDeleteInUseChangesNothing(t *testing.T) {
	n := made(t, "in-use")
	n.tell(func(n *node) { n.inUse["in-use"] = true })
	want(t, remove(t, "in-use"), codes.FailedPrecondition, "in use on node in-use (the volume is attached)", "nothing was removed")
	v := get(t, "in-use")
	if v == nil || v.Spec.State != v1alpha1.VolumePresent || v.DeletionTimestamp != nil || !n.has("in-use") {
		t.Fatalf("something changed: %+v", v)
	}
	eventually(t, "ready again", func() bool {
		return meta.IsStatusConditionTrue(get(t, "in-use").Status.Conditions, v1alpha1.VolumeReady)
	})
	want(t, remove(t, "in-use"), codes.FailedPrecondition) // and again
	n.tell(func(n *node) { n.inUse["in-use"] = false })
	must(t, remove(t, "in-use"))
	if v := get(t, "in-use"); v != nil {
		t.Errorf("left behind: %+v", v)
	}
}

func TestDeleteOfAnObjectBeingDeleted(t *testing.T) {
	n := made(t, "kubectl")
	n.tell(func(n *node) { n.inUse["kubectl"] = true })
	must(t, api.Delete(t.Context(), get(t, "kubectl")))
	want(t, remove(t, "kubectl"), codes.FailedPrecondition, "is being deleted, and is gone when nobody uses it")
	_, err := create(t, request("kubectl", "kubectl", 10*mib))
	want(t, err, codes.Aborted, "is being deleted")
	n.tell(func(n *node) { n.inUse["kubectl"] = false })
	must(t, remove(t, "kubectl"))
}

func TestDeleteOnANodeThatIsNotReady(t *testing.T) {
	n := made(t, "asleep")
	n.tell(func(n *node) { n.silent = true })
	n.setNodeReady(corev1.ConditionUnknown)
	seen(t, "asleep", "asleep", 0)
	start := time.Now()
	want(t, remove(t, "asleep"), codes.Unavailable, "node asleep can't remove it now: it is not ready", "delete the Node object")
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("answered after %v, must not wait for the deadline", took)
	}
	if v := get(t, "asleep"); v == nil || v.Spec.State != v1alpha1.VolumeAbsent {
		t.Fatalf("the request is not on record: %+v", v)
	}
	// It is done when the node is back, although nobody asks again.
	n.setNodeReady(corev1.ConditionTrue)
	n.tell(func(n *node) { n.silent = false })
	eventually(t, "gone", func() bool { return get(t, "asleep") == nil })
	seen(t, "asleep", "asleep", 100*mib)
}

// Nobody waits for a pool that its node says does not work.
func TestDeleteInAPoolThatDoesNotWork(t *testing.T) {
	n := made(t, "broken-pool")
	s, err := snap(t, "broken-pool-s", "broken-pool")
	must(t, err)
	n.tell(func(n *node) { n.failed = "its disk is gone" })
	start := time.Now()
	_, err = snap(t, "broken-pool-s2", "broken-pool")
	want(t, err, codes.Unavailable, "node broken-pool can't cut volume broken-pool now: its disk is gone")
	want(t, unsnap(t, s.SnapshotId), codes.Unavailable, "node broken-pool can't remove it now: its disk is gone", "when the pool works")
	want(t, remove(t, "broken-pool"), codes.Unavailable, "node broken-pool can't remove it now: its disk is gone", "when the pool works")
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("answered after %v, must not wait for the deadlines", took)
	}
	n.tell(func(n *node) { n.failed = "" })
	must(t, unsnap(t, s.SnapshotId))
	must(t, unsnap(t, "broken-pool-s2"))
	must(t, remove(t, "broken-pool"))
}

func TestDeleteContinuesAfterItsDeadline(t *testing.T) {
	n := made(t, "slow")
	n.tell(func(n *node) { n.silent = true })
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	_, err := leader.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: "slow"})
	want(t, err, codes.DeadlineExceeded, "waits for node slow to remove it")
	n.tell(func(n *node) { n.silent = false })
	must(t, remove(t, "slow"))
	if v := get(t, "slow"); v != nil {
		t.Errorf("left behind: %+v", v)
	}
}

func TestDeleteOnAVanishedNode(t *testing.T) {
	n := made(t, "vanished")
	n.vanish()
	must(t, remove(t, "vanished"))
	if v := get(t, "vanished"); v != nil {
		t.Errorf("left behind: %+v", v)
	}
}

func TestVanishedNodeIsCleanedUp(t *testing.T) {
	n := made(t, "orphan")
	n.vanish()
	eventually(t, "its UblkNode is gone", func() bool {
		return client.IgnoreNotFound(api.Get(t.Context(), client.ObjectKey{Name: "orphan"}, &v1alpha1.UblkNode{})) == nil &&
			api.Get(t.Context(), client.ObjectKey{Name: "orphan"}, &v1alpha1.UblkNode{}) != nil
	})
	eventually(t, "its volume is marked", func() bool {
		c := meta.FindStatusCondition(get(t, "orphan").Status.Conditions, v1alpha1.VolumeReady)
		return c != nil && c.Status == metav1.ConditionFalse && c.Reason == v1alpha1.ReasonNodeGone
	})
	must(t, api.Delete(t.Context(), get(t, "orphan")))
	eventually(t, "deleted, it goes", func() bool { return get(t, "orphan") == nil })
}
