package node

import (
	"context"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csi-ublk/csi-ublk/pkg/driver"
	"github.com/csi-ublk/csi-ublk/pkg/server/client"
)

// NodeGetInfo says which node this is and how many volumes it takes. Kubelet calls
// it when the plugin registers, and now and then if CSIDriver says so; it waits for the
// device server.
func (s *Service) NodeGetInfo(ctx context.Context, _ *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	limit := s.o.MaxVolumes
	if limit == 0 {
		var info client.Info
		err := whileUnavailable(ctx, func(ctx context.Context) (err error) {
			info, err = s.o.Devices.Info(ctx)
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("ask the device server how many devices it takes: %w", err)
		}
		limit = devicesFor(info)
	}
	return &csi.NodeGetInfoResponse{
		NodeId:             s.o.NodeName,
		MaxVolumesPerNode:  limit,
		AccessibleTopology: &csi.Topology{Segments: map[string]string{driver.TopologyKey: s.o.NodeName}},
	}, nil
}

// devicesFor is how many devices of the kernel's there can be for volumes of this node:
// all but those of others. It is never 0, which would mean any number.
func devicesFor(i client.Info) int64 {
	others := max(0, int64(i.DevicesUsed)-int64(i.Attached)-int64(i.Releasing))
	return max(1, int64(i.DevicesMax)-others)
}
