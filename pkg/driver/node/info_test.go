//go:build !ublk

package node

import (
	"context"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/csi-ublk/csi-ublk/pkg/driver"
	"github.com/csi-ublk/csi-ublk/pkg/server/client"
)

// sharedKernel is a device server on a kernel that others use, too.
type sharedKernel struct {
	emptyServer
	info client.Info
}

func (s sharedKernel) Info(context.Context) (client.Info, error) { return s.info, nil }

func TestHowManyVolumesANodeTakes(t *testing.T) {
	for name, c := range map[string]struct {
		info client.Info
		flag int64
		want int64
	}{
		"an idle kernel":                    {client.Info{DevicesMax: 100}, 0, 100},
		"its own devices do not count":      {client.Info{DevicesMax: 100, DevicesUsed: 30, Attached: 25, Releasing: 5}, 0, 100},
		"those of others do":                {client.Info{DevicesMax: 100, DevicesUsed: 30, Attached: 10, Releasing: 5}, 0, 85},
		"more attached than there are yet":  {client.Info{DevicesMax: 100, DevicesUsed: 1, Attached: 3}, 0, 100},
		"others have all; 0 would mean any": {client.Info{DevicesMax: 100, DevicesUsed: 120}, 0, 1},
		"what the flag says":                {client.Info{DevicesMax: 100, DevicesUsed: 30}, 40, 40},
	} {
		s, err := (&Service{o: Options{NodeName: "n1", MaxVolumes: c.flag, Devices: sharedKernel{info: c.info}}}).NodeGetInfo(t.Context(), &csi.NodeGetInfoRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if s.MaxVolumesPerNode != c.want || s.NodeId != "n1" || s.AccessibleTopology.Segments[driver.TopologyKey] != "n1" {
			t.Errorf("%s: %v, want %d volumes", name, s, c.want)
		}
	}
}
