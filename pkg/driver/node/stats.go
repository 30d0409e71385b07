package node

import (
	"context"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csi-ublk/csi-ublk/pkg/driver"
	"github.com/csi-ublk/csi-ublk/pkg/driver/mount"
	"github.com/csi-ublk/csi-ublk/pkg/pool/blockdev"
	"github.com/csi-ublk/csi-ublk/pkg/server/client"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// statsPatience is how long a file system may take to answer. One that hangs
// costs one blocked thread, however often it is asked.
const statsPatience = 10 * time.Second

// NodeGetVolumeStats returns the space of a published or staged volume. It takes
// no lock, and the same time with any number of volumes.
func (s *Service) NodeGetVolumeStats(ctx context.Context, r *csi.NodeGetVolumeStatsRequest) (*csi.NodeGetVolumeStatsResponse, error) {
	if err := checkVolumeID(r.GetVolumeId()); err != nil {
		return nil, err
	}
	path := r.GetVolumePath()
	if path == "" {
		return nil, &driver.InvalidError{Field: "volume_path", Problem: "is empty"}
	}
	if !filepath.IsAbs(path) {
		return nil, fmt.Errorf("volume_path %q is not absolute, nothing is there: %w", path, fs.ErrNotExist)
	}
	device, err := s.o.Devices.Get(ctx, localID(r.GetVolumeId()))
	of := &device
	switch driver.Code(err) {
	case codes.OK:
	case codes.Unavailable:
		of = nil // the path has to do
	default:
		return nil, fmt.Errorf("volume %s: %w", r.GetVolumeId(), err)
	}
	hung := time.NewTimer(statsPatience)
	defer hung.Stop()
	select {
	case done := <-s.stats.DoChan(path, func() (any, error) { return statsAt(path, of) }):
		if done.Err != nil {
			return nil, fmt.Errorf("stats of volume %s: %w", r.GetVolumeId(), done.Err)
		}
		return &csi.NodeGetVolumeStatsResponse{Usage: done.Val.([]*csi.VolumeUsage)}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-hung.C:
		return nil, status.Errorf(codes.Unavailable, "stats of volume %s: the file system at %s has not answered for %v", r.GetVolumeId(), path, statsPatience)
	}
}

// statsAt looks at a path, where the given device must be; nil means any.
func statsAt(path string, device *client.Device) ([]*csi.VolumeUsage, error) {
	at, err := mount.At(path)
	if err != nil {
		return nil, err
	}
	if !at.Exists || !at.Mounted {
		return nil, fmt.Errorf("nothing is mounted at %s: %w", path, fs.ErrNotExist)
	}
	if at.Corrupt {
		return nil, fmt.Errorf("the mount at %s answers errors: %w", path, unix.EIO)
	}
	number := at.Device
	if at.IsBlock() {
		number = at.Rdev
	}
	if device != nil && number != unix.Mkdev(device.Major, device.Minor) {
		return nil, fmt.Errorf("another volume is mounted at %s: %w", path, fs.ErrNotExist)
	}
	if at.IsBlock() {
		return blockStats(path, device)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return nil, &fs.PathError{Op: "statfs", Path: path, Err: err}
	}
	return []*csi.VolumeUsage{
		{
			Unit:      csi.VolumeUsage_BYTES,
			Total:     int64(st.Blocks) * st.Frsize,
			Used:      int64(st.Blocks-st.Bfree) * st.Frsize,
			Available: int64(st.Bavail) * st.Frsize,
		},
		{
			Unit:      csi.VolumeUsage_INODES,
			Total:     int64(st.Files),
			Used:      int64(st.Files - st.Ffree),
			Available: int64(st.Ffree),
		},
	}, nil
}

func blockStats(path string, device *client.Device) ([]*csi.VolumeUsage, error) {
	if device != nil {
		return []*csi.VolumeUsage{{Unit: csi.VolumeUsage_BYTES, Total: int64(device.SizeBytes)}}, nil
	}
	size, err := blockdev.Size(path)
	if err != nil {
		return nil, err
	}
	return []*csi.VolumeUsage{{Unit: csi.VolumeUsage_BYTES, Total: size}}, nil
}
