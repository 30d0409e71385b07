package controller

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csi-ublk/csi-ublk/pkg/api/v1alpha1"
	"github.com/csi-ublk/csi-ublk/pkg/driver"
)

// ListSnapshots lists from memory, in the order of ids, the snapshots that were cut
// and are not being deleted, whether their volumes still exist or not.
func (s *Service) ListSnapshots(_ context.Context, r *csi.ListSnapshotsRequest) (*csi.ListSnapshotsResponse, error) {
	if r.GetMaxEntries() < 0 {
		return nil, &driver.InvalidError{Field: "max_entries", Problem: "is negative", Remedy: "0 means all"}
	}
	after, err := parseToken(r.GetStartingToken())
	if err != nil {
		return nil, err
	}
	page, err := s.snapshots(func(o *v1alpha1.UblkSnapshot) bool {
		return o.Name > after &&
			(r.GetSnapshotId() == "" || o.Name == r.GetSnapshotId()) &&
			(r.GetSourceVolumeId() == "" || o.Spec.Volume == r.GetSourceVolumeId())
	})
	if err != nil {
		return nil, err
	}
	resp := &csi.ListSnapshotsResponse{}
	if limit := int(r.GetMaxEntries()); limit > 0 && len(page) > limit {
		page = page[:limit]
		resp.NextToken = tokenPrefix + page[limit-1].Name
	}
	for _, o := range page {
		resp.Entries = append(resp.Entries, &csi.ListSnapshotsResponse_Entry{Snapshot: describeSnapshot(o)})
	}
	return resp, nil
}

// snapshots returns those that exist for the caller and are wanted, by id. They are
// the cache's own: read only.
func (s *Service) snapshots(wanted func(*v1alpha1.UblkSnapshot) bool) ([]*v1alpha1.UblkSnapshot, error) {
	var all v1alpha1.UblkSnapshotList
	if err := s.o.Client.List(context.Background(), &all, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list UblkSnapshots: %w", err)
	}
	var list []*v1alpha1.UblkSnapshot
	for i := range all.Items {
		if o := &all.Items[i]; listed(o) && wanted(o) {
			list = append(list, o)
		}
	}
	slices.SortFunc(list, func(a, b *v1alpha1.UblkSnapshot) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}

func listed(o *v1alpha1.UblkSnapshot) bool {
	return o.DeletionTimestamp == nil && o.Status.CreatedAt != nil
}

// GetSnapshot describes one snapshot, from memory.
func (s *Service) GetSnapshot(_ context.Context, r *csi.GetSnapshotRequest) (*csi.GetSnapshotResponse, error) {
	if r.GetSnapshotId() == "" {
		return nil, &driver.InvalidError{Field: "snapshot_id", Problem: "is empty"}
	}
	o, err := s.cachedSnapshot(r.GetSnapshotId())
	if err != nil {
		return nil, err
	}
	if o == nil || !listed(o) {
		return nil, status.Errorf(codes.NotFound, "snapshot %q does not exist", r.GetSnapshotId())
	}
	return &csi.GetSnapshotResponse{Snapshot: describeSnapshot(o)}, nil
}
