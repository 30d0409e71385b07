package client

import (
	"context"
	"time"

	serverv1 "github.com/csi-ublk/csi-ublk/pkg/server/api/v1"
)

// A Copy names an attached volume and the file that its copy goes into: an empty
// regular file in the same pool, by its absolute path.
type Copy struct {
	VolumeID   string
	TargetPath string
}

// Cut clones the files of attached volumes, all at one moment, and returns how long
// their requests were held back for it. It blocks for a few seconds at most. After an
// error the volumes are as before, and no target is of use.
func (c *Client) Cut(ctx context.Context, copies []Copy) (held time.Duration, err error) {
	r := &serverv1.CutRequest{Copies: make([]*serverv1.CutRequest_Copy, len(copies))}
	for i, o := range copies {
		r.Copies[i] = &serverv1.CutRequest_Copy{VolumeId: o.VolumeID, TargetPath: o.TargetPath}
	}
	a, err := c.devices.Cut(ctx, r)
	if err != nil {
		return 0, err
	}
	return time.Duration(a.HeldNs), nil
}
