package controller

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/csi-ublk/csi-ublk/pkg/capacity"
)

// GetCapacity says how many bytes may still be promised in a pool: on one node,
// or on all together. maximum_volume_size is the largest volume that one node
// can take, which is what the scheduler goes by.
func (s *Service) GetCapacity(_ context.Context, r *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error) {
	p, err := parseParams(r.GetParameters())
	if err != nil {
		return nil, err
	}
	least := int64(leastBlockBytes)
	if caps := r.GetVolumeCapabilities(); len(caps) > 0 {
		if least, err = checkCapabilities(caps); err != nil {
			return capacityOf(0, 0, 0), nil // there is no room for what is not offered
		}
	}
	if r.GetAccessibleTopology() == nil {
		total, largest := s.o.Ledger.Capacity(p.pool)
		return capacityOf(total, largest, least), nil
	}
	node, err := nodeOf("accessible_topology", r.GetAccessibleTopology())
	if err != nil {
		return nil, err
	}
	free := s.o.Ledger.Available(capacity.Place{Node: node, Pool: p.pool})
	return capacityOf(free, free, least), nil
}

// capacityOf rounds down to what CreateVolume, which rounds up, can deliver.
func capacityOf(total, largest, least int64) *csi.GetCapacityResponse {
	return &csi.GetCapacityResponse{
		AvailableCapacity: total / mib * mib,
		MaximumVolumeSize: wrapperspb.Int64(largest / mib * mib),
		MinimumVolumeSize: wrapperspb.Int64(least),
	}
}
