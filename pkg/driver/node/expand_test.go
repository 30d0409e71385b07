//go:build !ublk

package node

import (
	"context"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csi-ublk/csi-ublk/pkg/driver"
	"google.golang.org/grpc/codes"
)

func TestExpandRequests(t *testing.T) {
	s, p := newUnitService(t)
	if err := p.Create("v", 1<<20); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		change func(*csi.NodeExpandVolumeRequest)
		code   codes.Code
		says   string
	}{
		"no volume id":    {func(r *csi.NodeExpandVolumeRequest) { r.VolumeId = "" }, codes.InvalidArgument, "volume_id"},
		"no path":         {func(r *csi.NodeExpandVolumeRequest) { r.VolumePath = "" }, codes.InvalidArgument, "volume_path"},
		"a relative path": {func(r *csi.NodeExpandVolumeRequest) { r.VolumePath = "a/b" }, codes.NotFound, "not absolute"},
		"a negative size": {func(r *csi.NodeExpandVolumeRequest) { r.CapacityRange = &csi.CapacityRange{RequiredBytes: -1} }, codes.InvalidArgument, "capacity_range"},
		"a limit below the size": {func(r *csi.NodeExpandVolumeRequest) {
			r.CapacityRange = &csi.CapacityRange{RequiredBytes: 2, LimitBytes: 1}
		}, codes.InvalidArgument, "capacity_range"},
		"a capability that is none": {func(r *csi.NodeExpandVolumeRequest) { r.VolumeCapability = &csi.VolumeCapability{} }, codes.InvalidArgument, "volume_capability"},
		"an unknown volume":         {func(r *csi.NodeExpandVolumeRequest) { r.VolumeId = "w" }, codes.NotFound, "not on this node"},
		"a path as an id":           {func(r *csi.NodeExpandVolumeRequest) { r.VolumeId = "../v" }, codes.NotFound, "not on this node"},
		"a volume not staged":       {func(*csi.NodeExpandVolumeRequest) {}, codes.FailedPrecondition, "not staged"},
	} {
		t.Run(name, func(t *testing.T) {
			r := &csi.NodeExpandVolumeRequest{VolumeId: "v", VolumePath: "/nowhere", CapacityRange: &csi.CapacityRange{RequiredBytes: 2 << 20}}
			c.change(r)
			_, err := s.NodeExpandVolume(context.Background(), r)
			if driver.Code(err) != c.code || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v (%v), want %v %q", driver.Code(err), err, c.code, c.says)
			}
		})
	}
}
