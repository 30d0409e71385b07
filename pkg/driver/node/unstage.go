package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csi-ublk/csi-ublk/pkg/driver"
	"github.com/csi-ublk/csi-ublk/pkg/driver/mount"
	"github.com/csi-ublk/csi-ublk/pkg/pool"
	"github.com/csi-ublk/csi-ublk/pkg/pool/blockdev"
	"github.com/csi-ublk/csi-ublk/pkg/server/client"
	"google.golang.org/grpc/codes"
)

// NodeUnstageVolume unmounts a volume's file system and detaches its device. When
// it returns OK, both are seen to be gone.
func (s *Service) NodeUnstageVolume(ctx context.Context, r *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	if err := checkVolumeID(r.GetVolumeId()); err != nil {
		return nil, err
	}
	if err := checkPath("staging_target_path", r.GetStagingTargetPath()); err != nil {
		return nil, err
	}
	err := s.exclusive(ctx, r.GetVolumeId(), "NodeUnstageVolume", func(ctx context.Context) error {
		if err := s.timed(phaseUnmount, func() error { return unmount(r.GetStagingTargetPath()) }); err != nil {
			return err
		}
		if pool.CheckID(r.GetVolumeId()) != nil {
			return nil // such a volume was never attached
		}
		return s.detach(ctx, r.GetVolumeId())
	})
	if err != nil {
		return nil, err
	}
	if s.o.OnDetached != nil {
		s.o.OnDetached(r.GetVolumeId())
	}
	return &csi.NodeUnstageVolumeResponse{}, nil
}

// unmount removes what is mounted at path. Only the mount of a device that is gone
// may be detached lazily.
func unmount(path string) error {
	at, err := mount.At(path)
	if err != nil {
		return err
	}
	if at.Corrupt || at.Mounted && at.IsDir() && !blockdev.Exists(at.Device) {
		return mount.UnmountStale(path)
	}
	return mount.Unmount(path)
}

// detach gives a volume's device up and looks again whether it is gone.
func (s *Service) detach(ctx context.Context, id string) error {
	err := s.timed(phaseDetach, func() error {
		return whileUnavailable(ctx, func(ctx context.Context) error {
			device, err := s.o.Devices.Get(ctx, id)
			if driver.Code(err) == codes.NotFound {
				return nil
			}
			if err != nil {
				return err
			}
			if err := unused(ctx, device); err != nil {
				return err
			}
			if err := s.o.Devices.Detach(ctx, id); err != nil {
				return err
			}
			if left, err := s.o.Devices.Get(ctx, id); driver.Code(err) != codes.NotFound {
				return errors.Join(err, fmt.Errorf("the server still has device %s, %s", left.Path, left.State))
			}
			return nil
		})
	})
	if err != nil {
		return fmt.Errorf("detach: %w", err)
	}
	return nil
}

// unmountSettles is how long the kernel may take, after unmount, to let go of the
// device: its last reference falls in the background.
const unmountSettles = 2 * time.Second

// unused waits until nothing holds the device exclusively. A file system that is
// mounted in some other namespace would lose its disk.
func unused(ctx context.Context, device client.Device) error {
	if blockdev.Verify(device.Path, device.Major, device.Minor) != nil {
		return nil // no such disk: nothing can hold it
	}
	for deadline := time.Now().Add(unmountSettles); ; {
		err := blockdev.CheckUnused(device.Path)
		if !errors.Is(err, blockdev.ErrInUse) {
			return nil // what else is wrong with it is the server's to judge
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("its file system is still mounted somewhere on the node: %w", err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(10 * time.Millisecond):
		}
	}
}
