//go:build kube

package apiserver

import (
	"context"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/csi-ublk/csi-ublk/pkg/api/v1alpha1"
)

func group(t *testing.T, name string, volumes ...string) (*csi.VolumeGroupSnapshot, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	r, err := csi.NewGroupControllerClient(leader.conn).CreateVolumeGroupSnapshot(ctx, &csi.CreateVolumeGroupSnapshotRequest{Name: name, SourceVolumeIds: volumes})
	return r.GetGroupSnapshot(), err
}

func TestGroupSnapshots(t *testing.T) {
	groups := csi.NewGroupControllerClient(leader.conn)
	n := newNode(t, "group-1", "group", 100*mib)
	newNode(t, "group-2", "group", 100*mib)
	seen(t, "group-1", "group", 100*mib)
	seen(t, "group-2", "group", 100*mib)
	for volume, at := range map[string]string{"group-a": "group-1", "group-b": "group-1", "group-c": "group-2"} {
		_, err := create(t, request(volume, "group", 10*mib, at))
		must(t, err)
		t.Cleanup(func() { must(t, remove(t, volume)) })
	}
	_, err := group(t, "", "group-a")
	want(t, err, codes.InvalidArgument, "name is empty")
	_, err = group(t, "group-s")
	want(t, err, codes.InvalidArgument, "source_volume_ids is empty")
	_, err = group(t, "group-s", "group-a", "group-a")
	want(t, err, codes.InvalidArgument, "twice")
	_, err = group(t, "group-s", "group-a", "nobody")
	want(t, err, codes.NotFound, "nobody")
	_, err = group(t, "group-s", "group-a", "group-c")
	want(t, err, codes.FailedPrecondition, "volume group-a is on node group-1 and volume group-c on node group-2")

	n.tell(func(n *node) { n.uncut = v1alpha1.ReasonPoolFull })
	_, err = group(t, "group-s", "group-a", "group-b")
	want(t, err, codes.ResourceExhausted)
	n.tell(func(n *node) { n.uncut = "" })
	if list := snapshotsOf(t, "group-1"); len(list) > 0 {
		t.Errorf("a group that failed left %v", list)
	}
	seen(t, "group-1", "group", 80*mib)

	g, err := group(t, "group-s", "group-a", "group-b")
	must(t, err)
	if len(g.Snapshots) != 2 || !g.ReadyToUse || g.CreationTime == nil || g.Snapshots[0].GroupSnapshotId != "group-s" {
		t.Fatalf("group %v", g)
	}
	again, err := group(t, "group-s", "group-b", "group-a")
	must(t, err)
	if a, b := snapshotIDs(g), snapshotIDs(again); !cmp.Equal(a, b, cmp.Transformer("set", setOf)) {
		t.Errorf("the second call answers %v, the first %v", b, a)
	}
	_, err = group(t, "group-s", "group-a")
	want(t, err, codes.AlreadyExists, "of other volumes")
	got, err := groups.GetVolumeGroupSnapshot(t.Context(), &csi.GetVolumeGroupSnapshotRequest{GroupSnapshotId: "group-s", SnapshotIds: snapshotIDs(g)})
	must(t, err)
	if diff := cmp.Diff(again, got.GroupSnapshot, protocmp.Transform()); diff != "" {
		t.Errorf("-created +got:\n%s", diff)
	}
	_, err = groups.GetVolumeGroupSnapshot(t.Context(), &csi.GetVolumeGroupSnapshotRequest{GroupSnapshotId: "group-s", SnapshotIds: []string{"other"}})
	want(t, err, codes.InvalidArgument, "snapshot_ids")
	_, err = groups.GetVolumeGroupSnapshot(t.Context(), &csi.GetVolumeGroupSnapshotRequest{GroupSnapshotId: "none"})
	want(t, err, codes.NotFound)
	_, err = groups.DeleteVolumeGroupSnapshot(t.Context(), &csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: "group-s", SnapshotIds: []string{"other"}})
	want(t, err, codes.InvalidArgument, "snapshot_ids")

	// Part of it goes alone; the call for the whole does not make it whole again.
	must(t, unsnap(t, g.Snapshots[0].SnapshotId))
	_, err = group(t, "group-s", "group-a", "group-b")
	want(t, err, codes.AlreadyExists, "part of it has been deleted")
	for range 2 {
		_, err = groups.DeleteVolumeGroupSnapshot(t.Context(), &csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: "group-s", SnapshotIds: snapshotIDs(g)})
		must(t, err)
	}
	if list := snapshotsOf(t, "group-1"); len(list) > 0 {
		t.Errorf("left: %v", list)
	}
}

func snapshotIDs(g *csi.VolumeGroupSnapshot) (list []string) {
	for _, s := range g.Snapshots {
		list = append(list, s.SnapshotId)
	}
	return list
}

func setOf(list []string) map[string]bool {
	set := map[string]bool{}
	for _, s := range list {
		set[s] = true
	}
	return set
}

func snapshotsOf(t *testing.T, node string) (names []string) {
	t.Helper()
	var l v1alpha1.UblkSnapshotList
	must(t, api.List(context.Background(), &l))
	for _, s := range l.Items {
		if s.Spec.Node == node {
			names = append(names, s.Name)
		}
	}
	return names
}
