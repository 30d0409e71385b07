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
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
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
		var disk uint64
		err := s.timed(phaseUnmount, func() (err error) {
			disk, err = unmount(r.GetStagingTargetPath())
			return err
		})
		if err != nil {
			return err
		}
		if pool.CheckID(r.GetVolumeId()) != nil {
			return nil // such a volume was never attached
		}
		return s.detach(ctx, r.GetVolumeId(), disk)
	})
	if err != nil {
		return nil, err
	}
	if s.o.OnDetached != nil {
		s.o.OnDetached(r.GetVolumeId())
	}
	return &csi.NodeUnstageVolumeResponse{}, nil
}

// unmount removes what is mounted at path, and returns the number of the disk that
// was: of the file system, or of the device node that was bound there. It is 0 if
// nothing was mounted. Only the mount of a device that is gone may be detached
// lazily.
func unmount(path string) (disk uint64, err error) {
	at, err := mount.At(path)
	if err != nil {
		return 0, err
	}
	switch {
	case at.Corrupt || at.Mounted && at.IsDir() && !blockdev.Exists(at.Device):
		return 0, mount.UnmountStale(path)
	case at.Mounted && at.IsBlock():
		disk = at.Rdev
	case at.Mounted:
		disk = at.Device
	}
	return disk, mount.Unmount(path)
}

// detach gives a volume's device up; it is gone when the server says so. disk is
// its number; 0 if the caller does not know.
func (s *Service) detach(ctx context.Context, id string, disk uint64) error {
	err := s.timed(phaseDetach, func() error {
		return whileUnavailable(ctx, func(ctx context.Context) error {
			if disk == 0 {
				device, err := s.o.Devices.Get(ctx, id)
				if driver.Code(err) == codes.NotFound {
					return nil
				}
				if err != nil {
					return err
				}
				disk = unix.Mkdev(device.Major, device.Minor)
			}
			if at, err := s.published.anywhere(disk); err != nil || at != "" {
				return publishedError(at, err)
			}
			if err := unused(ctx, disk); err != nil {
				return err
			}
			return s.o.Devices.Detach(ctx, id)
		})
	})
	if err != nil {
		return fmt.Errorf("detach: %w", err)
	}
	return nil
}

// publishedError refuses to give up a device that a pod still has. The kernel refuses
// that of a mounted file system by itself; but a raw one's node, which nobody need have
// open, would be that of whatever volume gets the number next.
func publishedError(target string, err error) error {
	if err != nil {
		return err
	}
	return status.Errorf(codes.FailedPrecondition, "the volume is still published at %s: unpublish it first", target)
}

// unmountSettles is how long the kernel may take, after unmount, to let go of the
// device: its last reference falls in the background.
const unmountSettles = 2 * time.Second

// unused waits until nothing holds the device exclusively. A file system that is
// mounted in some other namespace, or was unmounted lazily, would lose its disk.
func unused(ctx context.Context, disk uint64) error {
	path, err := blockdev.Path(disk)
	if err != nil {
		return nil // no such disk: nothing can hold it
	}
	for deadline := time.Now().Add(unmountSettles); ; {
		err := blockdev.CheckUnused(path)
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
