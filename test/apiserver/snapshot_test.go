//go:build kube

package apiserver

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csi-ublk/csi-ublk/pkg/api/v1alpha1"
	"github.com/csi-ublk/csi-ublk/pkg/driver"
)

func snap(t *testing.T, name, volume string) (*csi.Snapshot, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	resp, err := leader.CreateSnapshot(ctx, &csi.CreateSnapshotRequest{Name: name, SourceVolumeId: volume})
	return resp.GetSnapshot(), err
}

func unsnap(t *testing.T, id string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	_, err := leader.DeleteSnapshot(ctx, &csi.DeleteSnapshotRequest{SnapshotId: id})
	return err
}

func getSnapshot(t *testing.T, name string) *v1alpha1.UblkSnapshot {
	t.Helper()
	o := &v1alpha1.UblkSnapshot{}
	err := api.Get(context.Background(), client.ObjectKey{Name: name}, o)
	if client.IgnoreNotFound(err) != nil {
		t.Fatal(err)
	}
	if err != nil {
		return nil
	}
	return o
}

func ids(t *testing.T, r *csi.ListSnapshotsRequest) (list []string, next string) {
	t.Helper()
	resp, err := leader.ListSnapshots(t.Context(), r)
	must(t, err)
	for _, e := range resp.Entries {
		list = append(list, e.Snapshot.SnapshotId)
	}
	return list, resp.NextToken
}

func TestSnapshotLife(t *testing.T) {
	newNode(t, "snap-1", "snap", 100*mib)
	seen(t, "snap-1", "snap", 100*mib)
	v, err := create(t, request("snap-v", "snap", 10*mib))
	must(t, err)
	seen(t, "snap-1", "snap", 90*mib)
	first, err := snap(t, "snap-s", v.VolumeId)
	must(t, err)
	if first.SnapshotId != "snap-s" || first.SourceVolumeId != "snap-v" || first.SizeBytes != 10*mib || !first.ReadyToUse || first.CreationTime == nil {
		t.Errorf("snapshot %v", first)
	}
	// It counts with what it has allocated, and not with its size.
	seen(t, "snap-1", "snap", 90*mib-cutBytes)
	again, err := snap(t, "snap-s", v.VolumeId)
	must(t, err)
	if diff := cmp.Diff(first, again, protocmp.Transform()); diff != "" {
		t.Errorf("the second call answers otherwise (-first +second):\n%s", diff)
	}
	got, err := leader.GetSnapshot(t.Context(), &csi.GetSnapshotRequest{SnapshotId: "snap-s"})
	must(t, err)
	if diff := cmp.Diff(first, got.Snapshot, protocmp.Transform()); diff != "" {
		t.Errorf("GetSnapshot answers otherwise (-created +got):\n%s", diff)
	}
	other, err := create(t, request("snap-other", "snap", 10*mib))
	must(t, err)
	_, err = snap(t, "snap-s", other.VolumeId)
	want(t, err, codes.AlreadyExists, `of volume "snap-v", not "snap-other"`)

	// The volume goes first: the snapshot stays, is listed, and is restored.
	must(t, remove(t, v.VolumeId))
	if list, _ := ids(t, &csi.ListSnapshotsRequest{SourceVolumeId: "snap-v"}); !slices.Equal(list, []string{"snap-s"}) {
		t.Errorf("listed %v", list)
	}
	r := request("snap-restored", "snap", 20*mib)
	r.VolumeContentSource = fromSnapshot("snap-s")
	restored, err := create(t, r)
	must(t, err)
	if restored.CapacityBytes != 20*mib || restored.ContentSource.GetSnapshot().GetSnapshotId() != "snap-s" {
		t.Errorf("restored %v", restored)
	}
	must(t, unsnap(t, "snap-s"))
	must(t, unsnap(t, "snap-s"))
	if o := getSnapshot(t, "snap-s"); o != nil {
		t.Errorf("left: %+v", o)
	}
	_, err = leader.GetSnapshot(t.Context(), &csi.GetSnapshotRequest{SnapshotId: "snap-s"})
	want(t, err, codes.NotFound)
	// The source is gone, and the same call for the volume still finds it.
	_, err = create(t, r)
	must(t, err)
	must(t, remove(t, restored.VolumeId))
	must(t, remove(t, other.VolumeId))
	seen(t, "snap-1", "snap", 100*mib)
}

func fromSnapshot(id string) *csi.VolumeContentSource {
	return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: id}}}
}

func fromVolume(id string) *csi.VolumeContentSource {
	return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: id}}}
}

func TestSnapshotRefused(t *testing.T) {
	n := newNode(t, "nosnap-1", "nosnap", 100*mib)
	seen(t, "nosnap-1", "nosnap", 100*mib)
	v, err := create(t, request("nosnap-v", "nosnap", 10*mib))
	must(t, err)
	t.Cleanup(func() { must(t, remove(t, v.VolumeId)) })
	_, err = snap(t, "", v.VolumeId)
	want(t, err, codes.InvalidArgument, "name is empty")
	_, err = snap(t, "nosnap-s", "")
	want(t, err, codes.InvalidArgument, "source_volume_id is empty")
	_, err = snap(t, "nosnap-s", "nobody")
	want(t, err, codes.NotFound, `volume "nobody" does not exist`)
	_, err = leader.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{Name: "nosnap-s", SourceVolumeId: v.VolumeId, Parameters: map[string]string{"fast": "yes"}})
	want(t, err, codes.InvalidArgument, `parameters["fast"]`)
	want(t, unsnap(t, ""), codes.InvalidArgument, "snapshot_id is empty")
	must(t, unsnap(t, "No/Such"))
	for reason, code := range map[string]codes.Code{
		v1alpha1.ReasonPoolFull: codes.ResourceExhausted, v1alpha1.ReasonNoReflink: codes.FailedPrecondition,
		v1alpha1.ReasonVolumeMissing: codes.NotFound, v1alpha1.ReasonVolumeGrew: codes.Aborted,
	} {
		n.tell(func(n *node) { n.uncut = reason })
		_, err = snap(t, "nosnap-s", v.VolumeId)
		want(t, err, code, "node nosnap-1 can't cut volume nosnap-v: "+reason)
		if o := getSnapshot(t, "nosnap-s"); o != nil {
			t.Errorf("%s: left behind: %+v", reason, o)
		}
	}
	n.tell(func(n *node) { n.uncut = "" })
	n.setUblk(func(s *v1alpha1.UblkNodeStatus) { s.Pools[0].Reflink, s.Pools[0].FSType = false, "ext4" })
	eventually(t, "the pool is known to have no reflink", func() bool {
		_, err = snap(t, "nosnap-s", v.VolumeId)
		if err == nil {
			must(t, unsnap(t, "nosnap-s"))
		}
		return err != nil
	})
	want(t, err, codes.FailedPrecondition, "is on ext4, which can't share extents")
}

func TestSnapshotOfACordonedNode(t *testing.T) {
	n := newNode(t, "cordon-1", "cordon", 100*mib)
	seen(t, "cordon-1", "cordon", 100*mib)
	v, err := create(t, request("cordon-v", "cordon", 10*mib))
	must(t, err)
	n.setNode(func(k *corev1.Node) { k.Spec.Unschedulable = true })
	seen(t, "cordon-1", "cordon", 0)
	_, err = snap(t, "cordon-s", v.VolumeId)
	must(t, err)
	must(t, unsnap(t, "cordon-s"))
	must(t, remove(t, v.VolumeId))
}

// A snapshot that its node is slow to cut is waited for, and not asked for twice.
func TestSnapshotGoesOnWaiting(t *testing.T) {
	n := newNode(t, "slow-1", "slow", 100*mib)
	seen(t, "slow-1", "slow", 100*mib)
	v, err := create(t, request("slow-v", "slow", 10*mib))
	must(t, err)
	n.tell(func(n *node) { n.silent = true })
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err = leader.CreateSnapshot(ctx, &csi.CreateSnapshotRequest{Name: "slow-s", SourceVolumeId: v.VolumeId})
	want(t, err, codes.DeadlineExceeded, "waits for node slow-1 to cut volume slow-v")
	before := getSnapshot(t, "slow-s")
	n.tell(func(n *node) { n.silent = false })
	_, err = snap(t, "slow-s", v.VolumeId)
	must(t, err)
	if after := getSnapshot(t, "slow-s"); before == nil || after.UID != before.UID {
		t.Error("the snapshot was made anew")
	}
	must(t, unsnap(t, "slow-s"))
	must(t, remove(t, v.VolumeId))
}

func TestListSnapshots(t *testing.T) {
	newNode(t, "lsnap-1", "lsnap", 100*mib)
	seen(t, "lsnap-1", "lsnap", 100*mib)
	for _, v := range []string{"lsnap-a", "lsnap-b"} {
		_, err := create(t, request(v, "lsnap", 10*mib))
		must(t, err)
		t.Cleanup(func() { must(t, remove(t, v)) })
	}
	for i := range 4 {
		name := fmt.Sprintf("lsnap-s%d", i)
		_, err := snap(t, name, []string{"lsnap-a", "lsnap-b"}[i%2])
		must(t, err)
		t.Cleanup(func() { must(t, unsnap(t, name)) })
	}
	if list, _ := ids(t, &csi.ListSnapshotsRequest{SourceVolumeId: "lsnap-a"}); !slices.Equal(list, []string{"lsnap-s0", "lsnap-s2"}) {
		t.Errorf("of one volume: %v", list)
	}
	if list, _ := ids(t, &csi.ListSnapshotsRequest{SnapshotId: "lsnap-s3"}); !slices.Equal(list, []string{"lsnap-s3"}) {
		t.Errorf("by id: %v", list)
	}
	if list, _ := ids(t, &csi.ListSnapshotsRequest{SnapshotId: "none"}); list != nil {
		t.Errorf("of an unknown id: %v", list)
	}
	var paged []string
	for token := ""; ; {
		list, next := ids(t, &csi.ListSnapshotsRequest{SourceVolumeId: "lsnap-b", MaxEntries: 1, StartingToken: token})
		paged = append(paged, list...)
		if token = next; token == "" {
			break
		}
	}
	if !slices.Equal(paged, []string{"lsnap-s1", "lsnap-s3"}) {
		t.Errorf("page by page: %v", paged)
	}
	_, err := leader.ListSnapshots(t.Context(), &csi.ListSnapshotsRequest{StartingToken: "invalid-token"})
	want(t, err, codes.Aborted)
}

func TestVolumeFromSource(t *testing.T) {
	newNode(t, "src-1", "src", 100*mib)
	newNode(t, "src-2", "src", 1000*mib)
	seen(t, "src-1", "src", 100*mib)
	seen(t, "src-2", "src", 1000*mib)
	v, err := create(t, request("src-v", "src", 10*mib, "src-1"))
	must(t, err)
	t.Cleanup(func() { must(t, remove(t, v.VolumeId)) })
	with := func(name string, bytes int64, source *csi.VolumeContentSource, nodes ...string) *csi.CreateVolumeRequest {
		r := request(name, "src", bytes, nodes...)
		r.VolumeContentSource = source
		return r
	}
	// Where the source is, though another node has more room and is preferred.
	c, err := create(t, with("src-c", 0, fromVolume("src-v"), "src-2", "src-1"))
	must(t, err)
	t.Cleanup(func() { must(t, remove(t, c.VolumeId)) })
	if c.AccessibleTopology[0].Segments[driver.TopologyKey] != "src-1" || c.CapacityBytes != 10*mib || c.ContentSource.GetVolume().GetVolumeId() != "src-v" {
		t.Errorf("clone %v", c)
	}
	for name, x := range map[string]struct {
		r     *csi.CreateVolumeRequest
		code  codes.Code
		parts []string
	}{
		"a topology without the source's node": {with("src-x", 10*mib, fromVolume("src-v"), "src-2"), codes.ResourceExhausted, []string{"its source is on node src-1"}},
		"smaller than the source":              {with("src-x", 5*mib, fromVolume("src-v")), codes.OutOfRange, []string{"the source has 10485760"}},
		"an unknown volume":                    {with("src-x", 10*mib, fromVolume("nobody")), codes.NotFound, []string{`volume "nobody" does not exist`}},
		"an unknown snapshot":                  {with("src-x", 10*mib, fromSnapshot("nobody")), codes.NotFound, []string{`snapshot "nobody" does not exist`}},
		"an id that is none":                   {with("src-x", 10*mib, fromSnapshot("No/Such")), codes.NotFound, nil},
		"the same name without the source":     {request("src-c", "src", 10*mib), codes.AlreadyExists, []string{"its source is"}},
		"another pool": {func() *csi.CreateVolumeRequest {
			r := with("src-x", 10*mib, fromVolume("src-v"))
			r.Parameters["pool"] = "other"
			return r
		}(), codes.InvalidArgument, []string{"the source is in pool src"}},
		"more than the source's node has": {with("src-x", 100*mib, fromVolume("src-v")), codes.ResourceExhausted, []string{"src-1: 83886080 bytes are free"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := create(t, x.r)
			want(t, err, x.code, x.parts...)
			if get(t, "src-x") != nil {
				t.Error("an object was left")
			}
		})
	}
}

func TestSnapshotOfAVanishedNode(t *testing.T) {
	n := newNode(t, "gone-snap-1", "gone-snap", 100*mib)
	seen(t, "gone-snap-1", "gone-snap", 100*mib)
	_, err := create(t, request("gone-snap-v", "gone-snap", 10*mib))
	must(t, err)
	for _, s := range []string{"gone-snap-a", "gone-snap-b"} {
		_, err = snap(t, s, "gone-snap-v")
		must(t, err)
	}
	n.stop()
	must(t, api.Delete(t.Context(), getSnapshot(t, "gone-snap-a"))) // as kubectl would; nobody is left to answer
	n.vanish()
	eventually(t, "the snapshot being deleted is gone", func() bool { return getSnapshot(t, "gone-snap-a") == nil })
	eventually(t, "the other one is not ready", func() bool {
		got, err := leader.GetSnapshot(t.Context(), &csi.GetSnapshotRequest{SnapshotId: "gone-snap-b"})
		return err == nil && !got.Snapshot.ReadyToUse
	})
	must(t, unsnap(t, "gone-snap-b"))
	must(t, remove(t, "gone-snap-v"))
	if getSnapshot(t, "gone-snap-b") != nil {
		t.Error("the object is left")
	}
}

// A snapshot that nobody can cut any more has a final answer, and goes: as long as it has
// none, neither it nor the claim can be deleted.
func TestSnapshotThatItsNodeDidNotLiveToCut(t *testing.T) {
	n := newNode(t, "uncut-1", "uncut", 100*mib)
	seen(t, "uncut-1", "uncut", 100*mib)
	_, err := create(t, request("uncut-v", "uncut", 10*mib))
	must(t, err)
	n.tell(func(n *node) { n.silent = true })
	answer := make(chan error, 1)
	go func() {
		_, err := snap(t, "uncut-s", "uncut-v")
		answer <- err
	}()
	eventually(t, "the snapshot is asked for", func() bool { return getSnapshot(t, "uncut-s") != nil })
	n.vanish()
	if err := <-answer; status.Code(err) != codes.FailedPrecondition {
		t.Errorf("while it is waited for: %v", err)
	}
	eventually(t, "the object is gone", func() bool { return getSnapshot(t, "uncut-s") == nil })
	if _, err := snap(t, "uncut-later", "uncut-v"); status.Code(err) != codes.FailedPrecondition || getSnapshot(t, "uncut-later") != nil {
		t.Errorf("asked for later: %v", err)
	}
	must(t, remove(t, "uncut-v"))
}

// One name asked for from many callers is one snapshot.
func TestOneSnapshotFromManyCallers(t *testing.T) {
	newNode(t, "many-1", "many", 100*mib)
	seen(t, "many-1", "many", 100*mib)
	_, err := create(t, request("many-v", "many", 10*mib))
	must(t, err)
	errs := make(chan error)
	for range 10 {
		go func() {
			_, err := snap(t, "many-s", "many-v")
			errs <- err
		}()
	}
	made := 0
	for range 10 {
		switch err := <-errs; status.Code(err) {
		case codes.OK:
			made++
		case codes.Aborted:
		default:
			t.Error(err)
		}
	}
	if made == 0 {
		t.Error("nobody got the snapshot")
	}
	must(t, unsnap(t, "many-s"))
	must(t, remove(t, "many-v"))
	seen(t, "many-1", "many", 100*mib)
}
