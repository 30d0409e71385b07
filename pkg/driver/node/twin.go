package node

import (
	"context"
	"errors"
	"io/fs"

	"github.com/csi-ublk/csi-ublk/pkg/driver/mount"
	"github.com/csi-ublk/csi-ublk/pkg/pool"
	"github.com/csi-ublk/csi-ublk/pkg/pool/blockdev"
	"github.com/csi-ublk/csi-ublk/pkg/server/client"
)

// separate gives the file system of a volume that is a copy its own UUID, once, before
// it is first mounted: with its source's it could not be mounted beside it. It returns
// the volume's device, which may be another one then. It does nothing for other volumes.
func (s *Service) separate(ctx context.Context, id string, device client.Device, a access, o deviceOptions) (client.Device, error) {
	p, err := s.openPool(o.pool)
	if err != nil {
		return device, err
	}
	twin, err := p.Twin(id)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !twin {
		return device, nil
	}
	if err != nil {
		return device, err
	}
	// A source that was never written is formatted later, as any blank device.
	blank, err := s.o.Formats.NeedsFormat(ctx, id, device.Path, a.fsType)
	if err != nil {
		return device, err
	}
	if blank {
		return device, p.NotTwin(id)
	}
	err = s.timed(phaseUUID, func() error { return s.renewUUID(ctx, p, id, device, a.fsType) })
	if err != nil {
		return device, err
	}
	if device, err = s.attach(ctx, id, a, o); err != nil {
		return device, err
	}
	return device, blockdev.Verify(device.Path, device.Major, device.Minor)
}

// renewUUID has programs change a clone of the volume's file, which then takes the file's
// place: a program that is cut short, as by a kill of this process, leaves a file system
// that nobody can mount. Only the kernel replays a log, so the device is there for that,
// and gone when its file is replaced.
func (s *Service) renewUUID(ctx context.Context, p *pool.Pool, id string, device client.Device, fsType string) error {
	if err := s.o.Formats.Replay(ctx, p.Name(), device.Path, fsType); err != nil {
		return err
	}
	if err := s.detach(ctx, id, 0); err != nil {
		return err
	}
	return p.Rewrite(id, func(path string) error { return mount.RenewUUID(ctx, path, fsType) })
}
