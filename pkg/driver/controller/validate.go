package controller

import (
	"context"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/csi-ublk/csi-ublk/pkg/driver"
)

// ValidateVolumeCapabilities confirms what a volume can do. What it can't is no
// error: the answer then confirms nothing and says why.
func (s *Service) ValidateVolumeCapabilities(_ context.Context, r *csi.ValidateVolumeCapabilitiesRequest) (*csi.ValidateVolumeCapabilitiesResponse, error) {
	if len(r.GetVolumeCapabilities()) == 0 {
		return nil, &driver.InvalidError{Field: "volume_capabilities", Problem: "is empty", Remedy: "give at least one"}
	}
	v, err := s.existing(r.GetVolumeId())
	if err != nil {
		return nil, err
	}
	no := func(why string) (*csi.ValidateVolumeCapabilitiesResponse, error) {
		return &csi.ValidateVolumeCapabilitiesResponse{Message: why}, nil
	}
	least, err := checkCapabilities(r.GetVolumeCapabilities())
	if err != nil {
		return no(err.Error())
	}
	if v.Spec.CapacityBytes < least {
		return no(fmt.Sprintf("the volume has %d bytes, a file system of this type needs %d", v.Spec.CapacityBytes, least))
	}
	has := params{v.Spec.Pool, v.Spec.Queues, v.Spec.QueueDepth}
	for key, value := range r.GetVolumeContext() {
		if is, ours := has.context()[key]; ours && is != value {
			return no(fmt.Sprintf("volume_context[%q] is %q, the volume has %q", key, value, is))
		}
	}
	if len(r.GetParameters()) > 0 {
		p, err := parseParams(r.GetParameters())
		if err != nil {
			return no(err.Error())
		}
		if p != has {
			return no(fmt.Sprintf("parameters are %v, the volume has %v", p.context(), has.context()))
		}
	}
	l, err := modified(limitsOf(v.Spec.Limits), r.GetMutableParameters())
	if err != nil {
		return no(err.Error())
	}
	if l != limitsOf(v.Spec.Limits) {
		return no(fmt.Sprintf("mutable_parameters are %v, the volume has %+v", r.GetMutableParameters(), limitsOf(v.Spec.Limits)))
	}
	return &csi.ValidateVolumeCapabilitiesResponse{
		Confirmed: &csi.ValidateVolumeCapabilitiesResponse_Confirmed{
			VolumeContext:      r.GetVolumeContext(),
			VolumeCapabilities: r.GetVolumeCapabilities(),
			Parameters:         r.GetParameters(),
			MutableParameters:  r.GetMutableParameters(),
		},
	}, nil
}
