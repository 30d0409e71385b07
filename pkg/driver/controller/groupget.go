package controller

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/csi-ublk/csi-ublk/pkg/api/v1alpha1"
	"github.com/csi-ublk/csi-ublk/pkg/driver"
)

// groupMembers returns a group's objects, by id, read past the cache: a group that was
// just made may not be in it. There are no indices of the API for it, and groups are
// rare.
func (s *Service) groupMembers(ctx context.Context, group string) ([]*v1alpha1.UblkSnapshot, error) {
	var all v1alpha1.UblkSnapshotList
	if err := s.o.Live.List(ctx, &all); err != nil {
		return nil, apiError(fmt.Errorf("list UblkSnapshots: %w", err))
	}
	var members []*v1alpha1.UblkSnapshot
	for i := range all.Items {
		if o := &all.Items[i]; o.Spec.Group == group {
			members = append(members, o)
		}
	}
	slices.SortFunc(members, func(a, b *v1alpha1.UblkSnapshot) int { return strings.Compare(a.Name, b.Name) })
	return members, nil
}

// describeGroup is a group that was cut, as CSI shows it.
func describeGroup(id string, members []*v1alpha1.UblkSnapshot) *csi.VolumeGroupSnapshot {
	g := &csi.VolumeGroupSnapshot{GroupSnapshotId: id, ReadyToUse: true}
	for _, o := range members {
		d := describeSnapshot(o)
		g.Snapshots = append(g.Snapshots, d)
		g.CreationTime = d.CreationTime // of all, since they were cut at one moment
		g.ReadyToUse = g.ReadyToUse && d.ReadyToUse && len(members) == len(o.Spec.GroupMembers)
	}
	return g
}

// GetVolumeGroupSnapshot describes a group.
func (s *Service) GetVolumeGroupSnapshot(ctx context.Context, r *csi.GetVolumeGroupSnapshotRequest) (*csi.GetVolumeGroupSnapshotResponse, error) {
	if r.GetGroupSnapshotId() == "" {
		return nil, &driver.InvalidError{Field: "group_snapshot_id", Problem: "is empty"}
	}
	members, err := s.groupMembers(ctx, r.GetGroupSnapshotId())
	if err != nil {
		return nil, err
	}
	members = slices.DeleteFunc(members, func(o *v1alpha1.UblkSnapshot) bool { return !listed(o) })
	if len(members) == 0 {
		return nil, status.Errorf(codes.NotFound, "group snapshot %q does not exist", r.GetGroupSnapshotId())
	}
	if err := checkMembers(r.GetSnapshotIds(), members); err != nil {
		return nil, err
	}
	return &csi.GetVolumeGroupSnapshotResponse{GroupSnapshot: describeGroup(r.GetGroupSnapshotId(), members)}, nil
}

// checkMembers holds the ids that a request gives to the group as it was made: some of
// it may have been deleted.
func checkMembers(ids []string, members []*v1alpha1.UblkSnapshot) error {
	if len(ids) == 0 || sameSet(ids, members[0].Spec.GroupMembers) {
		return nil
	}
	return &driver.InvalidError{Field: "snapshot_ids", Problem: fmt.Sprintf("are %v", ids), Remedy: fmt.Sprintf("the group has %v", members[0].Spec.GroupMembers)}
}

// DeleteVolumeGroupSnapshot deletes all members. An unknown id is a success.
func (s *Service) DeleteVolumeGroupSnapshot(ctx context.Context, r *csi.DeleteVolumeGroupSnapshotRequest) (*csi.DeleteVolumeGroupSnapshotResponse, error) {
	id := r.GetGroupSnapshotId()
	if id == "" {
		return nil, &driver.InvalidError{Field: "group_snapshot_id", Problem: "is empty"}
	}
	release, err := s.lockSnapshot("group/"+id, "DeleteVolumeGroupSnapshot")
	if err != nil {
		return nil, err
	}
	defer release()
	members, err := s.groupMembers(ctx, id)
	if err != nil {
		return nil, err
	}
	if len(members) > 0 {
		if err := checkMembers(r.GetSnapshotIds(), members); err != nil {
			return nil, err
		}
	}
	for _, o := range members {
		if err := s.removeSnapshot(ctx, o); err != nil {
			return nil, err
		}
	}
	return &csi.DeleteVolumeGroupSnapshotResponse{}, nil
}
