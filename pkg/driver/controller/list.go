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

// tokenPrefix begins a page token; the rest is the last volume of the page
// before. Such a token stays good whatever comes and goes between two pages.
const tokenPrefix = "after:"

// ListVolumes lists from memory, in the order of ids, the volumes that are not
// being deleted.
func (s *Service) ListVolumes(_ context.Context, r *csi.ListVolumesRequest) (*csi.ListVolumesResponse, error) {
	if r.GetMaxEntries() < 0 {
		return nil, &driver.InvalidError{Field: "max_entries", Problem: "is negative", Remedy: "0 means all"}
	}
	after, err := parseToken(r.GetStartingToken())
	if err != nil {
		return nil, err
	}
	page, more, err := s.page(after, int(r.GetMaxEntries()))
	if err != nil {
		return nil, err
	}
	resp := &csi.ListVolumesResponse{}
	for _, v := range page {
		resp.Entries = append(resp.Entries, &csi.ListVolumesResponse_Entry{Volume: describe(v)})
	}
	if more {
		resp.NextToken = tokenPrefix + page[len(page)-1].Name
	}
	return resp, nil
}

func parseToken(token string) (after string, err error) {
	if token == "" {
		return "", nil
	}
	after, ok := strings.CutPrefix(token, tokenPrefix)
	if !ok || !driver.ValidVolumeID(after) {
		return "", status.Errorf(codes.Aborted, "starting_token %q is not one that this call gave; start again without one", token)
	}
	return after, nil
}

// page returns at most limit volumes (0: all) with ids after the given one, and
// whether there are more. The volumes are the cache's own: read only.
func (s *Service) page(after string, limit int) (page []*v1alpha1.UblkVolume, more bool, err error) {
	var all v1alpha1.UblkVolumeList
	if err := s.o.Client.List(context.Background(), &all, client.UnsafeDisableDeepCopy); err != nil {
		return nil, false, fmt.Errorf("list UblkVolumes: %w", err)
	}
	for i := range all.Items {
		if v := &all.Items[i]; v.Name > after && v.DeletionTimestamp == nil {
			page = append(page, v)
		}
	}
	slices.SortFunc(page, func(a, b *v1alpha1.UblkVolume) int { return strings.Compare(a.Name, b.Name) })
	if limit > 0 && len(page) > limit {
		return page[:limit], true, nil
	}
	return page, false, nil
}

// ControllerGetVolume describes one volume, from memory.
func (s *Service) ControllerGetVolume(_ context.Context, r *csi.ControllerGetVolumeRequest) (*csi.ControllerGetVolumeResponse, error) {
	v, err := s.existing(r.GetVolumeId())
	if err != nil {
		return nil, err
	}
	// The status has nothing to say: where a volume is published is not known
	// here (LIST_VOLUMES_PUBLISHED_NODES is not offered), but the field is required.
	return &csi.ControllerGetVolumeResponse{Volume: describe(v), Status: &csi.ControllerGetVolumeResponse_VolumeStatus{}}, nil
}

// existing is the cached volume of an id that a request gave.
func (s *Service) existing(id string) (*v1alpha1.UblkVolume, error) {
	if id == "" {
		return nil, &driver.InvalidError{Field: "volume_id", Problem: "is empty"}
	}
	v, err := s.cached(id)
	if err != nil {
		return nil, err
	}
	if v == nil {
		return nil, status.Errorf(codes.NotFound, "volume %q does not exist", id)
	}
	return v, nil
}
