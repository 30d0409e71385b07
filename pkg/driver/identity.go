package driver

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// IdentityOptions configures the identity service.
type IdentityOptions struct {
	// Version is the driver's version. "" is reported as "unknown": the CSI spec
	// requires one.
	Version string
	// Ready answers Probe: false while the plugin starts or waits for its lease;
	// an error, when it can't work, becomes FAILED_PRECONDITION. It must not
	// block. nil means always ready.
	Ready func(ctx context.Context) (bool, error)
	// SnapshotMetadata says that the cluster's driver tells which blocks of snapshots
	// have changed; in all roles alike.
	SnapshotMetadata bool
}

// Identity is the CSI identity service. All roles give the same answers, as
// the CSI spec demands of all instances of one version.
type Identity struct {
	csi.UnimplementedIdentityServer
	o IdentityOptions
}

// NewIdentity returns the identity service.
func NewIdentity(o IdentityOptions) *Identity {
	if o.Version == "" {
		o.Version = "unknown"
	}
	return &Identity{o: o}
}

// GetPluginInfo names the driver and its version.
func (s *Identity) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: Name, VendorVersion: s.o.Version}, nil
}

// GetPluginCapabilities says that there is a controller service, also for groups of
// snapshots, that a volume can be reached from one node only, and that it grows while it
// is used; and whether there is a snapshot metadata service.
func (s *Identity) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	services := []csi.PluginCapability_Service_Type{
		csi.PluginCapability_Service_CONTROLLER_SERVICE,
		csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS,
		csi.PluginCapability_Service_GROUP_CONTROLLER_SERVICE,
	}
	if s.o.SnapshotMetadata {
		services = append(services, csi.PluginCapability_Service_SNAPSHOT_METADATA_SERVICE)
	}
	r := &csi.GetPluginCapabilitiesResponse{}
	for _, t := range services {
		r.Capabilities = append(r.Capabilities, &csi.PluginCapability{
			Type: &csi.PluginCapability_Service_{Service: &csi.PluginCapability_Service{Type: t}},
		})
	}
	r.Capabilities = append(r.Capabilities, &csi.PluginCapability{
		Type: &csi.PluginCapability_VolumeExpansion_{VolumeExpansion: &csi.PluginCapability_VolumeExpansion{Type: csi.PluginCapability_VolumeExpansion_ONLINE}},
	})
	return r, nil
}

// Probe says whether the plugin can take calls now.
func (s *Identity) Probe(ctx context.Context, _ *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	if s.o.Ready == nil {
		return &csi.ProbeResponse{Ready: wrapperspb.Bool(true)}, nil
	}
	ready, err := s.o.Ready(ctx)
	if err != nil {
		return nil, status.Error(codes.FailedPrecondition, err.Error())
	}
	return &csi.ProbeResponse{Ready: wrapperspb.Bool(ready)}, nil
}
