package client

import (
	"context"

	serverv1 "github.com/csi-ublk/csi-ublk/pkg/server/api/v1"
)

// Resize makes a volume's device as large as its file is now, and returns the device's
// size in bytes; 0 if the volume is not attached. UNIMPLEMENTED: this kernel can't do it
// while the device is there, and the next attach does.
func (c *Client) Resize(ctx context.Context, volumeID string) (sizeBytes uint64, err error) {
	r, err := c.devices.Resize(ctx, &serverv1.ResizeRequest{VolumeId: volumeID})
	if err != nil {
		return 0, err
	}
	return r.SizeBytes, nil
}
