package controller

import (
	"cmp"
	"context"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csi-ublk/csi-ublk/pkg/api/v1alpha1"
	"github.com/csi-ublk/csi-ublk/pkg/capacity"
	"github.com/csi-ublk/csi-ublk/pkg/driver"
)

// parseSource reads what a volume is to be a copy of; nil is nothing.
func parseSource(r *csi.VolumeContentSource) (*v1alpha1.VolumeSource, error) {
	switch {
	case r == nil:
		return nil, nil
	case r.GetSnapshot().GetSnapshotId() != "":
		return &v1alpha1.VolumeSource{Snapshot: r.GetSnapshot().GetSnapshotId()}, nil
	case r.GetVolume().GetVolumeId() != "":
		return &v1alpha1.VolumeSource{Volume: r.GetVolume().GetVolumeId()}, nil
	}
	return nil, &driver.InvalidError{Field: "volume_content_source", Problem: "names neither a snapshot nor a volume"}
}

// contentSource is a volume's source as CSI shows it.
func contentSource(s *v1alpha1.VolumeSource) *csi.VolumeContentSource {
	switch {
	case s == nil:
		return nil
	case s.Snapshot != "":
		return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
			Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: s.Snapshot},
		}}
	}
	return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{
		Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: s.Volume},
	}}
}

func sameSource(a, b *v1alpha1.VolumeSource) bool { return equality.Semantic.DeepEqual(a, b) }

// origin is where a source is, and how large.
type origin struct {
	capacity.Place
	bytes int64
}

// fromSource settles what a volume's source decides: node, pool and least size. A
// copy shares extents with its source, so it can be nowhere else.
func (s *Service) fromSource(ctx context.Context, w wanted) (wanted, error) {
	from, err := s.origin(ctx, w.source)
	if err != nil {
		return w, err
	}
	if w.pool != from.Pool {
		return w, &driver.InvalidError{Field: `parameters["pool"]`, Problem: "is " + w.pool + ", and the source is in pool " + from.Pool,
			Remedy: "use a StorageClass with that pool"}
	}
	// Before anybody is sent there. A final answer: nobody would ever make the copy.
	gone, err := s.nodeGone(ctx, from.Node)
	if err != nil {
		return w, err
	}
	if gone {
		return w, status.Errorf(codes.FailedPrecondition, "volume_content_source: its node %s does not exist any more, and there is no copy elsewhere", from.Node)
	}
	if !w.allows(from.Node) {
		return w, s.elsewhere(ctx, w, from.Node)
	}
	if err := s.checkReflink(from.Place); err != nil {
		return w, err
	}
	w.where = where{nodes: []string{from.Node}}
	w.bytes, err = copyBytes(w.size, w.least, from.bytes)
	return w, err
}

// copyBytes picks the size of a copy of a source: that of the source, or what is
// asked for if it is more.
func copyBytes(r *csi.CapacityRange, least, source int64) (int64, error) {
	required, limit := r.GetRequiredBytes(), r.GetLimitBytes()
	if required == 0 {
		required = source
	}
	if required < source || limit > 0 && limit < source {
		return 0, status.Errorf(codes.OutOfRange, "capacity_range is %d to %d bytes: the source has %d; a copy is as large, or larger", r.GetRequiredBytes(), limit, source)
	}
	return volumeBytes(&csi.CapacityRange{RequiredBytes: required, LimitBytes: limit}, least)
}

func (s *Service) origin(ctx context.Context, source *v1alpha1.VolumeSource) (origin, error) {
	if source.Volume != "" {
		v, err := s.sourceVolume(ctx, "volume_content_source", source.Volume)
		if err != nil {
			return origin{}, err
		}
		return origin{capacity.Place{Node: v.Spec.Node, Pool: v.Spec.Pool}, fileBytes(v)}, nil
	}
	none := status.Errorf(codes.NotFound, "volume_content_source: snapshot %q does not exist", source.Snapshot)
	if !driver.ValidVolumeID(source.Snapshot) {
		return origin{}, none
	}
	o, err := s.liveSnapshot(ctx, source.Snapshot)
	switch {
	case err != nil:
		return origin{}, err
	case o == nil || o.DeletionTimestamp != nil:
		return origin{}, none
	case o.Status.CreatedAt == nil:
		return origin{}, status.Errorf(codes.Unavailable, "volume_content_source: snapshot %q is not cut yet; retry", source.Snapshot)
	}
	return origin{capacity.Place{Node: o.Spec.Node, Pool: o.Spec.Pool}, o.Spec.SizeBytes}, nil
}

// fileBytes is the size that a volume has: it may be asked to grow, and never do.
func fileBytes(v *v1alpha1.UblkVolume) int64 {
	return cmp.Or(v.Status.CapacityBytes, v.Spec.CapacityBytes) // a node plugin of before growth reports none
}

// sourceVolume reads a volume that is to be cut, past the cache: its size must be the
// present one.
func (s *Service) sourceVolume(ctx context.Context, field, id string) (*v1alpha1.UblkVolume, error) {
	none := status.Errorf(codes.NotFound, "%s: volume %q does not exist", field, id)
	if !driver.ValidVolumeID(id) {
		return nil, none
	}
	v, err := s.live(ctx, id)
	switch {
	case err != nil:
		return nil, err
	case v == nil || v.DeletionTimestamp != nil:
		return nil, none
	case !meta.IsStatusConditionTrue(v.Status.Conditions, v1alpha1.VolumeCreated):
		return nil, status.Errorf(codes.Unavailable, "%s: volume %q is not made yet; retry", field, id)
	}
	return v, nil
}

// checkReflink refuses at once what the node would: a pool whose files can't share
// extents.
func (s *Service) checkReflink(at capacity.Place) error {
	n := &v1alpha1.UblkNode{}
	if s.o.Client.Get(context.Background(), client.ObjectKey{Name: at.Node}, n) != nil {
		return nil // the node says so itself
	}
	i := slices.IndexFunc(n.Status.Pools, func(p v1alpha1.PoolStatus) bool { return p.Name == at.Pool })
	if i < 0 || !n.Status.Pools[i].Ready || n.Status.Pools[i].Reflink {
		return nil
	}
	return status.Errorf(codes.FailedPrecondition, "pool %s of node %s is on %s, which can't share extents between files (reflink): it has no snapshots and no clones; use a pool on xfs or btrfs", at.Pool, at.Node, n.Status.Pools[i].FSType)
}
