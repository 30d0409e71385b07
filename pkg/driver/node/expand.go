package node

import (
	"context"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csi-ublk/csi-ublk/pkg/driver"
	"github.com/csi-ublk/csi-ublk/pkg/driver/mount"
	"github.com/csi-ublk/csi-ublk/pkg/pool/blockdev"
	"github.com/csi-ublk/csi-ublk/pkg/server/client"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// NodeExpandVolume makes what a pod sees of a volume as large as the volume's file,
// which the controller has had grown: the device, if it lags behind, and the file
// system on it, while both are in use.
func (s *Service) NodeExpandVolume(ctx context.Context, r *csi.NodeExpandVolumeRequest) (*csi.NodeExpandVolumeResponse, error) {
	if err := checkVolumeID(r.GetVolumeId()); err != nil {
		return nil, err
	}
	if r.GetVolumePath() == "" {
		return nil, &driver.InvalidError{Field: "volume_path", Problem: "is empty"}
	}
	if !filepath.IsAbs(r.GetVolumePath()) {
		// As in NodeGetVolumeStats; csi-sanity asks both with such a path.
		return nil, fmt.Errorf("volume_path %q is not absolute, nothing is there: %w", r.GetVolumePath(), fs.ErrNotExist)
	}
	required, limit := r.GetCapacityRange().GetRequiredBytes(), r.GetCapacityRange().GetLimitBytes()
	if required < 0 || limit < 0 || limit > 0 && required > limit {
		return nil, &driver.InvalidError{Field: "capacity_range", Problem: fmt.Sprintf("requires %d bytes and limits to %d", required, limit)}
	}
	block := false
	if c := r.GetVolumeCapability(); c != nil { // optional
		a, err := parseAccess(c)
		if err != nil {
			return nil, err
		}
		block = a.block
	}
	var size int64
	err := s.exclusive(ctx, r.GetVolumeId(), "NodeExpandVolume", func(ctx context.Context) (err error) {
		size, err = s.expand(ctx, r.GetVolumeId(), r.GetVolumePath(), block, required, limit)
		return err
	})
	if err != nil {
		return nil, err
	}
	return &csi.NodeExpandVolumeResponse{CapacityBytes: size}, nil
}

func (s *Service) expand(ctx context.Context, id, path string, block bool, required, limit int64) (size int64, err error) {
	device, err := s.stagedDevice(ctx, id)
	if err != nil {
		return 0, err
	}
	if device, err = s.growDevice(ctx, device, required); err != nil {
		return 0, err
	}
	size = int64(device.SizeBytes)
	if limit > 0 && size > limit {
		return 0, fmt.Errorf("the volume has %d bytes, and %d are the limit: a volume is never made smaller: %w", size, limit, unix.ERANGE)
	}
	if err := blockdev.Verify(device.Path, device.Major, device.Minor); err != nil {
		return 0, err
	}
	// What the kernel says counts, not what the server believes.
	has, err := blockdev.Size(device.Path)
	if err != nil {
		return 0, err
	}
	if has < size {
		return 0, fmt.Errorf("the kernel's device %s has %d bytes, the server's %d", device.Path, has, size)
	}
	return size, s.expandAt(device, path, block)
}

// expandAt grows what is at a path, where the device must be.
func (s *Service) expandAt(device client.Device, path string, block bool) error {
	at, err := mount.At(path)
	if err != nil {
		return err
	}
	number := unix.Mkdev(device.Major, device.Minor)
	switch {
	case at.Corrupt:
		return fmt.Errorf("the mount at %s answers errors: %w", path, unix.EIO)
	case at.Mounted && at.IsBlock() && at.Rdev == number, block && !at.Mounted:
		return nil // the device is all that there is; kubelet's path may be any that leads to it
	case !at.Mounted || at.Device != number:
		return fmt.Errorf("the volume is not at %s: %w", path, fs.ErrNotExist)
	}
	readOnly, err := mount.ReadOnly(path)
	if err != nil {
		return err
	}
	if readOnly {
		return status.Errorf(codes.FailedPrecondition, "the file system at %s is mounted read-only and can't grow: it does when it is next staged to be written", path)
	}
	return s.fillDevice(device, path, access{})
}

// stagedDevice returns the device of a volume that is staged, and says otherwise
// whether the volume is here at all.
func (s *Service) stagedDevice(ctx context.Context, id string) (client.Device, error) {
	var device client.Device
	err := whileUnavailable(ctx, func(ctx context.Context) (err error) {
		device, err = s.o.Devices.Get(ctx, localID(id))
		return err
	})
	if driver.Code(err) != codes.NotFound {
		return device, err
	}
	if _, here := s.poolOf(id); here {
		return client.Device{}, status.Errorf(codes.FailedPrecondition, "volume %s is not staged: it has its size when it is", id)
	}
	return client.Device{}, fmt.Errorf("volume %s is not on this node: %w", id, fs.ErrNotExist)
}

// growDevice has a device that is smaller than required made as large as its file.
func (s *Service) growDevice(ctx context.Context, device client.Device, required int64) (client.Device, error) {
	if p, _ := s.ephemeral(device.VolumeID); p != nil {
		return device, status.Error(codes.FailedPrecondition, "an inline volume keeps the size that its pod asked for: use a claim for one that can grow")
	}
	if required > 0 && int64(device.SizeBytes) >= required {
		return device, nil
	}
	var size uint64
	err := whileUnavailable(ctx, func(ctx context.Context) (err error) {
		size, err = s.o.Devices.Resize(ctx, device.VolumeID)
		return err
	})
	switch {
	case driver.Code(err) == codes.Unimplemented && required > 0:
		return device, status.Errorf(codes.FailedPrecondition, "the device has %d bytes, and this kernel can't resize one that is in use (ublk UPDATE_SIZE): the volume grows when it is next staged; delete the pod that uses it", device.SizeBytes)
	case driver.Code(err) == codes.Unimplemented:
		return device, nil // asked for is what the device has
	case err != nil:
		return device, fmt.Errorf("resize device %s: %w", device.Path, err)
	case int64(size) < required:
		return device, status.Errorf(codes.Unavailable, "the volume's file has %d bytes and %d are required: the controller has it grown first (ControllerExpandVolume)", size, required)
	}
	device.SizeBytes = size
	return device, nil
}
