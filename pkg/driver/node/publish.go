package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csi-ublk/csi-ublk/pkg/driver"
	"github.com/csi-ublk/csi-ublk/pkg/driver/mount"
	"github.com/csi-ublk/csi-ublk/pkg/pool/blockdev"
	"github.com/csi-ublk/csi-ublk/pkg/server/client"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// NodePublishVolume makes a staged volume visible at a pod's target path: the file
// system by a bind mount, a raw block volume by a bind mount of its device node.
func (s *Service) NodePublishVolume(ctx context.Context, r *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	if err := checkVolumeID(r.GetVolumeId()); err != nil {
		return nil, err
	}
	if err := checkPath("target_path", r.GetTargetPath()); err != nil {
		return nil, err
	}
	a, err := parseAccess(r.GetVolumeCapability())
	if err != nil {
		return nil, err
	}
	if r.GetReadonly() {
		a.readOnly, a.flags = true, a.flags.WithReadOnly()
	}
	if isEphemeral(r.GetVolumeContext()) {
		if err := s.publishEphemeral(ctx, r, a); err != nil {
			return nil, err
		}
		return &csi.NodePublishVolumeResponse{}, nil
	}
	if r.GetStagingTargetPath() == "" {
		return nil, status.Error(codes.FailedPrecondition, "staging_target_path is empty: the volume must be staged first")
	}
	if err := checkPath("staging_target_path", r.GetStagingTargetPath()); err != nil {
		return nil, err
	}
	err = s.exclusive(ctx, r.GetVolumeId(), "NodePublishVolume", func(ctx context.Context) error {
		return s.timed(phasePublish, func() error {
			if a.block {
				return s.publishBlock(ctx, r.GetVolumeId(), r.GetTargetPath(), a)
			}
			return s.publishMount(r.GetStagingTargetPath(), r.GetTargetPath(), a)
		})
	})
	if err != nil {
		return nil, err
	}
	return &csi.NodePublishVolumeResponse{}, nil
}

func (s *Service) publishMount(staging, target string, a access) error {
	from, err := mount.At(staging)
	if err != nil {
		return err
	}
	if !from.Mounted || from.Corrupt || !blockdev.Exists(from.Device) {
		return status.Errorf(codes.FailedPrecondition, "the volume is not staged at %s, or its device is gone: stage it again", staging)
	}
	at, err := clearStale(target)
	if err != nil {
		return err
	}
	if at.Mounted {
		if at.Device != from.Device {
			return fmt.Errorf("target path %s holds a mount of another volume: %w", target, fs.ErrExist)
		}
		return s.sameMount(target, a)
	}
	if a.single {
		if err := s.published.single(target, from.Device, staging); err != nil {
			return err
		}
	}
	// The parent is kubelet's.
	if err := os.Mkdir(target, 0o750); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("make target path: %w", err)
	}
	if err := mount.Bind(staging, target, a.flags); err != nil {
		return errors.Join(err, os.Remove(target))
	}
	s.published.add(target, from.Device)
	return nil
}

func (s *Service) publishBlock(ctx context.Context, id, target string, a access) error {
	var device client.Device
	err := whileUnavailable(ctx, func(ctx context.Context) (err error) {
		device, err = s.o.Devices.Get(ctx, id)
		return err
	})
	if driver.Code(err) == codes.NotFound {
		return status.Error(codes.FailedPrecondition, "the volume is not staged: stage it first")
	}
	if err != nil {
		return err
	}
	if err := blockdev.Verify(device.Path, device.Major, device.Minor); err != nil {
		return err
	}
	at, err := clearStale(target)
	if err != nil {
		return err
	}
	if at.Mounted {
		if !at.IsBlock() || at.Rdev != unix.Mkdev(device.Major, device.Minor) {
			return fmt.Errorf("target path %s holds something else than %s: %w", target, device.Path, fs.ErrExist)
		}
		readOnly, err := mount.ReadOnly(target)
		if err == nil && readOnly != a.readOnly {
			err = fmt.Errorf("target path %s is published read-only %v, asked for is %v: %w", target, readOnly, a.readOnly, fs.ErrExist)
		}
		return err
	}
	if a.single {
		if err := s.published.single(target, unix.Mkdev(device.Major, device.Minor), ""); err != nil {
			return err
		}
	}
	f, err := os.OpenFile(target, os.O_CREATE, 0o640)
	if err != nil {
		return fmt.Errorf("make target path: %w", err)
	}
	f.Close()
	// Read-only marks the mount, for repeated calls to compare; that the pod can't
	// write is seen to by the container runtime.
	if err := mount.Bind(device.Path, target, a.flags); err != nil {
		return errors.Join(err, os.Remove(target))
	}
	s.published.add(target, unix.Mkdev(device.Major, device.Minor))
	return nil
}

// clearStale returns what is at target, after removing what a device that is gone
// has left mounted there.
func clearStale(target string) (mount.State, error) {
	at, err := mount.At(target)
	if err != nil {
		return at, err
	}
	gone := at.Mounted && (at.IsDir() && !blockdev.Exists(at.Device) || at.IsBlock() && !blockdev.Exists(at.Rdev))
	if !at.Corrupt && !gone {
		return at, nil
	}
	if err := mount.UnmountStale(target); err != nil {
		return at, err
	}
	return mount.At(target)
}

// NodeUnpublishVolume removes the mount at a target path, and the path itself.
func (s *Service) NodeUnpublishVolume(ctx context.Context, r *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	if err := checkVolumeID(r.GetVolumeId()); err != nil {
		return nil, err
	}
	if err := checkPath("target_path", r.GetTargetPath()); err != nil {
		return nil, err
	}
	id := localID(r.GetVolumeId())
	err := s.exclusive(ctx, id, "NodeUnpublishVolume", func(ctx context.Context) error {
		var disk uint64
		err := s.timed(phaseUnmount, func() (err error) {
			disk, err = unpublish(r.GetTargetPath())
			return err
		})
		if err != nil {
			return err
		}
		s.published.remove(r.GetTargetPath())
		return s.unpublishEphemeral(ctx, id, r.GetTargetPath(), disk)
	})
	if err != nil {
		return nil, err
	}
	return &csi.NodeUnpublishVolumeResponse{}, nil
}

func unpublish(target string) (disk uint64, err error) {
	if disk, err = unmount(target); err != nil {
		return 0, err
	}
	// Never all that is below: what is there was not put there by us.
	if err := os.Remove(target); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0, fmt.Errorf("remove target path: %w", err)
	}
	return disk, nil
}
