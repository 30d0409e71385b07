package node

import (
	"errors"

	"github.com/csi-ublk/csi-ublk/pkg/driver/mount"
	"github.com/csi-ublk/csi-ublk/pkg/server/client"
)

// fillDevice makes a file system that is mounted and smaller than its device as large
// as that: the volume was restored larger than its source, or has grown while it was
// not staged. One that is mounted read-only stays as it is.
func (s *Service) fillDevice(device client.Device, path string, a access) error {
	if a.readOnly {
		return nil
	}
	return s.timed(phaseGrow, func() error { return mount.Grow(device.Path, path) })
}

// fillStaged is fillDevice for a volume that is mounted at its staging path. If the call
// has mounted it, an error takes the mount away again: nobody may see the file system
// before it has its size.
func (s *Service) fillStaged(device client.Device, staging string, a access, mounts bool) error {
	err := s.fillDevice(device, staging, a)
	if err != nil && mounts {
		err = errors.Join(err, mount.Unmount(staging))
	}
	return err
}
